//! The two ends of one socket of a link: what goes over it goes as it is, or sealed.

use std::io::{self, IoSlice, Read};
use std::sync::Arc;

use socket2::Socket;

use super::link::Link;
use crate::seal::{BODY_BYTES, Opener, RECORD_BYTES, Sealer};

/// How many bytes are sealed before they are sent: together they stay in a core's cache.
const BATCH_BYTES: usize = 8 * BODY_BYTES;

/// How far a receive may read past what was asked for: small messages that follow one another
/// share a system call, and large ones are not copied twice.
pub(super) const READ_AHEAD_BYTES: usize = 4096;

/// Where bytes are written.
pub(super) struct Outlet {
    link: Arc<Link>,
    socket: usize,
    sealing: Option<Box<Sealing>>,
}

/// Records on their way to the kernel. The bytes in them count as taken once their record has left:
/// a rank whose bytes were all taken may never come back, and what it left here would stay.
struct Sealing {
    sealer: Sealer,
    records: Vec<u8>,
    sent: usize,
    /// How many bytes are in the records, and how many of these were said to be taken.
    sealed: usize,
    taken: usize,
}

impl Outlet {
    /// For the one who writes on this socket of `link`.
    pub(super) fn new(link: Arc<Link>, socket: usize) -> Outlet {
        let sealing = link.take_sealer(socket).map(|sealer| {
            let records = Vec::with_capacity(BATCH_BYTES / BODY_BYTES * RECORD_BYTES);
            let (sent, sealed, taken) = (0, 0, 0);
            Box::new(Sealing { sealer, records, sent, sealed, taken })
        });
        Outlet { link, socket, sealing }
    }

    /// Write what fits now of `head` and then of `body`; returns how many bytes that was. Whoever
    /// comes again begins with the first byte that did not fit.
    pub(super) fn write(&mut self, head: &[u8], body: &[u8]) -> io::Result<usize> {
        let socket = &self.link.sockets[self.socket];
        match &mut self.sealing {
            Some(sealing) => sealing.write(socket, head, body),
            None if head.is_empty() => send(socket, body),
            None => {
                let parts = [IoSlice::new(head), IoSlice::new(body)];
                or_later(socket.send_vectored_with_flags(&parts, libc::MSG_NOSIGNAL))
            }
        }
    }
}

impl Sealing {
    fn write(&mut self, socket: &Socket, head: &[u8], body: &[u8]) -> io::Result<usize> {
        let bytes = head.len() + body.len();
        let mut written = 0;
        loop {
            let left = (self.departed() - self.taken).min(bytes - written);
            self.taken += left;
            written += left;
            let is_empty = self.sent == self.records.len();
            if is_empty && self.taken == self.sealed && written < bytes {
                let head_left = head.get(written..).unwrap_or_default();
                self.seal(head_left, &body[written.saturating_sub(head.len())..]);
            } else if is_empty || written == bytes {
                return Ok(written);
            }
            match send(socket, &self.records[self.sent..])? {
                0 => return Ok(written),
                count => self.sent += count,
            }
        }
    }

    /// How many bytes have left in whole records: all but the last one are of the same length.
    fn departed(&self) -> usize {
        match self.records.len() - self.sent {
            0 => self.sealed,
            _ => self.sent / RECORD_BYTES * BODY_BYTES,
        }
    }

    fn seal(&mut self, head: &[u8], body: &[u8]) {
        self.records.clear();
        let of_body = body.len().min(BATCH_BYTES - head.len());
        let (first, rest) = body[..of_body].split_at(of_body.min(BODY_BYTES - head.len()));
        self.sealer.seal(head, first, &mut self.records);
        for body in rest.chunks(BODY_BYTES) {
            self.sealer.seal(&[], body, &mut self.records);
        }
        (self.sent, self.sealed, self.taken) = (0, head.len() + of_body, 0);
    }
}

/// Where bytes are read.
pub(super) struct Inlet {
    link: Arc<Link>,
    socket: usize,
    opening: Option<Box<Opening>>,
}

struct Opening {
    opener: Opener,
    /// Why reading failed behind the last bytes that were handed over: sockets say that once.
    failure: Option<io::Error>,
}

impl Inlet {
    /// For the one who reads from this socket of `link`.
    pub(super) fn new(link: Arc<Link>, socket: usize) -> Inlet {
        let opener = link.take_opener(socket);
        let opening = opener.map(|opener| Box::new(Opening { opener, failure: None }));
        Inlet { link, socket, opening }
    }

    /// Read what is there now: fewer bytes than `target` has room for only if there are no more.
    pub(super) fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let socket = &self.link.sockets[self.socket];
        match &mut self.opening {
            Some(opening) => opening.read(socket, target),
            None => receive(socket, target),
        }
    }
}

impl Opening {
    fn read(&mut self, socket: &Socket, target: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        match self.failure.take().map_or_else(|| self.fill(socket, target, &mut filled), Err) {
            // The bytes in front of it are good.
            Err(failure) if filled > 0 => self.failure = Some(failure),
            outcome => outcome?,
        }
        Ok(filled)
    }

    fn fill(&mut self, socket: &Socket, target: &mut [u8], filled: &mut usize) -> io::Result<()> {
        let mut may_have_more = true;
        while *filled < target.len() {
            let opened = self.opener.opened()?;
            let count = opened.len().min(target.len() - *filled);
            target[*filled..*filled + count].copy_from_slice(&opened[..count]);
            self.opener.take(count);
            *filled += count;
            if count == 0 {
                if !may_have_more {
                    break;
                }
                let room = self.opener.room();
                let asked = room.len();
                let count = receive(socket, room)?;
                self.opener.fill(count);
                may_have_more = count == asked;
            }
        }
        Ok(())
    }
}

/// Write what fits now.
fn send(socket: &Socket, bytes: &[u8]) -> io::Result<usize> {
    or_later(socket.send_with_flags(bytes, libc::MSG_NOSIGNAL))
}

/// Read what is there now. End of stream is an error: no wire ends while somebody looks at it.
fn receive(socket: &Socket, target: &mut [u8]) -> io::Result<usize> {
    debug_assert!(!target.is_empty());
    let mut socket = socket;
    match socket.read(target) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        other => or_later(other),
    }
}

fn or_later(outcome: io::Result<usize>) -> io::Result<usize> {
    match outcome {
        Err(error) if is_later(&error) => Ok(0),
        other => other,
    }
}

/// Whether an error only says that nothing can be done now.
pub(super) fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::super::link::Proved;
    use super::*;
    use crate::seal::{Offer, accept};

    /// The end that writes, that which reads, and the two ends of the cable between them.
    fn cable() -> (Outlet, Inlet, [UnixStream; 2]) {
        let (offer, share) = Offer::new(&[7; 32], b"").unwrap();
        let (share, theirs) = accept(&[7; 32], b"", &share).unwrap();
        let end = |seals| {
            let (near, far) = UnixStream::pair().unwrap();
            near.set_nonblocking(true).unwrap();
            far.set_nonblocking(true).unwrap();
            let socket = Socket::from(near);
            // Room for less than a batch.
            socket.set_send_buffer_size(20_000).unwrap();
            (Arc::new(Link::of(vec![Proved { socket, seals: Some(seals) }])), far)
        };
        let (one, first) = end(offer.conclude(&share).unwrap());
        let (other, second) = end(theirs);
        (Outlet::new(one, 0), Inlet::new(other, 0), [first, second])
    }

    /// Carry what lies there, at most so many bytes, and return them.
    fn carry([from, to]: &mut [UnixStream; 2], most: usize) -> Vec<u8> {
        let mut bytes = vec![0; most];
        let count = from.read(&mut bytes).unwrap_or(0);
        bytes.truncate(count);
        to.set_nonblocking(false).unwrap();
        to.write_all(&bytes).unwrap();
        bytes
    }

    #[test]
    fn what_was_taken_arrives_though_its_sender_never_comes_back() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..20 {
            let (mut outlet, mut inlet, mut cable) = cable();
            let stream: Vec<u8> = (0..random.usize(1..600_000)).map(|_| random.u8(..)).collect();
            let pieces: HashSet<&[u8]> = stream.chunks_exact(12).collect();
            let (mut taken, mut arrived) = (0, Vec::new());
            let mut target = vec![0; 50_000];
            while taken < stream.len() {
                // Whoever comes again may offer less than before.
                let end = random.usize(taken + 1..=stream.len());
                let head = random.usize(taken..=end.min(taken + 16));
                taken += outlet.write(&stream[taken..head], &stream[head..end]).unwrap();
                for _ in 0..random.usize(0..3) {
                    let on_the_wire = carry(&mut cable, random.usize(1..9000));
                    let shown = on_the_wire.windows(12).any(|some| pieces.contains(some));
                    assert!(!shown, "seed {seed}");
                    let count = random.usize(1..target.len());
                    let count = inlet.read(&mut target[..count]).unwrap();
                    arrived.extend_from_slice(&target[..count]);
                }
            }
            let mut is_carrying = true;
            while is_carrying {
                is_carrying = !carry(&mut cable, 9000).is_empty();
                while let count @ 1.. = inlet.read(&mut target).unwrap() {
                    arrived.extend_from_slice(&target[..count]);
                }
            }
            assert!(arrived == stream, "seed {seed}: {} of {}", arrived.len(), stream.len());
        }
    }

    #[test]
    fn a_changed_bit_is_corrupt_data_behind_all_that_came_before_it() {
        let (mut outlet, mut inlet, [mut from, mut to]) = cable();
        for word in [&b"before"[..], b"and after"] {
            assert_eq!(outlet.write(&[], word).unwrap(), word.len());
        }
        let mut bytes = vec![0; 1000];
        let count = from.read(&mut bytes).unwrap();
        bytes[count - 1] ^= 1;
        to.write_all(&bytes[..count]).unwrap();
        let mut target = [0; 100];
        assert_eq!(inlet.read(&mut target).unwrap(), 6);
        assert_eq!(&target[..6], b"before");
        let kind = |inlet: &mut Inlet| inlet.read(&mut [0; 8]).map_err(|error| error.kind());
        assert_eq!(kind(&mut inlet), Err(io::ErrorKind::InvalidData));
        assert_eq!(kind(&mut inlet), Err(io::ErrorKind::InvalidData), "always");
    }

    #[test]
    #[should_panic(expected = "each wire has one sender")]
    fn a_second_sender_never_writes_in_the_open() {
        let (outlet, _, _) = cable();
        Outlet::new(outlet.link, 0);
    }
}
