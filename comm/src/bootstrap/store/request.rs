//! What a client says. Integers are little-endian, strings and values have 8 bytes of length in
//! front of them.

use super::{MAGIC, number};

/// The limits that PyTorch's own server has.
const KEY_BYTES_MAX: u64 = 8 << 10;
const VALUE_BYTES_MAX: u64 = 8 << 20;
const KEYS_MAX: u64 = 128 << 10;

/// A key or a value.
pub(super) type Text = Vec<u8>;

/// Something that a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Validate,
    Set(Text, Text),
    CompareSet { key: Text, expected: Text, wanted: Text },
    Get(Text),
    Add(Text, i64),
    Check(Vec<Text>),
    Wait(Vec<Text>),
    Count,
    Delete(Text),
    Append(Text, Text),
    MultiGet(Vec<Text>),
    MultiSet(Vec<(Text, Text)>),
    CancelWait,
    Ping(u32),
    QueuePush(Text, Text),
    QueuePop(Text),
    QueueLength(Text),
    List,
    Barrier(Text, i64),
}

/// What is known of a request of which more is to come.
#[derive(Debug, Default)]
pub(super) struct Begun {
    /// How many bytes it has at least.
    bytes: usize,
    /// Of the keys and values of one that has many, how many are there, and how many bytes of the
    /// request lead up to their end.
    texts: u64,
    up_to: usize,
}

/// Why there is no request yet.
enum Short {
    /// The rest has not come: so many bytes at least must be there for it.
    More(usize),
    /// It never will be one.
    Wrong(&'static str),
}

impl Request {
    /// Take the first request out of what has arrived, if it is whole. `begun`: what was found of
    /// it the last time, so that a long one is not read again for each piece of it. Errors: it is
    /// none.
    pub(super) fn take(
        inbox: &mut Vec<u8>,
        begun: &mut Begun,
    ) -> Result<Option<Request>, &'static str> {
        if inbox.len() < begun.bytes {
            return Ok(None);
        }
        let mut reader = Reader { all: inbox, rest: inbox, used: 0, begun };
        match reader.request() {
            Ok(request) => {
                let used = reader.used;
                inbox.drain(..used);
                *begun = Begun::default();
                Ok(Some(request))
            }
            Err(Short::More(bytes)) => {
                begun.bytes = bytes;
                Ok(None)
            }
            Err(Short::Wrong(what)) => Err(what),
        }
    }
}

/// What is left to be read.
struct Reader<'a> {
    all: &'a [u8],
    rest: &'a [u8],
    used: usize,
    begun: &'a mut Begun,
}

impl<'a> Reader<'a> {
    fn request(&mut self) -> Result<Request, Short> {
        let [kind] = self.array()?;
        Ok(match kind {
            number::VALIDATE if u32::from_le_bytes(self.array()?) == MAGIC => Request::Validate,
            number::SET => Request::Set(self.key()?, self.value()?),
            number::COMPARE_SET => {
                let (key, expected, wanted) = (self.key()?, self.value()?, self.value()?);
                Request::CompareSet { key, expected, wanted }
            }
            number::GET => Request::Get(self.key()?),
            number::ADD => Request::Add(self.key()?, i64::from_le_bytes(self.array()?)),
            number::CHECK => Request::Check(self.many(1, Self::key)?),
            number::WAIT => Request::Wait(self.many(1, Self::key)?),
            number::COUNT => Request::Count,
            number::DELETE => Request::Delete(self.key()?),
            number::APPEND => Request::Append(self.key()?, self.value()?),
            number::MULTI_GET => Request::MultiGet(self.many(1, Self::key)?),
            number::MULTI_SET => {
                Request::MultiSet(self.many(2, |it| Ok((it.key()?, it.value()?)))?)
            }
            number::CANCEL_WAIT => Request::CancelWait,
            number::PING => Request::Ping(u32::from_le_bytes(self.array()?)),
            number::QUEUE_PUSH => Request::QueuePush(self.key()?, self.value()?),
            number::QUEUE_POP => Request::QueuePop(self.key()?),
            number::QUEUE_LENGTH => Request::QueueLength(self.key()?),
            number::LIST => Request::List,
            number::BARRIER => Request::Barrier(self.key()?, i64::from_le_bytes(self.array()?)),
            _ => return Err(Short::Wrong("no request of this store")),
        })
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Short> {
        self.used += count;
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Short::More(self.used))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        Ok(self.take(N)?.try_into().expect("as many as were asked for"))
    }

    fn text(&mut self, most: u64) -> Result<Text, Short> {
        let bytes = u64::from_le_bytes(self.array()?);
        if bytes > most {
            return Err(Short::Wrong("a key or a value that is too long"));
        }
        Ok(self.take(bytes as usize)?.to_vec())
    }

    fn key(&mut self) -> Result<Text, Short> {
        self.text(KEY_BYTES_MAX)
    }

    fn value(&mut self) -> Result<Text, Short> {
        self.text(VALUE_BYTES_MAX)
    }

    /// Each one of so many texts.
    fn many<T>(
        &mut self,
        texts: u64,
        read: impl Fn(&mut Self) -> Result<T, Short>,
    ) -> Result<Vec<T>, Short> {
        let count = u64::from_le_bytes(self.array()?);
        if count > KEYS_MAX {
            return Err(Short::Wrong("too many keys"));
        }
        // Each key has its length in front, so that fewer bytes are not worth beginning with.
        if (self.rest.len() as u64) < 8 * count {
            return Err(Short::More(self.used + 8 * count as usize));
        }
        self.await_texts(texts * count)?;
        (0..count).map(|_| read(self)).collect()
    }

    /// That so many texts are there, which is all that is left of the request: those that were
    /// there the last time are not looked at again.
    fn await_texts(&mut self, count: u64) -> Result<(), Short> {
        let Begun { texts, up_to, .. } = self.begun;
        *up_to = self.used.max(*up_to);
        while *texts < count {
            let short = |bytes: usize| Short::More(*up_to + bytes);
            let rest = &self.all[*up_to..];
            let length = rest.first_chunk().ok_or(short(8))?;
            let bytes = u64::from_le_bytes(*length);
            if bytes > VALUE_BYTES_MAX {
                return Err(Short::Wrong("a key or a value that is too long"));
            }
            let bytes = 8 + bytes as usize;
            if rest.len() < bytes {
                return Err(short(bytes));
            }
            *texts += 1;
            *up_to += bytes;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::write_text;
    use super::*;

    #[test]
    fn a_request_is_read_however_it_is_cut() {
        let mut bytes = vec![number::VALIDATE];
        bytes.extend(MAGIC.to_le_bytes());
        bytes.push(number::COMPARE_SET);
        for text in [&b"/key"[..], b"", b"value"] {
            write_text(&mut bytes, text);
        }
        bytes.push(number::WAIT);
        bytes.extend(2_u64.to_le_bytes());
        write_text(&mut bytes, b"a");
        write_text(&mut bytes, b"b");
        bytes.push(number::MULTI_SET);
        bytes.extend(2_u64.to_le_bytes());
        [b"k", b"v", b"l", b"w"].into_iter().for_each(|text| write_text(&mut bytes, text));
        bytes.push(number::ADD);
        write_text(&mut bytes, b"n");
        bytes.extend((-3_i64).to_le_bytes());
        let (mut inbox, mut heard, mut begun) = (Vec::new(), Vec::new(), Begun::default());
        for byte in bytes {
            inbox.push(byte);
            heard.extend(Request::take(&mut inbox, &mut begun).unwrap());
        }
        assert!(inbox.is_empty());
        let (key, wanted) = (b"/key".to_vec(), b"value".to_vec());
        let expected = [
            Request::Validate,
            Request::CompareSet { key, expected: Vec::new(), wanted },
            Request::Wait(vec![b"a".to_vec(), b"b".to_vec()]),
            Request::MultiSet(vec![(b"k".to_vec(), b"v".to_vec()), (b"l".to_vec(), b"w".to_vec())]),
            Request::Add(b"n".to_vec(), -3),
        ];
        assert_eq!(heard, expected);
    }

    #[test]
    fn what_is_too_long_is_refused_before_it_comes() {
        for (kind, length) in [
            (number::GET, KEY_BYTES_MAX + 1),
            (number::SET, u64::MAX),
            (number::WAIT, KEYS_MAX + 1),
            (number::MULTI_SET, u64::MAX),
        ] {
            let mut inbox = vec![kind];
            inbox.extend(length.to_le_bytes());
            assert!(Request::take(&mut inbox, &mut Begun::default()).is_err(), "{kind}");
        }
        assert!(
            Request::take(&mut vec![number::VALIDATE, 1, 2, 3, 4], &mut Begun::default()).is_err()
        );
        assert!(Request::take(&mut vec![19], &mut Begun::default()).is_err());
    }

    /// In time that grows with its bytes, not with their square: nothing is looked at twice.
    #[test]
    fn a_long_request_in_small_pieces_is_read_once() {
        let mut bytes = vec![number::MULTI_SET];
        let count = 10_000_u64;
        bytes.extend(count.to_le_bytes());
        for _ in 0..2 * count {
            write_text(&mut bytes, &[7; 100]);
        }
        let (mut inbox, mut begun) = (Vec::new(), Begun::default());
        for piece in bytes[..bytes.len() - 1].chunks(50) {
            inbox.extend(piece);
            let before = begun.texts;
            assert_eq!(Request::take(&mut inbox, &mut begun), Ok(None));
            assert!(begun.texts >= before);
        }
        assert_eq!(begun.texts, 2 * count - 1);
        inbox.push(7);
        let whole = Request::take(&mut inbox, &mut begun).unwrap();
        assert!(matches!(whole, Some(Request::MultiSet(pairs)) if pairs.len() as u64 == count));
        assert!(inbox.is_empty());
    }

    #[test]
    fn noise_never_panics() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..50_000 {
            let mut noise: Vec<u8> = (0..random.usize(..120))
                .map(|_| if random.bool() { random.u8(..20) } else { 0 })
                .collect();
            let mut left = noise.len();
            while let Ok(Some(_)) = Request::take(&mut noise, &mut Begun::default()) {
                assert!(noise.len() < left, "seed {seed}");
                left = noise.len();
            }
        }
    }
}
