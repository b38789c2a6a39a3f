//! The desk: words in memory of the host that kernels of the group and the host both look into.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use brigade_cuda::{Context, CudaError, Registered};

use super::layout::{BLOCKS, DESK_BYTES, word};

/// Where kernels say what they wait for and what went wrong, and where they are told to end.
pub(super) struct Desk {
    /// There until this is dropped.
    pinned: Option<Registered>,
    words: Words,
    /// Whether a kernel may write there for ever.
    is_kept: AtomicBool,
}

/// Whole pages of zeroes. Ours and not the driver's, which frees what it has pinned as soon as the
/// process begins to end, while the group's thread still looks at it; and mapped for the desk
/// alone, since a child of the process gets fresh ones: of pages that both had at a fork, whoever
/// writes first gets a copy, which the device might not know to be the host's.
struct Words(NonNull<[AtomicU32; DESK_BYTES / 4]>);

// SAFETY: atomic words, in memory that is the process's.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

/// Of every system's pages a multiple.
const WORDS_BYTES: usize = 64 << 10;
const _: () = assert!(DESK_BYTES <= WORDS_BYTES);

/// A block that stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Still {
    pub(super) phase: u32,
    pub(super) peer: u32,
    pub(super) sequence: u32,
    pub(super) step: u32,
    pub(super) signature: u32,
    pub(super) turn: u32,
}

impl Still {
    /// Whether both are the same wait of the same call: threads of a block that wait for several
    /// ranks write their places in turn.
    pub(super) fn is_same_wait(&self, other: &Self) -> bool {
        let key = |still: &Self| (still.phase, still.sequence, still.signature, still.turn);
        key(self) == key(other)
    }
}

/// What a kernel found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) what: u32,
    pub(super) peer: u32,
    pub(super) ours: u32,
    pub(super) theirs: u32,
}

impl Desk {
    pub(super) fn new(context: &Context) -> Result<Self, CudaError> {
        let words = Words::map()?;
        let start = words.0.as_ptr().cast();
        // SAFETY: the words stay mapped until they are pinned no more, and kernels change them as
        // atomic words, too.
        match unsafe { Registered::new(context, start, WORDS_BYTES) } {
            Ok(pinned) => {
                let (pinned, is_kept) = (Some(pinned), AtomicBool::new(false));
                Ok(Self { pinned, words, is_kept })
            }
            Err(error) => {
                words.unmap();
                Err(error)
            }
        }
    }

    /// As kernels name it.
    pub(super) fn address(&self) -> u64 {
        self.pinned.as_ref().map_or(0, Registered::device_address)
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: mapped for as long as the desk is there, aligned to a page, and any bytes are
        // words.
        unsafe { &self.words.0.as_ref()[at] }
    }

    /// Whether a kernel has stopped or was told to. Costs a load.
    pub(super) fn has_fault(&self) -> bool {
        self.word(word::FAULT).load(Ordering::Acquire) != 0
            || self.word(word::ABORT).load(Ordering::Relaxed) != 0
    }

    /// What a kernel found wrong, if one did.
    pub(super) fn fault(&self) -> Option<Fault> {
        let what = self.word(word::FAULT).load(Ordering::Acquire);
        let of = |at| self.word(at).load(Ordering::Relaxed);
        let [peer, ours, theirs] = [word::PEER, word::OURS, word::THEIRS].map(of);
        (what != 0).then_some(Fault { what, peer, ours, theirs })
    }

    /// Never give the words back: something that may write there does not end.
    pub(super) fn keep(&self) {
        self.is_kept.store(true, Ordering::Relaxed);
    }

    /// Let every kernel of the group end.
    pub(super) fn abort(&self) {
        self.word(word::ABORT).store(1, Ordering::Release);
    }

    /// As new, once no kernel is left.
    pub(super) fn clear(&self) {
        (0..DESK_BYTES / 4).for_each(|at| self.word(at).store(0, Ordering::Release));
    }

    /// The first block that stands still.
    pub(super) fn still(&self) -> Option<Still> {
        (0..BLOCKS).find_map(|block| {
            let first = word::PLACES + block * word::PLACE;
            let of = |at| self.word(first + at).load(Ordering::Relaxed);
            let phase = self.word(first).load(Ordering::Acquire);
            let [peer, sequence, step, signature, turn] = [1, 2, 3, 4, 5].map(of);
            (phase != 0).then_some(Still { phase, peer, sequence, step, signature, turn })
        })
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        if self.is_kept.load(Ordering::Relaxed) {
            return std::mem::forget(self.pinned.take());
        }
        // While the driver has them pinned they stay, since a kernel might write there.
        if self.pinned.take().is_none_or(|pinned| pinned.let_go().is_ok()) {
            self.words.unmap();
        }
    }
}

impl Words {
    fn map() -> Result<Self, CudaError> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new private mapping without a wished address touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), WORDS_BYTES, access, flags, -1, 0) };
        let words = NonNull::new(start).filter(|_| start != libc::MAP_FAILED);
        let refused = || {
            let error = std::io::Error::last_os_error();
            CudaError::Refused { why: format!("mapping memory for a desk: {error}") }
        };
        let words = words.ok_or_else(refused)?;
        // Whoever has a group in a child may still ask it how it is, so there are pages there, too.
        // SAFETY: a mapping of ours, and the advice drops nothing that this process has. A kernel
        // that declines copies what is pinned for the child, or is as old as those that did not.
        let _ = unsafe { libc::madvise(start, WORDS_BYTES, libc::MADV_WIPEONFORK) };
        Ok(Self(words.cast()))
    }

    /// Once, and then nobody looks at it.
    fn unmap(&self) {
        // SAFETY: mapped by us, this long.
        unsafe { libc::munmap(self.0.as_ptr().cast(), WORDS_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::Still;

    /// A replay of a graph has the number of the call that was captured, and may wait as long.
    #[test]
    fn waits_of_replays_are_told_apart() {
        let still = Still { phase: 6, peer: 1, sequence: 3, step: 0, signature: 5, turn: 8 };
        assert!(still.is_same_wait(&Still { peer: 2, step: 1, ..still }));
        assert!(!still.is_same_wait(&Still { turn: 12, ..still }));
    }
}
