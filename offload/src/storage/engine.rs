//! The contract of an engine: transfers go in, completions come out, on one thread.

use std::sync::Arc;
use std::time::Duration;

use super::file::Opened;
use super::kind::Kind;
use super::wake::Wake;
use crate::memory::Window;

/// One transfer, of at most one block.
#[derive(Debug, Clone)]
pub(crate) struct Transfer {
    /// Comes back with the completion; below [`Engine::push`]'s limit of transfers in flight.
    pub(crate) token: u32,
    pub(crate) kind: Kind,
    pub(crate) file: Arc<Opened>,
    pub(crate) is_direct: bool,
    pub(crate) offset: u64,
    /// Whose maker keeps the memory until the completion has come out. None for a sync.
    pub(crate) window: Option<Window>,
}

/// What became of a transfer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Completion {
    pub(crate) token: u32,
    /// Bytes transferred, perhaps fewer than asked for; or the system's number for why not.
    pub(crate) result: Result<usize, i32>,
}

/// Runs transfers. Made, used and dropped by one thread, the storage's own.
pub(crate) trait Engine {
    /// Take a transfer in; it may start at the next [`Engine::turn`]. There is room: the caller has
    /// never more in flight than the engine was made for.
    fn push(&mut self, transfer: Transfer);

    /// Start what was pushed and wait until something completes, somebody calls the engine's
    /// [`Wake`], or `limit` has passed. Completions are appended to `done`. There is so much in
    /// flight that the engine may wait a little longer for this many of them `together`.
    ///
    /// Errors: the engine is broken and will complete nothing more; it says why.
    fn turn(
        &mut self,
        limit: Duration,
        together: usize,
        done: &mut Vec<Completion>,
    ) -> Result<(), String>;

    /// This file will not be used any more: let go of whatever was registered for it.
    fn forget(&mut self, file_id: u32);

    /// What rings this engine's bell from other threads.
    fn bell(&self) -> Arc<dyn Wake>;

    /// One line: which engine, and how it runs.
    fn describe(&self) -> String;

    /// What it found out since the last time it was asked, in sentences.
    fn news(&mut self) -> Vec<String> {
        Vec::new()
    }
}
