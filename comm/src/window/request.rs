//! What one rank asks of another's window where it cannot reach it by itself, as bytes on a wire.
//!
//! ```text
//! window 8   place 8   amount 8   number 4   kind 4      all little-endian
//! put, get   an offset           bytes; those of a put follow, those of a get are the answer's
//! signal     a counter           what is added
//! ```
//!
//! An answer begins with the same bytes as what it answers. The window's number keeps what belongs
//! to another window out, and the number of the request shows that none was lost. All of it comes
//! from a peer, so it is anything until [`Request::parse`] has compared it with what was agreed.

use super::size::WindowSize;

/// Bytes in front of every request, and of every answer.
pub(super) const HEAD_BYTES: usize = 32;

const PUT: u32 = u32::from_le_bytes(*b"BWpu");
const GET: u32 = u32::from_le_bytes(*b"BWge");
const SIGNAL: u32 = u32::from_le_bytes(*b"BWsi");

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Write the bytes that follow.
    Put { offset: usize, bytes: usize },
    /// Answer with bytes.
    Get { offset: usize, bytes: usize },
    /// Add to a counter.
    Signal { index: usize, add: u64 },
}

impl Request {
    /// The bytes in front of the request with this number.
    pub(super) fn head(self, window: u64, number: u32) -> [u8; HEAD_BYTES] {
        let (place, amount, kind) = match self {
            Self::Put { offset, bytes } => (offset, bytes as u64, PUT),
            Self::Get { offset, bytes } => (offset, bytes as u64, GET),
            Self::Signal { index, add } => (index, add, SIGNAL),
        };
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&window.to_le_bytes());
        head[8..16].copy_from_slice(&(place as u64).to_le_bytes());
        head[16..24].copy_from_slice(&amount.to_le_bytes());
        head[24..28].copy_from_slice(&number.to_le_bytes());
        head[28..].copy_from_slice(&kind.to_le_bytes());
        head
    }

    /// What is asked of a window of this size. Errors: what is wrong with it, with the numbers.
    pub(super) fn parse(
        head: &[u8; HEAD_BYTES],
        (window, number): (u64, u32),
        size: WindowSize,
    ) -> Result<Self, String> {
        let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight"));
        let short = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four"));
        let (place, amount, kind) = (long(8), long(16), short(28));
        if ![PUT, GET, SIGNAL].contains(&kind) {
            return Err(format!("{kind:#010x} is no kind of request to a window"));
        }
        if long(0) != window {
            return Err(format!("a request to window {:#x} came to window {window:#x}", long(0)));
        }
        if short(24) != number {
            return Err(format!("request {} to a window came in place of {number}", short(24)));
        }
        let within = |place: u64, most: usize| usize::try_from(place).ok().filter(|&it| it <= most);
        if kind == SIGNAL {
            let index = within(place, size.signals).filter(|&index| index < size.signals);
            let outside = || format!("signal {place} of a window's {}", size.signals);
            return Ok(Self::Signal { index: index.ok_or_else(outside)?, add: amount });
        }
        let offset = within(place, size.bytes);
        let place_of = |offset: usize| Some((offset, within(amount, size.bytes - offset)?));
        let Some((offset, bytes)) = offset.and_then(place_of) else {
            let what = if kind == PUT { "put" } else { "get" };
            return Err(format!(
                "a {what} of {amount} bytes at {place} of a window of {} bytes",
                size.bytes
            ));
        };
        Ok(if kind == PUT { Self::Put { offset, bytes } } else { Self::Get { offset, bytes } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: WindowSize = WindowSize { bytes: 100, signals: 2 };
    const OF: (u64, u32) = (0xAB << 50, 7);

    fn parse(request: Request) -> Result<Request, String> {
        Request::parse(&request.head(OF.0, OF.1), OF, SIZE)
    }

    #[test]
    fn requests_within_a_window_read_back() {
        for (offset, bytes) in [(0, 0), (0, 100), (99, 1), (100, 0), (3, 14)] {
            for request in [Request::Put { offset, bytes }, Request::Get { offset, bytes }] {
                assert_eq!(parse(request), Ok(request));
            }
        }
        for (index, add) in [(0, 0), (1, u64::MAX)] {
            let request = Request::Signal { index, add };
            assert_eq!(parse(request), Ok(request));
        }
    }

    #[test]
    fn what_reaches_outside_is_refused_with_its_numbers() {
        for (offset, bytes) in [(0, 101), (100, 1), (101, 0), (usize::MAX, 2), (2, usize::MAX)] {
            for request in [Request::Put { offset, bytes }, Request::Get { offset, bytes }] {
                let why = parse(request).expect_err("it is outside");
                assert!(why.contains(&format!("{bytes} bytes at {offset} of")), "{why}");
            }
        }
        for index in [2, 3, usize::MAX] {
            let why = parse(Request::Signal { index, add: 1 }).expect_err("there are two");
            assert!(why.contains(&format!("signal {index} of a window's 2")), "{why}");
        }
    }

    #[test]
    fn what_belongs_to_another_window_or_another_turn_is_refused() {
        let head = Request::Signal { index: 0, add: 1 }.head(OF.0, OF.1);
        assert!(Request::parse(&head, (OF.0 ^ 1, OF.1), SIZE).is_err());
        assert!(Request::parse(&head, (OF.0, OF.1 + 1), SIZE).is_err());
    }

    #[test]
    fn no_bytes_of_a_peer_reach_outside() {
        const SEED: u64 = 603;
        let mut rng = fastrand::Rng::with_seed(SEED);
        let mut accepted = 0;
        for round in 0..20_000 {
            let (offset, bytes) = (rng.usize(..120), rng.usize(..120));
            let mut head = match rng.u8(..3) {
                0 => Request::Put { offset, bytes },
                1 => Request::Get { offset, bytes },
                _ => Request::Signal { index: rng.usize(..4), add: rng.u64(..) },
            }
            .head(OF.0, OF.1);
            for _ in 0..rng.usize(..3) {
                head[rng.usize(8..HEAD_BYTES)] = rng.u8(..);
            }
            let Ok(request) = Request::parse(&head, OF, SIZE) else { continue };
            accepted += 1;
            let fits = match request {
                Request::Put { offset, bytes } | Request::Get { offset, bytes } => {
                    offset <= SIZE.bytes && bytes <= SIZE.bytes - offset
                }
                Request::Signal { index, .. } => index < SIZE.signals,
            };
            assert!(fits, "seed {SEED}, round {round}: {request:?}");
        }
        assert!(accepted > 1000, "seed {SEED}: only {accepted} made sense");
    }
}
