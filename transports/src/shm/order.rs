//! Which word is written after which: the whole argument why a ring and a bell are right.
//!
//! There is no payload here and no system call, only positions and atomics, so that a model
//! checker can run this very file with atomics of its own (`transports/tests/loom_shm.rs`).
//!
//! *Ring.* One sender, one receiver. Each slot has a flag that only the sender writes, and the
//! ring has a tail that only the receiver writes. A piece is written, then its flag is stored with
//! `Release`; the receiver loads the flag with `Acquire`, reads the piece, then stores the tail
//! with `Release`; the sender loads the tail with `Acquire` before it writes there again.
//!
//! *Bell.* The sleeper stores how it is to be woken, passes a full barrier, looks at the rings, and
//! sleeps while the word is not `QUIET`. The mover stores a flag or a tail, passes a full barrier,
//! and looks at the word. Whichever barrier comes first, the other side sees: no wake-up is lost.

use super::atomic::{AtomicU32, AtomicU64, Ordering};

/// The length that says that the sender has closed the ring.
const CLOSED: u32 = u32::MAX;
/// What is added to a length where the receiver is to time the piece.
const TIMED: u32 = 1 << 31;

/// What the receiver finds in a slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The sender has not come here yet.
    Nothing,
    /// A piece of that many bytes.
    Piece(u32),
    /// A piece of that many bytes, of which the sender wants to know how long reading it takes.
    Timed(u32),
    /// The sender has gone; nothing will follow.
    Closed,
    /// Neither the last lap's position nor this one's.
    Garbage(u32),
}

/// How far a receiver has come, in slots and in lines of payload; both wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Freed {
    slots: u32,
    lines: u32,
}

impl Freed {
    fn pack(self) -> u64 {
        u64::from(self.slots) | u64::from(self.lines) << 32
    }

    fn unpack(word: u64) -> Self {
        Self { slots: word as u32, lines: (word >> 32) as u32 }
    }
}

/// The tail says what no receiver of ours would say.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ImpossibleTail(pub(super) u64);

/// The sender's place in a ring of `SLOTS` slots and `lines` lines of payload.
pub(super) struct Sending<const SLOTS: u32> {
    lines: u32,
    sent: u32,
    filled: u32,
    freed: Freed,
}

impl<const SLOTS: u32> Sending<SLOTS> {
    pub(super) fn new(lines: u32) -> Self {
        const { assert!(SLOTS.is_power_of_two() && SLOTS > 1) };
        assert!(lines.is_power_of_two());
        Self { lines, sent: 0, filled: 0, freed: Freed::default() }
    }

    /// The slot that the next piece goes to.
    #[inline]
    pub(super) fn slot(&self) -> usize {
        (self.sent % SLOTS) as usize
    }

    /// The line where the next piece's payload starts.
    #[inline]
    pub(super) fn line(&self) -> u32 {
        self.filled & (self.lines - 1)
    }

    /// Whether a slot is free for one more piece. One slot is kept for closing the ring.
    #[inline]
    pub(super) fn has_slot(&self) -> bool {
        self.sent.wrapping_sub(self.freed.slots) < SLOTS - 1
    }

    /// How many lines can be written from [`line`](Self::line) on: free, and not past the end.
    #[inline]
    pub(super) fn free_lines(&self) -> u32 {
        let free = self.lines - self.filled.wrapping_sub(self.freed.lines);
        free.min(self.lines - self.line())
    }

    /// Learn what the receiver has freed since.
    pub(super) fn look(&mut self, tail: &AtomicU64) -> Result<(), ImpossibleTail> {
        let word = tail.load(Ordering::Acquire);
        let freed = Freed::unpack(word);
        if self.sent.wrapping_sub(freed.slots) > self.sent.wrapping_sub(self.freed.slots)
            || self.filled.wrapping_sub(freed.lines) > self.filled.wrapping_sub(self.freed.lines)
        {
            return Err(ImpossibleTail(word));
        }
        self.freed = freed;
        Ok(())
    }

    /// The position behind the piece that is published next.
    #[inline]
    pub(super) fn position(&self) -> u32 {
        self.sent.wrapping_add(1)
    }

    /// As [`publish`](Self::publish), for a piece that the receiver is to time.
    pub(super) fn publish_timed(&mut self, flag: &AtomicU64, bytes: u32, lines: u32) {
        self.publish(flag, bytes | TIMED, lines);
    }

    /// Show the receiver what was written into the current slot, and go on to the next.
    #[inline]
    pub(super) fn publish(&mut self, flag: &AtomicU64, bytes: u32, lines: u32) {
        flag.store(
            u64::from(self.sent.wrapping_add(1)) | u64::from(bytes) << 32,
            Ordering::Release,
        );
        self.sent = self.sent.wrapping_add(1);
        self.filled = self.filled.wrapping_add(lines);
    }

    /// Say that nothing will follow. There is always a slot for this.
    pub(super) fn close(&mut self, flag: &AtomicU64) {
        self.publish(flag, CLOSED, 0);
    }
}

/// The receiver's place in a ring.
pub(super) struct Receiving<const SLOTS: u32> {
    lines: u32,
    at: Freed,
}

impl<const SLOTS: u32> Receiving<SLOTS> {
    pub(super) fn new(lines: u32) -> Self {
        const { assert!(SLOTS.is_power_of_two() && SLOTS > 1) };
        assert!(lines.is_power_of_two());
        Self { lines, at: Freed::default() }
    }

    /// The slot that the next piece comes from.
    #[inline]
    pub(super) fn slot(&self) -> usize {
        (self.at.slots % SLOTS) as usize
    }

    /// The line where the next piece's payload starts.
    #[inline]
    pub(super) fn line(&self) -> u32 {
        self.at.lines & (self.lines - 1)
    }

    /// What lies in the current slot.
    #[inline]
    pub(super) fn peek(&self, flag: &AtomicU64) -> Arrival {
        let word = flag.load(Ordering::Acquire);
        let (position, bytes) = (word as u32, (word >> 32) as u32);
        let expected = self.at.slots.wrapping_add(1);
        if position == expected {
            return match bytes {
                CLOSED => Arrival::Closed,
                bytes if bytes & TIMED != 0 => Arrival::Timed(bytes & !TIMED),
                bytes => Arrival::Piece(bytes),
            };
        }
        // A slot holds zero before its first lap, and the last lap's position after that.
        if position == 0 || position == expected.wrapping_sub(SLOTS) {
            Arrival::Nothing
        } else {
            Arrival::Garbage(position)
        }
    }

    /// The position behind the current slot's piece.
    pub(super) fn position(&self) -> u32 {
        self.at.slots.wrapping_add(1)
    }

    /// Give the current slot and its lines back, and go on to the next.
    #[inline]
    pub(super) fn release(&mut self, tail: &AtomicU64, lines: u32) {
        self.at.slots = self.at.slots.wrapping_add(1);
        self.at.lines = self.at.lines.wrapping_add(lines);
        tail.store(self.at.pack(), Ordering::Release);
    }
}

/// The bell's owner sleeps at the word, or is about to.
pub(super) const ARMED: u32 = 1;
/// The bell's owner sleeps at its socket, or is about to.
pub(super) const ARMED_AT_SOCKET: u32 = 2;
/// Nobody needs to be woken.
pub(super) const QUIET: u32 = 0;

/// From now on movers ring, in the way that `armed` says. `barrier` is a full barrier; the caller
/// looks at its rings after this.
pub(super) fn arm(bell: &AtomicU32, armed: u32, barrier: impl FnOnce()) {
    bell.store(armed, Ordering::Relaxed);
    barrier();
}

/// How somebody must be woken after a ring was moved; `QUIET` if nobody must. `barrier` is a full
/// barrier, or what becomes one when the sleeper's barrier reaches into every thread.
#[inline]
pub(super) fn must_wake(bell: &AtomicU32, barrier: impl FnOnce()) -> u32 {
    barrier();
    if bell.load(Ordering::Relaxed) == QUIET { QUIET } else { bell.swap(QUIET, Ordering::AcqRel) }
}

/// Whether the owner may still sleep.
pub(super) fn may_sleep(bell: &AtomicU32) -> bool {
    bell.load(Ordering::Acquire) != QUIET
}

/// The owner is awake.
pub(super) fn disarm(bell: &AtomicU32) {
    bell.store(QUIET, Ordering::Relaxed);
}
