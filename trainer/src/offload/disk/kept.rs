//! Files that stay when a run ends: the state that it streamed through them is the checkpoint that
//! another goes on from, in place if it has as many ranks, or else from the ranges that it needs.

use super::{LIMIT, Unit, name_of};
use crate::checkpoint::{Header, strange};
use crate::error::Error;
use crate::layout::Layout;
use crate::offload::{arena, is_same_folder};
use crate::state::{Array, State};
use brigade_offload::layout::{Directory, Dtype, Tensor};
use brigade_offload::storage::{Settings, Storage};
use brigade_offload::store::{Carrier, Checkpoint, StateFile, StoreError, Which, rank_paths};
use std::path::{Path, PathBuf};

/// Memory that opening files and reading ranges of them take. \[bytes\]
const ARENA_BYTES: usize = 16 << 20;

/// What the ranks of a run have left in a folder.
pub(crate) struct Kept {
    checkpoint: Checkpoint,
    /// What it says of itself.
    pub(crate) header: Header,
    paths: Vec<PathBuf>,
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

    /// The same of these files, whatever else there is in the folder by now.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Kept, Error> {
        let ranks: Vec<_> = paths.iter().map(|path| vec![path.clone()]).collect();
        let checkpoint = Checkpoint::open(&carrier()?, &ranks).map_err(Error::offload)?;
        Kept::at(checkpoint, paths.to_vec())
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
        Ok(Kept { checkpoint, header, paths })
    }

    /// The files of all ranks.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Whether this is where a rank of a run keeps its own.
    pub(super) fn is_of(&self, path: &Path) -> bool {
        self.paths.iter().any(|kept| {
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
            let problem = "another run has written to it meanwhile: resume from it again";
            return Err(Error::checkpoint(path, problem));
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
                        return Err(Error::checkpoint(&self.paths[0], problem));
                    }
                }
            }
        }
        Ok(state)
    }
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
        let newest = Kept::find(&folder).unwrap().header.step;
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(refused.to_string().contains("another run has written to it"), "{refused}");
        assert_eq!(newest, 2);
    }
}
