//! The engine on io_uring: registered memory, registered files, one wait for all completions.

mod polled;
mod sys;

use std::sync::Arc;
use std::time::Duration;

use self::polled::Polled;
pub(super) use self::sys::TRANSFER_BYTES_MAX;
use self::sys::{Ring, TransferEntry};
use super::engine::{Completion, Engine, Transfer, Wake};
use super::sys::Bell;
use crate::memory::Arena;

/// Files that the kernel holds for us; more than these cost a look-up each transfer.
const FILES: u32 = 256;
/// What the bell's completions carry, which no transfer does.
const BELL: u64 = u64::MAX;

/// One ring, and perhaps a polled one, used by the thread that made them.
pub(super) struct Uring {
    main: Main,
    polled: Option<Polled>,
    bell: Arc<Bell>,
    description: String,
    news: Vec<String>,
}

/// The ring that takes everything.
struct Main {
    ring: Ring,
    /// By file: whether the kernel holds its descriptors.
    held: Vec<bool>,
    holds_files: bool,
}

impl Uring {
    /// A ring for up to `transfers` transfers at a time, with the arena's memory registered.
    ///
    /// Errors: the kernel has no io_uring, or forbids it; in one sentence.
    pub(super) fn new(arena: &Arena, transfers: usize, is_polled: bool) -> Result<Self, String> {
        let bell = Bell::new().map_err(|e| format!("no eventfd: {e}"))?;
        let (mut ring, mode) =
            Ring::new(transfers as u32 + 1).map_err(|e| format!("no io_uring: {e}"))?;
        let memory = match ring.register_arena(arena) {
            Ok(parts) => format!("memory registered in {parts} part(s)"),
            Err(e) => format!("memory not registered ({e}; {})", super::sys::memlock()),
        };
        let files = ring.register_file_table(2 * FILES);
        let holds_files = files.is_ok();
        let files = match files {
            Ok(()) => String::from("files registered"),
            Err(e) => format!("files not registered ({e})"),
        };
        let mut description = format!("io_uring ({mode}; {memory}; {files})");
        let polled = is_polled.then(|| Polled::new(arena, transfers));
        let polled = polled.and_then(|made| {
            made.inspect_err(|e| description += &format!(", nothing polled: {e}")).ok()
        });
        ring.watch(bell.descriptor(), BELL);
        let main = Main { ring, held: vec![false; FILES as usize], holds_files };
        Ok(Self { main, polled, bell: Arc::new(bell), description, news: Vec::new() })
    }
}

impl Main {
    fn push(&mut self, transfer: Transfer) {
        let held_file = self.hold(&transfer);
        self.ring.push(TransferEntry { transfer, held_file });
    }

    /// The place in the kernel's table for this file, put there at its first transfer.
    fn hold(&mut self, transfer: &Transfer) -> Option<u32> {
        let file = &transfer.file;
        let held = self.held.get_mut(file.id() as usize).filter(|_| self.holds_files)?;
        if !*held {
            let pair = [file.descriptor(false), file.descriptor(true)];
            self.ring.set_files(2 * file.id(), pair).ok()?;
            *held = true;
        }
        Some(2 * file.id() + u32::from(transfer.is_direct))
    }

    /// Wait for one completion. Says whether the bell was among them.
    fn turn(&mut self, limit: Duration, done: &mut Vec<Completion>) -> Result<bool, String> {
        self.ring.enter(limit).map_err(|e| format!("io_uring_enter failed: {e}"))?;
        let mut is_rung = false;
        self.ring.completions(|data, result| {
            if data == BELL {
                is_rung = true;
            } else {
                let result = usize::try_from(result).map_err(|_| -result);
                done.push(Completion { token: data as u32, result });
            }
        });
        Ok(is_rung)
    }
}

impl Engine for Uring {
    fn push(&mut self, transfer: Transfer) {
        let left = match &mut self.polled {
            Some(polled) => polled.push(transfer),
            None => Some(transfer),
        };
        if let Some(transfer) = left {
            self.main.push(transfer);
        }
    }

    fn turn(&mut self, limit: Duration, done: &mut Vec<Completion>) -> Result<(), String> {
        let mut limit = limit;
        if let Some(polled) = self.polled.as_mut().filter(|polled| !polled.is_idle()) {
            let main = &mut self.main;
            polled
                .turn(limit, done, |refused| main.push(refused), &mut self.news)
                .map_err(|e| format!("io_uring_enter failed: {e}"))?;
            limit = Duration::ZERO;
        }
        if self.main.turn(limit, done)? {
            self.bell.quiet();
            self.main.ring.watch(self.bell.descriptor(), BELL);
        }
        Ok(())
    }

    fn forget(&mut self, file_id: u32) {
        if let Some(held) = self.main.held.get_mut(file_id as usize).filter(|held| **held) {
            // Should the kernel not let go, the next file in this place takes it over anyway.
            let _ = self.main.ring.set_files(2 * file_id, [-1, -1]);
            *held = false;
        }
    }

    fn bell(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.bell) as Arc<dyn Wake>
    }

    fn describe(&self) -> String {
        self.description.clone()
    }

    fn news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }
}
