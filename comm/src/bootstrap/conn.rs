//! One connection of the root: never waits, holds a bounded number of bytes.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_transports::seal::Seals;
use brigade_transports::{OursAlone, keepalive};
use socket2::SockRef;

use super::outbox::Outbox;
use super::proof::Nonces;
use super::sys::Watch;
use crate::control::decoder::Decoder;
use crate::control::frame::{Frame, STRANGER_BYTES_MAX};

/// How long a connection may take until it has its seat.
const SEATING: Duration = Duration::from_secs(5);
/// How long the last words to a connection may take.
const PARTING: Duration = Duration::from_secs(1);
/// The most frames that wait for a rank that does not read.
const OUTBOX_FRAMES_MAX: usize = 4096;
/// The most bytes taken from one connection before the others have their turn.
const TURN_BYTES: usize = 64 << 10;

/// How long nothing may be heard of the root's machine by those who are not told.
pub(super) const SILENCE: Duration = Duration::from_secs(10);
/// The silences after which a connection ends are from here, as those of wires, to here, as the
/// kernel counts milliseconds.
const SILENCE_MIN: Duration = Duration::from_secs(2);
const SILENCE_MAX: Duration = Duration::from_millis(i32::MAX as u64);

/// How far a connection has come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    Greeting,
    Proving(Nonces),
    /// It has said that it encrypts, and says nothing else before it does.
    Sealing(Nonces),
    Proven,
    Seated(usize),
}

pub(super) struct Conn {
    pub(super) phase: Phase,
    stream: OursAlone<TcpStream>,
    pub(super) decoder: Decoder,
    outbox: Outbox,
    /// When the connection is given up, unless it has a seat.
    due: Option<Instant>,
    closing: bool,
    pub(super) dead: bool,
}

/// Settings that every connection between a rank and the root has, on both ends: it ends when the
/// other's machine is silent for so long.
pub(super) fn tune(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive(silence))?;
    // Also while bytes are on the way: both ends read what comes.
    socket.set_tcp_user_timeout(Some(silence.clamp(SILENCE_MIN, SILENCE_MAX)))
}

impl Conn {
    pub(super) fn new(stream: TcpStream, now: Instant) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        tune(&stream, SILENCE)?;
        Ok(Self {
            phase: Phase::Greeting,
            stream: OursAlone::new(stream),
            decoder: Decoder::new(STRANGER_BYTES_MAX),
            outbox: Outbox::default(),
            due: Some(now + SEATING),
            closing: false,
            dead: false,
        })
    }

    pub(super) fn rank(&self) -> Option<usize> {
        match self.phase {
            Phase::Seated(rank) if !self.dead => Some(rank),
            _ => None,
        }
    }

    pub(super) fn is_stranger(&self) -> bool {
        !self.dead && self.rank().is_none()
    }

    pub(super) fn watch(&self) -> Watch {
        Watch::new(self.stream.as_fd(), !self.outbox.is_empty())
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Give it a seat; from now on it may be silent for so long.
    pub(super) fn sit(&mut self, rank: usize, silence: Duration) -> io::Result<()> {
        self.phase = Phase::Seated(rank);
        self.due = None;
        tune(&self.stream, silence)
    }

    /// Say what is still to be said, then end.
    pub(super) fn close(&mut self, now: Instant) {
        if !self.closing {
            self.closing = true;
            self.due = Some(now + PARTING);
        }
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.dead && !self.outbox.is_empty()
    }

    pub(super) fn say(&mut self, bytes: Arc<[u8]>) {
        if !self.closing && !self.dead {
            self.outbox.push(bytes);
        }
    }

    /// From now on all that is said and heard is sealed.
    pub(super) fn seal(&mut self, seals: Seals) -> io::Result<()> {
        self.outbox.seal_with(seals.sealer);
        self.decoder.open_with(seals.opener)
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.outbox.is_sealed()
    }

    /// What has come, and how the connection ended if it did.
    pub(super) fn read(&mut self) -> (Vec<Frame>, Option<String>) {
        let mut frames = Vec::new();
        let mut taken_bytes = 0;
        while taken_bytes < TURN_BYTES {
            match self.decoder.read(&mut *self.stream) {
                Ok(0) => return (frames, Some("its process ended".into())),
                Ok(count) => taken_bytes += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return (frames, Some(format!("its connection broke: {error}"))),
            }
            loop {
                match self.decoder.next() {
                    Ok(Some(frame)) => frames.push(frame),
                    Ok(None) => break,
                    Err(malformed) => {
                        let how = format!("it sent bytes that are not ours: {malformed}");
                        return (frames, Some(how));
                    }
                }
            }
            // Its next frame may be longer than is allowed at this phase: handle this one first.
            if !frames.is_empty() {
                let how = |error| format!("its connection broke: {error}");
                return (frames, self.decoder.damage().map(how));
            }
        }
        (frames, None)
    }

    /// Send what can be sent now. Returns how the connection ended if it did.
    pub(super) fn flush(&mut self) -> Option<String> {
        if self.dead {
            return None;
        }
        while let Err(error) = self.outbox.write_to(&mut *self.stream) {
            match error.kind() {
                io::ErrorKind::WouldBlock => break,
                io::ErrorKind::Interrupted => {}
                _ => return Some(format!("its connection broke: {error}")),
            }
        }
        if self.outbox.len() > OUTBOX_FRAMES_MAX {
            return Some("it asks without reading the answers".into());
        }
        if self.closing && self.outbox.is_empty() {
            self.dead = true;
        }
        None
    }
}
