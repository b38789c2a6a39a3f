//! What was written and synced, in order, and what a loss of power leaves of it. Pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The unit in which a device writes all or nothing.
const SECTOR: usize = 4096;

/// The files of a device.
pub(super) type Files = BTreeMap<PathBuf, Vec<u8>>;

/// What becomes of bytes that were written and not synced when power fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsynced {
    /// All that was written up to that moment is there.
    Kept,
    /// Nothing of it is there.
    Lost,
    /// Each sector of 4 KiB is there or not by the toss of a coin, those of writes under way too.
    Tossed(u64),
}

/// Everything that happened since a moment at which everything was safe.
#[derive(Debug, Clone)]
pub(super) struct Record {
    before: Files,
    events: Vec<Event>,
}

#[derive(Debug, Clone)]
enum Event {
    /// A file was made, empty, of this length. Survives from here on.
    Created { path: PathBuf, bytes: u64 },
    /// A file was made longer. Survives from here on.
    Extended { path: PathBuf, bytes: u64 },
    /// A file was removed. Survives from here on.
    Removed { path: PathBuf },
    /// Bytes arrived. Under way since the event of number `since`.
    Written { path: PathBuf, offset: u64, data: Vec<u8>, since: usize },
    /// All that arrived in the file before the event of number `since` is safe.
    Synced { path: PathBuf, since: usize },
}

impl Record {
    pub(super) fn new(before: Files) -> Self {
        Self { before, events: Vec::new() }
    }

    /// The number that the next event will have.
    pub(super) fn next_event(&self) -> usize {
        self.events.len()
    }

    pub(super) fn created(&mut self, path: &Path, bytes: u64) {
        self.events.push(Event::Created { path: path.into(), bytes });
    }

    pub(super) fn extended(&mut self, path: &Path, bytes: u64) {
        self.events.push(Event::Extended { path: path.into(), bytes });
    }

    pub(super) fn removed(&mut self, path: &Path) {
        self.events.push(Event::Removed { path: path.into() });
    }

    pub(super) fn written(&mut self, path: &Path, offset: u64, data: &[u8], since: usize) {
        let (path, data) = (path.into(), data.to_vec());
        self.events.push(Event::Written { path, offset, data, since });
    }

    pub(super) fn synced(&mut self, path: &Path, since: usize) {
        self.events.push(Event::Synced { path: path.into(), since });
    }

    pub(super) fn cuts(&self) -> usize {
        self.events.iter().map(Event::moments).sum()
    }

    /// What is found after power failed at moment `at`.
    pub(super) fn after_cut(&self, at: usize, unsynced: Unsynced) -> Files {
        assert!(at <= self.cuts(), "there are {} moments, not {at}", self.cuts());
        let mut random = match unsynced {
            Unsynced::Tossed(seed) => Some(fastrand::Rng::with_seed(seed)),
            Unsynced::Kept | Unsynced::Lost => None,
        };
        let mut files = self.before.clone();
        // The event that power fails in, and how many moments of it had passed.
        let (mut last, mut left) = (0, at);
        while let Some(event) = self.events.get(last).filter(|event| event.moments() <= left) {
            left -= event.moments();
            last += 1;
        }
        for (number, event) in self.events.iter().enumerate() {
            let is_past = number < last;
            match event {
                Event::Created { path, bytes } if is_past => {
                    files.insert(path.clone(), vec![0; *bytes as usize]);
                }
                Event::Extended { path, bytes } if is_past => {
                    if let Some(file) = files.get_mut(path) {
                        file.resize(*bytes as usize, 0);
                    }
                }
                Event::Removed { path } if is_past => drop(files.remove(path)),
                Event::Written { path, offset, data, since } => {
                    let is_safe = is_past && self.is_safe(path, number, last);
                    for (sector, (offset, part)) in sectors(*offset, data).enumerate() {
                        let has_arrived = is_past || number == last && sector < left;
                        let is_under_way = *since <= last;
                        let is_there = match (&mut random, unsynced) {
                            _ if is_safe => true,
                            (Some(random), _) => {
                                let toss = random.bool();
                                toss && (has_arrived || is_under_way)
                            }
                            (None, Unsynced::Kept) => has_arrived,
                            (None, _) => false,
                        };
                        if is_there {
                            put(&mut files, path, offset, part);
                        }
                    }
                }
                _ => {}
            }
        }
        files
    }

    /// Whether a sync that ended before event `last` covers the write of number `written`.
    fn is_safe(&self, file: &Path, written: usize, last: usize) -> bool {
        self.events[written..last].iter().any(|event| match event {
            Event::Synced { path, since } => path == file && written < *since,
            _ => false,
        })
    }
}

impl Event {
    /// Moments at which power can fail before this has wholly happened.
    fn moments(&self) -> usize {
        match self {
            Event::Written { offset, data, .. } => sectors(*offset, data).count(),
            _ => 1,
        }
    }
}

/// Bytes at an offset, cut where the device's sectors end.
fn sectors(offset: u64, data: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let offset = offset + at as u64;
        let bytes = (SECTOR - (offset % SECTOR as u64) as usize).min(data.len() - at);
        let part = &data[at..at + bytes];
        at += bytes;
        (bytes > 0).then_some((offset, part))
    })
}

fn put(files: &mut Files, path: &Path, offset: u64, part: &[u8]) {
    let Some(file) = files.get_mut(path) else { return };
    let end = offset as usize + part.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset as usize..end].copy_from_slice(part);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_writes_around_a_sync() -> Record {
        let path = Path::new("a");
        let mut record = Record::new(Files::from([(path.into(), vec![0; 4 * SECTOR])]));
        record.written(path, 0, &[1; 2 * SECTOR], 0);
        record.synced(path, 1);
        record.written(path, SECTOR as u64, &[2; 2 * SECTOR], 2);
        record
    }

    fn firsts(files: &Files) -> Vec<u8> {
        files[Path::new("a")].chunks(SECTOR).map(|sector| sector[0]).collect()
    }

    #[test]
    fn a_cut_leaves_what_was_synced_and_what_one_says_of_the_rest() {
        let record = two_writes_around_a_sync();
        assert_eq!(record.cuts(), 5);
        let after = |at, unsynced| firsts(&record.after_cut(at, unsynced));
        assert_eq!(after(0, Unsynced::Kept), [0, 0, 0, 0]);
        assert_eq!(after(1, Unsynced::Kept), [1, 0, 0, 0]);
        assert_eq!(after(2, Unsynced::Kept), [1, 1, 0, 0]);
        assert_eq!(after(2, Unsynced::Lost), [0, 0, 0, 0]);
        assert_eq!(after(3, Unsynced::Lost), [1, 1, 0, 0]);
        assert_eq!(after(4, Unsynced::Kept), [1, 2, 0, 0]);
        assert_eq!(after(5, Unsynced::Kept), [1, 2, 2, 0]);
        assert_eq!(after(5, Unsynced::Lost), [1, 1, 0, 0]);
    }

    #[test]
    fn tossed_sectors_take_every_shape_and_synced_ones_stay() {
        let record = two_writes_around_a_sync();
        let shapes: std::collections::BTreeSet<Vec<u8>> =
            (0..64).map(|seed| firsts(&record.after_cut(5, Unsynced::Tossed(seed)))).collect();
        let want = [[1, 1, 0, 0], [1, 1, 2, 0], [1, 2, 0, 0], [1, 2, 2, 0]].map(Vec::from);
        assert_eq!(shapes, want.into());
    }
}
