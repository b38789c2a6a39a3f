//! A stream as sealed records.
//!
//! ```text
//! length 2, little-endian: of what follows     sealed bytes     tag 16
//! ```
//!
//! Records are numbered by both ends, and the number is part of what the tag speaks for: one that
//! is changed, left out, said twice or moved does not open. Bytes are sealed and opened where they
//! lie in a buffer that stays in a core's cache.

use std::fmt;
use std::io;
use std::ops::Range;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

/// The most bytes of a record: of more, its receiver would have to wait for the last before it gets
/// the first; of fewer, the tags would count.
pub const BODY_BYTES: usize = 16 << 10;
const LENGTH_BYTES: usize = 2;
const TAG_BYTES: usize = 16;
/// The longest record.
pub const RECORD_BYTES: usize = LENGTH_BYTES + BODY_BYTES + TAG_BYTES;
/// How much is read from the network at a time.
const BUFFER_BYTES: usize = 8 * RECORD_BYTES;
const KEY_BYTES: usize = 32;
/// How many records one key seals. With blocks of 16 bytes that much more than 2^32 of them would
/// begin to tell a sealed stream from noise (RFC 8446, section 5.5, has the numbers).
const RECORDS_PER_KEY: u64 = 1 << 21;

/// The key of one direction, and how far it has come.
#[derive(Debug)]
struct Key {
    key: LessSafeKey,
    /// Of the next record. It never repeats, whatever the key.
    number: u64,
    records_per_key: u64,
}

impl Key {
    fn new(bytes: &[u8; KEY_BYTES]) -> Key {
        Key { key: aes(bytes), number: 0, records_per_key: RECORDS_PER_KEY }
    }

    /// What the next record is sealed with.
    fn next(&mut self) -> Nonce {
        if self.number > 0 && self.number.is_multiple_of(self.records_per_key) {
            self.renew();
        }
        let nonce = nonce(self.number);
        self.number += 1;
        nonce
    }

    /// Go on with a key from which the last one cannot be had.
    fn renew(&mut self) {
        let mut bytes = [0; KEY_BYTES];
        let sealed = self.key.seal_in_place_separate_tag(nonce(u64::MAX), Aad::empty(), &mut bytes);
        let _tag = sealed.expect("so few bytes can be sealed");
        self.key = aes(&bytes);
    }
}

fn aes(bytes: &[u8; KEY_BYTES]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, bytes).expect("a key of this length"))
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// What seals one direction of a stream.
#[derive(Debug)]
pub struct Sealer(Key);

impl Sealer {
    pub(super) fn new(key: &[u8; KEY_BYTES]) -> Sealer {
        Sealer(Key::new(key))
    }

    /// Append one record with `head` and `body`, together at most [`BODY_BYTES`], to `records`.
    /// Costs a pass over the bytes, and some 100 ns.
    ///
    /// # Panics
    ///
    /// If there are more bytes.
    pub fn seal(&mut self, head: &[u8], body: &[u8], records: &mut Vec<u8>) {
        let bytes = head.len() + body.len();
        assert!(bytes <= BODY_BYTES, "a record has at most {BODY_BYTES} bytes");
        let length = (bytes + TAG_BYTES) as u16;
        records.extend_from_slice(&length.to_le_bytes());
        let start = records.len();
        records.extend_from_slice(head);
        records.extend_from_slice(body);
        let nonce = self.0.next();
        let body = &mut records[start..];
        let sealed = self.0.key.seal_in_place_separate_tag(nonce, Aad::empty(), body);
        records.extend_from_slice(sealed.expect("so few bytes can be sealed").as_ref());
    }

    /// All of `bytes` as records.
    pub fn seal_all(&mut self, bytes: &[u8]) -> Vec<u8> {
        let records = bytes.len().div_ceil(BODY_BYTES);
        let mut sealed = Vec::with_capacity(bytes.len() + records * (RECORD_BYTES - BODY_BYTES));
        bytes.chunks(BODY_BYTES).for_each(|body| self.seal(&[], body, &mut sealed));
        sealed
    }
}

/// What opens the other direction. Bytes from the network are read into [`Opener::room`] and told
/// by [`Opener::fill`]; then [`Opener::opened`] has what they say, until that is empty.
pub struct Opener {
    key: Key,
    buffer: Vec<u8>,
    /// What was opened and not taken yet.
    open: Range<usize>,
    /// What is still sealed.
    sealed: Range<usize>,
    is_broken: bool,
}

impl fmt::Debug for Opener {
    /// Without what it has opened.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").finish_non_exhaustive()
    }
}

impl Opener {
    pub(super) fn new(key: &[u8; KEY_BYTES]) -> Opener {
        let buffer = vec![0; BUFFER_BYTES];
        Opener { key: Key::new(key), buffer, open: 0..0, sealed: 0..0, is_broken: false }
    }

    /// Where bytes from the network go, never empty once all that was opened is taken.
    pub fn room(&mut self) -> &mut [u8] {
        debug_assert!(self.open.is_empty(), "what was opened is taken first");
        self.buffer.copy_within(self.sealed.clone(), 0);
        self.sealed = 0..self.sealed.len();
        &mut self.buffer[self.sealed.end..]
    }

    /// So many have come there.
    pub fn fill(&mut self, bytes: usize) {
        self.sealed.end += bytes;
        assert!(self.sealed.end <= self.buffer.len(), "no more than there is room for");
    }

    /// The next bytes of the stream that have come as a whole record; none until more has come.
    ///
    /// # Errors
    ///
    /// `InvalidData` where they are not what the other end has sealed, from then on always.
    pub fn opened(&mut self) -> io::Result<&[u8]> {
        while self.open.is_empty() && self.open_next()? {}
        Ok(&self.buffer[self.open.clone()])
    }

    /// So many bytes of what was opened have been used.
    pub fn take(&mut self, bytes: usize) {
        self.open.start += bytes;
        assert!(self.open.start <= self.open.end, "no more than was opened");
    }

    /// Open the next record, if all of it is there.
    fn open_next(&mut self) -> io::Result<bool> {
        if self.is_broken {
            return Err(broken());
        }
        let Some((length, rest)) = self.buffer[self.sealed.clone()].split_first_chunk_mut() else {
            return Ok(false);
        };
        let length = usize::from(u16::from_le_bytes(*length));
        let Some(record) = rest.get_mut(..length) else {
            // One that is too long would never fit.
            self.is_broken = length > BODY_BYTES + TAG_BYTES;
            return if self.is_broken { Err(broken()) } else { Ok(false) };
        };
        let nonce = self.key.next();
        let Ok(plain) = self.key.key.open_in_place(nonce, Aad::empty(), record) else {
            self.is_broken = true;
            return Err(broken());
        };
        let start = self.sealed.start + LENGTH_BYTES;
        self.open = start..start + plain.len();
        self.sealed.start = start + length;
        Ok(true)
    }
}

fn broken() -> io::Error {
    let what = "a sealed record does not open: somebody on the way has changed it, or the memory \
                of one of the two hosts has";
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::super::{Offer, Seals, accept};
    use super::*;

    fn agreed(ours: (&[u8; 32], &[u8]), theirs: (&[u8; 32], &[u8])) -> Option<(Seals, Seals)> {
        let (offer, share) = Offer::new(ours.0, ours.1).unwrap();
        let (share, accepting) = accept(theirs.0, theirs.1, &share).ok()?;
        Some((offer.conclude(&share).unwrap(), accepting))
    }

    fn pair() -> (Seals, Seals) {
        agreed((&[7; 32], b"0 to 1"), (&[7; 32], b"0 to 1")).expect("they agree")
    }

    /// All that comes out of bytes that come in pieces of random length, and whether it broke.
    fn opened(opener: &mut Opener, bytes: &[u8], random: &mut fastrand::Rng) -> (Vec<u8>, bool) {
        let (mut plain, mut rest) = (Vec::new(), bytes);
        loop {
            match opener.opened() {
                Err(_) => return (plain, true),
                Ok([]) if rest.is_empty() => return (plain, false),
                Ok([]) => {
                    let room = opener.room();
                    let most = rest.len().min(room.len());
                    let count = random.usize(1..=most);
                    room[..count].copy_from_slice(&rest[..count]);
                    opener.fill(count);
                    rest = &rest[count..];
                }
                Ok(bytes) => {
                    let count = random.usize(1..=bytes.len());
                    plain.extend_from_slice(&bytes[..count]);
                    opener.take(count);
                }
            }
        }
    }

    #[test]
    fn what_one_end_seals_the_other_opens_across_many_keys() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut one, mut other) = pair();
        for key in
            [&mut one.sealer.0, &mut one.opener.key, &mut other.sealer.0, &mut other.opener.key]
        {
            key.records_per_key = 3;
        }
        for turn in 0..60 {
            let length = [0, 1, 17, BODY_BYTES, BODY_BYTES + 1, 300_000][random.usize(..6)];
            let plain: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
            let (from, to) = match turn % 2 {
                0 => (&mut one.sealer, &mut other.opener),
                _ => (&mut other.sealer, &mut one.opener),
            };
            let sealed = from.seal_all(&plain);
            let found = sealed.windows(16).any(|some| plain.windows(16).next() == Some(some));
            assert!(!found, "seed {seed}: the bytes lie open");
            assert_eq!(opened(to, &sealed, &mut random), (plain, false), "seed {seed}");
        }
        assert!(one.sealer.0.number > 30 && other.sealer.0.number > 30, "several keys");
    }

    #[test]
    fn the_first_record_of_a_new_key_does_not_open_with_the_old_one() {
        let (mut one, mut other) = pair();
        one.sealer.0.records_per_key = 1;
        let mut random = fastrand::Rng::with_seed(1);
        let sealed = [one.sealer.seal_all(b"first"), one.sealer.seal_all(b"second")].concat();
        assert_eq!(opened(&mut other.opener, &sealed, &mut random), (b"first".to_vec(), true));
    }

    #[test]
    fn a_record_that_was_changed_left_out_moved_or_said_again_does_not_open() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for damage in 0..200 {
            let (mut one, mut other) = pair();
            let records: Vec<Vec<u8>> = (0..3).map(|it| one.sealer.seal_all(&[it; 40])).collect();
            let [first, second, third] = [0, 1, 2].map(|it: usize| &records[it][..]);
            let mut changed = second.to_vec();
            changed[random.usize(..second.len())] ^= 1 << random.u32(..8);
            let bytes = match damage % 4 {
                // A length that was made longer takes what follows for its own.
                0 => [first, &changed, &vec![0; RECORD_BYTES * 5]].concat(),
                1 => [first, third].concat(),
                2 => [first, third, second].concat(),
                _ => [first, first, second].concat(),
            };
            let outcome = opened(&mut other.opener, &bytes, &mut random);
            assert_eq!(outcome, (vec![0; 40], true), "seed {seed}, damage {damage}");
            assert!(other.opener.opened().is_err(), "it stays broken");
        }
    }

    #[test]
    fn who_knows_another_secret_or_means_another_stream_gets_no_keys() {
        assert!(agreed((&[7; 32], b"0 to 1"), (&[8; 32], b"0 to 1")).is_none());
        assert!(agreed((&[7; 32], b"0 to 1"), (&[7; 32], b"0 to 2")).is_none());
        let (offer, share) = Offer::new(&[7; 32], b"").unwrap();
        let (mut answer, _) = accept(&[7; 32], b"", &share).unwrap();
        answer[40] ^= 1;
        assert!(matches!(offer.conclude(&answer), Err(crate::TransportError::Refused { .. })));
    }

    #[test]
    fn no_two_streams_have_the_same_keys() {
        let (mut one, mut other) = (pair().0, pair().0);
        assert_ne!(one.sealer.seal_all(&[0; 64]), other.sealer.seal_all(&[0; 64]));
    }
}
