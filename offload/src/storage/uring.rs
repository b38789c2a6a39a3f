//! The engine on io_uring: registered memory, registered files, one wait for all completions.

mod command;
mod passthrough;
mod patience;
mod polled;
mod sys;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use self::passthrough::Passthrough;
use self::polled::Polled;
pub(super) use self::sys::TRANSFER_BYTES_MAX;
use self::sys::{Ring, TransferEntry};
use super::engine::{Completion, Engine, Transfer};
use super::namespace::Namespace;
use super::sys::Bell;
use super::wake::Wake;
use crate::memory::Arena;

/// Files that the kernel holds for us; more than these cost a look-up each transfer.
const FILES: u32 = 256;
/// What the bell's completions carry, which no transfer does.
const BELL: u64 = u64::MAX;
/// What says that the ring of commands has completions.
const COMMANDS: u64 = u64::MAX - 1;

/// How long a completion may wait for others.
const TOGETHER_LIMIT: Duration = Duration::from_millis(2);

/// One ring, perhaps a polled one, and one of commands, used by the thread that made them.
pub(super) struct Uring {
    main: Main,
    polled: Option<Polled>,
    /// Made for the first transfer that needs it.
    passthrough: Option<Passthrough>,
    arena: Arena,
    transfers: usize,
    bell: Arc<Bell>,
    description: String,
    news: Vec<String>,
    /// What was answered without the kernel.
    refused: Vec<Completion>,
}

/// The ring that takes everything.
struct Main {
    ring: Ring,
    /// By file: whether the kernel holds its descriptors.
    held: Vec<bool>,
    holds_files: bool,
}

/// What a wait ended with, beside transfers.
#[derive(Default)]
struct Rings {
    bell: bool,
    commands: bool,
}

impl Uring {
    /// A ring for up to `transfers` transfers at a time, with the arena's memory registered.
    ///
    /// Errors: the kernel has no io_uring, or forbids it; in one sentence.
    pub(super) fn new(arena: &Arena, transfers: usize, is_polled: bool) -> Result<Self, String> {
        let bell = Bell::new().map_err(|e| format!("no eventfd: {e}"))?;
        let (mut ring, mode) =
            Ring::new(transfers as u32 + 2).map_err(|e| format!("no io_uring: {e}"))?;
        let memory = match ring.register_arena(arena) {
            Ok(1) => String::from("memory registered in 1 part"),
            Ok(parts) => format!("memory registered in {parts} parts"),
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
        let (bell, arena) = (Arc::new(bell), arena.clone());
        let (passthrough, news, refused) = (None, Vec::new(), Vec::new());
        Ok(Self { main, polled, passthrough, arena, transfers, bell, description, news, refused })
    }

    fn turn_rings(
        &mut self,
        limit: Duration,
        together: usize,
        done: &mut Vec<Completion>,
    ) -> io::Result<()> {
        done.append(&mut self.refused);
        if let Some(passthrough) = &mut self.passthrough {
            passthrough.turn(done)?;
        }
        let mut limit = if done.is_empty() { limit } else { Duration::ZERO };
        if let Some(polled) = self.polled.as_mut().filter(|polled| !polled.is_idle()) {
            let main = &mut self.main;
            let has_patience = !limit.is_zero();
            polled.turn(has_patience, done, |refused| main.push(refused), &mut self.news)?;
            limit = Duration::ZERO;
        }
        // Transfers that run on other rings are not counted here.
        let is_alone = self.passthrough.is_none() && self.polled.is_none();
        let together = if is_alone { together } else { 1 };
        let rings = self.main.turn(limit, together, done)?;
        if rings.bell {
            self.bell.quiet();
            self.main.ring.watch(self.bell.descriptor(), BELL);
        }
        if rings.commands
            && let Some(passthrough) = &mut self.passthrough
        {
            passthrough.turn(done)?;
            self.main.ring.watch(passthrough.descriptor(), COMMANDS);
        }
        Ok(())
    }

    /// Take a transfer in that is to be a command.
    fn push_command(&mut self, transfer: &Transfer, namespace: &Namespace) {
        if self.passthrough.is_none() {
            let path = transfer.file.path();
            match Passthrough::new(&self.arena, self.transfers) {
                Ok(made) => {
                    self.main.ring.watch(made.descriptor(), COMMANDS);
                    self.passthrough = Some(made);
                    self.news.push(format!("{} by commands to the drive", path.display()));
                }
                Err(e) => {
                    self.news.push(format!("{}: no commands to the drive: {e}", path.display()));
                    let result = Err(e.raw_os_error().unwrap_or(libc::EOPNOTSUPP));
                    return self.refused.push(Completion { token: transfer.token, result });
                }
            }
        }
        if let Some(passthrough) = &mut self.passthrough {
            passthrough.push(transfer, namespace);
        }
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

    /// Wait for one completion, or when many are under way a moment for some together: each wait
    /// costs a switch of threads.
    fn turn(
        &mut self,
        limit: Duration,
        together: usize,
        done: &mut Vec<Completion>,
    ) -> io::Result<Rings> {
        if together > 1 && done.is_empty() {
            self.ring.enter(together, limit.min(TOGETHER_LIMIT))?;
        } else {
            self.ring.enter(1, limit)?;
        }
        let mut rings = Rings::default();
        self.ring.completions(|data, result| match data {
            BELL => rings.bell = true,
            COMMANDS => rings.commands = true,
            _ => {
                let result = usize::try_from(result).map_err(|_| -result);
                done.push(Completion { token: data as u32, result });
            }
        });
        Ok(rings)
    }
}

impl Engine for Uring {
    fn push(&mut self, transfer: Transfer) {
        let file = Arc::clone(&transfer.file);
        if let Some(namespace) = file.namespace() {
            return self.push_command(&transfer, namespace);
        }
        let left = match &mut self.polled {
            Some(polled) => polled.push(transfer),
            None => Some(transfer),
        };
        if let Some(transfer) = left {
            self.main.push(transfer);
        }
    }

    fn turn(
        &mut self,
        limit: Duration,
        together: usize,
        done: &mut Vec<Completion>,
    ) -> Result<(), String> {
        self.turn_rings(limit, together, done).map_err(|e| format!("io_uring_enter failed: {e}"))
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
