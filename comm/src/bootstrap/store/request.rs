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

/// Why there is no request yet.
enum Short {
    /// The rest has not come: so many bytes at least must be there for it.
    More(usize),
    /// It never will be one.
    Wrong(&'static str),
}

impl Request {
    /// Take the first request out of what has arrived, if it is whole. `wanted`: how many bytes it
    /// has at least, as found the last time, so that a long one is not read again for each piece of
    /// it; 0 in the beginning. Errors: it is none.
    pub(super) fn take(
        inbox: &mut Vec<u8>,
        wanted: &mut usize,
    ) -> Result<Option<Request>, &'static str> {
        if inbox.len() < *wanted {
            return Ok(None);
        }
        let mut reader = Reader { rest: inbox, used: 0 };
        match reader.request() {
            Ok(request) => {
                let used = reader.used;
                inbox.drain(..used);
                *wanted = 0;
                Ok(Some(request))
            }
            Err(Short::More(bytes)) => {
                *wanted = bytes;
                Ok(None)
            }
            Err(Short::Wrong(what)) => Err(what),
        }
    }
}

/// What is left to be read.
struct Reader<'a> {
    rest: &'a [u8],
    used: usize,
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
            number::CHECK => Request::Check(self.many(Self::key)?),
            number::WAIT => Request::Wait(self.many(Self::key)?),
            number::COUNT => Request::Count,
            number::DELETE => Request::Delete(self.key()?),
            number::APPEND => Request::Append(self.key()?, self.value()?),
            number::MULTI_GET => Request::MultiGet(self.many(Self::key)?),
            number::MULTI_SET => Request::MultiSet(self.many(|it| Ok((it.key()?, it.value()?)))?),
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

    fn many<T>(&mut self, read: impl Fn(&mut Self) -> Result<T, Short>) -> Result<Vec<T>, Short> {
        let count = u64::from_le_bytes(self.array()?);
        if count > KEYS_MAX {
            return Err(Short::Wrong("too many keys"));
        }
        // Each key has its length in front, so that fewer bytes are not worth beginning with.
        if (self.rest.len() as u64) < 8 * count {
            return Err(Short::More(self.used + 8 * count as usize));
        }
        (0..count).map(|_| read(self)).collect()
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
        bytes.push(number::ADD);
        write_text(&mut bytes, b"n");
        bytes.extend((-3_i64).to_le_bytes());
        let (mut inbox, mut heard, mut wanted) = (Vec::new(), Vec::new(), 0);
        for byte in bytes {
            inbox.push(byte);
            heard.extend(Request::take(&mut inbox, &mut wanted).unwrap());
        }
        assert!(inbox.is_empty());
        let (key, wanted) = (b"/key".to_vec(), b"value".to_vec());
        let expected = [
            Request::Validate,
            Request::CompareSet { key, expected: Vec::new(), wanted },
            Request::Wait(vec![b"a".to_vec(), b"b".to_vec()]),
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
            assert!(Request::take(&mut inbox, &mut 0).is_err(), "{kind}");
        }
        assert!(Request::take(&mut vec![number::VALIDATE, 1, 2, 3, 4], &mut 0).is_err());
        assert!(Request::take(&mut vec![19], &mut 0).is_err());
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
            while let Ok(Some(_)) = Request::take(&mut noise, &mut 0) {
                assert!(noise.len() < left, "seed {seed}");
                left = noise.len();
            }
        }
    }
}
