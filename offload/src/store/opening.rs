//! What is read when a state is opened: superblocks first, then the index of a whole generation.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;

use super::carrier::{Carrier, damaged};
use super::error::StoreError;
use crate::layout::{
    ALIGNMENT, Blueprint, Candidate, Fault, Generation, Geometry, Place, Placed, Recovered,
    SLOT_BYTES, Side, Step, Superblock, Unrecoverable, Wrong, recover,
};
use crate::storage::File;

/// Which generation to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The newest that is whole on all stripes.
    Newest,
    /// The one with this number; anything newer is forgotten with the next write.
    Number(u64),
}

pub(super) type Slots = [Result<Superblock, Fault>; 2];

/// How often something is read before it is believed to be damaged: falling back to an older
/// generation because of one misread bit would be a pity.
const READS: usize = 3;

/// What the two slots of each stripe say.
pub(super) fn slots(carrier: &Carrier, files: &[File]) -> Result<Vec<Slots>, StoreError> {
    let slot = |file, slot| -> Result<_, StoreError> {
        let read = || carrier.read_all(file, Geometry::slot_offset(slot), SLOT_BYTES);
        let mut parsed = Superblock::parse(&read()?, slot);
        for _ in 1..READS {
            if parsed.is_ok() || parsed == Err(empty(slot)) {
                break;
            }
            parsed = Superblock::parse(&read()?, slot);
        }
        Ok(parsed)
    };
    files.iter().map(|file| Ok([slot(file, 0)?, slot(file, 1)?])).collect()
}

/// The index of a generation, from all stripes.
pub(super) fn load(
    carrier: &Carrier,
    files: &[File],
    candidate: &Candidate,
) -> Result<(Arc<Blueprint>, Generation), StoreError> {
    let geometry = candidate.geometry();
    for (stripe, file) in (0..).zip(files) {
        let (wanted_bytes, found_bytes) = (geometry.file_bytes(stripe), file.bytes());
        if found_bytes < wanted_bytes {
            let path = file.path().into();
            return Err(StoreError::Length { path, wanted_bytes, found_bytes });
        }
    }
    let at = geometry.index_offset(candidate.number());
    let read = |(stripe, file)| carrier.read_all(file, at, geometry.index_bytes(stripe));
    let mut reads = 0;
    loop {
        let indices = (0..).zip(files).map(read).collect::<Result<Vec<_>, _>>()?;
        reads += 1;
        match Generation::parse(candidate, &indices) {
            Ok(loaded) => return Ok(loaded),
            Err((stripe, fault)) if reads == READS => {
                return Err(damaged(&files[stripe as usize], fault));
            }
            Err(_) => {}
        }
    }
}

/// Make devices what new files are, as far as it counts. No old superblock is there, by these
/// steps, and behind the end of each tensor its last block is zero, on both sides: parts of tensors
/// are written up to their end, and blocks are summed whole.
pub(super) fn take_devices(
    carrier: &Carrier,
    files: &[File],
    blueprint: &Blueprint,
    erase: &[Step],
) -> Result<(), StoreError> {
    if let Some(file) = files.iter().find(|file| file.opened.namespace().is_some()) {
        let what = "commands to a drive move whole blocks: name its block device (/dev/nvme..)";
        return Err(StoreError::Foreign { path: file.path().into(), what: what.into() });
    }
    carrier.run(files, erase)?;
    let geometry = &blueprint.geometry;
    let block_bytes = geometry.block_bytes();
    let ends = blueprint.directory.tensors().iter().map(Placed::end);
    for end in ends.filter(|end| !end.is_multiple_of(block_bytes)) {
        for side in [Side::Even, Side::Odd] {
            let Place { stripe, offset } = geometry.place(end / block_bytes, side);
            // Whole pages; the tensor's own bytes come later.
            let kept = end % block_bytes / ALIGNMENT * ALIGNMENT;
            let bytes = vec![0; (block_bytes - kept) as usize];
            carrier.run(files, &[Step::Write { stripe, offset: offset + kept, bytes }])?;
        }
    }
    let syncs: Vec<Step> = (0..files.len() as u32).map(|stripe| Step::Sync { stripe }).collect();
    carrier.run(files, &syncs)
}

/// Own the files of a state in which these generations were seen.
///
/// Errors: somebody else does; or did, and has written there since.
pub(super) fn take_over(
    carrier: &Carrier,
    files: &[File],
    seen: &[Candidate],
) -> Result<(), StoreError> {
    let taken = take(carrier, files, seen);
    if taken.is_err() {
        // Who cannot write there keeps nobody from it.
        files.iter().for_each(|file| carrier.storage.disown(file));
    }
    taken
}

fn take(carrier: &Carrier, files: &[File], seen: &[Candidate]) -> Result<(), StoreError> {
    for file in files {
        carrier.storage.own(file)?;
    }
    match recover(&slots(carrier, files)?) {
        Err(why) => Err(StoreError::Unrecoverable { paths: paths_of(files), why }),
        now if is_same(seen, &now) => Ok(()),
        now => Err(overtaken(files, seen, &now)),
    }
}

/// Whether superblocks tell of the generations that were seen before: another one may have the
/// same number.
pub(super) fn is_same(seen: &[Candidate], now: &Result<Recovered, Unrecoverable>) -> bool {
    now.as_ref().is_ok_and(|now| now.candidates == seen)
}

/// Somebody else has written to a state in which these generations were seen.
pub(super) fn overtaken(
    files: &[File],
    seen: &[Candidate],
    now: &Result<Recovered, Unrecoverable>,
) -> StoreError {
    let found = now.as_ref().map_or(&[][..], |now| &now.candidates);
    let [seen, found] = [seen, found].map(numbers);
    StoreError::Overtaken { paths: paths_of(files), seen, found }
}

pub(super) fn paths_of(files: &[File]) -> Vec<PathBuf> {
    files.iter().map(|file| file.path().to_path_buf()).collect()
}

fn numbers(candidates: &[Candidate]) -> Vec<u64> {
    candidates.iter().map(Candidate::number).collect()
}

/// What an empty slot is parsed as.
fn empty(slot: usize) -> Fault {
    Fault { offset: Geometry::slot_offset(slot), wrong: Wrong::Empty }
}

/// Why no generation was opened: the fault of the newest, if one was wanted and it is damaged.
pub(super) fn nothing(
    which: Which,
    paths: Vec<PathBuf>,
    recovered: &Recovered,
    mut faults: Vec<StoreError>,
) -> StoreError {
    let found = numbers(&recovered.candidates);
    match which {
        Which::Number(number) if !found.contains(&number) => {
            StoreError::NoGeneration { paths, wanted: format!("generation {number}"), found }
        }
        _ => faults.pop().expect("a candidate was opened or had a fault"),
    }
}

/// A number that no other state has, out of the keys that the standard library draws for its maps.
pub(super) fn random_id() -> u128 {
    let draw = || RandomState::new().hash_one(std::process::id());
    u128::from(draw()) << 64 | u128::from(draw())
}
