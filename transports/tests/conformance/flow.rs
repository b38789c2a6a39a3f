//! Streams of messages whose every byte is known beforehand, pushed and pulled at random.

use std::time::{Duration, Instant};

use brigade_transports::{RecvWire, SendWire, TransportError};

use crate::harness::{LIMIT, Member};

/// A message: so many bytes in elements of so many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) bytes: usize,
    pub(crate) granule: usize,
}

/// Messages of single bytes.
pub(crate) fn plain(sizes: impl IntoIterator<Item = usize>) -> Vec<Message> {
    sizes.into_iter().map(|bytes| Message { bytes, granule: 1 }).collect()
}

/// The byte at `at` of the stream that `key` names.
fn byte(key: u64, at: u64) -> u8 {
    (key.wrapping_add(at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// The contents of a stream from `at`.
pub(crate) fn contents(key: u64, at: u64, bytes: usize) -> Vec<u8> {
    (at..at + bytes as u64).map(|at| byte(key, at)).collect()
}

/// Assert that `slice` is what stands at `at` of the stream.
pub(crate) fn assert_contents(key: u64, at: u64, slice: &[u8]) {
    for (offset, (&value, at)) in slice.iter().zip(at..).enumerate() {
        assert_eq!(value, byte(key, at), "stream {key}, byte {at}, at {offset} of a slice");
    }
}

/// One end of a stream, moved step by step.
pub(crate) trait Flow {
    /// Do what can be done now; returns whether that was anything.
    fn step(&mut self) -> Result<bool, TransportError>;

    fn is_done(&self) -> bool;
}

/// Where a flow stands in its messages.
struct Place {
    key: u64,
    messages: Vec<Message>,
    message: usize,
    /// Bytes of the message that are done.
    at: usize,
    /// Bytes of the stream that are done.
    stream_at: u64,
    rng: fastrand::Rng,
}

impl Place {
    fn new(key: u64, messages: &[Message], rng: fastrand::Rng) -> Self {
        Self { key, messages: messages.to_vec(), message: 0, at: 0, stream_at: 0, rng }
    }

    fn rest(&self) -> usize {
        self.messages[self.message].bytes - self.at
    }

    fn go_on(&mut self, bytes: usize) {
        self.at += bytes;
        self.stream_at += bytes as u64;
        if self.rest() == 0 {
            self.at = 0;
            self.message += 1;
        }
    }

    fn is_done(&self) -> bool {
        self.message == self.messages.len()
    }

    /// A random multiple of `unit` up to the rest of the message, or the rest.
    fn some(&mut self, unit: usize) -> usize {
        let rest = self.rest();
        if rest <= unit || self.rng.bool() {
            return rest;
        }
        // Small pieces as often as large ones.
        let most = 1 + (rest / unit).min(1 << self.rng.u32(0..20));
        rest.min(unit * self.rng.usize(1..=most))
    }
}

pub(crate) struct Outgoing {
    wire: Box<dyn SendWire>,
    place: Place,
    /// What is pushed now.
    message: Vec<u8>,
}

impl Outgoing {
    pub(crate) fn new(wire: Box<dyn SendWire>, key: u64, messages: &[Message]) -> Self {
        let place = Place::new(key, messages, fastrand::Rng::with_seed(key));
        Self { wire, place, message: Vec::new() }
    }
}

impl Flow for Outgoing {
    fn step(&mut self) -> Result<bool, TransportError> {
        let place = &mut self.place;
        if place.at == 0 {
            self.message = contents(place.key, place.stream_at, place.rest());
        }
        let offered = place.some(64);
        let took = self.wire.push(&self.message[place.at..place.at + offered])?;
        assert!(took <= offered, "took {took} of {offered}");
        let empty = place.rest() == 0;
        place.go_on(took);
        Ok(took > 0 || empty)
    }

    fn is_done(&self) -> bool {
        self.place.is_done()
    }
}

pub(crate) struct Incoming {
    wire: Box<dyn RecvWire>,
    place: Place,
}

impl Incoming {
    pub(crate) fn new(wire: Box<dyn RecvWire>, key: u64, messages: &[Message]) -> Self {
        let place = Place::new(key, messages, fastrand::Rng::with_seed(!key));
        Self { wire, place }
    }

    /// The wire, once the flow is done.
    pub(crate) fn into_wire(self) -> Box<dyn RecvWire> {
        assert!(self.is_done());
        self.wire
    }

    fn pull(&mut self, granule: usize) -> Result<usize, TransportError> {
        let place = &mut self.place;
        let (key, limit, mut at) = (place.key, place.some(granule), place.stream_at);
        let start = at;
        let got = self.wire.pull(limit, granule, &mut |slice| {
            assert!(!slice.is_empty() && slice.len().is_multiple_of(granule), "{}", slice.len());
            assert_contents(key, at, slice);
            at += slice.len() as u64;
        })?;
        assert_eq!(got as u64, at - start, "as many as were handed over");
        assert!(got <= limit, "{got} bytes, the limit was {limit}");
        Ok(got)
    }

    fn pull_into(&mut self, bytes: usize) -> Result<usize, TransportError> {
        let mut target = vec![0xee; bytes];
        let got = match self.place.rng.bool() {
            true => self.wire.pull_into(&mut target)?,
            false => self.wire.pull_past_caches(&mut target)?,
        };
        assert_contents(self.place.key, self.place.stream_at, &target[..got]);
        assert!(target[got..].iter().all(|&value| value == 0xee), "the rest is untouched");
        Ok(got)
    }
}

impl Flow for Incoming {
    fn step(&mut self) -> Result<bool, TransportError> {
        let Message { granule, .. } = self.place.messages[self.place.message];
        let odd = self.place.at % granule;
        let empty = self.place.rest() == 0;
        let got = if odd > 0 {
            // An element that was begun by `pull_into` is finished by it.
            self.pull_into(granule - odd)?
        } else if self.place.rng.bool() {
            let some = self.place.some(granule);
            self.pull_into(some)?
        } else {
            self.pull(granule)?
        };
        self.place.go_on(got);
        Ok(got > 0 || empty)
    }

    fn is_done(&self) -> bool {
        self.place.is_done()
    }
}

/// Move all flows of one member to their ends, on this thread. An emulated processor takes its time
/// over many wires, so what may not last is that none of them moves.
pub(crate) fn pump(member: &mut Member, flows: &mut [&mut dyn Flow]) {
    let mut due = Instant::now() + LIMIT;
    while flows.iter().any(|flow| !flow.is_done()) {
        assert!(Instant::now() < due, "member {}: flows stand still", member.me);
        if step_all(flows) {
            due = Instant::now() + LIMIT;
            continue;
        }
        member.endpoint.doorbell().arm();
        if step_all(flows) {
            due = Instant::now() + LIMIT;
            member.endpoint.doorbell().disarm();
            continue;
        }
        member.endpoint.doorbell().wait(Duration::from_millis(20)).expect("wait");
        member.endpoint.check().expect("all members are there");
    }
}

fn step_all(flows: &mut [&mut dyn Flow]) -> bool {
    let mut moved = false;
    for flow in flows {
        if !flow.is_done() {
            moved |= flow.step().expect("no wire fails");
        }
    }
    moved
}
