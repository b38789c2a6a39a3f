//! Files that stay when a run ends: the state that it streamed through them is the checkpoint that
//! another goes on from, in place if it has as many ranks, or else from the ranges that it needs.

use super::{LIMIT, Unit, name_of};
use crate::checkpoint::{Header, strange};
use crate::error::Error;
use crate::layout::Layout;
use crate::offload::{arena, is_same_folder};
use crate::state::{Array, State};
use brigade_offload::layout::{Directory, Dtype, Tensor};
use brigade_offload::storage::{File, Settings, Storage, StorageError};
use brigade_offload::store::{Carrier, Checkpoint, StateFile, StoreError, Which, rank_paths};
use std::cmp::Reverse;
use std::path::{Path, PathBuf};

/// Memory that opening files and reading ranges of them take. \[bytes\]
const ARENA_BYTES: usize = 16 << 20;

/// Files of all ranks of a run to go on from, and which of their generations that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    paths: Vec<PathBuf>,
    /// Number and label.
    generation: [u64; 2],
}

impl Origin {
    /// How many ranks have left it, and number and label of its generation: by these, ranks know
    /// whether they go on from the same.
    pub(crate) fn mark(&self) -> [u64; 3] {
        let [number, label] = self.generation;
        [self.ranks() as u64, number, label]
    }

    /// How many ranks have left it.
    pub(crate) fn ranks(&self) -> usize {
        self.paths.len()
    }

    /// The file of the first of them.
    pub(crate) fn first(&self) -> &Path {
        &self.paths[0]
    }
}

/// What the ranks of a run have left in a folder.
pub(crate) struct Kept {
    checkpoint: Checkpoint,
    /// What it says of itself.
    pub(crate) header: Header,
    origin: Origin,
}

impl Kept {
    /// Open the newest generation that all ranks have.
    ///
    /// Errors: `Offload` if there is none, `Checkpoint` if it is no run's.
    pub(crate) fn find(folder: &Path) -> Result<Kept, Error> {
        let checkpoint = Checkpoint::find(&carrier()?, &[folder]).map_err(Error::offload)?;
        Kept::of(checkpoint, folder)
    }

    /// The same, or none where no run has kept anything.
    ///
    /// Errors: what is there cannot be read, or is no run's.
    pub(crate) fn look(folder: &Path) -> Result<Option<Kept>, Error> {
        match Checkpoint::find(&carrier()?, &[folder]) {
            Err(StoreError::Nothing { .. }) => Ok(None),
            Ok(checkpoint) if note(&checkpoint).is_empty() => Ok(None),
            found => Kept::of(found.map_err(Error::offload)?, folder).map(Some),
        }
    }

    /// The same that was found before, whatever else there is in the folder by now.
    ///
    /// Errors: `Checkpoint` if another run has kept something there since; those of `find`.
    pub(crate) fn open(origin: &Origin) -> Result<Kept, Error> {
        let ranks: Vec<_> = origin.paths.iter().map(|path| vec![path.clone()]).collect();
        let checkpoint = Checkpoint::open(&carrier()?, &ranks).map_err(Error::offload)?;
        let kept = Kept::at(checkpoint, origin.paths.clone())?;
        match kept.origin == *origin {
            true => Ok(kept),
            false => Err(overtaken(origin.first())),
        }
    }

    fn of(checkpoint: Checkpoint, folder: &Path) -> Result<Kept, Error> {
        let ranks = checkpoint.ranks();
        let paths = (0..ranks).flat_map(|rank| rank_paths(&[folder], rank, ranks)).collect();
        Kept::at(checkpoint, paths)
    }

    fn at(checkpoint: Checkpoint, paths: Vec<PathBuf>) -> Result<Kept, Error> {
        let note = note(&checkpoint);
        if note.is_empty() {
            let problem = "its run ended before it had kept anything";
            return Err(Error::checkpoint(&paths[0], problem));
        }
        let header = Header::parse(&String::from_utf8_lossy(note), &paths[0])?;
        let newest = checkpoint.state(0).generation().expect("one with a note");
        let generation = [newest.number, newest.label];
        Ok(Kept { checkpoint, header, origin: Origin { paths, generation } })
    }

    /// Where this was found.
    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Let nobody else write to any of the files until they go. Those with the newest generations
    /// come first: without them what is left is never newer than what all had.
    ///
    /// Errors: `Offload` if somebody does.
    pub(crate) fn own(&self) -> Result<Vec<File>, Error> {
        let newest = |rank: &usize| self.checkpoint.state(*rank).found().first().copied();
        let mut ranks: Vec<_> = (0..self.checkpoint.ranks()).collect();
        ranks.sort_by_key(|rank| Reverse(newest(rank)));
        let arena = arena(None, ARENA_BYTES)?;
        let storage = Storage::new(&arena, Settings::default()).map_err(Error::offload)?;
        let own = |rank: usize| {
            let file = storage.open(&self.origin.paths[rank])?;
            storage.own(&file).map(|()| file)
        };
        ranks.into_iter().map(own).collect::<Result<_, _>>().map_err(Error::offload)
    }

    /// Whether this is where a rank of a run keeps its own.
    pub(super) fn is_of(&self, path: &Path) -> bool {
        self.origin.paths.iter().any(|kept| {
            let folders = kept.parent().zip(path.parent());
            kept.file_name() == path.file_name()
                && folders.is_some_and(|(one, other)| is_same_folder(one, other))
        })
    }

    /// A rank's own file, to go on with.
    ///
    /// Errors: `Setting` if it is cut otherwise than this run would; `Checkpoint` if another run
    /// has written to it since it was found: what that one has kept must not be forgotten here.
    pub(super) fn reopen(
        &self,
        carrier: &Carrier,
        (rank, path): (usize, &Path),
        directory: &Directory,
        block: u64,
    ) -> Result<StateFile, Error> {
        let before = self.checkpoint.state(rank);
        let number = before.generation().expect("a checkpoint has a generation").number;
        let state = StateFile::open(carrier, &[path], Which::Number(number));
        let state = state.map_err(Error::offload)?;
        if state.found() != before.found() {
            return Err(overtaken(path));
        }
        if state.directory() != directory || state.geometry().block_bytes() != block {
            let problem = format!(
                "{} was cut otherwise: --host-budget as before, or --offload to another folder",
                path.display()
            );
            return Err(Error::setting("resume", problem));
        }
        Ok(state)
    }

    /// A part of a unit's numbers, out of whatever parts of them ranks have.
    pub(super) fn fill(
        &self,
        array: Array,
        unit: &Unit<'_>,
        from: usize,
        target: &mut [f32],
    ) -> Result<(), StoreError> {
        let (name, whole) = (name_of(array, unit.number), [unit.whole as u64]);
        let first = (unit.first + from) as u64;
        let want = Tensor::flat(name, Dtype::F32, &whole, first, target.len() as u64);
        self.checkpoint.load(&want, bytemuck::cast_slice_mut(target))
    }

    /// All of it, for a run that keeps its state elsewhere.
    ///
    /// Errors: `Offload` for what cannot be read, `Checkpoint` for numbers that no run comes to.
    pub(crate) fn state(&self, layout: &Layout) -> Result<State, Error> {
        let mut state = State::room(layout);
        (state.steps, state.scale) = (self.header.step, self.header.loss_scale);
        let there = self.checkpoint.tensors();
        let State { params, mean, square, .. } = &mut state;
        for (array, values) in
            [(Array::Params, params), (Array::Mean, mean), (Array::Square, square)]
        {
            for number in 0..layout.units() {
                if there.contains_key(&name_of(array, number)[..]) {
                    let values = &mut values[layout.unit(number)];
                    let whole = values.len();
                    let unit = Unit { number, whole, first: 0, params: &[], moments: None };
                    self.fill(array, &unit, 0, values).map_err(Error::offload)?;
                    if let Some(strange) = strange(array, values) {
                        let problem =
                            format!("damaged: {} has {strange:?}", name_of(array, number));
                        return Err(Error::checkpoint(self.origin.first(), problem));
                    }
                }
            }
        }
        Ok(state)
    }
}

/// Refuse a folder of files while a process that lives writes to one of them. Nothing is owned here
/// for that, so that ranks may look at the same time.
///
/// Errors: `Offload`, which names the file and its writer.
pub(crate) fn refuse_writers(folder: &Path) -> Result<(), Error> {
    let arena = arena(None, ARENA_BYTES)?;
    let storage = Storage::new(&arena, Settings::default()).map_err(Error::offload)?;
    let entries = std::fs::read_dir(folder).map_err(Error::file("read", folder))?;
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().map(|name| name.to_string_lossy());
        if !name.is_some_and(|name| name.starts_with("rank-") && name.ends_with(".brigade")) {
            continue;
        }
        // What cannot be opened is told of by who reads it.
        let Ok(file) = storage.open(&path) else { continue };
        let lives = |owner: &u32| Path::new(&format!("/proc/{owner}")).exists();
        if let Some(owner) = storage.owner(&file).filter(lives) {
            let owned = StorageError::Owned { path: path.into(), owner: Some(owner) };
            return Err(Error::offload(owned));
        }
    }
    Ok(())
}

/// What was found is not there any more: nobody may go on from what is, without a look at it.
pub(crate) fn overtaken(path: &Path) -> Error {
    Error::checkpoint(path, "another run has written to it meanwhile: resume from it again")
}

/// A file that is to stay once it is a checkpoint, and goes with its run if that never comes to it:
/// where another rank fails at the start, nobody can use it.
pub(super) struct Unfinished(Option<PathBuf>);

impl Unfinished {
    pub(super) fn new(path: Option<PathBuf>) -> Unfinished {
        Unfinished(path)
    }

    pub(super) fn stays(&mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // What cannot be removed is written over by the next run.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What its run has written beside it, once it has kept something.
fn note(checkpoint: &Checkpoint) -> &[u8] {
    checkpoint.state(0).generation().map_or(&[], |newest| &newest.note)
}

fn carrier() -> Result<Carrier, Error> {
    let arena = arena(None, ARENA_BYTES)?;
    let storage = Storage::new(&arena, Settings::default()).map_err(Error::offload)?;
    Ok(Carrier::new(&storage, &arena).wait_limit(LIMIT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Course;
    use crate::layout::Config;

    #[test]
    fn what_another_run_has_kept_since_is_not_forgotten() {
        let folder = std::env::temp_dir().join(format!("brigade-kept-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (carrier, path) = (carrier().unwrap(), rank_paths(&[&folder], 0, 1).remove(0));
        let config =
            Config { vocab: 7, context: 5, layers: 1, heads: 2, width: 4, experts: 0, top: 0 };
        let header = |step| Header { step, config, course: Course::new(), loss_scale: None }.text();
        let tensor = Tensor::whole("params/0", Dtype::F32, &[1000]);
        let directory = Directory::pack([tensor], 4096).unwrap();
        let mut other = StateFile::create(&carrier, &[&path], directory.clone(), 4096).unwrap();
        let mut keep = |step: u64| {
            let fill = |_: &_, _, target: &mut [u8]| {
                target.fill(step as u8);
                Ok(())
            };
            other.save(step, header(step as usize).as_bytes(), fill).map(|_| ()).unwrap();
        };
        keep(1);
        let kept = Kept::find(&folder).unwrap();
        kept.reopen(&carrier, (0, &path), &directory, 4096).unwrap();
        keep(2);
        let refused = kept.reopen(&carrier, (0, &path), &directory, 4096).unwrap_err();
        let unseen = Kept::open(kept.origin()).map(|_| ()).unwrap_err();
        let newest = Kept::find(&folder).unwrap();
        Kept::open(newest.origin()).unwrap();
        let owned = newest.own().map(|_| ()).unwrap_err();
        drop(other);
        let ours = newest.own().unwrap();
        let theirs = StateFile::open(&carrier, &[&path], Which::Newest).unwrap().begin();
        drop(ours);
        StateFile::open(&carrier, &[&path], Which::Newest).unwrap().begin().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        for refused in [refused, unseen] {
            assert!(refused.to_string().contains("another run has written to it"), "{refused}");
        }
        for refused in [owned.to_string(), theirs.unwrap_err().to_string()] {
            assert!(refused.contains("is being written by this process"), "{refused}");
        }
        assert_eq!(newest.header.step, 2);
    }
}
