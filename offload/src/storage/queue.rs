//! Which transfer goes next. Knows neither an engine nor a thread.
//!
//! Reads and writes have a lane each, and in each lane every device its own bound of bytes in
//! flight: so both directions of all devices are busy whatever was asked for first, and small
//! transfers may be more of them. In a lane urgent requests go before others, and requests of one
//! priority in the order of their arrival. While an urgent request of one lane is open, the other
//! lane's background on that device is held to a trickle: where a device does one thing at a time
//! it would take half the speed.

use std::collections::VecDeque;
use std::sync::Arc;

use super::engine::{Completion, Transfer};
use super::file::DEVICES;
use super::kind::Kind;
use super::pieces::{Span, cut};
use super::request::{Awaited, Priority, Request, Ticket, way};

/// Background transfers in flight beside an urgent request of the other lane.
const TRICKLE: usize = 2;
/// Where files end for the system, whose offsets have a sign.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// From so many transfers in flight on, a device stays busy while half of them are taken together:
/// each wake-up costs as much as a few transfers do.
const DEEP: usize = 6;
/// The most completions that are taken together, however many are in flight.
const TOGETHER_MAX: usize = 8;
/// Syncs in flight on a device: one that never answers does not hold up those of others.
const SYNCS: usize = 4;
/// Transfers that can be in flight in all, whatever one device is allowed: enough for four of them.
const TRANSFERS_MIN: usize = 250;
/// Transfers smaller than a block may be this many times more than blocks.
const SMALL_FACTOR: usize = 4;

/// All requests that are not complete.
pub(crate) struct Queue {
    requests: Vec<Option<Request>>,
    vacant: Vec<usize>,
    lanes: [Lane; 2],
    syncs: VecDeque<usize>,
    /// By device.
    syncs_in_flight: [usize; DEVICES],
    /// Something changed since no sync was found ready.
    may_sync: bool,
    /// By token: what is in flight.
    flights: Vec<Option<Flight>>,
    tokens: Vec<u32>,
    next_sequence: u64,
    writes_first: bool,
    block_bytes: usize,
    /// Bytes in flight each way on a device, as so many whole blocks.
    blocks_max: usize,
}

#[derive(Default)]
struct Lane {
    urgent: VecDeque<usize>,
    background: VecDeque<usize>,
    /// By device.
    loads: [Load; DEVICES],
}

/// What a device has to do in one lane.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    in_flight: usize,
    in_flight_bytes: usize,
    /// Urgent requests that are not complete.
    urgent_open: usize,
}

#[derive(Clone, Copy)]
struct Flight {
    request: usize,
    span: Span,
}

impl Queue {
    /// An empty queue that keeps up to `in_flight` times `block_bytes` each way under way.
    pub(crate) fn new(block_bytes: usize, in_flight: usize) -> Self {
        let tokens = Self::transfers_max(in_flight);
        Self {
            requests: Vec::new(),
            vacant: Vec::new(),
            lanes: Default::default(),
            syncs: VecDeque::new(),
            syncs_in_flight: [0; DEVICES],
            may_sync: false,
            flights: vec![None; tokens],
            tokens: (0..tokens as u32).rev().collect(),
            next_sequence: 0,
            writes_first: false,
            block_bytes,
            blocks_max: in_flight,
        }
    }

    /// The most transfers that an engine will hold at a time.
    pub(crate) fn transfers_max(in_flight: usize) -> usize {
        TRANSFERS_MIN.max(2 * SMALL_FACTOR * in_flight) + 4 * SYNCS
    }

    /// Whether every request is complete.
    pub(crate) fn is_empty(&self) -> bool {
        self.vacant.len() == self.requests.len()
    }

    /// How many completions to take together: one where somebody waits or little is in flight, else
    /// few enough that the device keeps half of its work.
    pub(crate) fn together(&self) -> usize {
        let in_flight = self.flights.len() - self.tokens.len();
        let is_urgent = |load: &Load| load.urgent_open > 0;
        let is_deep = in_flight >= DEEP;
        match is_deep && !self.lanes.iter().any(|lane| lane.loads.iter().any(is_urgent)) {
            true => (in_flight / 2).min(TOGETHER_MAX),
            false => 1,
        }
    }

    /// Which requests could not be started before something completes: a bit for each
    /// [`Request::way`].
    pub(crate) fn full_ways(&self) -> u64 {
        let (mut full, is_single) = (0, self.together() == 1);
        for (kind, lane) in [Kind::Read, Kind::Write].into_iter().zip(&self.lanes) {
            for (device, load) in lane.loads.iter().enumerate() {
                if self.is_full(load) {
                    full |= way(kind, Priority::Background, device);
                    // Else it would wait for completions that are taken together.
                    if is_single {
                        full |= way(kind, Priority::Urgent, device);
                    }
                }
            }
        }
        full
    }

    /// Take a request in. It may be complete already.
    pub(crate) fn add(&mut self, mut request: Request) -> Option<Awaited> {
        request.sequence = self.next_sequence;
        self.next_sequence += 1;
        let end = request.left.offset.checked_add(request.left.bytes as u64);
        if end.is_none_or(|end| end > FILE_BYTES_MAX) {
            request.refused(libc::EFBIG);
        }
        if request.kind != Kind::Sync && !request.has_more() {
            return request.complete();
        }
        let (kind, priority, device) = (request.kind, request.priority, request.file.device());
        let index = match self.vacant.pop() {
            Some(index) => index,
            None => {
                self.requests.push(None);
                self.requests.len() - 1
            }
        };
        self.requests[index] = Some(request);
        match kind {
            Kind::Sync => {
                self.syncs.push_back(index);
                self.may_sync = true;
            }
            Kind::Read | Kind::Write => {
                let lane = &mut self.lanes[kind as usize];
                lane.loads[device].urgent_open += usize::from(priority == Priority::Urgent);
                lane.of(priority).push_back(index);
            }
        }
        None
    }

    /// Somebody waits for this request now. Nothing happens if it is complete.
    pub(crate) fn hurry(&mut self, ticket: &Arc<Ticket>) {
        let is_it = |request: &Option<Request>| {
            request.as_ref().is_some_and(|request| request.is_of(ticket))
        };
        let Some(index) = self.requests.iter().position(is_it) else { return };
        let request = self.requests[index].as_mut().expect("just found");
        if request.kind == Kind::Sync || request.priority == Priority::Urgent {
            return;
        }
        request.priority = Priority::Urgent;
        let lane = &mut self.lanes[request.kind as usize];
        lane.loads[request.file.device()].urgent_open += 1;
        if let Some(at) = lane.background.iter().position(|queued| *queued == index) {
            lane.background.remove(at);
            lane.urgent.push_back(index);
        }
    }

    /// The next transfer to start, if the bounds leave room for one.
    pub(crate) fn next(&mut self) -> Option<Transfer> {
        if self.tokens.is_empty() {
            return None;
        }
        self.next_sync().or_else(|| {
            // In turns, so that neither lane fills the device's own queue alone.
            self.writes_first = !self.writes_first;
            let order = if self.writes_first { [1, 0] } else { [0, 1] };
            order.into_iter().find_map(|lane| self.next_of(lane))
        })
    }

    /// Take a completion in. Completes its request when that was the last of it.
    pub(crate) fn finish(&mut self, completion: Completion) -> Option<Awaited> {
        let token = completion.token as usize;
        let flight = self.flights[token].take().expect("completed once, after its start");
        self.tokens.push(completion.token);
        let request = self.requests[flight.request].as_mut().expect("held until complete");
        request.in_flight -= 1;
        let (kind, device) = (request.kind, request.file.device());
        match completion.result {
            // A signal says nothing of what was written: a refusal would, and no later sync of the
            // file could undo it.
            Err(libc::EINTR | libc::EAGAIN) if kind == Kind::Sync && request.may_repeat() => {
                self.syncs_in_flight[device] -= 1;
                self.syncs.push_front(flight.request);
                self.may_sync = true;
                return None;
            }
            _ if kind == Kind::Sync => {
                self.syncs_in_flight[device] -= 1;
                if let Err(errno) = completion.result {
                    request.refused(errno);
                }
            }
            Ok(bytes) => land(request, flight.span, bytes),
            // The system wants the same again: nothing was transferred.
            Err(libc::EINTR | libc::EAGAIN) if request.may_repeat() => {
                request.again.push(flight.span);
            }
            Err(errno) => request.refused(errno),
        }
        if kind != Kind::Sync {
            let lane = &mut self.lanes[kind as usize];
            let load = &mut lane.loads[device];
            load.in_flight -= 1;
            load.in_flight_bytes -= flight.span.bytes;
            let (index, queue) = (flight.request, lane.of(request.priority));
            if request.failure.is_some() {
                queue.retain(|queued| *queued != index);
            } else if request.has_more() && !queue.contains(&index) {
                // What a short transfer left over goes before everything that was not started.
                queue.push_front(index);
            }
        }
        let is_last = request.in_flight == 0 && !request.has_more();
        is_last.then(|| self.retire(flight.request)).flatten()
    }

    /// The engine is broken: tell every caller.
    pub(crate) fn abandon(&mut self, why: &str) {
        for request in self.requests.iter_mut().filter_map(Option::take) {
            request.abandon(why);
        }
        *self = Self::new(self.block_bytes, self.blocks_max);
    }

    fn next_of(&mut self, lane: usize) -> Option<Transfer> {
        let (at, priority) = self.first_with_room(lane)?;
        let lane = &mut self.lanes[lane];
        let index = lane.of(priority)[at];
        let request = self.requests[index].as_mut().expect("queued, so not complete");
        let (address, grain) = (request.address(), request.file.grain());
        let block_bytes = request.file.block_bytes(self.block_bytes);
        let piece = match request.again.pop() {
            Some(mut span) => {
                let piece = cut(&mut span, address, grain, block_bytes);
                if span.bytes > 0 {
                    request.again.push(span);
                }
                piece
            }
            None => cut(&mut request.left, address, grain, block_bytes),
        };
        request.in_flight += 1;
        let load = &mut lane.loads[request.file.device()];
        load.in_flight += 1;
        load.in_flight_bytes += piece.span.bytes;
        if !request.has_more() {
            lane.of(priority).remove(at);
        }
        let token = self.tokens.pop().expect("as many as the bounds allow");
        self.flights[token as usize] = Some(Flight { request: index, span: piece.span });
        Some(Transfer {
            token,
            kind: request.kind,
            file: Arc::clone(&request.file),
            is_direct: piece.is_direct,
            offset: piece.span.offset,
            window: request.window(piece.span),
        })
    }

    /// Where in a lane the first request stands whose device may have one more transfer in flight.
    fn first_with_room(&self, lane: usize) -> Option<(usize, Priority)> {
        let (mine, other) = (&self.lanes[lane], &self.lanes[1 - lane]);
        let has_room = |index: &usize, priority| {
            let request = self.requests[*index].as_ref().expect("queued, so not complete");
            let device = request.file.device();
            let load = &mine.loads[device];
            let is_held = priority == Priority::Background
                && other.loads[device].urgent_open > 0
                && load.in_flight >= TRICKLE;
            !self.is_full(load) && !is_held
        };
        let find = |queue: &VecDeque<usize>, priority| {
            Some((queue.iter().position(|index| has_room(index, priority))?, priority))
        };
        // Where an urgent request finds its device full, so does everything behind it.
        find(&mine.urgent, Priority::Urgent)
            .or_else(|| find(&mine.background, Priority::Background))
    }

    /// Whether a device may have no more transfers in flight in this lane.
    fn is_full(&self, load: &Load) -> bool {
        load.in_flight_bytes + self.block_bytes > self.blocks_max * self.block_bytes
            || load.in_flight >= SMALL_FACTOR * self.blocks_max
    }

    /// A sync whose device may have one more, and whose file has no older write under way.
    fn next_sync(&mut self) -> Option<Transfer> {
        if !self.may_sync || self.syncs.is_empty() {
            return None;
        }
        let is_ready = |index: &usize| {
            let sync = self.requests[*index].as_ref().expect("queued, so not complete");
            let is_before = |other: &Request| {
                other.kind == Kind::Write
                    && other.sequence < sync.sequence
                    && other.file.id() == sync.file.id()
            };
            let has_room = self.syncs_in_flight[sync.file.device()] < SYNCS;
            has_room && !self.requests.iter().flatten().any(is_before)
        };
        let Some(at) = self.syncs.iter().position(is_ready) else {
            self.may_sync = false;
            return None;
        };
        let index = self.syncs.remove(at)?;
        let request = self.requests[index].as_mut().expect("queued, so not complete");
        let span = request.left;
        request.in_flight += 1;
        self.syncs_in_flight[request.file.device()] += 1;
        let token = self.tokens.pop().expect("as many as the bounds allow");
        self.flights[token as usize] = Some(Flight { request: index, span });
        Some(Transfer {
            token,
            kind: Kind::Sync,
            file: Arc::clone(&request.file),
            is_direct: false,
            offset: 0,
            window: None,
        })
    }

    fn retire(&mut self, index: usize) -> Option<Awaited> {
        let request = self.requests[index].take().expect("held until complete");
        self.vacant.push(index);
        self.may_sync = true;
        if request.kind != Kind::Sync {
            let lane = &mut self.lanes[request.kind as usize];
            let load = &mut lane.loads[request.file.device()];
            load.urgent_open -= usize::from(request.priority == Priority::Urgent);
        }
        request.complete()
    }
}

impl Lane {
    fn of(&mut self, priority: Priority) -> &mut VecDeque<usize> {
        match priority {
            Priority::Urgent => &mut self.urgent,
            Priority::Background => &mut self.background,
        }
    }
}

/// A transfer moved `bytes` of `span`: all of it, a part, or nothing because the file ends.
fn land(request: &mut Request, span: Span, bytes: usize) {
    assert!(bytes <= span.bytes, "the system moved more than it was asked to");
    request.moved(bytes);
    if bytes == span.bytes {
        return;
    }
    match (bytes, request.kind) {
        (0, Kind::Read) => request.truncated(),
        // No progress and no reason: asking again could go on for ever.
        (0, _) => request.refused(libc::EIO),
        _ => request.again.push(span.after(bytes)),
    }
}
