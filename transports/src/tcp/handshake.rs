//! What is said on a fresh connection before the first byte of a wire.
//!
//! ```text
//! dialling                                    accepting
//!     hello: whom I want, who I am   ─────────▶   (not for me: hangs up)
//!     ◀──────  proof.rs, over the hello's bytes  ──────▶
//!     ◀──────  seal, over the same, if it is asked for  ──────▶
//!     ◀─────────────────────────────────────   answer, sealed if anything is
//! ```

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use socket2::Socket;

use super::link::Proved;
use super::patience::Patience;
use crate::TransportError;
use crate::proof::{self, Role, prove};
use crate::seal::{self, BODY_BYTES, Offer, RECORD_BYTES, SHARE_BYTES, Seals};

const MAGIC: [u8; 8] = *b"brgtcp 1";
/// Of those who seal what they say.
const MAGIC_SEALED: [u8; 8] = *b"brgtcp S";
const HELLO_BYTES: usize = 52;

/// The most sockets between two ranks of a communicator.
pub const SOCKETS_MAX: u16 = 64;
/// More members than any communicator has; what claims to be beyond is not ours.
const MEMBERS_MAX: u32 = 1 << 24;

/// Who calls, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The id on the card of the rank that is wanted.
    pub(super) target: [u8; 16],
    /// The communicator.
    pub(super) group: u64,
    /// Drawn at random for each link, so that sockets of two attempts are not mixed.
    pub(super) attempt: u64,
    /// The caller's index in the communicator.
    pub(super) from: u32,
    /// The index of the wanted rank.
    pub(super) to: u32,
    /// Which of the link's sockets this is.
    pub(super) socket: u16,
    /// How many sockets the link will have.
    pub(super) sockets: u16,
}

impl Hello {
    fn serialise(&self, terms: &Terms<'_>) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[0..8].copy_from_slice(&terms.magic());
        bytes[8..24].copy_from_slice(&self.target);
        bytes[24..32].copy_from_slice(&self.group.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.attempt.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.from.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.to.to_le_bytes());
        bytes[48..50].copy_from_slice(&self.socket.to_le_bytes());
        bytes[50..52].copy_from_slice(&self.sockets.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8; HELLO_BYTES], terms: &Terms<'_>) -> Result<Hello, &'static str> {
        fn field<const N: usize>(bytes: &[u8; HELLO_BYTES], start: usize) -> [u8; N] {
            bytes[start..start + N].try_into().expect("fields lie within the hello")
        }
        if bytes[0..8] != terms.magic() {
            return Err(match field(bytes, 0) {
                MAGIC | MAGIC_SEALED => "one end encrypts and the other does not",
                _ => "the caller does not speak our protocol",
            });
        }
        let hello = Hello {
            target: field(bytes, 8),
            group: u64::from_le_bytes(field(bytes, 24)),
            attempt: u64::from_le_bytes(field(bytes, 32)),
            from: u32::from_le_bytes(field(bytes, 40)),
            to: u32::from_le_bytes(field(bytes, 44)),
            socket: u16::from_le_bytes(field(bytes, 48)),
            sockets: u16::from_le_bytes(field(bytes, 50)),
        };
        if hello.from == hello.to || hello.from.max(hello.to) >= MEMBERS_MAX {
            return Err("the caller's index makes no sense");
        }
        if hello.sockets > SOCKETS_MAX || hello.socket >= hello.sockets {
            return Err("the number of sockets makes no sense");
        }
        Ok(hello)
    }
}

/// What a rank asks of whoever is at the other end.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    pub(super) secret: &'a [u8; 32],
    /// That what they say be sealed.
    pub(super) encrypt: bool,
}

impl Terms<'_> {
    fn magic(&self) -> [u8; 8] {
        if self.encrypt { MAGIC_SEALED } else { MAGIC }
    }
}

/// What the accepting end makes of a caller that has proved itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The socket belongs to the link now.
    Linked = 1,
    /// We dialled you as well and our link counts: wait for it, if it is not there yet.
    Crossing = 2,
    /// We have left that communicator.
    GroupLeft = 3,
}

/// Why a call came to nothing.
pub(super) struct Failed {
    pub(super) error: TransportError,
    /// The other end had our proof and did not show its own.
    pub(super) is_denied: bool,
}

impl From<TransportError> for Failed {
    fn from(error: TransportError) -> Failed {
        Failed { error, is_denied: false }
    }
}

/// The dialling side. Returns the answer, and what seals the rest if that is asked for; the socket
/// is still in blocking mode.
pub(super) fn call(
    socket: &Socket,
    hello: &Hello,
    terms: Terms<'_>,
    patience: &Patience,
) -> Result<(Answer, Option<Seals>), Failed> {
    let mut stream = Timed { socket, patience, heard: 0 };
    let bytes = hello.serialise(&terms);
    stream.write_all(&bytes).map_err(|error| refused("saying hello", &error))?;
    prove(&mut stream, terms.secret, Role::Connecting, &bytes).map_err(|error| {
        // Whoever has shown a nonce listens, knows our protocol and is who we called.
        let is_denied = stream.heard >= proof::HELLO_BYTES && !patience.left().is_zero();
        Failed { error, is_denied }
    })?;
    let mut seals = terms.encrypt.then(|| offer(&mut stream, terms.secret, &bytes)).transpose()?;
    let answer = hear_byte(&mut stream, seals.as_mut());
    match answer.map_err(|error| refused("waiting for an answer", &error))? {
        1 => Ok((Answer::Linked, seals)),
        2 => Ok((Answer::Crossing, seals)),
        3 => Ok((Answer::GroupLeft, seals)),
        other => Err(TransportError::Refused { why: format!("an answer of {other}") }.into()),
    }
}

/// One byte, which may be sealed.
fn hear_byte(stream: &mut impl Read, seals: Option<&mut Seals>) -> io::Result<u8> {
    let mut record = [0; RECORD_BYTES - BODY_BYTES + 1];
    let Some(Seals { opener, .. }) = seals else {
        stream.read_exact(&mut record[..1])?;
        return Ok(record[0]);
    };
    stream.read_exact(&mut record)?;
    opener.room()[..record.len()].copy_from_slice(&record);
    opener.fill(record.len());
    let byte = opener.opened()?.first().copied().ok_or(io::ErrorKind::InvalidData)?;
    opener.take(1);
    Ok(byte)
}

/// Agree on keys for what comes, as the dialling side.
fn offer(
    stream: &mut Timed<'_>,
    secret: &[u8; 32],
    context: &[u8],
) -> Result<Seals, TransportError> {
    let (offer, share) = Offer::new(secret, context)?;
    stream.write_all(&share).map_err(|error| refused("offering a key", &error))?;
    let mut theirs = [0; SHARE_BYTES];
    stream.read_exact(&mut theirs).map_err(|error| refused("waiting for a key", &error))?;
    offer.conclude(&theirs)
}

/// The accepting side: hear the hello of someone who wants `own_id` and knows the secret.
pub(super) fn hear(
    socket: &Socket,
    own_id: &[u8; 16],
    terms: Terms<'_>,
    until: Instant,
) -> Result<(Hello, Option<Seals>), TransportError> {
    let mut stream = Timed { socket, patience: &Patience::until(until), heard: 0 };
    let mut bytes = [0; HELLO_BYTES];
    stream.read_exact(&mut bytes).map_err(|error| refused("waiting for a hello", &error))?;
    let hello = Hello::parse(&bytes, &terms);
    let hello = hello.map_err(|why| TransportError::Refused { why: why.into() })?;
    if hello.target != *own_id {
        return Err(TransportError::Refused { why: "the caller wants another rank".into() });
    }
    prove(&mut stream, terms.secret, Role::Accepting, &bytes)?;
    if !terms.encrypt {
        return Ok((hello, None));
    }
    let mut theirs = [0; SHARE_BYTES];
    stream.read_exact(&mut theirs).map_err(|error| refused("waiting for a key", &error))?;
    let (share, seals) = seal::accept(terms.secret, &bytes, &theirs)?;
    stream.write_all(&share).map_err(|error| refused("showing a key", &error))?;
    Ok((hello, Some(seals)))
}

/// The accepting side's last word.
pub(super) fn answer(proved: &mut Proved, answer: Answer, until: Instant) -> io::Result<()> {
    let Proved { socket, seals } = proved;
    let answer = [answer as u8];
    let sealed = seals.as_mut().map(|seals| seals.sealer.seal_all(&answer));
    let mut stream = Timed { socket, patience: &Patience::until(until), heard: 0 };
    stream.write_all(sealed.as_deref().unwrap_or(&answer))
}

fn refused(doing: &str, error: &io::Error) -> TransportError {
    TransportError::Refused { why: format!("{doing}: {error}") }
}

/// The shortest wait that a socket knows: what is less counts as none, which is to wait for ever.
const NAP_MIN: Duration = Duration::from_micros(1);

/// A stream on which everything together must be done while patience lasts, so that someone who
/// sends a byte now and then does not hold us up.
struct Timed<'a> {
    socket: &'a Socket,
    patience: &'a Patience,
    /// How many bytes have come.
    heard: usize,
}

impl Timed<'_> {
    /// Do `step`, which waits for as long as it is told, until that gives something.
    fn go_on(
        &self,
        mut step: impl FnMut(Option<Duration>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            let nap = self.patience.nap();
            if nap.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match step(Some(nap.max(NAP_MIN))) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let mut socket = self.socket;
        let count = self.go_on(|nap| {
            socket.set_read_timeout(nap)?;
            socket.read(target)
        })?;
        self.heard += count;
        Ok(count)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.go_on(|nap| {
            self.socket.set_write_timeout(nap)?;
            self.socket.send_with_flags(bytes, libc::MSG_NOSIGNAL)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    use super::*;

    const HELLO: Hello =
        Hello { target: [9; 16], group: 77, attempt: 5, from: 3, to: 1, socket: 2, sockets: 4 };

    const PLAIN: Terms<'static> = Terms { secret: &[7; 32], encrypt: false };
    const SEALED: Terms<'static> = Terms { secret: &[7; 32], encrypt: true };

    #[test]
    fn a_hello_reads_back_on_the_same_terms() {
        for terms in [PLAIN, SEALED] {
            assert_eq!(Hello::parse(&HELLO.serialise(&terms), &terms), Ok(HELLO));
        }
        let wrong = "one end encrypts and the other does not";
        assert_eq!(Hello::parse(&HELLO.serialise(&SEALED), &PLAIN), Err(wrong));
        assert_eq!(Hello::parse(&HELLO.serialise(&PLAIN), &SEALED), Err(wrong));
    }

    #[test]
    fn a_wait_with_hardly_any_time_left_is_none_for_ever() {
        let (one, _other) = UnixStream::pair().unwrap();
        let socket = Socket::from(one);
        for _ in 0..1000 {
            let patience = Patience::until(Instant::now() + 2 * NAP_MIN);
            let timed = Timed { socket: &socket, patience: &patience, heard: 0 };
            let ended = timed.go_on(|nap| {
                assert!(nap.is_some_and(|nap| nap.as_micros() > 0), "{nap:?}");
                Err(io::ErrorKind::WouldBlock.into())
            });
            assert_eq!(ended.expect_err("it is over").kind(), io::ErrorKind::TimedOut);
        }
    }

    #[test]
    fn impossible_hellos_are_refused() {
        for hostile in [
            Hello { from: 1, ..HELLO },
            Hello { to: MEMBERS_MAX, ..HELLO },
            Hello { sockets: 0, socket: 0, ..HELLO },
            Hello { socket: 4, ..HELLO },
            Hello { sockets: u16::MAX, ..HELLO },
        ] {
            assert!(Hello::parse(&hostile.serialise(&PLAIN), &PLAIN).is_err(), "{hostile:?}");
        }
        assert!(Hello::parse(&[0; HELLO_BYTES], &PLAIN).is_err());
    }

    /// What comes of a sealed call if the byte with this number that the other end says is changed.
    fn called(changed: Option<usize>) -> Result<Answer, TransportError> {
        let pair = || {
            let (one, other) = UnixStream::pair().unwrap();
            (Socket::from(one), other)
        };
        let ((ours, mut near), (theirs, mut far)) = (pair(), pair());
        let (mut back_from, mut back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        let until = Instant::now() + Duration::from_secs(20);
        std::thread::scope(|scope| {
            // Either end may hang up whenever it likes.
            scope.spawn(move || io::copy(&mut near, &mut far).and(far.shutdown(Shutdown::Write)));
            scope.spawn(move || {
                let mut byte = [0];
                for number in 0.. {
                    if back_from.read_exact(&mut byte).is_err() {
                        break;
                    }
                    byte[0] ^= u8::from(Some(number) == changed);
                    if back_to.write_all(&byte).is_err() {
                        break;
                    }
                }
                back_to.shutdown(Shutdown::Both)
            });
            scope.spawn(move || {
                if let Ok((_, seals)) = hear(&theirs, &HELLO.target, SEALED, until) {
                    let mut proved = Proved { socket: theirs, seals };
                    let _ = answer(&mut proved, Answer::Crossing, until);
                }
            });
            let outcome = call(&ours, &HELLO, SEALED, &Patience::until(until));
            drop(ours);
            outcome.map(|(answer, _)| answer).map_err(|failed| failed.error)
        })
    }

    #[test]
    fn no_byte_of_a_sealed_answer_is_changed_unnoticed() {
        assert_eq!(called(None), Ok(Answer::Crossing));
        let said = proof::HELLO_BYTES + 32 + SHARE_BYTES + RECORD_BYTES - BODY_BYTES + 1;
        for number in 0..said {
            let outcome = called(Some(number));
            let is_refused = matches!(outcome, Err(TransportError::Refused { .. }));
            assert!(is_refused, "byte {number} of {said}: {outcome:?}");
        }
        assert_eq!(called(Some(said)), Ok(Answer::Crossing), "there are no more");
    }
}
