//! The receiving end of a wire: slots that are posted in a ring, filled and read in their order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::net::{Net, Thing};
use super::outlet::lock;
use super::region::Slots;
use super::{SLOT_BYTES, SLOTS};
use crate::pieces::{Pieces, Stream};
use crate::{RecvWire, TransportError};

/// How much of what nobody reads is moved out of slots, for a peer that leaves: more than one of
/// ours has taken and not landed. A plugin that has taken more by itself lands that without us.
const ASIDE_BYTES_MAX: usize = 8 * SLOTS * SLOT_BYTES;

/// What the user's thread, the bell and the steward share.
pub(super) struct Inlet {
    peer: usize,
    /// What was read out of slots to make room; it came before what is in them.
    aside: VecDeque<u8>,
    /// Once the peer has connected.
    line: Option<Line>,
    /// All bytes that ever arrived.
    arrived: u64,
    /// Counts what a sleeper may be waiting for.
    moves: u64,
    /// Why nothing comes any more, and after how many bytes, if that is known.
    gone: Option<(TransportError, Option<u64>)>,
}

struct Line {
    net: &'static Net,
    end: Thing,
    memory: Thing,
    slots: Slots,
    /// The slot that is read, or will be filled next.
    head: usize,
    /// How many slots from the head on are filled.
    filled: usize,
    /// How many behind them the plugin has.
    posted: usize,
    requests: [Option<Thing>; SLOTS],
    lengths: [usize; SLOTS],
    /// How much of the head was read.
    read: usize,
    /// Whether the plugin has said that nothing comes any more.
    is_over: bool,
}

impl Inlet {
    /// Nobody has connected yet.
    pub(super) fn new(peer: usize) -> Inlet {
        Inlet { peer, aside: VecDeque::new(), line: None, arrived: 0, moves: 0, gone: None }
    }

    /// The peer has connected.
    pub(super) fn connect(&mut self, net: &'static Net, end: Thing) -> Result<(), TransportError> {
        let slots = Slots::new();
        let (start, bytes) = slots.all();
        // SAFETY: the slots live as long as the line, and for ever if the plugin does not let go.
        let memory = unsafe { net.register(end, start, bytes) };
        let memory = memory.map_err(|failure| {
            // The connection is of no use; what fails here is no news.
            let _ = net.close_receive(end);
            failure.on_wire(self.peer)
        })?;
        let (head, filled, posted, read) = (0, 0, 0, 0);
        let (requests, lengths) = ([None; SLOTS], [0; SLOTS]);
        self.line = Some(Line {
            net,
            end,
            memory,
            slots,
            head,
            filled,
            posted,
            requests,
            lengths,
            read,
            is_over: false,
        });
        self.tend();
        Ok(())
    }

    /// What a sleeper may be waiting for has happened so often.
    pub(super) fn moves(&self) -> u64 {
        self.moves
    }

    /// Nothing comes any more, be it after so many bytes. The first reason counts.
    pub(super) fn end(&mut self, why: TransportError, after: Option<u64>) {
        if self.gone.is_none() {
            self.gone = Some((why, after));
            self.moves += 1;
        }
    }

    /// Whether the peer has left and all that it sent is here.
    pub(super) fn is_complete(&self) -> bool {
        matches!(&self.gone, Some((_, Some(after))) if *after <= self.arrived)
    }

    /// Whether the peer has left and something that it sent is still on its way.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(&self.gone, Some((_, Some(after))) if *after > self.arrived)
    }

    /// Make room for what a peer that leaves has sent. It waits until that is here, but not for
    /// long, and whoever is to read it may compute meanwhile.
    pub(super) fn make_room(&mut self) {
        let Some(line) = &mut self.line else { return };
        while line.filled > 0 && self.aside.len() < ASIDE_BYTES_MAX {
            let (count, read) = (line.lengths[line.head] - line.read, line.read);
            // SAFETY: the slot's request has ended, and it is posted again only after this.
            self.aside.extend(unsafe { line.slots.bytes(line.head, read, count) });
            line.next();
        }
        self.tend();
    }

    /// Post what can be posted, and see what has arrived.
    pub(super) fn tend(&mut self) {
        let Some(line) = &mut self.line else { return };
        match line.go_on() {
            Ok(0) => {}
            Ok(bytes) => {
                self.arrived += bytes as u64;
                self.moves += 1;
            }
            Err(failure) => {
                // A peer that has left may close before we ask for more.
                if !self.is_complete() {
                    self.gone = Some((failure.on_wire(self.peer), None));
                    self.moves += 1;
                }
                // What is here is read; the plugin is not asked again.
                if let Some(line) = &mut self.line {
                    line.is_over = true;
                }
            }
        }
    }
}

impl Line {
    /// How many bytes have arrived since the last time.
    fn go_on(&mut self) -> Result<usize, super::net::Failure> {
        let mut arrived = 0;
        if self.is_over {
            return Ok(0);
        }
        while self.posted > 0 {
            let slot = (self.head + self.filled) % SLOTS;
            let request = self.requests[slot].expect("the plugin has it");
            let Some(bytes) = self.net.test(request)? else { break };
            self.requests[slot] = None;
            self.lengths[slot] = bytes.min(SLOT_BYTES);
            (self.filled, self.posted) = (self.filled + 1, self.posted - 1);
            arrived += self.lengths[slot];
        }
        while self.filled + self.posted < SLOTS {
            let slot = (self.head + self.filled + self.posted) % SLOTS;
            let room = (self.slots.start(slot), SLOT_BYTES);
            // SAFETY: registered; what is posted is not read before its request has ended.
            let begun = unsafe { self.net.receive(self.end, room, self.memory) }?;
            let Some(request) = begun else { break };
            self.requests[slot] = Some(request);
            self.posted += 1;
        }
        Ok(arrived)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let forgotten = self.net.forget(self.end, self.memory);
        let closed = self.net.close_receive(self.end);
        self.slots.after(&forgotten.and(closed));
    }
}

impl Pieces for Inlet {
    type Rest = ();

    fn rest(&mut self) -> Result<Option<((), usize)>, TransportError> {
        if !self.aside.is_empty() {
            return Ok(Some(((), self.aside.as_slices().0.len())));
        }
        if self.line.as_ref().is_none_or(|line| line.filled == 0) && !self.is_complete() {
            self.tend();
        }
        if let Some(line) = &mut self.line {
            // Nothing is sent as a message of no bytes, but a plugin may make one.
            while line.filled > 0 && line.lengths[line.head] == line.read {
                line.next();
            }
            if line.filled > 0 {
                return Ok(Some(((), line.lengths[line.head] - line.read)));
            }
        }
        match &self.gone {
            Some((why, after)) if after.is_none_or(|after| after <= self.arrived) => {
                Err(why.clone())
            }
            _ => Ok(None),
        }
    }

    fn hand_over(&mut self, _rest: &(), count: usize, sink: &mut dyn FnMut(&[u8])) {
        if !self.aside.is_empty() {
            sink(&self.aside.as_slices().0[..count]);
            self.aside.drain(..count);
            return;
        }
        let line = self.line.as_mut().expect("it has given bytes");
        // SAFETY: the slot's request has ended, and it is posted again only below.
        sink(unsafe { line.slots.bytes(line.head, line.read, count) });
        line.read += count;
        if line.read == line.lengths[line.head] {
            line.next();
            self.tend();
        }
    }
}

impl Line {
    /// The head was read.
    fn next(&mut self) {
        self.head = (self.head + 1) % SLOTS;
        (self.filled, self.read) = (self.filled - 1, 0);
    }
}

/// The user's end.
pub(super) struct Receiver {
    inlet: Arc<Mutex<Inlet>>,
    stream: Stream,
}

impl Receiver {
    pub(super) fn new(inlet: Arc<Mutex<Inlet>>) -> Receiver {
        Receiver { inlet, stream: Stream::new() }
    }
}

impl RecvWire for Receiver {
    fn pull(
        &mut self,
        limit: usize,
        granule: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, TransportError> {
        self.stream.pull(&mut *lock(&self.inlet), (limit, granule), sink)
    }

    fn pull_into(&mut self, target: &mut [u8]) -> Result<usize, TransportError> {
        self.stream.pull_into(&mut *lock(&self.inlet), target)
    }
}
