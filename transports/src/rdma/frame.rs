//! What two ranks say to each other beside their queue pairs, over a connection that both have
//! proved to belong to the job. Keys to memory travel nowhere else.
//!
//! ```text
//! kind 1   bytes 2   so many bytes of body      all integers little-endian
//! ```

use super::card::ADDRESSES_MAX;

const HEADER_BYTES: usize = 3;
const BODY_BYTES_MAX: usize = 1024;
/// The most queue pairs that one wire has.
pub(super) const STRIPES_MAX: usize = 8;
/// Rings are powers of two within these.
pub(super) const RING_BYTES_MIN: u32 = 16 << 10;
pub(super) const RING_BYTES_MAX: u32 = 64 << 20;

/// One queue pair that the sending end of a wire has prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OfferedStripe {
    /// Where it is, as a row of the sender's card.
    pub(super) ours: u8,
    /// Where its other end shall be, as a row of the receiver's card.
    pub(super) theirs: u8,
    pub(super) half: Half,
}

/// What one end of a connection must know of the other one's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Half {
    pub(super) number: u32,
    /// Where its packets begin to count.
    pub(super) start: u32,
    /// The largest packet, as verbs count it, that its port sends now; of an answer, that is used.
    pub(super) mtu: u8,
}

const HALF_BYTES: usize = 9;

impl Half {
    fn serialise(&self, target: &mut Vec<u8>) {
        target.extend(self.number.to_le_bytes());
        target.extend(self.start.to_le_bytes());
        target.push(self.mtu);
    }

    fn parse([a, b, c, d, e, f, g, h, mtu]: [u8; HALF_BYTES]) -> Option<Half> {
        let (number, start) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        (1..=5).contains(&mtu).then_some(Half { number, start, mtu })
    }
}

impl OfferedStripe {
    const BYTES: usize = 2 + HALF_BYTES;

    fn serialise(&self, target: &mut Vec<u8>) {
        target.extend([self.ours, self.theirs]);
        self.half.serialise(target);
    }

    /// `None` for one that names an address that no card has room for.
    fn parse([ours, theirs, half @ ..]: [u8; Self::BYTES]) -> Option<OfferedStripe> {
        let exists = usize::from(ours.max(theirs)) < ADDRESSES_MAX;
        Half::parse(half).filter(|_| exists).map(|half| OfferedStripe { ours, theirs, half })
    }
}

/// One queue pair that the receiving end has connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AcceptedStripe {
    pub(super) half: Half,
    /// The key to the ring, for this queue pair's device.
    pub(super) key: u32,
}

/// The answer to an offer: where the ring is, and its queue pairs.
pub(super) type Accepted = (u64, Vec<AcceptedStripe>);

impl AcceptedStripe {
    const BYTES: usize = HALF_BYTES + 4;

    fn serialise(&self, target: &mut Vec<u8>) {
        self.half.serialise(target);
        target.extend(self.key.to_le_bytes());
    }

    fn parse([half @ .., a, b, c, d]: [u8; Self::BYTES]) -> Option<AcceptedStripe> {
        let key = u32::from_le_bytes([a, b, c, d]);
        Half::parse(half).map(|half| AcceptedStripe { half, key })
    }
}

/// One of a wire's queue pairs: whose turn it is at which stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) stripe: u8,
    /// Counts attempts to replace it, from 0.
    pub(super) turn: u32,
}

impl Turn {
    const BYTES: usize = 5;

    fn serialise(&self, target: &mut Vec<u8>) {
        target.push(self.stripe);
        target.extend(self.turn.to_le_bytes());
    }

    fn parse([stripe, a, b, c, d]: [u8; Self::BYTES]) -> Option<Turn> {
        let turn = u32::from_le_bytes([a, b, c, d]);
        (usize::from(stripe) < STRIPES_MAX).then_some(Turn { stripe, turn })
    }

    /// A turn, and what comes after it.
    fn take(body: &[u8]) -> Option<(Turn, &[u8])> {
        let (turn, rest) = body.split_first_chunk()?;
        Some((Turn::parse(*turn)?, rest))
    }
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// I want to send to you, through a ring of this length.
    Offer { ring_bytes: u32, stripes: Vec<OfferedStripe> },
    /// Here is the ring.
    Accept { address: u64, stripes: Vec<AcceptedStripe> },
    /// There will be none.
    Refuse { why: String },
    /// A queue pair of the wire from me to you has failed: stop its other end and say so.
    Stop(Turn),
    /// It is stopped: nothing that was sent through it arrives any more.
    Stopped(Turn),
    /// A queue pair of the wire from you to me has failed.
    Broken(Turn),
    /// I want to replace one that is stopped by this one.
    Replace(Turn, OfferedStripe),
    /// Here is its other end.
    Replaced(Turn, AcceptedStripe),
    /// There is none now.
    Kept { turn: Turn, why: String },
    /// My end of the new one takes your words.
    Linked(Turn),
    /// The wire from me to you has failed for good.
    Lost { why: String },
    /// I want to reach your windows through this queue pair.
    Door { stripe: OfferedStripe },
    /// I have signalled in a window of yours.
    Knock,
    /// I leave, having sent you so many pieces (modulo 2^32).
    Bye { pieces: u32 },
}

impl Frame {
    /// Append the frame to what is to be sent.
    pub(super) fn serialise(&self, target: &mut Vec<u8>) {
        let begin = target.len();
        target.extend([0; HEADER_BYTES]);
        let kind = match self {
            Frame::Offer { ring_bytes, stripes } => {
                target.extend(ring_bytes.to_le_bytes());
                stripes.iter().for_each(|stripe| stripe.serialise(target));
                1
            }
            Frame::Accept { address, stripes } => {
                target.extend(address.to_le_bytes());
                stripes.iter().for_each(|stripe| stripe.serialise(target));
                2
            }
            Frame::Refuse { why } => {
                serialise_text(why, target);
                3
            }
            Frame::Stop(turn) => {
                turn.serialise(target);
                4
            }
            Frame::Stopped(turn) => {
                turn.serialise(target);
                5
            }
            Frame::Broken(turn) => {
                turn.serialise(target);
                6
            }
            Frame::Bye { pieces } => {
                target.extend(pieces.to_le_bytes());
                7
            }
            Frame::Door { stripe } => {
                stripe.serialise(target);
                8
            }
            Frame::Knock => 9,
            Frame::Replace(turn, stripe) => {
                turn.serialise(target);
                stripe.serialise(target);
                10
            }
            Frame::Replaced(turn, stripe) => {
                turn.serialise(target);
                stripe.serialise(target);
                11
            }
            Frame::Kept { turn, why } => {
                turn.serialise(target);
                serialise_text(why, target);
                12
            }
            Frame::Linked(turn) => {
                turn.serialise(target);
                13
            }
            Frame::Lost { why } => {
                serialise_text(why, target);
                14
            }
        };
        let body_bytes = target.len() - begin - HEADER_BYTES;
        assert!(body_bytes <= BODY_BYTES_MAX);
        target[begin] = kind;
        target[begin + 1..begin + 3].copy_from_slice(&(body_bytes as u16).to_le_bytes());
    }

    /// Take the first frame off what has arrived; `None` until it is complete. Errors: what is
    /// wrong with it.
    pub(super) fn take(arrived: &mut Vec<u8>) -> Result<Option<Frame>, &'static str> {
        let Some((&[kind, low, high], rest)) = arrived.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let bytes = usize::from(u16::from_le_bytes([low, high]));
        if bytes > BODY_BYTES_MAX {
            return Err("a frame of impossible length");
        }
        let Some(body) = rest.get(..bytes) else { return Ok(None) };
        let frame = Frame::parse(kind, body)?;
        arrived.drain(..HEADER_BYTES + bytes);
        Ok(Some(frame))
    }

    fn parse(kind: u8, body: &[u8]) -> Result<Frame, &'static str> {
        if !(1..=14).contains(&kind) {
            return Err("a frame of a kind that there is not");
        }
        Frame::of_body(kind, body).ok_or("a frame that makes no sense")
    }

    fn of_body(kind: u8, body: &[u8]) -> Option<Frame> {
        let turn = || body.try_into().ok().and_then(Turn::parse);
        Some(match kind {
            1 => {
                let (ring_bytes, rows) = body.split_first_chunk()?;
                let ring_bytes = u32::from_le_bytes(*ring_bytes);
                let possible = RING_BYTES_MIN..=RING_BYTES_MAX;
                if !possible.contains(&ring_bytes) || !ring_bytes.is_power_of_two() {
                    return None;
                }
                let stripes = rows_of(rows)?.map(OfferedStripe::parse).collect::<Option<_>>()?;
                Frame::Offer { ring_bytes, stripes }
            }
            2 => {
                let (address, rows) = body.split_first_chunk()?;
                let stripes = rows_of(rows)?.map(AcceptedStripe::parse).collect::<Option<_>>()?;
                Frame::Accept { address: u64::from_le_bytes(*address), stripes }
            }
            3 => Frame::Refuse { why: String::from_utf8_lossy(body).into_owned() },
            4 => Frame::Stop(turn()?),
            5 => Frame::Stopped(turn()?),
            6 => Frame::Broken(turn()?),
            7 => Frame::Bye { pieces: u32::from_le_bytes(body.try_into().ok()?) },
            8 => Frame::Door { stripe: OfferedStripe::parse(body.try_into().ok()?)? },
            9 => Frame::Knock,
            10 => {
                let (turn, stripe) = Turn::take(body)?;
                Frame::Replace(turn, OfferedStripe::parse(stripe.try_into().ok()?)?)
            }
            11 => {
                let (turn, stripe) = Turn::take(body)?;
                Frame::Replaced(turn, AcceptedStripe::parse(stripe.try_into().ok()?)?)
            }
            12 => {
                let (turn, why) = Turn::take(body)?;
                Frame::Kept { turn, why: String::from_utf8_lossy(why).into_owned() }
            }
            13 => Frame::Linked(turn()?),
            14 => Frame::Lost { why: String::from_utf8_lossy(body).into_owned() },
            _ => return None,
        })
    }
}

/// Append what fits of a text.
fn serialise_text(text: &str, target: &mut Vec<u8>) {
    let fits = text.len().min(BODY_BYTES_MAX - Turn::BYTES);
    target.extend(&text.as_bytes()[..fits]);
}

/// Between one and [`STRIPES_MAX`] rows of `N` bytes.
fn rows_of<const N: usize>(bytes: &[u8]) -> Option<impl Iterator<Item = [u8; N]>> {
    match bytes.as_chunks::<N>() {
        (rows, []) if (1..=STRIPES_MAX).contains(&rows.len()) => Some(rows.iter().copied()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Frame> {
        let half = Half { number: 77, start: 0x00ff_ffff, mtu: 3 };
        let offered = OfferedStripe { ours: 1, theirs: 2, half };
        let accepted = AcceptedStripe { half, key: 0xdead_beef };
        let turn = Turn { stripe: STRIPES_MAX as u8 - 1, turn: 1 << 30 };
        vec![
            Frame::Offer { ring_bytes: 1 << 18, stripes: vec![offered; 2] },
            Frame::Accept { address: 1 << 47, stripes: vec![accepted; STRIPES_MAX] },
            Frame::Refuse { why: "no memory".into() },
            Frame::Stop(turn),
            Frame::Stopped(turn),
            Frame::Broken(turn),
            Frame::Bye { pieces: u32::MAX },
            Frame::Door { stripe: offered },
            Frame::Knock,
            Frame::Replace(turn, offered),
            Frame::Replaced(turn, accepted),
            Frame::Kept { turn, why: "the port is not active".into() },
            Frame::Linked(turn),
            Frame::Lost { why: "transport retries exceeded".into() },
        ]
    }

    #[test]
    fn frames_read_back_in_any_portions() {
        let mut stream = Vec::new();
        all().iter().for_each(|frame| frame.serialise(&mut stream));
        let (mut arrived, mut read) = (Vec::new(), Vec::new());
        for byte in stream {
            arrived.push(byte);
            read.extend(Frame::take(&mut arrived).unwrap());
        }
        assert_eq!(read, all());
        assert!(arrived.is_empty());
    }

    #[test]
    fn nonsense_is_refused_or_waited_for() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..20_000 {
            let mut noise: Vec<u8> = (0..random.usize(..64)).map(|_| random.u8(..)).collect();
            while let Ok(Some(_)) = Frame::take(&mut noise) {}
        }
        let turn = Turn { stripe: STRIPES_MAX as u8, turn: 0 };
        let half = Half { number: 1, start: 1, mtu: 6 };
        for hostile in [
            Frame::Offer { ring_bytes: 0, stripes: vec![] },
            Frame::Offer { ring_bytes: (1 << 18) + 1, stripes: vec![] },
            Frame::Accept { address: 0, stripes: vec![] },
            Frame::Stop(turn),
            Frame::Linked(turn),
            Frame::Accept { address: 0, stripes: vec![AcceptedStripe { half, key: 0 }] },
            Frame::Replaced(Turn { stripe: 0, ..turn }, AcceptedStripe { half, key: 0 }),
        ] {
            let mut bytes = Vec::new();
            hostile.serialise(&mut bytes);
            assert!(Frame::take(&mut bytes).is_err(), "{hostile:?}");
        }
    }
}
