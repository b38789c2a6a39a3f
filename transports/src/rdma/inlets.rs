//! The receiving ends of a wire's queue pairs, as the exchange makes, stops and replaces them, for
//! the ring's reader to take.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use brigade_verbs::{Access, Limits, Memory, MemoryRegion, ProtectionDomain};

use super::card::Address;
use super::failed;
use super::frame::Turn;
use super::limits::{CREDITS, PIECES};
use super::local::Local;
use super::path::End;
use crate::TransportError;

/// What the receiving end of a queue pair holds.
pub(super) const LIMITS: Limits = Limits {
    sends: CREDITS,
    receives: PIECES as u32 + CREDITS,
    inline_bytes: 0,
    access: Access::Write,
};

/// The most replacements that the reader has not taken yet.
pub(super) const FRESH_MAX: usize = 8;

/// The receiving end of one queue pair.
pub(super) struct Inlet {
    pub(super) end: End,
    /// Where the other end is.
    pub(super) theirs: Address,
    /// Keeps the ring known to the device.
    pub(super) region: Arc<MemoryRegion>,
    /// Which attempt of the sender's it comes from.
    pub(super) turn: u32,
    /// Nothing comes out of it any more, and nothing is posted on it.
    is_stopped: AtomicBool,
    /// The other end takes words.
    is_linked: AtomicBool,
}

impl Inlet {
    pub(super) fn new(end: End, theirs: Address, region: Arc<MemoryRegion>, turn: u32) -> Inlet {
        // The sender of a new wire sends first, and is ready for words by then.
        let is_linked = AtomicBool::new(turn == 0);
        Inlet { end, theirs, region, turn, is_stopped: AtomicBool::new(false), is_linked }
    }

    pub(super) fn works(&self) -> bool {
        !self.is_stopped.load(Ordering::Relaxed)
    }

    pub(super) fn takes_words(&self) -> bool {
        self.works() && self.is_linked.load(Ordering::Relaxed)
    }

    /// Let nothing arrive through it any more.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        // A device that does not answer does not write either.
        let _stopped = self.end.pair.stop();
    }
}

/// A wire's receiving end: the memory of its ring, and who may write there.
pub(super) struct Incoming {
    pub(super) memory: Arc<Memory>,
    pub(super) ring_bytes: usize,
    inlets: Mutex<Inlets>,
    /// How many inlets there have been.
    count: AtomicU32,
    /// Why the sender has given up, if it has.
    lost: OnceLock<String>,
}

#[derive(Default)]
struct Inlets {
    present: Vec<Arc<Inlet>>,
    /// Those that the reader has not taken yet, the oldest first, each with its stripe; and how
    /// many of them have replaced no other.
    fresh: Vec<(usize, Arc<Inlet>)>,
    first: usize,
}

impl Incoming {
    pub(super) fn new(memory: Arc<Memory>, ring_bytes: usize, inlets: Vec<Inlet>) -> Incoming {
        let present: Vec<_> = inlets.into_iter().map(Arc::new).collect();
        let count = AtomicU32::new(present.len() as u32);
        let (fresh, first) = (present.iter().cloned().enumerate().collect(), present.len());
        let inlets = Mutex::new(Inlets { present, fresh, first });
        Incoming { memory, ring_bytes, inlets, count, lost: OnceLock::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inlets> {
        self.inlets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many inlets there have been, so that the reader notices new ones. Costs a load.
    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// The inlets that are new since the last call, in the order in which they were made, each with
    /// its stripe.
    pub(super) fn take_fresh(&self) -> Vec<(usize, Arc<Inlet>)> {
        let mut inlets = self.lock();
        inlets.first = 0;
        std::mem::take(&mut inlets.fresh)
    }

    /// Let nothing arrive through an inlet any more. One that was replaced is stopped already.
    pub(super) fn stop(&self, turn: Turn) {
        if let Some(inlet) = self.lock().present.get(usize::from(turn.stripe))
            && inlet.turn == turn.turn
        {
            inlet.stop();
        }
    }

    /// The other end of an inlet takes words now.
    pub(super) fn link(&self, turn: Turn) {
        if let Some(inlet) = self.lock().present.get(usize::from(turn.stripe))
            && inlet.turn == turn.turn
        {
            inlet.is_linked.store(true, Ordering::Relaxed);
        }
    }

    /// The sender has given up. What was known first stays.
    pub(super) fn forsake(&self, why: String) {
        let _known = self.lost.set(why);
    }

    /// Why the sender has given up, if it has.
    pub(super) fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// Whether a peer may replace an inlet now. Errors: why not.
    pub(super) fn may_replace(&self, turn: Turn) -> Result<(), &'static str> {
        let inlets = self.lock();
        match inlets.present.get(usize::from(turn.stripe)) {
            None => Err("its wire has no such queue pair"),
            Some(inlet) if inlet.turn >= turn.turn => Err("it was replaced before"),
            Some(_) if inlets.fresh.len() - inlets.first >= FRESH_MAX => {
                Err("the reader has not looked at those made before")
            }
            Some(_) => Ok(()),
        }
    }

    /// The ring, as a device knows it.
    pub(super) fn region(
        &self,
        local: &Local,
        domain: &Arc<ProtectionDomain>,
    ) -> Result<Arc<MemoryRegion>, TransportError> {
        let inlets = self.lock();
        let mut known = inlets.present.iter();
        if let Some(inlet) = known.find(|it| Arc::ptr_eq(it.end.domain(local), domain)) {
            return Ok(Arc::clone(&inlet.region));
        }
        MemoryRegion::new(domain, &self.memory, Access::Write).map(Arc::new).map_err(failed)
    }

    /// Put an inlet in the place of another one, which is stopped if it was not yet.
    pub(super) fn replace(&self, stripe: usize, inlet: Inlet) {
        let mut inlets = self.lock();
        let inlet = Arc::new(inlet);
        let before = std::mem::replace(&mut inlets.present[stripe], Arc::clone(&inlet));
        before.stop();
        inlets.fresh.push((stripe, inlet));
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}
