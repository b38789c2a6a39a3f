//! The wall to io_uring: entries that refer to windows, and the ring that takes them.

use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use super::super::engine::Transfer;
use super::super::kind::Kind;
use super::command::Command;
use super::patience::Patience;
use crate::memory::{Arena, Window};

/// The most memory that one registered part may have.
const PART_BYTES: usize = 1 << 30;
/// The longest transfer.
pub(in super::super) const TRANSFER_BYTES_MAX: usize = 4 << 20;
/// Parts overlap by the longest transfer, so each transfer lies within one of them.
const PART_STRIDE: usize = PART_BYTES - TRANSFER_BYTES_MAX;

/// A transfer, and its file's place in the kernel's table where it has one.
pub(super) struct TransferEntry {
    pub(super) transfer: Transfer,
    pub(super) held_file: Option<u32>,
}

/// A ring. Must be used by the thread that made it.
pub(super) struct Ring<S = squeue::Entry, C = cqueue::Entry>
where
    S: squeue::EntryMarker,
    C: cqueue::EntryMarker,
{
    ring: IoUring<S, C>,
    /// What is registered, kept until the ring is gone.
    arena: Option<Arena>,
    patience: Patience,
}

impl Ring {
    /// A ring of at least `entries` entries, in the best mode that the kernel has; names the mode.
    pub(super) fn new(entries: u32) -> io::Result<(Self, &'static str)> {
        let deferred = {
            let mut builder = IoUring::builder();
            builder.setup_single_issuer().setup_defer_taskrun();
            builder.build(entries)
        };
        let (ring, mode) = match deferred {
            Ok(ring) => (ring, "completions on demand"),
            // Before Linux 6.1 the mode is unknown.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => (IoUring::new(entries)?, "plain"),
            Err(e) => return Err(e),
        };
        if !ring.params().is_feature_ext_arg() {
            return Err(io::Error::other("older than Linux 5.11: no waits with a limit"));
        }
        Ok((Self::around(ring), mode))
    }

    /// A ring whose completions are polled for. Takes direct reads and writes only.
    pub(super) fn new_polled(entries: u32) -> io::Result<Self> {
        Ok(Self::around(IoUring::builder().setup_iopoll().build(entries)?))
    }

    /// Make an empty table of `files` places.
    pub(super) fn register_file_table(&mut self, files: u32) -> io::Result<()> {
        let submitter = self.ring.submitter();
        // Before Linux 5.19 an empty table is one of descriptors that are none.
        submitter
            .register_files_sparse(files)
            .or_else(|_| submitter.register_files(&vec![-1; files as usize]))
    }

    /// Put descriptors into the table; -1 empties a place.
    pub(super) fn set_files(&mut self, first: u32, descriptors: [i32; 2]) -> io::Result<()> {
        self.ring.submitter().register_files_update(first, &descriptors).map(drop)
    }

    /// Complete with `data` once the descriptor can be read.
    pub(super) fn watch(&mut self, descriptor: i32, data: u64) {
        let poll = opcode::PollAdd::new(Fd(descriptor), libc::POLLIN as u32);
        self.submit(&poll.build().user_data(data));
    }

    /// Take a transfer in. Its completion carries its token.
    pub(super) fn push(&mut self, entry: TransferEntry) {
        let TransferEntry { transfer, held_file } = entry;
        let part = transfer.window.and_then(|window| self.part(window));
        let entry = prepare(&transfer, held_file, part);
        self.submit(&entry.user_data(u64::from(transfer.token)));
    }
}

impl Ring<squeue::Entry128, cqueue::Entry32> {
    /// A ring for commands to NVMe drives.
    pub(super) fn new_commands(entries: u32) -> io::Result<Self> {
        Ok(Self::around(IoUring::builder().build(entries)?))
    }

    /// What another ring can watch to learn of completions here.
    pub(super) fn descriptor(&self) -> i32 {
        self.ring.as_raw_fd()
    }

    /// Take a transfer in, as a command for its device; its completion carries its token. Returns
    /// whether it names its memory as registered, as it may.
    pub(super) fn push_command(
        &mut self,
        transfer: &Transfer,
        command: Command,
        may_be_registered: bool,
    ) -> bool {
        let window = transfer.window;
        let part = window.filter(|_| may_be_registered).and_then(|window| self.part(window));
        let memory = window.map_or(0, |window| window.pointer().addr() as u64);
        let file = Fd(transfer.file.descriptor(true));
        let entry = opcode::UringCmd80::new(file, Command::CODE).cmd(command.bytes(memory));
        let entry = entry.buf_index(part).build().user_data(u64::from(transfer.token));
        self.submit(&entry);
        part.is_some()
    }
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Ring<S, C> {
    fn around(ring: IoUring<S, C>) -> Self {
        Self { ring, arena: None, patience: Patience::default() }
    }

    /// Register the arena's memory, in how many parts.
    pub(super) fn register_arena(&mut self, arena: &Arena) -> io::Result<usize> {
        let base = arena.base().as_ptr();
        let parts: Vec<libc::iovec> = (0..arena.capacity())
            .step_by(PART_STRIDE)
            .map(|start| libc::iovec {
                iov_base: base.wrapping_add(start).cast(),
                iov_len: PART_BYTES.min(arena.capacity() - start),
            })
            .collect();
        // SAFETY: the parts lie within the arena's mapping, which `self.arena` keeps until the ring
        // is gone.
        unsafe { self.ring.submitter().register_buffers(&parts)? };
        self.arena = Some(arena.clone());
        Ok(parts.len())
    }

    /// Hand everything to the kernel and wait until so many completions are there or `limit` has
    /// passed.
    ///
    /// Errors: the kernel's; also when it has taken nothing in for so long that it never will.
    pub(super) fn enter(&mut self, completions: usize, limit: Duration) -> io::Result<()> {
        let limit = Timespec::from(limit);
        let arguments = SubmitArgs::new().timespec(&limit);
        if let Err(e) = self.ring.submitter().submit_with_args(completions, &arguments) {
            match e.raw_os_error() {
                Some(libc::ETIME | libc::EINTR) => {}
                // No memory for requests, or for their completions, at this moment.
                Some(libc::EBUSY | libc::EAGAIN) => return self.patience.bear(Instant::now(), &e),
                _ => return Err(e),
            }
        }
        self.patience.calm();
        Ok(())
    }

    /// Whether there is any to take out.
    pub(super) fn has_completions(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Take every completion out: what it carries, and the system's result.
    pub(super) fn completions(&mut self, mut each: impl FnMut(u64, i32)) {
        for completion in self.ring.completion() {
            let completion: cqueue::Entry = completion.into();
            each(completion.user_data(), completion.result());
        }
    }

    /// Which registered part a window lies in.
    fn part(&self, window: Window) -> Option<u16> {
        let arena = self.arena.as_ref()?;
        let start = window.pointer().addr().checked_sub(arena.base().as_ptr().addr())?;
        let is_inside = start + window.bytes() <= arena.capacity();
        is_inside.then(|| u16::try_from(start / PART_STRIDE).ok()).flatten()
    }

    fn submit(&mut self, entry: &S) {
        // SAFETY: an entry refers to a window, whose maker keeps the memory until the completion,
        // or to no memory at all.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("the ring has an entry for every transfer and the bell");
    }
}

/// The entry of a transfer on a file in the kernel's table, or by descriptor.
fn prepare(transfer: &Transfer, held_file: Option<u32>, part: Option<u16>) -> squeue::Entry {
    let (number, flags) = match held_file {
        Some(place) => (place as i32, squeue::Flags::FIXED_FILE),
        None => (transfer.file.descriptor(transfer.is_direct), squeue::Flags::empty()),
    };
    let (file, offset) = (Fd(number), transfer.offset);
    let memory = |window: Window| (window.pointer(), window.bytes() as u32);
    let entry = match (transfer.kind, transfer.window) {
        (Kind::Read, Some(window)) => {
            let (to, bytes) = memory(window);
            match part {
                Some(part) => opcode::ReadFixed::new(file, to, bytes, part).offset(offset).build(),
                None => opcode::Read::new(file, to, bytes).offset(offset).build(),
            }
        }
        (Kind::Write, Some(window)) => {
            let (from, bytes) = memory(window);
            match part {
                Some(part) => {
                    opcode::WriteFixed::new(file, from, bytes, part).offset(offset).build()
                }
                None => opcode::Write::new(file, from, bytes).offset(offset).build(),
            }
        }
        _ => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
    };
    entry.flags(flags)
}
