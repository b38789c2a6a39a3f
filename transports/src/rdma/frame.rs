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
    pub(super) number: u32,
    /// Where its packets begin to count.
    pub(super) start: u32,
}

impl OfferedStripe {
    fn serialise(&self, target: &mut Vec<u8>) {
        target.extend([self.ours, self.theirs]);
        target.extend(self.number.to_le_bytes());
        target.extend(self.start.to_le_bytes());
    }

    /// `None` for one that names an address that no card has room for.
    fn parse([ours, theirs, a, b, c, d, e, f, g, h]: [u8; 10]) -> Option<OfferedStripe> {
        let (number, start) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let exists = usize::from(ours.max(theirs)) < ADDRESSES_MAX;
        exists.then_some(OfferedStripe { ours, theirs, number, start })
    }
}

/// One queue pair that the receiving end has connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AcceptedStripe {
    pub(super) number: u32,
    pub(super) start: u32,
    /// The key to the ring, for this queue pair's device.
    pub(super) key: u32,
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
    Stop { stripe: u8 },
    /// It is stopped: nothing that was sent through it arrives any more.
    Stopped { stripe: u8 },
    /// A queue pair of the wire from you to me has failed.
    Broken { stripe: u8 },
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
                for stripe in stripes {
                    target.extend(stripe.number.to_le_bytes());
                    target.extend(stripe.start.to_le_bytes());
                    target.extend(stripe.key.to_le_bytes());
                }
                2
            }
            Frame::Refuse { why } => {
                let fits = why.len().min(BODY_BYTES_MAX);
                target.extend(&why.as_bytes()[..fits]);
                3
            }
            Frame::Stop { stripe } => {
                target.push(*stripe);
                4
            }
            Frame::Stopped { stripe } => {
                target.push(*stripe);
                5
            }
            Frame::Broken { stripe } => {
                target.push(*stripe);
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
        let wrong = "a frame that makes no sense";
        let stripe = || match *body {
            [stripe] if usize::from(stripe) < STRIPES_MAX => Ok(stripe),
            _ => Err(wrong),
        };
        match kind {
            1 => {
                let (ring_bytes, rows) = body.split_first_chunk().ok_or(wrong)?;
                let ring_bytes = u32::from_le_bytes(*ring_bytes);
                let possible = RING_BYTES_MIN..=RING_BYTES_MAX;
                let stripes = rows_of(rows, wrong)?.map(OfferedStripe::parse);
                let stripes = stripes.collect::<Option<Vec<_>>>().ok_or(wrong)?;
                if !possible.contains(&ring_bytes) || !ring_bytes.is_power_of_two() {
                    return Err(wrong);
                }
                Ok(Frame::Offer { ring_bytes, stripes })
            }
            2 => {
                let (address, rows) = body.split_first_chunk().ok_or(wrong)?;
                let stripes = rows_of::<12>(rows, wrong)?
                    .map(|[a, b, c, d, e, f, g, h, i, j, k, l]| AcceptedStripe {
                        number: u32::from_le_bytes([a, b, c, d]),
                        start: u32::from_le_bytes([e, f, g, h]),
                        key: u32::from_le_bytes([i, j, k, l]),
                    })
                    .collect();
                Ok(Frame::Accept { address: u64::from_le_bytes(*address), stripes })
            }
            3 => Ok(Frame::Refuse { why: String::from_utf8_lossy(body).into_owned() }),
            4 => Ok(Frame::Stop { stripe: stripe()? }),
            5 => Ok(Frame::Stopped { stripe: stripe()? }),
            6 => Ok(Frame::Broken { stripe: stripe()? }),
            7 => {
                let pieces = u32::from_le_bytes(body.try_into().map_err(|_| wrong)?);
                Ok(Frame::Bye { pieces })
            }
            8 => {
                let row = body.try_into().map_err(|_| wrong)?;
                Ok(Frame::Door { stripe: OfferedStripe::parse(row).ok_or(wrong)? })
            }
            9 => Ok(Frame::Knock),
            _ => Err("a frame of a kind that there is not"),
        }
    }
}

/// Between one and [`STRIPES_MAX`] rows of `N` bytes.
fn rows_of<const N: usize>(
    bytes: &[u8],
    wrong: &'static str,
) -> Result<impl Iterator<Item = [u8; N]>, &'static str> {
    match bytes.as_chunks::<N>() {
        (rows, []) if (1..=STRIPES_MAX).contains(&rows.len()) => Ok(rows.iter().copied()),
        _ => Err(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Frame> {
        let offered = OfferedStripe { ours: 1, theirs: 2, number: 77, start: 0x00ff_ffff };
        let accepted = AcceptedStripe { number: 78, start: 5, key: 0xdead_beef };
        vec![
            Frame::Offer { ring_bytes: 1 << 18, stripes: vec![offered; 2] },
            Frame::Accept { address: 1 << 47, stripes: vec![accepted; STRIPES_MAX] },
            Frame::Refuse { why: "no memory".into() },
            Frame::Stop { stripe: 0 },
            Frame::Stopped { stripe: 7 },
            Frame::Broken { stripe: 3 },
            Frame::Bye { pieces: u32::MAX },
            Frame::Door { stripe: offered },
            Frame::Knock,
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
        for hostile in [
            Frame::Offer { ring_bytes: 0, stripes: vec![] },
            Frame::Offer { ring_bytes: (1 << 18) + 1, stripes: vec![] },
            Frame::Accept { address: 0, stripes: vec![] },
            Frame::Stop { stripe: STRIPES_MAX as u8 },
        ] {
            let mut bytes = Vec::new();
            hostile.serialise(&mut bytes);
            assert!(Frame::take(&mut bytes).is_err(), "{hostile:?}");
        }
    }
}
