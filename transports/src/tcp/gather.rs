//! The receiving end of a stream over several sockets; `stripe` is the sending end and tells how
//! the stream is cut.
//!
//! The body of the segment that is next in the stream is read, and no other: what came early stays
//! in the kernel's buffers (or, where it is sealed, in those of its end), and nothing has to be
//! sorted.

use std::io;
use std::sync::Arc;

use super::bell::Armings;
use super::ends::{Inlet, READ_AHEAD_BYTES};
use super::frame::{Frame, HEADER_BYTES};
use super::link::Link;

/// The receiving end of a striped stream.
pub(super) struct Gatherer {
    lanes: Vec<Lane>,
    /// The lane that has the segment which is next in the stream, or had the last one.
    lane: usize,
    /// Bytes of that segment that were not read yet.
    body_bytes: usize,
    /// Where the segment after it begins in the stream.
    next: u64,
    armings: Armings,
    /// How often the bell had been armed when all lanes were last looked at.
    seen: u32,
    /// Looks in vain since the last segment.
    idle: u32,
    /// Why reading failed behind the last bytes that were handed over: sockets say that once.
    failure: Option<io::Error>,
}

/// While nothing comes, all lanes are looked at every so often, and in between only the one that
/// had the last segment, where a small message comes next: a look costs a system call.
const ALL_LANES_EVERY: u32 = 8;

/// One socket, read a little ahead so that small segments cost one system call.
struct Lane {
    inlet: Inlet,
    ahead: Vec<u8>,
    head: usize,
    tail: usize,
    /// A segment whose turn has not come.
    waiting: Option<Frame>,
    has_ended: bool,
}

impl Gatherer {
    pub(super) fn new(link: Arc<Link>, armings: Armings) -> Gatherer {
        let lane = |socket| Lane {
            inlet: Inlet::new(link.clone(), socket),
            ahead: vec![0; READ_AHEAD_BYTES],
            head: 0,
            tail: 0,
            waiting: None,
            has_ended: false,
        };
        let lanes = (0..link.sockets.len()).map(lane).collect();
        let (lane, body_bytes, next, idle, seen) = (0, 0, 0, 0, armings.count());
        Gatherer { lanes, lane, body_bytes, next, armings, seen, idle, failure: None }
    }

    /// The next bytes of the stream, as many as there are now.
    pub(super) fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        match self.failure.take().map_or_else(|| self.fill(target, &mut filled), Err) {
            // The bytes in front of it are good.
            Err(failure) if filled > 0 => self.failure = Some(failure),
            outcome => outcome?,
        }
        Ok(filled)
    }

    fn fill(&mut self, target: &mut [u8], filled: &mut usize) -> io::Result<()> {
        while *filled < target.len() {
            if self.body_bytes == 0 && !self.find_next()? {
                break;
            }
            let lane = &mut self.lanes[self.lane];
            let most = self.body_bytes.min(target.len() - *filled);
            let room = &mut target[*filled..*filled + most];
            let mut count = lane.take(room);
            if count == 0 {
                count = lane.inlet.read(room)?;
            }
            if count == 0 {
                break;
            }
            self.body_bytes -= count;
            *filled += count;
        }
        Ok(())
    }

    /// Make the lane with the segment that is next in the stream the current one, if it has come.
    fn find_next(&mut self) -> io::Result<bool> {
        let armings = self.armings.count();
        let sees_all = self.idle.is_multiple_of(ALL_LANES_EVERY) || armings != self.seen;
        let lanes = self.lanes.len();
        let most = if sees_all { lanes } else { 1 };
        let mut stuck = 0;
        for index in (self.lane..lanes).chain(0..self.lane).take(most) {
            let lane = &mut self.lanes[index];
            lane.look()?;
            match lane.waiting {
                Some(Frame { bytes, offset }) if offset == self.next => {
                    lane.waiting = None;
                    self.lane = index;
                    self.body_bytes = bytes as usize;
                    self.next += u64::from(bytes);
                    self.idle = 0;
                    return Ok(true);
                }
                Some(Frame { offset, .. }) if offset < self.next => {
                    return Err(corrupt("a frame repeats a part of the stream"));
                }
                Some(_) => stuck += 1,
                None => stuck += usize::from(lane.has_ended),
            }
        }
        if sees_all {
            self.seen = armings;
        }
        // A socket's end is no news while another may still bring what was sent before it.
        if stuck < lanes {
            self.idle = self.idle.wrapping_add(1);
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
    fn look(&mut self) -> io::Result<()> {
        if self.waiting.is_some() || self.has_ended {
            return Ok(());
        }
        if self.tail - self.head < HEADER_BYTES {
            self.ahead.copy_within(self.head..self.tail, 0);
            self.tail -= self.head;
            self.head = 0;
            match self.inlet.read(&mut self.ahead[self.tail..]) {
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
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::super::link::Proved;
    use super::*;

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

    /// A link of sockets on which nothing is sealed.
    fn link(own: Vec<UnixStream>) -> Arc<Link> {
        let proved = own.into_iter().map(|stream| {
            stream.set_nonblocking(true).unwrap();
            Proved { socket: stream.into(), seals: None }
        });
        Arc::new(Link::of(proved.collect()))
    }

    /// Feed each lane its bytes, then the end; returns what came out and how it ended.
    fn gathered(lanes: &[Vec<u8>], random: &mut fastrand::Rng) -> (Vec<u8>, io::ErrorKind) {
        let (own, other): (Vec<_>, Vec<_>) =
            lanes.iter().map(|_| UnixStream::pair().unwrap()).unzip();
        for (mut socket, bytes) in other.into_iter().zip(lanes) {
            socket.write_all(bytes).unwrap();
        }
        let link = link(own);
        let mut gatherer = Gatherer::new(link, Armings::default());
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
    fn after_arming_one_look_sees_all_lanes() {
        let (own, others): (Vec<_>, Vec<_>) = (0..4).map(|_| UnixStream::pair().unwrap()).unzip();
        let link = link(own);
        let armings = Armings::default();
        let mut gatherer = Gatherer::new(link, armings.clone());
        let mut got = [0; 8];
        for turn in 0..100u64 {
            for _ in 0..turn % 11 {
                assert_eq!(gatherer.read(&mut got).unwrap(), 0);
            }
            let header = Frame { bytes: 8, offset: 8 * turn }.serialise();
            let mut lane = &others[turn as usize * 7 % 4];
            lane.write_all(&[&header[..], &turn.to_le_bytes()].concat()).unwrap();
            armings.add();
            assert_eq!((gatherer.read(&mut got).unwrap(), got), (8, turn.to_le_bytes()));
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
