//! A stream over several sockets.
//!
//! The sender cuts the stream into segments and gives each to the socket with the least waiting to
//! be sent, so a socket that loses a packet gets no more work than it does. The receiver reads the
//! body of the segment that is next in the stream and of no other: what came early stays in the
//! kernel's buffers, and nothing has to be sorted or copied twice.
//!
//! A segment that a socket took in part is *owed* to that socket: the next bytes of the stream go
//! there, whichever call brings them. That holds up the others only when all have more than a
//! segment waiting, since the least loaded was chosen.

use std::io::{self, IoSlice};
use std::sync::Arc;

use super::frame::{BODY_BYTES_MAX, Frame, HEADER_BYTES};
use super::link::Link;
use super::sys;
use super::wire::{READ_AHEAD_BYTES, is_later, receive};

/// The sending end of a striped stream.
pub(super) struct Cutter {
    link: Arc<Link>,
    segment_bytes: usize,
    /// Where the next segment begins in the stream.
    offset: u64,
    /// The socket that got the last segment.
    socket: usize,
    owed: Owed,
}

/// What is still to be sent of the last segment.
struct Owed {
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    body_bytes: usize,
}

impl Cutter {
    pub(super) fn new(link: Arc<Link>, segment_bytes: usize) -> io::Result<Cutter> {
        let segment_bytes = segment_bytes.clamp(READ_AHEAD_BYTES, BODY_BYTES_MAX);
        for socket in &link.sockets {
            // Without a bound a socket would swallow megabytes that another could send sooner.
            socket.set_tcp_notsent_lowat(2 * segment_bytes as u32)?;
        }
        let owed = Owed { header: [0; HEADER_BYTES], header_bytes: 0, body_bytes: 0 };
        Ok(Cutter { link, segment_bytes, offset: 0, socket: 0, owed })
    }

    /// Send the next bytes of the stream, as many as fit now.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut taken = 0;
        while taken < bytes.len() {
            if self.owed.body_bytes == 0 {
                self.socket = self.least_loaded()?;
                let count = self.segment_bytes.min(bytes.len() - taken);
                let frame = Frame { bytes: count as u32, offset: self.offset };
                self.offset += count as u64;
                let header = frame.serialise();
                self.owed = Owed { header, header_bytes: HEADER_BYTES, body_bytes: count };
            }
            taken += self.pay(&bytes[taken..])?;
            if self.owed.body_bytes > 0 && taken < bytes.len() {
                break;
            }
        }
        Ok(taken)
    }

    /// Send what is owed, as far as `bytes` and the socket's room go. Returns how many of `bytes`.
    fn pay(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Owed { header, header_bytes, body_bytes } = &mut self.owed;
        let header = &header[HEADER_BYTES - *header_bytes..];
        let body = &bytes[..bytes.len().min(*body_bytes)];
        let parts = [IoSlice::new(header), IoSlice::new(body)];
        let socket = &self.link.sockets[self.socket];
        let sent = match socket.send_vectored_with_flags(&parts, libc::MSG_NOSIGNAL) {
            Err(error) if is_later(&error) => 0,
            other => other?,
        };
        let of_body = sent.saturating_sub(*header_bytes);
        *header_bytes -= sent - of_body;
        *body_bytes -= of_body;
        Ok(of_body)
    }

    /// The socket for the next segment: the last one while it keeps up, so that small messages
    /// stay on one socket, else the one with the fewest bytes that have not left yet.
    fn least_loaded(&self) -> io::Result<usize> {
        let load = |index: usize| sys::unsent_bytes(&self.link.sockets[index]);
        let mut best = (load(self.socket)?, self.socket);
        if best.0 > self.segment_bytes / 2 {
            for index in 0..self.link.sockets.len() {
                best = best.min((load(index)?, index));
            }
        }
        Ok(best.1)
    }
}

/// The receiving end of a striped stream.
pub(super) struct Gatherer {
    link: Arc<Link>,
    lanes: Vec<Lane>,
    /// The lane that has the segment which is next in the stream, or had the last one.
    lane: usize,
    /// Bytes of that segment that were not read yet.
    body_bytes: usize,
    /// Where the segment after it begins in the stream.
    next: u64,
}

/// One socket, read a little ahead so that small segments cost one system call.
struct Lane {
    ahead: Vec<u8>,
    head: usize,
    tail: usize,
    /// A segment whose turn has not come.
    waiting: Option<Frame>,
    has_ended: bool,
}

impl Gatherer {
    pub(super) fn new(link: Arc<Link>) -> Gatherer {
        let lane = || Lane {
            ahead: vec![0; READ_AHEAD_BYTES],
            head: 0,
            tail: 0,
            waiting: None,
            has_ended: false,
        };
        let lanes = link.sockets.iter().map(|_| lane()).collect();
        Gatherer { link, lanes, lane: 0, body_bytes: 0, next: 0 }
    }

    /// The next bytes of the stream, as many as there are now.
    pub(super) fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < target.len() {
            if self.body_bytes == 0 {
                match self.find_next() {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(_) if filled > 0 => break,
                    Err(error) => return Err(error),
                }
            }
            let lane = &mut self.lanes[self.lane];
            let most = self.body_bytes.min(target.len() - filled);
            let mut count = lane.take(&mut target[filled..filled + most]);
            if count == 0 {
                let room = &mut target[filled..filled + most];
                match receive(&self.link.sockets[self.lane], room) {
                    Ok(0) => break,
                    Ok(received) => count = received,
                    // The bytes before it are good; it will fail again.
                    Err(_) if filled > 0 => break,
                    Err(error) => return Err(error),
                }
            }
            self.body_bytes -= count;
            filled += count;
        }
        Ok(filled)
    }

    /// Make the lane with the segment that is next in the stream the current one, if it has come.
    fn find_next(&mut self) -> io::Result<bool> {
        let lanes = self.lanes.len();
        let mut stuck = 0;
        for index in (self.lane..lanes).chain(0..self.lane) {
            let lane = &mut self.lanes[index];
            lane.look(&self.link.sockets[index])?;
            match lane.waiting {
                Some(Frame { bytes, offset }) if offset == self.next => {
                    lane.waiting = None;
                    self.lane = index;
                    self.body_bytes = bytes as usize;
                    self.next += u64::from(bytes);
                    return Ok(true);
                }
                Some(Frame { offset, .. }) if offset < self.next => {
                    return Err(corrupt("a frame repeats a part of the stream"));
                }
                Some(_) => stuck += 1,
                None => stuck += usize::from(lane.has_ended),
            }
        }
        // A socket's end is no news while another may still bring what was sent before it.
        if stuck < lanes {
            Ok(false)
        } else if self.lanes.iter().any(|lane| lane.has_ended) {
            Err(io::ErrorKind::UnexpectedEof.into())
        } else {
            Err(corrupt("frames leave out a part of the stream"))
        }
    }
}

impl Lane {
    /// Read the next header, if it is there now and the last one's segment was read.
    fn look(&mut self, socket: &socket2::Socket) -> io::Result<()> {
        if self.waiting.is_some() || self.has_ended {
            return Ok(());
        }
        if self.tail - self.head < HEADER_BYTES {
            self.ahead.copy_within(self.head..self.tail, 0);
            self.tail -= self.head;
            self.head = 0;
            match receive(socket, &mut self.ahead[self.tail..]) {
                Ok(count) => self.tail += count,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    self.has_ended = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        if let Some((header, _)) = self.ahead[self.head..self.tail].split_first_chunk() {
            self.waiting = Some(Frame::parse(header).map_err(corrupt)?);
            self.head += HEADER_BYTES;
        }
        Ok(())
    }

    /// Body bytes that were read ahead.
    fn take(&mut self, target: &mut [u8]) -> usize {
        let count = target.len().min(self.tail - self.head);
        target[..count].copy_from_slice(&self.ahead[self.head..self.head + count]);
        self.head += count;
        count
    }
}

fn corrupt(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A link of connected TCP sockets, and the other ends.
    fn link(sockets: usize) -> (Arc<Link>, Vec<TcpStream>) {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let pair = || (TcpStream::connect(address).unwrap(), listener.accept().unwrap().0);
        let (own, other): (Vec<_>, Vec<_>) = (0..sockets).map(|_| pair()).unzip();
        for socket in own.iter().chain(&other) {
            socket.set_nonblocking(true).unwrap();
        }
        let sockets = own.into_iter().map(socket2::Socket::from).collect();
        (Arc::new(Link { sockets }), other)
    }

    /// Read all that is there; returns how many bytes.
    fn drain(mut socket: &TcpStream, scratch: &mut [u8]) -> usize {
        let mut total = 0;
        while let Ok(count @ 1..) = socket.read(scratch) {
            total += count;
        }
        total
    }

    #[test]
    fn the_other_sockets_go_on_while_one_is_stalled() {
        const STALLED: usize = 1;
        const SEGMENT: usize = 64 << 10;
        let (own, other) = link(3);
        let mut cutter = Cutter::new(own, SEGMENT).unwrap();
        let (segment, mut scratch) = (vec![0; SEGMENT], vec![0; 1 << 20]);
        let mut read = [0; 3];
        for _ in 0..1 << 20 {
            cutter.write(&segment).unwrap();
            for lane in (0..3).filter(|&lane| lane != STALLED) {
                read[lane] += drain(&other[lane], &mut scratch);
            }
            if read[0] + read[2] > 64 << 20 {
                break;
            }
        }
        assert!(read[0] + read[2] > 64 << 20, "{read:?}");
        read[STALLED] += drain(&other[STALLED], &mut scratch);
        assert!(read[STALLED] < 16 << 20, "{read:?}");
    }

    /// What each lane of a stream of these pieces carries, dealt at random.
    fn dealt(pieces: &[Vec<u8>], lanes: usize, random: &mut fastrand::Rng) -> Vec<Vec<u8>> {
        let mut bytes = vec![Vec::new(); lanes];
        let mut offset = 0;
        for piece in pieces {
            let lane = &mut bytes[random.usize(..lanes)];
            lane.extend(Frame { bytes: piece.len() as u32, offset }.serialise());
            lane.extend(piece);
            offset += piece.len() as u64;
        }
        bytes
    }

    /// Feed each lane its bytes, then the end; returns what came out and how it ended.
    fn gathered(lanes: &[Vec<u8>], random: &mut fastrand::Rng) -> (Vec<u8>, io::ErrorKind) {
        let (own, other): (Vec<_>, Vec<_>) =
            lanes.iter().map(|_| UnixStream::pair().unwrap()).unzip();
        for (mut socket, bytes) in other.into_iter().zip(lanes) {
            socket.write_all(bytes).unwrap();
        }
        let sockets: Vec<_> = own.into_iter().map(socket2::Socket::from).collect();
        for socket in &sockets {
            socket.set_nonblocking(true).unwrap();
        }
        let mut gatherer = Gatherer::new(Arc::new(Link { sockets }));
        let mut stream = Vec::new();
        loop {
            let mut target = vec![0; random.usize(1..20_000)];
            match gatherer.read(&mut target) {
                Ok(0) => panic!("all lanes have ended, so there is something to say"),
                Ok(count) => stream.extend(&target[..count]),
                Err(error) => return (stream, error.kind()),
            }
        }
    }

    #[test]
    fn any_deal_gives_the_stream_and_damage_never_another_one() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..300 {
            let mut piece = || {
                let most = [20, 3000, 9000][random.usize(..3)];
                (0..random.usize(1..most)).map(|_| random.u8(..)).collect::<Vec<u8>>()
            };
            let pieces: Vec<Vec<u8>> = (0..12).map(|_| piece()).collect();
            let stream = pieces.concat();
            let count = random.usize(1..=4);
            let mut lanes = dealt(&pieces, count, &mut random);
            let outcome = gathered(&lanes, &mut random);
            assert_eq!(outcome, (stream.clone(), io::ErrorKind::UnexpectedEof), "seed {seed}");

            // Damage one header: what comes out is the start of the stream, and then an error.
            let damaged = (0..count).filter(|&lane| !lanes[lane].is_empty()).max().unwrap();
            lanes[damaged][random.usize(..HEADER_BYTES)] ^= 1 << random.u32(0..8);
            let (got, kind) = gathered(&lanes, &mut random);
            assert!(stream.starts_with(&got) && got.len() < stream.len(), "seed {seed}");
            assert_eq!(kind, io::ErrorKind::InvalidData, "seed {seed}");
        }
    }

    #[test]
    fn repeated_and_missing_pieces_are_noticed() {
        let piece = |offset| {
            let header = Frame { bytes: 8, offset }.serialise();
            [&header[..], &[7; 8]].concat()
        };
        let mut random = fastrand::Rng::with_seed(1);
        let repeated = vec![[piece(0), piece(0)].concat(), piece(16)];
        assert_eq!(gathered(&repeated, &mut random), (vec![7; 8], io::ErrorKind::InvalidData));
        let missing = vec![[piece(0), piece(16)].concat(), piece(24)];
        assert_eq!(gathered(&missing, &mut random), (vec![7; 8], io::ErrorKind::InvalidData));
    }
}
