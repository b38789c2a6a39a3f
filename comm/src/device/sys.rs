//! The desk: words in memory of the host that kernels of the group and the host both look into.

use std::sync::atomic::{AtomicU32, Ordering};

use brigade_cuda::{Context, CudaError, Registered};

use super::layout::{BLOCKS, DESK_BYTES, word};

/// Where kernels say what they wait for and what went wrong, and where they are told to end.
pub(super) struct Desk {
    /// In front of the memory.
    pinned: Registered,
    words: Box<Words>,
}

/// Ours and not the driver's, which frees what it has pinned as soon as the process begins to end,
/// while the group's thread still looks at it. Whole pages.
#[repr(C, align(4096))]
struct Words([AtomicU32; DESK_BYTES / 4]);

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
        let words = Box::new(Words([const { AtomicU32::new(0) }; DESK_BYTES / 4]));
        let (start, bytes) = (words.0.as_ptr().cast_mut().cast(), size_of::<Words>());
        // SAFETY: the words lie in a box that goes behind what pins them, and kernels change them
        // as atomic words, too.
        let pinned = unsafe { Registered::new(context, start, bytes) }?;
        Ok(Self { pinned, words })
    }

    /// As kernels name it.
    pub(super) fn address(&self) -> u64 {
        self.pinned.device_address()
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        &self.words.0[at]
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
