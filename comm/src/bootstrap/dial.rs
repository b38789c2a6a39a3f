//! The joining side: find the root, prove the secret, ask for a seat, wait for the others.
//!
//! Until the deadline everything that may pass is tried again: a root that is not up yet, a name
//! that does not resolve yet, a stale id file, a port that someone else has. Only what the root
//! says after it has proved the secret is final.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::conn::tune;
use super::proof::{self, Nonces, Side, random};
use super::{JoinError, Target};
use crate::control::frame::{Decoder, Frame, Join, STRANGER_BYTES_MAX, TEXT_BYTES_MAX};
use crate::control::frame::{Table, VERSION, root_bytes_max};
use crate::control::{Member, Refusal};

/// How long one address may take to connect, when others could be tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a root may take to prove itself.
const PROOF_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the root may take to tell us that the deadline has passed.
const GRACE: Duration = Duration::from_millis(500);
/// For how long a root that knows another secret than its id may be on its way out.
const DOUBT: Duration = Duration::from_secs(2);
const BACKOFF_MIN: Duration = Duration::from_millis(1);
const BACKOFF_MAX: Duration = Duration::from_millis(100);

/// What a rank asks for.
pub(super) struct Wish {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) card: Vec<u8>,
    pub(super) process: [u8; 16],
    pub(super) member: Member,
}

/// A seat, and the connection that stays open.
pub(super) struct Seat {
    pub(super) stream: TcpStream,
    pub(super) decoder: Decoder,
    pub(super) table: Table,
    pub(super) secret: [u8; 32],
}

/// Why one attempt did not lead to a seat.
enum Setback {
    /// Worth another attempt.
    Passing(String),
    /// The other end is no root of ours, or says so without proof.
    Doubtful { kind: Refusal, why: String },
    /// The root itself has spoken.
    Final(JoinError),
}

/// Join the world whose root is at `target`, until `deadline`.
pub(super) fn dial(target: &Target<'_>, wish: &Wish, deadline: Instant) -> Result<Seat, JoinError> {
    let start = Instant::now();
    let mut backoff = BACKOFF_MIN;
    let mut doubt: Option<Doubt> = None;
    loop {
        let last = match try_all(target, wish, deadline, &mut doubt) {
            Ok(seat) => return Ok(seat),
            Err(Setback::Final(error)) => return Err(error),
            Err(Setback::Passing(why) | Setback::Doubtful { why, .. }) => why,
        };
        let now = Instant::now();
        let is_out_of_doubt = |doubt: &Doubt| target.is_certain() && now - doubt.since >= DOUBT;
        if now >= deadline || doubt.as_ref().is_some_and(is_out_of_doubt) {
            return Err(match doubt {
                Some(Doubt { kind, why, .. }) => JoinError::Refused { kind, why },
                None => JoinError::Unreachable {
                    rank: wish.rank,
                    root: target.to_string(),
                    waited_ms: u64::try_from((now - start).as_millis()).unwrap_or(u64::MAX),
                    last,
                },
            });
        }
        // Spread the ranks of a host over the pause, or they would all come back at once.
        let spread = backoff.mul_f64((wish.rank % 16) as f64 / 16.0);
        std::thread::sleep((backoff + spread).min(deadline - now));
        backoff = (2 * backoff).min(BACKOFF_MAX);
    }
}

/// What looked like a root, but not like ours.
struct Doubt {
    since: Instant,
    kind: Refusal,
    why: String,
}

/// One attempt at each address that `target` has now.
fn try_all(
    target: &Target<'_>,
    wish: &Wish,
    deadline: Instant,
    doubt: &mut Option<Doubt>,
) -> Result<Seat, Setback> {
    let (addresses, secret) = target.find(deadline).map_err(Setback::Passing)?;
    let mut last = Setback::Passing("it has no address".into());
    for address in addresses {
        last = match attempt(address, &secret, wish, deadline) {
            Err(Setback::Passing(why)) => Setback::Passing(format!("{address}: {why}")),
            Err(Setback::Doubtful { kind, why }) => {
                let why = format!("{address}: {why}");
                if doubt.is_none() {
                    tracing::warn!("{why}; trying again until the deadline");
                    let since = Instant::now();
                    *doubt = Some(Doubt { since, kind, why: why.clone() });
                }
                Setback::Doubtful { kind, why }
            }
            done => return done,
        };
    }
    Err(last)
}

fn attempt(
    address: SocketAddr,
    secret: &[u8; 32],
    wish: &Wish,
    deadline: Instant,
) -> Result<Seat, Setback> {
    let left = deadline.saturating_duration_since(Instant::now()).max(BACKOFF_MIN);
    let stream =
        TcpStream::connect_timeout(&address, left.min(CONNECT_TIMEOUT)).map_err(passing)?;
    if stream.local_addr().is_ok_and(|local| local == address) {
        // With nobody listening on a port of the ephemeral range, TCP may connect us to ourselves.
        return Err(Setback::Passing("nobody listens".into()));
    }
    tune(&stream).map_err(passing)?;
    let mut line = Line { stream, decoder: Decoder::new(STRANGER_BYTES_MAX + TEXT_BYTES_MAX) };
    line.prove(secret, (Instant::now() + PROOF_TIMEOUT).min(deadline + GRACE))?;
    line.decoder.limit(root_bytes_max(wish.ranks));
    let patience = deadline.saturating_duration_since(Instant::now());
    line.say(
        &Frame::Join(Join {
            rank: crate::control::court::wire(wish.rank),
            ranks: crate::control::court::wire(wish.ranks),
            patience_ms: u32::try_from(patience.as_millis()).unwrap_or(u32::MAX),
            process: wish.process,
            member: wish.member.clone(),
            card: wish.card.clone(),
        }),
        deadline + GRACE,
    )?;
    match line.hear(deadline + GRACE)? {
        Frame::Table(table) if table.seats.len() == wish.ranks => {
            let secret = proof::world_secret(secret, &table.nonce);
            Ok(Seat { stream: line.stream, decoder: line.decoder, table, secret })
        }
        Frame::Refused { kind, why } => Err(Setback::Final(JoinError::Refused { kind, why })),
        _ => Err(Setback::Passing("the root said something that makes no sense here".into())),
    }
}

/// A connection that waits, until a time that each call is given.
struct Line {
    stream: TcpStream,
    decoder: Decoder,
}

impl Line {
    fn prove(&mut self, secret: &[u8; 32], until: Instant) -> Result<(), Setback> {
        let joining = random().map_err(passing)?;
        self.say(&Frame::Hello { version: VERSION, nonce: joining }, until)?;
        let nonces = match self.hear(until)? {
            Frame::Challenge { nonce: root } => Nonces { joining, root },
            other => return Err(doubtful(other)),
        };
        let mac = proof::show(secret, Side::Joining, &nonces);
        self.say(&Frame::Proof { mac }, until)?;
        match self.hear(until)? {
            Frame::Proven { mac } if proof::check(secret, Side::Root, &nonces, &mac) => Ok(()),
            other => Err(doubtful(other)),
        }
    }

    fn say(&mut self, frame: &Frame, until: Instant) -> Result<(), Setback> {
        self.stream.set_write_timeout(Some(left(until)?)).map_err(passing)?;
        self.stream.write_all(&frame.encode()).map_err(passing)
    }

    fn hear(&mut self, until: Instant) -> Result<Frame, Setback> {
        let mut bytes = [0; 16 << 10];
        loop {
            match self.decoder.next() {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(malformed) => {
                    let why = format!("it is not a root of ours: {malformed}");
                    return Err(Setback::Passing(why));
                }
            }
            self.stream.set_read_timeout(Some(left(until)?)).map_err(passing)?;
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(Setback::Passing("it closed the connection".into())),
                Ok(count) => self.decoder.push(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(passing(error)),
            }
        }
    }
}

fn left(until: Instant) -> Result<Duration, Setback> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(Setback::Passing("it does not answer".into())) } else { Ok(left) }
}

fn passing(error: io::Error) -> Setback {
    Setback::Passing(match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "it does not answer".into(),
        _ => error.to_string(),
    })
}

fn doubtful(frame: Frame) -> Setback {
    match frame {
        Frame::Refused { kind, why } => Setback::Doubtful { kind, why },
        _ => Setback::Doubtful {
            kind: Refusal::Secret,
            why: "it cannot prove the job's secret".into(),
        },
    }
}
