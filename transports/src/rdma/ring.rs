//! The receiving end of a wire: a ring that the peer's device writes into, and the numbers of what
//! has arrived, put in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use brigade_verbs::{Completion, Limits, Memory, MemoryRegion, Status};

use super::card::Address;
use super::exchange::{Hand, Request};
use super::lane::{CREDITS, PIECES, piece_bytes};
use super::path::End;
use super::port::Local;
use super::wire::LINE_BYTES;
use crate::TransportError;

/// How many completions are taken at a time.
const BATCH: usize = 16;

/// What the receiving end of a queue pair holds.
pub(super) const LIMITS: Limits =
    Limits { sends: CREDITS, receives: PIECES as u32 + CREDITS, inline_bytes: 0 };

/// The receiving end of one queue pair.
pub(super) struct Inlet {
    pub(super) end: End,
    /// Where the other end is.
    pub(super) theirs: Address,
    /// Keeps the ring known to the device.
    pub(super) region: Arc<MemoryRegion>,
    /// Nothing comes out of it any more, and nothing is posted on it.
    is_stopped: AtomicBool,
}

impl Inlet {
    pub(super) fn new(end: End, theirs: Address, region: Arc<MemoryRegion>) -> Inlet {
        Inlet { end, theirs, region, is_stopped: AtomicBool::new(false) }
    }

    fn works(&self) -> bool {
        !self.is_stopped.load(Ordering::Relaxed)
    }
}

/// What the exchange makes when a peer wants to send, for the wire to take.
pub(super) struct Incoming {
    pub(super) memory: Arc<Memory>,
    pub(super) ring_bytes: usize,
    pub(super) inlets: Vec<Inlet>,
}

impl Incoming {
    /// Let nothing arrive through an inlet any more.
    pub(super) fn stop(&self, index: usize) {
        if let Some(inlet) = self.inlets.get(index) {
            inlet.is_stopped.store(true, Ordering::Relaxed);
            // A device that does not answer does not write either.
            let _stopped = inlet.end.pair.stop();
        }
    }
}

/// The ring as its reader sees it.
pub(super) struct Ring {
    incoming: Arc<Incoming>,
    local: Arc<Local>,
    peer: usize,
    hand: Hand,
    /// Lengths of pieces that have arrived, by number modulo their count; 0 for those that have
    /// not.
    lengths: [u32; PIECES],
    /// The number of the piece that is read.
    next: u32,
    /// Where it lies.
    offset: usize,
    /// Lines and pieces that were consumed, in all, and those that the sender was told.
    consumed: u32,
    told: u32,
    pieces_untold: u32,
    /// Words to the sender that are posted and not completed, by inlet.
    posted: Vec<u32>,
    /// How the first inlet failed, if one has.
    failed: Option<(usize, Status)>,
    /// Which inlets have, a bit each.
    dead_inlets: u32,
}

impl Ring {
    pub(super) fn new(incoming: Arc<Incoming>, local: Arc<Local>, peer: usize, hand: Hand) -> Ring {
        let posted = vec![0; incoming.inlets.len()];
        Ring {
            incoming,
            local,
            peer,
            hand,
            lengths: [0; PIECES],
            next: 0,
            offset: 0,
            consumed: 0,
            told: 0,
            pieces_untold: 0,
            posted,
            failed: None,
            dead_inlets: 0,
        }
    }

    /// Where the piece that is read lies and how long it is, once it has arrived.
    #[inline]
    pub(super) fn piece(&mut self) -> Result<Option<(usize, usize)>, TransportError> {
        let slot = self.next as usize % PIECES;
        if self.lengths[slot] == 0 {
            self.look()?;
        }
        match self.lengths[slot] as usize {
            0 => Ok(None),
            bytes => Ok(Some((self.offset, bytes))),
        }
    }

    /// The memory that pieces lie in.
    #[inline]
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.incoming.memory
    }

    /// The number of the piece that is read.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// The piece has been read: its place may be written again.
    pub(super) fn release(&mut self) {
        let length = &mut self.lengths[self.next as usize % PIECES];
        let lines = (*length as usize).div_ceil(LINE_BYTES);
        *length = 0;
        self.next = self.next.wrapping_add(1);
        self.offset = (self.offset + lines * LINE_BYTES) % self.incoming.ring_bytes;
        self.consumed = self.consumed.wrapping_add(lines as u32);
        self.pieces_untold += 1;
        if self.has_news() {
            self.tell();
        }
    }

    /// Whether enough was consumed that the sender should know.
    fn has_news(&self) -> bool {
        let untold_bytes = self.consumed.wrapping_sub(self.told) as usize * LINE_BYTES;
        untold_bytes >= self.incoming.ring_bytes / 4 || self.pieces_untold >= PIECES as u32 / 4
    }

    /// Tell the sender what was consumed, over the first inlet that works.
    fn tell(&mut self) {
        for index in 0..self.incoming.inlets.len() {
            self.look_at_words(index);
            let inlet = &self.incoming.inlets[index];
            if !inlet.works() || self.posted[index] == CREDITS {
                continue;
            }
            match inlet.end.pair.post_number(0, self.consumed) {
                Ok(()) => {
                    self.posted[index] += 1;
                    (self.told, self.pieces_untold) = (self.consumed, 0);
                    return;
                }
                Err(_) => self.fail(index, Status::REFUSED),
            }
        }
    }

    /// What came of the words that were posted on an inlet.
    fn look_at_words(&mut self, index: usize) {
        let mut batch = [Completion::default(); BATCH];
        let polled = self.incoming.inlets[index].end.sends.poll(&mut batch);
        for completion in &batch[..polled.unwrap_or(0)] {
            self.posted[index] = self.posted[index].saturating_sub(1);
            if !completion.status().is_success() {
                self.fail(index, completion.status());
            }
        }
    }

    /// Take the numbers of what has arrived.
    pub(super) fn look(&mut self) -> Result<(), TransportError> {
        for index in 0..self.incoming.inlets.len() {
            let mut batch = [Completion::default(); BATCH];
            loop {
                let polled = self.incoming.inlets[index].end.arrivals.poll(&mut batch);
                let count = polled.map_err(super::failed)?;
                for completion in &batch[..count] {
                    self.arrive(index, completion)?;
                }
                if count < BATCH {
                    break;
                }
            }
        }
        if self.has_news() {
            self.tell();
        }
        Ok(())
    }

    #[inline]
    fn arrive(&mut self, index: usize, completion: &Completion) -> Result<(), TransportError> {
        if !completion.status().is_success() {
            self.fail(index, completion.status());
            return Ok(());
        }
        let inlet = &self.incoming.inlets[index];
        if inlet.works() && inlet.end.pair.post_receive(0).is_err() {
            self.fail(index, Status::REFUSED);
        }
        let Some(number) = completion.immediate() else { return Ok(()) };
        // A piece that was sent again although it had arrived is one that is here or was read.
        if number.wrapping_sub(self.next) as usize >= PIECES {
            return Ok(());
        }
        let bytes = completion.bytes();
        if bytes == 0 || bytes as usize > piece_bytes(self.incoming.ring_bytes) {
            let what = format!("a piece of {bytes} bytes");
            return Err(TransportError::Corrupt { peer: self.peer, what });
        }
        self.lengths[number as usize % PIECES] = bytes;
        Ok(())
    }

    /// An inlet has failed: tell the sender, who stops it and sends again what it may have lost.
    #[cold]
    fn fail(&mut self, index: usize, status: Status) {
        let was_known = self.failed.is_some_and(|(_, known)| known != Status::FLUSHED);
        if !was_known {
            self.failed = Some((index, status));
        }
        if self.dead_inlets & 1 << index != 0 {
            return;
        }
        self.dead_inlets |= 1 << index;
        if status == Status::FLUSHED {
            // What was thrown away may be found before what failed.
            self.look_at_words(index);
        }
        if self.incoming.inlets[index].works() {
            self.incoming.stop(index);
            self.hand.ask(Request::Broken { peer: self.peer, stripe: index as u8 });
        }
        // A word that went this way may be lost: say it again.
        self.tell();
    }

    /// Why nothing arrives any more, when no inlet works.
    #[cold]
    pub(super) fn dead(&self) -> Option<TransportError> {
        if self.incoming.inlets.iter().any(Inlet::works) {
            return None;
        }
        let (index, status) = self.failed.unwrap_or((0, Status::FLUSHED));
        let inlet = &self.incoming.inlets[index];
        Some(inlet.end.blame(&self.local, &inlet.theirs, self.peer, status))
    }
}
