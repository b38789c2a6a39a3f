//! Transfers as commands straight to an NVMe drive: past the block layer, and past any file system.
//!
//! The path is a namespace's generic device, as /dev/ng0n1: whole blocks of the drive only, no page
//! cache beside it, and nobody else to know what lies where.

use std::io;
use std::time::Duration;

use io_uring::{cqueue, squeue};

use super::super::engine::{Completion, Transfer};
use super::super::kind::Kind;
use super::super::namespace::Namespace;
use super::command::Command;
use super::sys::Ring;
use crate::memory::Arena;

const FLUSH: u8 = 0x00;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;

/// A ring that carries commands instead of transfers on files.
pub(super) struct Passthrough {
    ring: Ring<squeue::Entry128, cqueue::Entry32>,
    /// By token: what the drive has been asked for.
    asked: Vec<Option<Asked>>,
    /// Whether commands name registered memory as such.
    uses_registered: bool,
    /// What was answered without the drive.
    answered: Vec<Completion>,
}

/// A transfer on its way as a command.
struct Asked {
    transfer: Transfer,
    command: Command,
    /// Whether it names registered memory as such.
    is_registered: bool,
}

impl Passthrough {
    pub(super) fn new(arena: &Arena, transfers: usize) -> io::Result<Self> {
        let mut ring = Ring::new_commands(transfers as u32)?;
        // Without it the kernel looks each page up every time: slower, not wrong.
        let uses_registered = ring.register_arena(arena).is_ok();
        let asked = std::iter::repeat_with(|| None).take(transfers).collect();
        Ok(Self { ring, asked, uses_registered, answered: Vec::new() })
    }

    pub(super) fn descriptor(&self) -> i32 {
        self.ring.descriptor()
    }

    /// Take a transfer in. One that is no whole blocks of the drive is answered at once.
    pub(super) fn push(&mut self, transfer: &Transfer, namespace: &Namespace) {
        match command(transfer, namespace) {
            Ok(command) => self.ask(transfer.clone(), command),
            Err(result) => self.answered.push(Completion { token: transfer.token, result }),
        }
    }

    fn ask(&mut self, transfer: Transfer, command: Command) {
        let is_registered = self.ring.push_command(&transfer, command, self.uses_registered);
        let token = transfer.token as usize;
        self.asked[token] = Some(Asked { transfer, command, is_registered });
    }

    /// Hand everything over, and take out what has completed. Does not wait.
    pub(super) fn turn(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        done.append(&mut self.answered);
        self.ring.enter(1, Duration::ZERO)?;
        let (mut refused, asked) = (Vec::new(), &mut self.asked);
        self.ring.completions(|token, result| {
            let it = asked[token as usize].take().expect("a completion is of what was asked for");
            // Above zero is the drive's own status: it has no number in the system.
            let result = match result {
                0 => Ok(it.command.data_bytes as usize),
                status if status > 0 => Err(libc::EIO),
                errno if it.is_registered && -errno == libc::EINVAL => return refused.push(it),
                errno => Err(-errno),
            };
            done.push(Completion { token: token as u32, result });
        });
        if refused.is_empty() { Ok(()) } else { self.ask_again(refused) }
    }

    /// Ask once more, for memory by its address alone, and so from now on. Before Linux 6.12 the
    /// kernel refuses a part of registered memory where the segments of all that lies behind it,
    /// which it counts as well, are more than the drive takes.
    #[cold]
    fn ask_again(&mut self, refused: Vec<Asked>) -> io::Result<()> {
        self.uses_registered = false;
        for Asked { transfer, command, .. } in refused {
            self.ask(transfer, command);
        }
        self.ring.enter(1, Duration::ZERO)
    }
}

/// What the drive is to do, or what the answer is without it.
fn command(transfer: &Transfer, namespace: &Namespace) -> Result<Command, Result<usize, i32>> {
    let Namespace { id, block_bytes, blocks, .. } = *namespace;
    let (operation, bytes) = match (transfer.kind, transfer.window) {
        (Kind::Read, Some(window)) => (READ, window.bytes()),
        (Kind::Write, Some(window)) => (WRITE, window.bytes()),
        _ => {
            let (data_bytes, first_block, last_block) = (0, 0, 0);
            let operation = FLUSH;
            return Ok(Command { operation, namespace: id, data_bytes, first_block, last_block });
        }
    };
    if !transfer.is_direct {
        return Err(Err(libc::EINVAL));
    }
    let (first_block, count) = (transfer.offset / block_bytes, bytes as u64 / block_bytes);
    if first_block + count > blocks {
        // As a file answers: nothing to read there, no space to write.
        return Err(if operation == READ { Ok(0) } else { Err(libc::ENOSPC) });
    }
    let last_block = u16::try_from(count - 1).map_err(|_| Err(libc::EINVAL))?;
    Ok(Command { operation, namespace: id, data_bytes: bytes as u32, first_block, last_block })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_lies_in_memory_as_the_kernel_reads_it() {
        let (operation, namespace, data_bytes) = (READ, 7, 4096);
        let (first_block, last_block) = (0x1_0000_0002, 7);
        let command = Command { operation, namespace, data_bytes, first_block, last_block };
        let bytes = command.bytes(0x1122_3344_5566_7788);
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(bytes[0], 2);
        assert_eq!([word(4), word(36), word(40), word(44), word(48)], [7, 4096, 2, 1, 7]);
        assert_eq!(u64::from_ne_bytes(bytes[24..32].try_into().unwrap()), 0x1122_3344_5566_7788);
        assert_eq!(bytes[72..], [0; 8]);
    }
}
