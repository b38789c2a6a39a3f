//! Where a rank keeps what it needs but once a step: the optimizer's moments, and parameters that
//! are held in parts.
//!
//! | `--offload` | beside | known as |
//! |---|---|---|
//! | `cpu` | `--strategy zero2` | ZeRO-Offload (Ren et al. 2021) |
//! | `nvme:PATH` | `--strategy fsdp` | ZeRO-Infinity (Rajbhandari et al. 2021) |
//!
//! `cpu` is an arena of the host with a hard budget; where the kernels run on the host, as they do
//! here, it moves nothing and bounds what it holds. `nvme` is a file, through which the update
//! streams. Gradients stay in memory.

mod disk;
mod inputs;

pub use disk::Origin;
pub(crate) use disk::{Disk, Kept, Unit, overtaken, pass, refuse_writers};
pub(crate) use inputs::{Inputs, Scope};

use crate::error::Error;
use crate::optim::{Moments, Numbers};
use brigade_offload::memory::{Arena, Budget, Category, Pages, span_bytes};
use serde::{Serialize, Serializer};
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// A cheaper memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// The host's memory.
    Cpu,
    /// Files in a folder.
    Nvme(PathBuf),
}

/// What is kept where, and in how much memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offload {
    /// Where to.
    pub tier: Tier,
    /// Bytes of host memory that a rank may use for it; what it needs at full speed if not said.
    pub host_budget: Option<usize>,
    /// This rank among all, for the name of its file.
    pub place: (usize, usize),
    /// Of how many parts of what the rank keeps this is one, each with a share of its budget.
    pub parts: usize,
    /// Whether files stay when the run ends, as a checkpoint.
    pub stays: bool,
    /// Such files to go on from.
    pub from: Option<Origin>,
}

/// What files have cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiskUse {
    /// From files.
    pub read_bytes: u64,
    /// To files.
    pub written_bytes: u64,
    /// Waiting for either.
    #[serde(rename = "waited_ms", serialize_with = "as_ms")]
    pub waited: Duration,
}

/// As all times of the run log are written.
fn as_ms<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64() * 1e3)
}

impl Tier {
    /// Whether there is such a place on this machine.
    pub(crate) fn is_there(&self) -> bool {
        match self {
            Tier::Cpu => true,
            Tier::Nvme(folder) => folder.is_dir(),
        }
    }
}

impl Offload {
    /// The same for one of `parts` things that a rank keeps apart, each in a file and with a share
    /// of the budget.
    pub(crate) fn part(&self, part: usize, parts: usize) -> Offload {
        let (rank, ranks) = self.place;
        let host_budget = self.host_budget.map(|bytes| bytes / parts);
        let place = (rank * parts + part, ranks * parts);
        Offload { host_budget, place, parts: self.parts * parts, ..self.clone() }
    }

    /// The refusal of a budget of which this part would need so much.
    fn too_little(&self, bytes: usize) -> Error {
        Error::HostBudget { least_bytes: self.parts * least_budget(bytes) }
    }
}

impl DiskUse {
    /// What was added since `before`.
    pub fn since(self, before: DiskUse) -> DiskUse {
        DiskUse {
            read_bytes: self.read_bytes - before.read_bytes,
            written_bytes: self.written_bytes - before.written_bytes,
            waited: self.waited - before.waited,
        }
    }

    /// So often.
    pub fn times(self, count: u32) -> DiskUse {
        DiskUse {
            read_bytes: self.read_bytes * u64::from(count),
            written_bytes: self.written_bytes * u64::from(count),
            waited: self.waited * count,
        }
    }

    /// The bytes alone.
    pub fn bytes(self) -> DiskUse {
        DiskUse { waited: Duration::ZERO, ..self }
    }

    /// Both together.
    pub fn plus(self, other: DiskUse) -> DiskUse {
        DiskUse {
            read_bytes: self.read_bytes + other.read_bytes,
            written_bytes: self.written_bytes + other.written_bytes,
            waited: self.waited + other.waited,
        }
    }
}

impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tier {
            Tier::Cpu => write!(f, "to the host's memory, where this device's kernels run anyway"),
            Tier::Nvme(folder) => write!(f, "to {}", folder.display()),
        }?;
        self.host_budget.map_or(Ok(()), |bytes| write!(f, ", with at most {bytes} bytes of memory"))
    }
}

impl FromStr for Tier {
    type Err = String;

    fn from_str(text: &str) -> Result<Tier, String> {
        match text.split_once(':') {
            None if text == "cpu" => Ok(Tier::Cpu),
            Some(("nvme", path)) if !path.is_empty() => Ok(Tier::Nvme(PathBuf::from(path))),
            _ => Err("must be cpu or nvme:FOLDER".to_string()),
        }
    }
}

/// A number of bytes, such as 4096, 64K, 1.5M or 2GiB.
///
/// Errors: what it must look like.
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let bytes = brigade_comm::bytes::parse(text)?;
    usize::try_from(bytes).map_err(|_| format!("{text:?} is more than memory can be"))
}

/// Whether both names lead to one folder.
pub(crate) fn is_same_folder(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino()));
    matches!((place(one), place(other)), (Ok(one), Ok(other)) if one == other)
}

/// All that these come to; or, where budgets are too little, the refusal of the one that wants the
/// most, so that what it says is enough for all.
pub(crate) fn all_within<T>(
    parts: impl Iterator<Item = Result<T, Error>>,
) -> Result<Vec<T>, Error> {
    let (mut all, mut most_bytes) = (Vec::new(), 0);
    for part in parts {
        match part {
            Ok(part) => all.push(part),
            Err(Error::HostBudget { least_bytes }) => most_bytes = most_bytes.max(least_bytes),
            Err(error) => return Err(error),
        }
    }
    match most_bytes {
        0 => Ok(all),
        least_bytes => Err(Error::HostBudget { least_bytes }),
    }
}

/// Move moments to an arena of the host, with room for nothing else.
///
/// Errors: `HostBudget` if they do not fit into the budget.
pub(crate) fn to_host<'m>(
    moments: impl Iterator<Item = &'m mut Moments>,
    offload: &Offload,
) -> Result<Arena, Error> {
    let budget = offload.host_budget;
    let mut numbers: Vec<&mut Numbers> = moments.flat_map(Moments::arrays_mut).collect();
    let bytes = numbers.iter().map(|numbers| span_bytes(4 * numbers.len())).sum();
    if budget.is_some_and(|budget| usable(budget) < bytes) {
        return Err(offload.too_little(bytes));
    }
    let arena = arena(budget, bytes)?;
    for numbers in &mut numbers {
        let buffer = arena.take(4 * numbers.len(), Category::Optimizer);
        let mut buffer = buffer.map_err(|over| Error::setting("host-budget", over.to_string()))?;
        buffer.view_mut::<f32>().copy_from_slice(numbers);
        **numbers = Numbers::Arena(buffer);
    }
    Ok(arena)
}

/// What comes whole where pages are reserved. \[bytes\]
const PAGE: usize = 2 << 20;

/// What an arena of so many bytes has at least.
fn usable(bytes: usize) -> usize {
    if bytes < PAGE { bytes } else { bytes / PAGE * PAGE }
}

/// The smallest budget of which so many bytes are usable.
fn least_budget(bytes: usize) -> usize {
    if bytes < PAGE { bytes } else { bytes.next_multiple_of(PAGE) }
}

/// The arena that a budget allows, or one of just so many bytes.
fn arena(budget: Option<usize>, bytes: usize) -> Result<Arena, Error> {
    // Where pages are reserved, arenas have whole ones: less than was asked for.
    let exact = Budget::new(bytes).at_best(Pages::Transparent);
    let arena = Arena::new(budget.map_or(exact, Budget::new));
    arena.map_err(|problem| Error::setting("host-budget", problem.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_and_sizes_are_read_as_people_write_them() {
        assert_eq!("cpu".parse(), Ok(Tier::Cpu));
        assert_eq!("nvme:/a:b".parse(), Ok(Tier::Nvme(PathBuf::from("/a:b"))));
        for wrong in ["", "nvme", "nvme:", "gpu", "cpu:x"] {
            assert!(wrong.parse::<Tier>().is_err(), "{wrong}");
        }
        for (text, bytes) in [("0", 0), ("4096", 4096), ("3k", 3 << 10), ("1.50 GiB", 3 << 29)] {
            assert_eq!(parse_bytes(text), Ok(bytes));
        }
        for wrong in ["", "K", "4X", "-1"] {
            assert!(parse_bytes(wrong).unwrap_err().contains(" such as 8, 64K, 1.5M"), "{wrong}");
        }
        let refused = parse_bytes("99999999999G").unwrap_err();
        assert!(refused.contains("17179869183G is the largest size"), "{refused}");
    }
}
