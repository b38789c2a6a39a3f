//! The states of all ranks of a job, read at any number of ranks.
//!
//! Every rank commits its own state when it pleases; nobody waits for anybody. Broken off in
//! between, some ranks are one generation ahead, but they still have the one before, so the newest
//! generation that *all* have is whole. It is found by looking, not by agreement.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::carrier::Carrier;
use super::error::StoreError;
use super::gather::gather;
use super::opening::Which;
use super::state::StateFile;
use crate::layout::{Dtype, Held, Member, Placed, Tensor, Unrecoverable, pieces};
use crate::storage::StorageError;

/// What a file of a checkpoint is called: `rank-00003-of-00008.brigade`.
const ENDING: &str = ".brigade";

/// How often the states of ranks are opened that somebody commits to meanwhile.
const OPENINGS: usize = 8;

/// Ranks of a job; more is a name that somebody made up.
const RANKS_MAX: usize = 1 << 20;

/// The files of one rank: in each folder a stripe.
pub fn rank_paths(folders: &[impl AsRef<Path>], rank: usize, ranks: usize) -> Vec<PathBuf> {
    let name = file_name(rank, ranks);
    folders.iter().map(|folder| folder.as_ref().join(&name)).collect()
}

fn file_name(rank: usize, ranks: usize) -> String {
    format!("rank-{rank:05}-of-{ranks:05}{ENDING}")
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
    /// there are several, of different numbers of ranks, the one with the highest label. What a
    /// writer left that was killed at its start, or while it removed an older one, is passed over.
    ///
    /// Errors: `Nothing` if there is none; one that is not whole has something newer; what is there
    /// cannot be read.
    pub fn find(carrier: &Carrier, folders: &[impl AsRef<Path>]) -> Result<Self, StoreError> {
        let Some(folder) = folders.first().map(AsRef::as_ref) else {
            let (folder, what) = (PathBuf::new(), String::from("no folder to look in"));
            return Err(StoreError::Incomplete { folder, what });
        };
        let incomplete = |what| StoreError::Incomplete { folder: folder.into(), what };
        let mut best: Option<Self> = None;
        let mut broken = Vec::new();
        for (ranks, there) in sets(folder)? {
            let paths: Vec<_> =
                there.iter().map(|rank| rank_paths(folders, *rank, ranks)).collect();
            let is_whole = there.len() == ranks;
            let opened = match is_whole {
                true => Self::open(carrier, &paths),
                false => {
                    let files = there.len();
                    Err(incomplete(format!("{files} files of a checkpoint of {ranks} ranks")))
                }
            };
            match opened {
                Err(why) if !is_whole || is_empty(&why) => {
                    broken.push((newest(carrier, &paths)?, why));
                }
                opened => {
                    let found = opened?;
                    if best.as_ref().is_none_or(|best| best.label() < found.label()) {
                        best = Some(found);
                    }
                }
            }
        }
        // An older, complete one beside it would be taken without a word: better to say so.
        let label = best.as_ref().map(Self::label);
        let what = match broken.is_empty() {
            true => "no file of a checkpoint",
            false => "nothing was ever committed to the files of a checkpoint",
        };
        match broken.into_iter().find(|(newest, _)| *newest > label) {
            Some((_, why)) => Err(why),
            None => best.ok_or_else(|| StoreError::Nothing { folder: folder.into(), what }),
        }
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
    let mut seen = None;
    for _ in 0..OPENINGS {
        match open_as_found(carrier, ranks) {
            Err(StoreError::NoGeneration { paths, wanted, found }) => {
                // They may have been committed to in between: what does not change is so.
                if seen.replace(found.clone()).is_some_and(|seen| seen == found) {
                    return Err(StoreError::NoGeneration { paths, wanted, found });
                }
            }
            Err(StoreError::Overtaken { .. } | StoreError::Storage(StorageError::Owned { .. })) => {
            }
            opened => return opened,
        }
    }
    open_as_found(carrier, ranks)
}

fn open_as_found(carrier: &Carrier, ranks: &[Vec<PathBuf>]) -> Result<Vec<StateFile>, StoreError> {
    let open = |paths: &Vec<PathBuf>| StateFile::open(carrier, paths, Which::Newest);
    let mut states = ranks.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let Some(first) = states.first() else {
        let (folder, what) = (PathBuf::new(), String::from("a checkpoint of no ranks"));
        return Err(StoreError::Incomplete { folder, what });
    };
    check_sets(&states, ranks)?;
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

/// Every state is there once, and with it all that are committed together with it: what is
/// committed to some of them alone is in no generation that they share.
fn check_sets(states: &[StateFile], ranks: &[Vec<PathBuf>]) -> Result<(), StoreError> {
    let members = || states.iter().map(StateFile::member).zip(ranks);
    let mut sets: HashMap<u128, HashMap<u32, &[PathBuf]>> = HashMap::new();
    for (Member { set, place, .. }, paths) in members() {
        if let Some(twin) = sets.entry(set).or_default().insert(place, paths) {
            let paths = twin.iter().chain(paths).cloned().collect();
            return Err(StoreError::Apart { paths, what: String::from("the same state twice") });
        }
    }
    for (Member { set, place, of }, paths) in members() {
        let there = sets[&set].len();
        if there != of as usize {
            let what = format!(
                "file {} of the {of} of a store, of which {there} are named: name all of them",
                place + 1
            );
            return Err(StoreError::Apart { paths: paths.clone(), what });
        }
    }
    Ok(())
}

/// The highest label that these states had; none if nothing was ever committed to them.
///
/// Errors: what is there cannot be read.
fn newest(carrier: &Carrier, ranks: &[Vec<PathBuf>]) -> Result<Option<u64>, StoreError> {
    let mut labels =
        ranks.iter().map(|paths| match StateFile::open(carrier, paths, Which::Newest) {
            Ok(state) => Ok(state.generation().map(|found| found.label)),
            Err(why) if is_empty(&why) => Ok(None),
            Err(why) => Err(why),
        });
    labels.try_fold(None, |newest, label| Ok(label?.max(newest)))
}

/// Whether nothing was ever committed to a state: its files may not even have their lengths yet.
fn is_empty(why: &StoreError) -> bool {
    match why {
        StoreError::Unrecoverable { why, .. } => *why == Unrecoverable::Empty,
        StoreError::Storage(StorageError::Truncated { offset, got_bytes, .. }) => {
            (*offset, *got_bytes) == (0, 0)
        }
        _ => false,
    }
}

/// By number of ranks: which of their files are in the folder.
fn sets(folder: &Path) -> Result<BTreeMap<usize, BTreeSet<usize>>, StoreError> {
    let foreign =
        |e: std::io::Error| StoreError::Foreign { path: folder.to_path_buf(), what: e.to_string() };
    let mut found: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(foreign)? {
        let name = entry.map_err(foreign)?.file_name();
        let Some((rank, ranks)) = name.to_str().and_then(parse) else { continue };
        if rank < ranks && ranks <= RANKS_MAX {
            found.entry(ranks).or_default().insert(rank);
        }
    }
    Ok(found)
}

fn parse(name: &str) -> Option<(usize, usize)> {
    let (rank, ranks) = name.strip_prefix("rank-")?.strip_suffix(ENDING)?.split_once("-of-")?;
    let (rank, ranks) = (rank.parse().ok()?, ranks.parse().ok()?);
    // Nobody would find a file under a name that is written in another way.
    (name == file_name(rank, ranks)).then_some((rank, ranks))
}
