//! A device that exists in memory only: as fast as one says, as faulty as one says, and with a
//! record from which any loss of power can be played again.
//!
//! Tests and gates need what no machine offers on demand: a drive of exactly 0.4 GB/s each way, the
//! thousandth write refused, a bit turned over. Faults depend on the seed, the file, the place and
//! how often that place was asked for, never on the order in which threads happened to run.

mod engine;
mod record;
mod state;
mod steps;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(super) use engine::Simulation;
pub use record::Unsynced;
use state::State;
pub use state::{Faults, Moved};
use steps::Steps;

/// How time passes for a simulated device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clock {
    /// As for everybody: transfers take as long as the rates say.
    Real,
    /// It jumps to the next completion at once; [`SimulatedDevice::elapsed`] says how far.
    #[default]
    Virtual,
    /// It stands still until [`SimulatedDevice::step`] has it jump to the next completion. What is
    /// handed in between two steps is handed in at the same moment, however late threads are, so
    /// that the overlap of transfers is a number without noise.
    Stepped,
}

/// How fast a simulated device is.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    /// Bytes a second that it reads.
    pub read_bytes_s: f64,
    /// Bytes a second that it writes.
    pub write_bytes_s: f64,
    /// Added to each transfer, and the time of a sync.
    pub latency: Duration,
    /// Reads and writes take turns, as on many virtual disks.
    pub is_half_duplex: bool,
    /// How its time passes.
    pub clock: Clock,
}

impl Default for Rates {
    /// A gigabyte each way in a second of virtual time, both at once, without latency.
    fn default() -> Self {
        let (read_bytes_s, write_bytes_s) = (1e9, 1e9);
        let (latency, is_half_duplex, clock) = (Duration::ZERO, false, Clock::Virtual);
        Self { read_bytes_s, write_bytes_s, latency, is_half_duplex, clock }
    }
}

/// A device in memory. Clones are the same device; any number of storages can use it.
#[derive(Debug, Clone)]
pub struct SimulatedDevice {
    state: Arc<Mutex<State>>,
    rates: Rates,
    since: Instant,
    steps: Arc<Steps>,
}

impl SimulatedDevice {
    /// An empty device without faults.
    ///
    /// Panics: when a rate is not positive.
    pub fn new(rates: Rates) -> Self {
        assert!(rates.read_bytes_s > 0.0 && rates.write_bytes_s > 0.0, "{rates:?}");
        Self { state: Arc::default(), rates, since: Instant::now(), steps: Arc::default() }
    }

    /// From now on these faults, and the counts of written bytes start again.
    pub fn set_faults(&self, faults: Faults) {
        self.state().set_faults(faults);
    }

    /// How fast it is.
    pub fn rates(&self) -> Rates {
        self.rates
    }

    /// Time since it was made, by its own clock.
    pub fn elapsed(&self) -> Duration {
        match self.rates.clock {
            Clock::Real => self.since.elapsed(),
            Clock::Virtual | Clock::Stepped => self.state().now,
        }
    }

    /// Have a [`Clock::Stepped`] jump to the next completion among all that was handed in before,
    /// and wait until its outcome is there. For a device that one storage uses.
    ///
    /// Panics: when no storage takes steps on it.
    pub fn step(&self) {
        self.steps.step();
    }

    /// What it has done so far.
    pub fn moved(&self) -> Moved {
        self.state().moved
    }

    /// A file's bytes as they are now, synced or not.
    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        self.state().files.get(path).cloned()
    }

    /// Cut a file off, or let it end in zeros, behind everybody's back. False when it is not there.
    pub fn truncate(&self, path: &Path, bytes: u64) -> bool {
        let mut state = self.state();
        let file = state.files.get_mut(path);
        file.map(|file| file.resize(bytes as usize, 0)).is_some()
    }

    /// Turn one bit over, behind everybody's back. False when it is not there.
    pub fn flip(&self, path: &Path, offset: u64, bit: u8) -> bool {
        let mut state = self.state();
        let byte = state.files.get_mut(path).and_then(|file| file.get_mut(offset as usize));
        byte.map(|byte| *byte ^= 1 << (bit % 8)).is_some()
    }

    /// Remember from now on every write and sync. What is there now counts as synced.
    pub fn start_record(&self) {
        self.state().start_record();
    }

    /// How many moments there are in the record at which power can fail: between any two sectors of
    /// 4 KiB that were written, and between any two other events. Moments are `0..=cuts()`.
    pub fn cuts(&self) -> usize {
        self.state().record.as_ref().map_or(0, |record| record.cuts())
    }

    /// The device as it is found after power failed at that moment of the record: what was synced,
    /// and of the rest what `unsynced` says. A new device without faults, at the same rates.
    ///
    /// Panics: when nothing was recorded, or past the last moment.
    pub fn after_cut(&self, at: usize, unsynced: Unsynced) -> SimulatedDevice {
        let device = Self::new(self.rates);
        let state = self.state();
        let record = state.record.as_ref().expect("start_record comes first");
        device.state().files = record.after_cut(at, unsynced);
        device
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Changed by code that does not panic between its lines.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Make a file, or refuse with the system's number.
    pub(super) fn create(&self, path: &Path, bytes: u64) -> Result<(), i32> {
        self.state().create(path, bytes)
    }

    /// The length of a file that exists.
    pub(super) fn length(&self, path: &Path) -> Result<u64, i32> {
        self.state().files.get(path).map(|file| file.len() as u64).ok_or(libc::ENOENT)
    }

    /// Make a file longer.
    pub(super) fn extend(&self, path: &Path, bytes: u64) -> Result<(), i32> {
        self.state().extend(path, bytes)
    }

    /// Forget a file.
    pub(super) fn remove(&self, path: &Path) -> Result<(), i32> {
        self.state().remove(path)
    }
}
