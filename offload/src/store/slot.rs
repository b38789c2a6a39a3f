//! A tensor of a store: where it is now, and what is meant to become of it.

use std::time::Instant;

use super::run::Run;
use crate::layout::Placed;
use crate::memory::Buffer;

/// A tensor of the store.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) shelf: usize,
    pub(super) placed: Placed,
    /// Of its buffer: whole pages. \[bytes\]
    pub(super) span: usize,
    pub(super) tier: Tier,
    pub(super) plan: Plan,
}

/// Where the newest contents of a tensor are.
#[derive(Debug)]
pub(super) enum Tier {
    /// In the files; or nowhere yet, then it is zero.
    File,
    /// On its way into memory.
    Coming(Run),
    /// In memory; also in the files unless it was changed.
    Host { buffer: Buffer, is_changed: bool },
    /// In memory, on its way to the files, to leave memory then.
    Going(Run),
    /// With the caller.
    Lent { was_changed: bool },
}

/// What is meant to become of a tensor.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// How often it was moved.
    pub(super) moves: u64,
    /// It stays in memory after it was written.
    pub(super) is_wanted: bool,
    pub(super) needed_by: Option<Instant>,
    /// How often it was not there in time.
    pub(super) missed: u64,
}

impl Plan {
    /// Whether the time has come. The clock is read only where one was given.
    pub(super) fn is_due(&self) -> bool {
        self.needed_by.is_some_and(|needed_by| needed_by < Instant::now())
    }
}

impl Slot {
    /// Whether it is in memory.
    pub(super) fn is_there(&self) -> bool {
        match &self.tier {
            Tier::Coming(run) => run.is_done(),
            Tier::File => false,
            Tier::Host { .. } | Tier::Going(_) | Tier::Lent { .. } => true,
        }
    }
}
