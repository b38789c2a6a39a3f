//! The two ends of a wire. Over one socket the kernel's stream is the wire's stream, with nothing
//! added, and a small message costs one system call at each end; several are the matter of
//! `stripe` and `gather`.

use std::io;
use std::sync::Arc;

use super::bell::Armings;
use super::ends::{Inlet, Outlet, READ_AHEAD_BYTES};
use super::gather::Gatherer;
use super::link::Link;
use super::pairs::Pair;
use super::stripe::Cutter;
use crate::{RecvWire, SendWire, TransportError};

/// Where folds read from: in a core's cache, with room to spare for what they fold into.
const STAGING_BYTES: usize = 128 << 10;
/// The staging buffer begins at a cache line.
const LINE_BYTES: usize = 64;

/// The sending end.
pub(super) struct Sender {
    peer: usize,
    sink: Sink,
    fault: Option<TransportError>,
}

/// Where the bytes go.
enum Sink {
    One(Outlet),
    Many(Cutter),
}

impl Sender {
    pub(super) fn new(
        peer: usize,
        link: Arc<Link>,
        segment_bytes: usize,
    ) -> Result<Sender, TransportError> {
        let sink = if link.sockets.len() == 1 {
            Sink::One(Outlet::new(link, 0))
        } else {
            let failed = |error| TransportError::from_io("TCP_NOTSENT_LOWAT", &error, "a wire");
            Sink::Many(Cutter::new(link, segment_bytes).map_err(failed)?)
        };
        Ok(Sender { peer, sink, fault: None })
    }
}

impl SendWire for Sender {
    fn push(&mut self, bytes: &[u8]) -> Result<usize, TransportError> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if bytes.is_empty() {
            return Ok(0);
        }
        let outcome = match &mut self.sink {
            Sink::One(outlet) => outlet.write(&[], bytes),
            Sink::Many(cutter) => cutter.write(bytes),
        };
        outcome.map_err(|error| {
            let fault = lost(self.peer, "send", &error);
            self.fault = Some(fault.clone());
            fault
        })
    }
}

/// What a failed read or write says about the peer.
fn lost(peer: usize, call: &'static str, error: &io::Error) -> TransportError {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, HostUnreachable, InvalidData,
        NetworkUnreachable, NotConnected, TimedOut, UnexpectedEof,
    };
    let how = match error.kind() {
        UnexpectedEof => "it closed the connection".into(),
        InvalidData => return TransportError::Corrupt { peer, what: error.to_string() },
        TimedOut => "its host stopped answering".into(),
        BrokenPipe | ConnectionAborted | ConnectionReset | HostUnreachable | NetworkUnreachable
        | NotConnected => error.to_string(),
        _ => return TransportError::from_io(call, error, format!("on the wire of member {peer}")),
    };
    TransportError::PeerGone { peer, how }
}

/// The receiving end.
pub(super) struct Receiver {
    peer: usize,
    pair: Arc<Pair>,
    armings: Armings,
    source: Source,
    staging: Staging,
    fault: Option<TransportError>,
}

/// Where the bytes come from: nowhere, until the link stands.
enum Source {
    Absent,
    One(Inlet),
    Many(Gatherer),
}

impl Source {
    /// The next bytes of the stream, as many as there are now.
    fn read(&mut self, (pair, armings): (&Pair, &Armings), target: &mut [u8]) -> io::Result<usize> {
        match self {
            Source::One(inlet) => inlet.read(target),
            Source::Many(gatherer) => gatherer.read(target),
            Source::Absent => match pair.link() {
                None => Ok(0),
                Some(link) => {
                    *self = match link.sockets.len() {
                        1 => Source::One(Inlet::new(link.clone(), 0)),
                        _ => Source::Many(Gatherer::new(link.clone(), armings.clone())),
                    };
                    self.read((pair, armings), target)
                }
            },
        }
    }
}

impl Receiver {
    pub(super) fn new(peer: usize, pair: Arc<Pair>, armings: Armings) -> Receiver {
        let (source, staging) = (Source::Absent, Staging::new());
        Receiver { peer, pair, armings, source, staging, fault: None }
    }

    /// Stage up to `most` more bytes of the stream. Returns whether there may be more to be had.
    fn stage(&mut self, most: usize) -> Result<bool, TransportError> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let room = self.staging.room(most);
        let asked = room.len();
        match self.source.read((&self.pair, &self.armings), room) {
            Ok(count) => {
                self.staging.tail += count;
                Ok(count == asked)
            }
            Err(error) => Err(self.fail(&error)),
        }
    }

    fn fail(&mut self, error: &io::Error) -> TransportError {
        let fault = lost(self.peer, "recv", error);
        self.fault = Some(fault.clone());
        fault
    }
}

impl RecvWire for Receiver {
    fn pull(
        &mut self,
        limit: usize,
        granule: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, TransportError> {
        debug_assert!(granule > 0 && limit.is_multiple_of(granule));
        let mut handed = 0;
        let mut may_have_more = true;
        loop {
            let staged = self.staging.bytes();
            let whole = staged.len().min(limit - handed) / granule * granule;
            if whole > 0 {
                sink(&staged[..whole]);
                self.staging.head += whole;
                handed += whole;
            }
            if handed == limit || !may_have_more {
                return Ok(handed);
            }
            // Fewer bytes than an element are staged now.
            may_have_more = match self.stage(limit - handed + READ_AHEAD_BYTES) {
                Ok(more) => more,
                // It failed after these bytes; the next call says so.
                Err(_) if handed > 0 => return Ok(handed),
                Err(fault) => return Err(fault),
            };
        }
    }

    fn pull_into(&mut self, target: &mut [u8]) -> Result<usize, TransportError> {
        let mut filled = 0;
        let mut may_have_more = true;
        loop {
            let staged = self.staging.bytes();
            let count = staged.len().min(target.len() - filled);
            target[filled..filled + count].copy_from_slice(&staged[..count]);
            self.staging.head += count;
            filled += count;
            let left = target.len() - filled;
            if left == 0 || !may_have_more {
                return Ok(filled);
            }
            let outcome = if left < READ_AHEAD_BYTES {
                self.stage(READ_AHEAD_BYTES)
            } else if let Some(fault) = &self.fault {
                Err(fault.clone())
            } else {
                let room = &mut target[filled..];
                match self.source.read((&self.pair, &self.armings), room) {
                    Ok(count) => {
                        filled += count;
                        Ok(count == left)
                    }
                    Err(error) => Err(self.fail(&error)),
                }
            };
            may_have_more = match outcome {
                Ok(more) => more,
                Err(_) if filled > 0 => return Ok(filled),
                Err(fault) => return Err(fault),
            };
        }
    }
}

/// Bytes that arrived and were not handed over yet. Starts at a cache line, and is only as much in
/// memory as was ever used.
struct Staging {
    buffer: Vec<u8>,
    origin: usize,
    head: usize,
    tail: usize,
}

impl Staging {
    fn new() -> Staging {
        let buffer = vec![0; STAGING_BYTES + LINE_BYTES];
        let origin = buffer.as_ptr().align_offset(LINE_BYTES).min(LINE_BYTES);
        Staging { buffer, origin, head: origin, tail: origin }
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[self.head..self.tail]
    }

    /// Room for up to `most` bytes behind those that are there, which move to the front.
    fn room(&mut self, most: usize) -> &mut [u8] {
        if self.head > self.origin {
            self.buffer.copy_within(self.head..self.tail, self.origin);
            self.tail -= self.head - self.origin;
            self.head = self.origin;
        }
        let end = self.buffer.len().min(self.tail.saturating_add(most));
        &mut self.buffer[self.tail..end]
    }
}
