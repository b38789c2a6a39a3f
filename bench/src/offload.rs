//! Timing offloading: the library behind `brigade offload bench`.
//!
//! [`storage`] times reads and writes of a drive, [`optimizer`] updates in memory, [`step`] updates
//! of state that is streamed from a drive and back, [`transfers`] buffers between host and device,
//! [`direct`] files and a device's memory, with GPUDirect Storage and without.
//! Each measurement is taken several times, in turn with all others, and shown as the median with
//! the range: a machine that is slower for a while is so for all of them.

pub mod direct;
pub mod optimizer;
mod report;
mod rig;
pub mod step;
pub mod storage;
pub mod transfers;

use std::path::{Path, PathBuf};
use std::time::Duration;

use brigade_offload::device::FileProblem;
use brigade_offload::memory::{ArenaError, OverBudget};
use brigade_offload::step::StepError;
use brigade_offload::storage::{Settings, StorageError};

pub use crate::sys::free_bytes;
pub use report::Reporting;
use rig::{Direction, Rig};

/// Measure what a plan rests on: drives, updates, and both at once.
#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  brigade offload bench storage --path /mnt/nvme
  brigade offload bench optimizer --threads 1,8
  brigade offload bench step --path /mnt/nvme
  brigade offload bench transfers
  brigade offload bench direct --path /mnt/nvme")]
pub enum Command {
    /// Reads and writes of a drive
    Storage(storage::Args),
    /// Updates of parameters in memory
    Optimizer(optimizer::Args),
    /// Updates of state that is streamed from a drive and back
    Step(step::Args),
    /// Buffers between the host and a GPU
    Transfers(transfers::Args),
    /// Files of a drive and the memory of a GPU: straight, and through the host
    Direct(direct::Args),
}

impl Command {
    /// The files that it writes: that for JSON, where `-` is standard output, and the picture.
    pub fn outputs(&self) -> (Option<&PathBuf>, Option<&PathBuf>) {
        let Reporting { json, plot, .. } = match self {
            Command::Storage(args) => &args.reporting,
            Command::Optimizer(args) => &args.reporting,
            Command::Step(args) => &args.reporting,
            Command::Transfers(args) => &args.reporting,
            Command::Direct(args) => &args.reporting,
        };
        (json.as_ref(), plot.as_ref())
    }
}

/// Why a measurement could not be made.
#[derive(thiserror::Error)]
pub enum Failure {
    /// The flags contradict each other or the machine.
    #[error("{0}")]
    Usage(String),
    /// There is no memory for the buffers.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The buffers do not fit the memory that was taken for them.
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
    /// A transfer failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Bytes did not pass between a file and a device.
    #[error(transparent)]
    File(#[from] FileProblem),
    /// A streamed step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The table or a file could not be written.
    #[error(transparent)]
    Output(#[from] crate::Failure),
}

impl Failure {
    /// Whether nothing was begun, since what is asked for cannot be, or not here.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Usage(_) | Self::Arena(_))
    }
}

impl std::fmt::Debug for Failure {
    /// The sentence, as `Display` has it: what a `main` that returns an error prints.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// The rates of a drive, in GB/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Sequential reads.
    pub read: f64,
    /// Sequential writes.
    pub write: f64,
    /// Reads and writes at once, summed.
    pub both: f64,
    /// Whether they are the drive's: else the system's page cache was in between.
    pub is_direct: bool,
}

/// Measure, and print.
pub fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Storage(args) => storage::run(args),
        Command::Optimizer(args) => optimizer::run(args),
        Command::Step(args) => step::run(args),
        Command::Transfers(args) => transfers::run(args),
        Command::Direct(args) => direct::run(args),
    }
}

/// Rates of the drive under `folder`, from a file of 256 MiB that has no name and is gone after it.
///
/// Cost: a second or so; as long as the drive takes for three times the file. Errors: the folder
/// cannot be written, or has no room.
pub fn measure(folder: &Path) -> Result<Measured, Failure> {
    const BYTES: u64 = 256 << 20;
    const REQUEST_BYTES: usize = 4 << 20;
    const LEAST: Duration = Duration::from_millis(250);
    let settings = Settings::default();
    let memory = rig::stream_bytes(&settings, REQUEST_BYTES, 2).next_multiple_of(2 << 20);
    let mut rig = Rig::new(folder, BYTES, settings, memory)?;
    let mut rate = |directions: &[Direction]| -> Result<f64, Failure> {
        Ok(rig.stream(directions, REQUEST_BYTES, LEAST)?.gb_s())
    };
    // The first pass gives the file its blocks, which later ones do not have to.
    rate(&[Direction::Write])?;
    let write = rate(&[Direction::Write])?;
    let read = rate(&[Direction::Read])?;
    let both = rate(&[Direction::Read, Direction::Write])?;
    Ok(Measured { read, write, both, is_direct: rig.is_direct() })
}
