//! The sending end of a wire.
//!
//! ```text
//!            head            head + flying         head + flying + queued
//! slots  ... | on their way ... | not sent yet ... (open) | free ...
//! ```
//!
//! A push fills the open slot, or a free one, and sends it unless several are on their way already;
//! then small messages gather in it. So a wire always takes what its credit says.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::mouth::Mouth;
use super::net::{Net, Thing};
use super::region::Slots;
use super::{FLYING_MAX, SLOT_BYTES, SLOTS};
use crate::{SendWire, TransportError};

/// What the user's thread, the bell and the steward share.
pub(super) struct Outlet {
    net: &'static Net,
    peer: usize,
    end: Thing,
    memory: Thing,
    slots: Slots,
    head: usize,
    flying: usize,
    queued: usize,
    requests: [Option<Thing>; SLOTS],
    lengths: [usize; SLOTS],
    /// All bytes that were ever taken.
    taken: u64,
    /// Counts what a sleeper may be waiting for.
    moves: u64,
    /// Whether the steward looks after what is on its way.
    is_tended: bool,
    fault: Option<TransportError>,
}

impl Outlet {
    /// On a connection that stands.
    pub(super) fn new(
        net: &'static Net,
        peer: usize,
        end: Thing,
    ) -> Result<Arc<Mutex<Outlet>>, TransportError> {
        let slots = Slots::new();
        let (start, bytes) = slots.all();
        // SAFETY: the slots live as long as the outlet, and for ever if the plugin does not let go.
        let memory = unsafe { net.register(end, start, bytes) };
        let memory = memory.map_err(|failure| {
            // The connection is of no use; what fails here is no news.
            let _ = net.close_send(end);
            failure.on_wire(peer)
        })?;
        Ok(Arc::new(Mutex::new(Outlet {
            net,
            peer,
            end,
            memory,
            slots,
            head: 0,
            flying: 0,
            queued: 0,
            requests: [None; SLOTS],
            lengths: [0; SLOTS],
            taken: 0,
            moves: 0,
            is_tended: false,
            fault: None,
        })))
    }

    /// All bytes that were ever taken.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// What a sleeper may be waiting for has happened so often.
    pub(super) fn moves(&self) -> u64 {
        self.moves
    }

    /// The peer takes no more.
    pub(super) fn end(&mut self, fault: TransportError) {
        if self.fault.is_none() {
            self.fault = Some(fault);
            self.moves += 1;
        }
    }

    /// Go on with what is on its way; whether nothing is, or ever will be.
    pub(super) fn tend(&mut self) -> bool {
        let is_settled = self.fault.is_some() || self.go_on().is_err() || self.is_empty();
        if is_settled {
            self.is_tended = false;
        }
        is_settled
    }

    fn is_empty(&self) -> bool {
        self.flying + self.queued == 0
    }

    /// Look at what is on its way, and send what can be sent.
    fn go_on(&mut self) -> Result<(), TransportError> {
        while self.flying > 0 {
            let request = self.requests[self.head].expect("on its way");
            let ended = self.net.test(request).map_err(|failure| failure.on_wire(self.peer));
            if self.kept(ended)?.is_none() {
                break;
            }
            self.requests[self.head] = None;
            self.head = (self.head + 1) % SLOTS;
            self.flying -= 1;
            self.moves += 1;
        }
        while self.queued > 0 && self.send_one()? {}
        Ok(())
    }

    /// Send the first slot that was not sent; whether it is on its way now.
    fn send_one(&mut self) -> Result<bool, TransportError> {
        let slot = (self.head + self.flying) % SLOTS;
        let is_full = self.lengths[slot] == SLOT_BYTES;
        if self.flying >= FLYING_MAX && !is_full {
            return Ok(false);
        }
        let message = (self.slots.start(slot), self.lengths[slot]);
        // SAFETY: registered; and while it is on its way only slots behind it are written.
        let begun = unsafe { self.net.send(self.end, message, self.memory) };
        let begun = self.kept(begun.map_err(|failure| failure.on_wire(self.peer)))?;
        let Some(request) = begun else { return Ok(false) };
        self.requests[slot] = Some(request);
        (self.flying, self.queued) = (self.flying + 1, self.queued - 1);
        Ok(true)
    }

    /// Take bytes into the open slot or a free one; how many.
    fn fill(&mut self, bytes: &[u8]) -> usize {
        let last = (self.head + self.flying + self.queued).wrapping_sub(1) % SLOTS;
        let (slot, from) = if self.queued > 0 && self.lengths[last] < SLOT_BYTES {
            (last, self.lengths[last])
        } else if self.flying + self.queued < SLOTS {
            self.queued += 1;
            ((self.head + self.flying + self.queued - 1) % SLOTS, 0)
        } else {
            return 0;
        };
        let count = bytes.len().min(SLOT_BYTES - from);
        // SAFETY: the slot was not sent, or its request has ended.
        unsafe { self.slots.room(slot, from, count) }.copy_from_slice(&bytes[..count]);
        self.lengths[slot] = from + count;
        self.taken += count as u64;
        count
    }

    fn kept<T>(&mut self, outcome: Result<T, TransportError>) -> Result<T, TransportError> {
        if let Err(fault) = &outcome {
            self.end(fault.clone());
        }
        outcome
    }
}

#[cfg(test)]
impl Outlet {
    /// Where the slots are.
    pub(super) fn start(&self) -> *mut u8 {
        self.slots.all().0
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        let forgotten = self.net.forget(self.end, self.memory);
        let closed = self.net.close_send(self.end);
        self.slots.after(&forgotten.and(closed));
    }
}

/// Wait for whoever else goes on with it at the moment.
pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The user's end.
pub(super) struct Sender {
    outlet: Arc<Mutex<Outlet>>,
    mouth: Mouth,
}

impl Sender {
    pub(super) fn new(outlet: Arc<Mutex<Outlet>>, mouth: Mouth) -> Sender {
        Sender { outlet, mouth }
    }
}

impl SendWire for Sender {
    fn push(&mut self, bytes: &[u8]) -> Result<usize, TransportError> {
        let mut outlet = lock(&self.outlet);
        if let Some(fault) = &outlet.fault {
            return Err(fault.clone());
        }
        let mut taken = 0;
        while taken < bytes.len() {
            if outlet.flying > 0 {
                outlet.go_on()?;
            }
            match outlet.fill(&bytes[taken..]) {
                0 => break,
                count => taken += count,
            }
            outlet.go_on()?;
        }
        if bytes.is_empty() && !outlet.is_empty() {
            outlet.go_on()?;
        }
        // Whoever pushes may do nothing else for a long time.
        if !outlet.is_empty() && !outlet.is_tended {
            outlet.is_tended = true;
            self.mouth.ring();
        }
        Ok(taken)
    }
}
