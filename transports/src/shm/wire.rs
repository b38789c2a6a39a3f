//! The hot path: one ring of slots and one ring of payload per ordered pair of members.
//!
//! A slot is one cache line: a flag of eight bytes (which piece, how long) and 56 bytes that hold
//! the whole piece when it is that short, so a small message is one line that changes hands. A
//! longer piece lies in the payload ring, where the receiver reads it in place. [`order`] says
//! when which word may be written; here only bytes move. Lengths found in shared memory are
//! checked before anything is read by them.
//!
//! [`order`]: super::order

use std::cell::UnsafeCell;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use super::area::Area;
use super::bell::Ringer;
use super::order::{Arrival, ImpossibleTail, Receiving, Sending};
use super::pace::{Pace, Piece, Told};
use super::region::{Bytes, Plain, Shared};
use super::sys;
use crate::pieces::{Pieces, Stream};
use crate::{RecvWire, SendWire, TransportError};

const SLOTS: u32 = 64;
const LINE_BYTES: usize = 64;
const INLINE_BYTES: usize = LINE_BYTES - size_of::<AtomicU64>();

/// What the slots of one pair take.
pub(super) const SLOTS_BYTES: usize = size_of::<Slots>();

const _: () = assert!(size_of::<Slot>() == LINE_BYTES && size_of::<Tail>() == LINE_BYTES);

/// One piece of a message, or what says where it lies. Written by the sender.
#[repr(C, align(64))]
pub(super) struct Slot {
    flag: AtomicU64,
    inline: UnsafeCell<[u8; INLINE_BYTES]>,
}

/// The slots of one pair.
pub(super) type Slots = [Slot; SLOTS as usize];

/// How far the receiver has come. Written by the receiver.
#[repr(C, align(64))]
pub(super) struct Tail {
    freed: AtomicU64,
    closed: AtomicU32,
    /// How long the last piece took that it was asked to time.
    told: AtomicU64,
}

// SAFETY: an atomic and bytes in a cell: any bits are valid, and all may change.
unsafe impl Plain for Slot {}
// SAFETY: only atomics.
unsafe impl Plain for Tail {}

/// What either end of a wire is made of.
pub(super) struct Parts {
    pub(super) slots: Shared<Slots>,
    pub(super) tail: Shared<Tail>,
    pub(super) payload: Bytes,
    pub(super) ring_bytes: usize,
    pub(super) piece_bytes: usize,
    /// The other side's bell.
    pub(super) bell: Ringer,
    /// The other side's index in the group.
    pub(super) peer: usize,
    pub(super) leaving: Leaving,
    /// Keeps us a member while a wire of ours lives.
    pub(super) area: Arc<Area>,
}

/// How an end hears that the other side has left that never opened its own.
pub(super) struct Leaving {
    /// The other side's seat.
    pub(super) seat: u32,
    /// Whether any member was seen to have left.
    pub(super) anybody: Arc<AtomicBool>,
}

impl Parts {
    fn lines(&self) -> u32 {
        assert!(self.ring_bytes.is_multiple_of(LINE_BYTES) && self.piece_bytes <= self.ring_bytes);
        u32::try_from(self.ring_bytes / LINE_BYTES).expect("rings are far shorter than that")
    }

    /// Whether the other side has left: what it said before is there to be seen.
    #[inline]
    fn has_left(&self) -> bool {
        self.leaving.anybody.load(Ordering::Relaxed) && self.area.has_left(self.leaving.seat)
    }

    fn gone(&self) -> TransportError {
        TransportError::PeerGone { peer: self.peer, how: "it closed its side of the wire".into() }
    }

    fn corrupt(&self, what: String) -> TransportError {
        TransportError::Corrupt { peer: self.peer, what }
    }
}

/// The sending end.
pub(super) struct Sender {
    parts: Parts,
    book: Sending<SLOTS>,
    pace: Pace,
    failed: Option<TransportError>,
}

impl Sender {
    pub(super) fn new(parts: Parts) -> Self {
        let (book, ring_bytes) = (Sending::new(parts.lines()), parts.ring_bytes);
        Self { parts, book, pace: Pace::new(ring_bytes), failed: None }
    }

    /// Write a piece of at most `INLINE_BYTES` into the slot itself, if a slot is free.
    #[inline]
    fn write_inline(&mut self, bytes: &[u8]) -> Result<usize, TransportError> {
        if !self.book.has_slot() {
            self.look()?;
            if !self.book.has_slot() {
                return Ok(0);
            }
        }
        assert!(bytes.len() <= INLINE_BYTES);
        let slot = &self.parts.slots[self.book.slot()];
        // SAFETY: the slot is free: the receiver has released its last piece, which we saw with
        // acquire order, and looks inside only when the flag says so. The length fits.
        unsafe {
            let place: *mut u8 = slot.inline.get().cast();
            place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        self.book.publish(&slot.flag, bytes.len() as u32, 0);
        Ok(bytes.len())
    }

    /// Write the start of `bytes` into the payload ring as one piece, as far as there is room.
    fn write_payload(&mut self, bytes: &[u8]) -> Result<usize, TransportError> {
        let line = self.book.line() as usize;
        let to_end = self.parts.ring_bytes - line * LINE_BYTES;
        let wanted = bytes.len().min(self.parts.piece_bytes).min(to_end);
        if !self.book.has_slot() || self.book.free_lines() as usize * LINE_BYTES < wanted {
            self.look()?;
            if !self.book.has_slot() {
                return Ok(0);
            }
        }
        let len = wanted.min(self.book.free_lines() as usize * LINE_BYTES);
        if len == 0 {
            return Ok(0);
        }
        // These lines are free, by the tail that we saw with acquire order.
        let (bytes, ring, position) = (&bytes[..len], &self.parts.payload, self.book.position());
        let piece = Piece { bytes, ring, offset: line * LINE_BYTES, position };
        let is_timed = self.pace.write(piece, &self.parts.tail.told);
        let slot = &self.parts.slots[self.book.slot()];
        let (count, lines) = (len as u32, len.div_ceil(LINE_BYTES) as u32);
        match is_timed {
            false => self.book.publish(&slot.flag, count, lines),
            true => self.book.publish_timed(&slot.flag, count, lines),
        }
        Ok(len)
    }

    /// Look at the tail, because the ring seems full.
    #[cold]
    fn look(&mut self) -> Result<(), TransportError> {
        let tail = &self.parts.tail;
        let looked = match self.book.look(&tail.freed) {
            Err(ImpossibleTail(word)) => {
                Err(self.parts.corrupt(format!("the tail of a ring, {word:#x}, is impossible")))
            }
            Ok(()) if tail.closed.load(Ordering::Acquire) != 0 => Err(self.parts.gone()),
            Ok(()) if self.parts.has_left() => Err(self.parts.gone()),
            Ok(()) => Ok(()),
        };
        looked.inspect_err(|error| self.failed = Some(error.clone()))
    }
}

impl SendWire for Sender {
    fn push(&mut self, bytes: &[u8]) -> Result<usize, TransportError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let mut taken = 0;
        while taken < bytes.len() {
            let rest = &bytes[taken..];
            let wrote = match rest.len() <= INLINE_BYTES {
                true => self.write_inline(rest),
                false => self.write_payload(rest),
            };
            match wrote {
                Ok(0) => break,
                Ok(count) => taken += count,
                // The next call reports it.
                Err(_) if taken > 0 => break,
                Err(error) => return Err(error),
            }
            self.parts.bell.ring();
        }
        Ok(taken)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if self.parts.area.is_of_parent() {
            return;
        }
        self.book.close(&self.parts.slots[self.book.slot()].flag);
        self.parts.bell.ring();
    }
}

/// The receiving end.
pub(super) struct Receiver {
    arriving: Arriving,
    stream: Stream,
}

impl Receiver {
    pub(super) fn new(parts: Parts) -> Self {
        let book = Receiving::new(parts.lines());
        Self { arriving: Arriving { parts, book, offset: 0, ticks: 0 }, stream: Stream::new() }
    }
}

impl RecvWire for Receiver {
    fn pull(
        &mut self,
        limit: usize,
        granule: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, TransportError> {
        self.stream.pull(&mut self.arriving, (limit, granule), sink)
    }

    fn pull_into(&mut self, target: &mut [u8]) -> Result<usize, TransportError> {
        self.stream.pull_into(&mut self.arriving, target)
    }

    fn pull_past_caches(&mut self, target: &mut [u8]) -> Result<usize, TransportError> {
        self.stream.pull_past_caches(&mut self.arriving, target)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let Parts { tail, bell, area, .. } = &self.arriving.parts;
        if area.is_of_parent() {
            return;
        }
        tail.closed.store(1, Ordering::Release);
        bell.ring();
    }
}

/// What arrives in the slots and the payload.
struct Arriving {
    parts: Parts,
    book: Receiving<SLOTS>,
    /// How much of the current piece has been handed over.
    offset: usize,
    /// How long that took, if the sender wants to know.
    ticks: u64,
}

/// What is left of the current piece.
struct Rest {
    place: *const u8,
    bytes: usize,
    /// The length of the whole piece.
    piece_bytes: usize,
    is_timed: bool,
}

impl Pieces for Arriving {
    type Rest = Rest;

    #[inline]
    fn rest(&mut self) -> Result<Option<(Rest, usize)>, TransportError> {
        let slot = &self.parts.slots[self.book.slot()];
        let seen = match self.book.peek(&slot.flag) {
            Arrival::Nothing if self.parts.has_left() => self.last_words(),
            seen => seen,
        };
        let (piece_bytes, is_timed) = match seen {
            Arrival::Nothing => return Ok(None),
            Arrival::Piece(bytes) => (bytes as usize, false),
            Arrival::Timed(bytes) => (bytes as usize, true),
            other => return Err(self.fail(other)),
        };
        if piece_bytes <= self.offset {
            return Err(self.fail(Arrival::Piece(piece_bytes as u32)));
        }
        let bytes = piece_bytes - self.offset;
        let place = if piece_bytes <= INLINE_BYTES {
            let start: *const u8 = slot.inline.get().cast();
            start.wrapping_add(self.offset)
        } else {
            let start = self.book.line() as usize * LINE_BYTES;
            if piece_bytes > self.parts.piece_bytes || piece_bytes > self.parts.ring_bytes - start {
                return Err(self.fail(Arrival::Piece(piece_bytes as u32)));
            }
            self.parts.payload.at(start + self.offset, bytes).as_ptr()
        };
        Ok(Some((Rest { place, bytes, piece_bytes, is_timed }, bytes)))
    }

    #[inline]
    fn hand_over(&mut self, rest: &Rest, count: usize, sink: &mut dyn FnMut(&[u8])) {
        assert!(count <= rest.bytes);
        // SAFETY: `rest` lies within the slot or the payload, as checked when it was made; the
        // sender published it, and writes there again only after the release below.
        let bytes = unsafe { slice::from_raw_parts(rest.place, count) };
        match rest.is_timed {
            false => sink(bytes),
            true => self.timed(bytes, sink),
        }
        self.offset += count;
        if self.offset == rest.piece_bytes {
            let inline = rest.piece_bytes <= INLINE_BYTES;
            let lines = if inline { 0 } else { rest.piece_bytes.div_ceil(LINE_BYTES) };
            self.offset = 0;
            if rest.is_timed {
                let ticks = u32::try_from(std::mem::take(&mut self.ticks)).unwrap_or(u32::MAX);
                let told = Told { position: self.book.position(), ticks };
                self.parts.tail.told.store(told.pack(), Ordering::Relaxed);
            }
            self.book.release(&self.parts.tail.freed, lines as u32);
            self.parts.bell.ring();
        }
    }
}

impl Arriving {
    /// What there is of a side that has left: at least that it did.
    #[cold]
    fn last_words(&self) -> Arrival {
        match self.book.peek(&self.parts.slots[self.book.slot()].flag) {
            Arrival::Nothing => Arrival::Closed,
            said => said,
        }
    }

    #[cold]
    fn timed(&mut self, bytes: &[u8], sink: &mut dyn FnMut(&[u8])) {
        let start = sys::ticks();
        sink(bytes);
        fence(Ordering::SeqCst);
        self.ticks += sys::ticks().wrapping_sub(start);
    }

    #[cold]
    fn fail(&self, arrival: Arrival) -> TransportError {
        match arrival {
            Arrival::Closed => self.parts.gone(),
            other => self.parts.corrupt(format!("a ring holds an impossible {other:?}")),
        }
    }
}
