//! The states of all ranks of a job, read at any number of ranks.
//!
//! Every rank commits its own state when it pleases; nobody waits for anybody. Broken off in
//! between, some ranks are one generation ahead, but they still have the one before, so the newest
//! generation that *all* have is whole. It is found by looking, not by agreement.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::carrier::Carrier;
use super::error::StoreError;
use super::gather::gather;
use super::state::{StateFile, Which};
use crate::layout::{Dtype, Held, Placed, Tensor, pieces};

/// What a file of a checkpoint is called: `rank-00003-of-00008.brigade`.
const ENDING: &str = ".brigade";

/// Ranks of a job; more is a name that somebody made up.
const RANKS_MAX: usize = 1 << 20;

/// The files of one rank: in each folder a stripe.
pub fn rank_paths(folders: &[impl AsRef<Path>], rank: usize, ranks: usize) -> Vec<PathBuf> {
    let name = format!("rank-{rank:05}-of-{ranks:05}{ENDING}");
    folders.iter().map(|folder| folder.as_ref().join(&name)).collect()
}

/// One generation of the states of all ranks.
#[derive(Debug)]
pub struct Checkpoint {
    states: Vec<StateFile>,
}

impl Checkpoint {
    /// Open what all ranks have. `ranks`: for each rank that wrote it, the files of its state.
    pub fn open(carrier: &Carrier, ranks: &[Vec<PathBuf>]) -> Result<Self, StoreError> {
        Ok(Self { states: open_common(carrier, ranks)? })
    }

    /// Open the checkpoint in these folders, which [`rank_paths`] has named the files of. Where
    /// there are several, of different numbers of ranks, the one with the highest label.
    pub fn find(carrier: &Carrier, folders: &[impl AsRef<Path>]) -> Result<Self, StoreError> {
        let Some(folder) = folders.first().map(AsRef::as_ref) else {
            let (folder, what) = (PathBuf::new(), String::from("no folder to look in"));
            return Err(StoreError::Incomplete { folder, what });
        };
        let mut best: Option<Self> = None;
        for ranks in complete(folder)? {
            let paths: Vec<_> = (0..ranks).map(|rank| rank_paths(folders, rank, ranks)).collect();
            let found = Self::open(carrier, &paths)?;
            if best.as_ref().is_none_or(|best| best.label() < found.label()) {
                best = Some(found);
            }
        }
        best.ok_or_else(|| {
            let what = String::from("no file of a checkpoint");
            StoreError::Incomplete { folder: folder.into(), what }
        })
    }

    /// How many ranks wrote it.
    pub fn ranks(&self) -> usize {
        self.states.len()
    }

    /// The state that this rank wrote.
    pub fn state(&self, rank: usize) -> &StateFile {
        &self.states[rank]
    }

    /// The label that its writers gave it, such as the training step.
    pub fn label(&self) -> u64 {
        self.states[0].generation().map_or(0, |generation| generation.label)
    }

    /// All tensors: name, type and whole shape.
    pub fn tensors<'a>(&'a self) -> BTreeMap<&'a str, (Dtype, &'a [u64])> {
        let placed = self.states.iter().flat_map(|state| state.directory().tensors());
        let describe = |Placed { tensor, .. }: &'a Placed| {
            (tensor.name.as_str(), (tensor.dtype, tensor.shape.as_slice()))
        };
        placed.map(describe).collect()
    }

    /// Read a part of a tensor, out of whatever parts of it the ranks hold.
    ///
    /// Errors: nobody holds some of it, or damage. Panics: when `target` has not the part's size.
    pub fn load(&self, want: &Tensor, target: &mut [u8]) -> Result<(), StoreError> {
        want.check().map_err(crate::layout::Unplaceable::from)?;
        assert_eq!(want.bytes(), target.len() as u64, "the size of {want:?}");
        let states: Vec<&StateFile> = self.states.iter().collect();
        let held: Vec<Held> = states
            .iter()
            .enumerate()
            .flat_map(|(source, state)| {
                state.directory().named(&want.name).map(move |placed| Held { source, placed })
            })
            .collect();
        if held.is_empty() {
            return Err(StoreError::NoTensor { name: want.name.clone() });
        }
        gather(&states, &pieces(want, &held)?, target)
    }
}

/// Open all of these states at the newest generation that every one of them has.
pub(super) fn open_common(
    carrier: &Carrier,
    ranks: &[Vec<PathBuf>],
) -> Result<Vec<StateFile>, StoreError> {
    let open = |paths: &Vec<PathBuf>| StateFile::open(carrier, paths, Which::Newest);
    let mut states = ranks.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let Some(first) = states.first() else {
        let (folder, what) = (PathBuf::new(), String::from("a checkpoint of no ranks"));
        return Err(StoreError::Incomplete { folder, what });
    };
    let common = first
        .found()
        .iter()
        .copied()
        .find(|generation| states.iter().all(|state| state.found().contains(generation)));
    let Some((number, label)) = common else {
        let paths = ranks.iter().flatten().cloned().collect();
        let wanted = String::from("a generation that every rank has");
        let found = states.iter().flat_map(|state| state.found()).map(|(number, _)| *number);
        return Err(StoreError::NoGeneration { paths, wanted, found: found.collect() });
    };
    for (state, paths) in states.iter_mut().zip(ranks) {
        let is_there = state.generation().is_some_and(|newest| newest.number == number);
        if !is_there {
            *state = StateFile::open(carrier, paths, Which::Number(number))?;
        }
        debug_assert_eq!(state.generation().map(|newest| newest.label), Some(label));
    }
    Ok(states)
}

/// The numbers of ranks of which all files are in the folder.
fn complete(folder: &Path) -> Result<Vec<usize>, StoreError> {
    let foreign =
        |e: std::io::Error| StoreError::Foreign { path: folder.to_path_buf(), what: e.to_string() };
    let mut found: BTreeMap<usize, usize> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(foreign)? {
        let name = entry.map_err(foreign)?.file_name();
        let Some((rank, ranks)) = name.to_str().and_then(parse) else { continue };
        if rank < ranks && ranks <= RANKS_MAX {
            *found.entry(ranks).or_default() += 1;
        }
    }
    let missing = found.iter().find(|(ranks, files)| ranks != files);
    match missing {
        // An older, complete one beside it would be taken without a word: better to say so.
        Some((ranks, files)) => {
            let what = format!("{files} files of a checkpoint of {ranks} ranks");
            Err(StoreError::Incomplete { folder: folder.to_path_buf(), what })
        }
        None => Ok(found.into_keys().collect()),
    }
}

fn parse(name: &str) -> Option<(usize, usize)> {
    let (rank, ranks) = name.strip_prefix("rank-")?.strip_suffix(ENDING)?.split_once("-of-")?;
    Some((rank.parse().ok()?, ranks.parse().ok()?))
}
