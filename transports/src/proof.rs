//! Proving, over a fresh stream, that both ends know the job's secret.
//!
//! Each end sends a nonce; then the connecting end shows a keyed hash over both nonces, its role
//! and the context, and only when that is right does the accepting end show its own. Someone who
//! does not know the secret learns one nonce and nothing else. What the two ends believe about
//! the stream (who speaks to whom, for what) goes into `context`: unless both say the same bytes
//! the proof fails, so nothing that was said before it needs to be trusted.
//!
//! This proves who opened the stream. What travels on it afterwards it does not protect; `seal`
//! does.
//!
//! ```text
//! connecting                                accepting
//!     magic, nonce a  ───────────────────────▶
//!     ◀───────────────────────  magic, nonce b
//!     mac("connect", context, a, b)  ────────▶   checked first
//!     ◀────────  mac("accept", context, a, b)    only for one who has proved
//! ```
//!
//! Source: ISO/IEC 9798-4, mutual authentication in three passes; HMAC, RFC 2104.

use std::io::{self, Read, Write};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::TransportError;

/// Which end of the stream we are. The hashes of the two differ, so neither can be sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The end that opened the stream.
    Connecting,
    /// The end that was listening.
    Accepting,
}

/// First bytes on a stream, so that a stranger is recognised before any hashing.
const MAGIC: [u8; 8] = *b"brigade1";
const NONCE_BYTES: usize = 32;
const MAC_BYTES: usize = 32;
/// What either end says first.
pub(crate) const HELLO_BYTES: usize = MAGIC.len() + NONCE_BYTES;

/// Prove to the other end of `stream` that we know `secret`, and have it prove the same.
///
/// Costs one and a half round trips; 72 bytes travel each way, whatever the other end does. Time
/// is bounded by the stream: give it a deadline before (a reader that sends one byte a second
/// defeats a plain read timeout).
///
/// Errors: `Refused` when the other end is not one of ours, knows another secret, means another
/// `context`, hangs up or is too slow; `System` when the stream fails otherwise.
pub fn prove(
    stream: &mut (impl Read + Write),
    secret: &[u8; 32],
    role: Role,
    context: &[u8],
) -> Result<(), TransportError> {
    let ours = nonce()?;
    let mut hello = [0; HELLO_BYTES];
    hello[..MAGIC.len()].copy_from_slice(&MAGIC);
    hello[MAGIC.len()..].copy_from_slice(&ours);
    stream.write_all(&hello).map_err(|error| broken(&error, "sending a nonce"))?;
    stream.read_exact(&mut hello).map_err(|error| broken(&error, "waiting for a nonce"))?;
    let (magic, theirs) = hello.split_at(MAGIC.len());
    if magic != MAGIC {
        return refused("the other end does not speak brigade1; is another service on that port?");
    }
    let mut mac = [0; MAC_BYTES];
    match role {
        Role::Connecting => {
            let keyed = |end| keyed(secret, end, context, &ours, theirs);
            mac.copy_from_slice(&keyed(Role::Connecting).finalize().into_bytes());
            stream.write_all(&mac).map_err(|error| broken(&error, "sending our proof"))?;
            stream.read_exact(&mut mac).map_err(|error| broken(&error, "waiting for a proof"))?;
            check(keyed(Role::Accepting), &mac)
        }
        Role::Accepting => {
            let keyed = |end| keyed(secret, end, context, theirs, &ours);
            stream.read_exact(&mut mac).map_err(|error| broken(&error, "waiting for a proof"))?;
            check(keyed(Role::Connecting), &mac)?;
            mac.copy_from_slice(&keyed(Role::Accepting).finalize().into_bytes());
            stream.write_all(&mac).map_err(|error| broken(&error, "sending our proof"))
        }
    }
}

/// Thirty-two bytes that nobody can have seen before.
fn nonce() -> Result<[u8; NONCE_BYTES], TransportError> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|error| TransportError::System {
        call: "getrandom",
        errno: error.raw_os_error().unwrap_or(0),
        what: "drawing a nonce".into(),
    })?;
    Ok(nonce)
}

/// The hash that `end` shows: lengths are fixed or written down, so no two inputs read alike.
fn keyed(
    secret: &[u8; 32],
    end: Role,
    context: &[u8],
    connecting: &[u8],
    accepting: &[u8],
) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    mac.update(match end {
        Role::Connecting => b"connect",
        Role::Accepting => b"accept_",
    });
    mac.update(connecting);
    mac.update(accepting);
    mac.update(&(context.len() as u64).to_le_bytes());
    mac.update(context);
    mac
}

/// Compare in a time that does not depend on where the difference is.
fn check(expected: Hmac<Sha256>, shown: &[u8; MAC_BYTES]) -> Result<(), TransportError> {
    match expected.verify_slice(shown) {
        Ok(()) => Ok(()),
        Err(_) => refused("the other end knows another secret or means another connection"),
    }
}

fn refused(why: &str) -> Result<(), TransportError> {
    Err(TransportError::Refused { why: why.into() })
}

fn broken(error: &io::Error, doing: &str) -> TransportError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            TransportError::Refused { why: format!("the other end was too slow while {doing}") }
        }
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe => TransportError::Refused {
            why: format!(
                "the other end hung up while {doing}; \
                 it may know another secret, or have refused who we said we are"
            ),
        },
        _ => TransportError::from_io("read or write", error, doing),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    type Outcome = Result<(), TransportError>;

    fn between(left: (&[u8; 32], &[u8]), right: (&[u8; 32], &[u8])) -> (Outcome, Outcome) {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        for end in [&a, &b] {
            end.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        }
        std::thread::scope(|scope| {
            let accepting = scope.spawn(move || prove(&mut b, right.0, Role::Accepting, right.1));
            let connecting = prove(&mut a, left.0, Role::Connecting, left.1);
            drop(a);
            (connecting, accepting.join().unwrap())
        })
    }

    fn is_refused(outcome: &Outcome) -> bool {
        matches!(outcome, Err(TransportError::Refused { .. }))
    }

    #[test]
    fn same_secret_and_context_convince_both() {
        assert_eq!(between((&[7; 32], b"pair 0 1"), (&[7; 32], b"pair 0 1")), (Ok(()), Ok(())));
    }

    #[test]
    fn another_secret_or_context_convinces_neither() {
        let (a, b) = between((&[7; 32], b"pair 0 1"), (&[8; 32], b"pair 0 1"));
        assert!(is_refused(&a) && is_refused(&b), "{a:?} {b:?}");
        let (a, b) = between((&[7; 32], b"pair 0 1"), (&[7; 32], b"pair 0 2"));
        assert!(is_refused(&a) && is_refused(&b), "{a:?} {b:?}");
    }

    #[test]
    fn an_echo_is_no_proof() {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        let echo = std::thread::spawn(move || {
            let mut bytes = [0; HELLO_BYTES + MAC_BYTES];
            for (start, end) in [(0, HELLO_BYTES), (HELLO_BYTES, HELLO_BYTES + MAC_BYTES)] {
                b.read_exact(&mut bytes[start..end]).unwrap();
                b.write_all(&bytes[start..end]).unwrap();
            }
        });
        assert!(is_refused(&prove(&mut a, &[7; 32], Role::Connecting, b"")));
        echo.join().unwrap();
    }

    #[test]
    fn garbage_and_silence_are_refused() {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        b.write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:5000\r\n\r\n").unwrap();
        assert!(is_refused(&prove(&mut a, &[7; 32], Role::Accepting, b"")));
        let (mut a, _b) = UnixStream::pair().unwrap();
        a.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        assert!(is_refused(&prove(&mut a, &[7; 32], Role::Accepting, b"")));
    }
}
