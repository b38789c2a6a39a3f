//! The joining side: find the root, prove the secret, ask for a seat, wait for the others.
//!
//! Until the deadline everything that may pass is tried again: a root that is not up yet, a name
//! that does not resolve yet, a stale id file, a port that someone else has. Only what the root
//! says after it has proved the secret is final.

mod line;

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use brigade_transports::seal::Sealer;
use brigade_transports::{opened, remedy};

use super::conn::{SILENCE, tune};
use super::error::{JoinError, system};
use super::names::Lookup;
use super::proof;
use super::target::{Found, Setback, Target};
use super::vigil::{Outlook, Vigil};
use super::wish::{Wish, draw};
use crate::control::Refusal;
use crate::control::decoder::Decoder;
use crate::control::frame::{Frame, Join, NEVER, STRANGER_BYTES_MAX, TEXT_BYTES_MAX};
use crate::control::frame::{Table, root_bytes_max};
use line::{BACKOFF_MIN, GRACE, Line, may_pass, passing};

/// How long one address may take to connect, when others could be tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a root may take to prove itself.
const PROOF_TIMEOUT: Duration = Duration::from_secs(2);
/// For how long a root that knows another secret than its id may be on its way out.
const DOUBT: Duration = Duration::from_secs(2);
const BACKOFF_MAX: Duration = Duration::from_millis(100);

/// A seat, and the connection that stays open.
pub(super) struct Seat {
    pub(super) stream: TcpStream,
    pub(super) decoder: Decoder,
    pub(super) sealer: Option<Sealer>,
    pub(super) table: Table,
    pub(super) secret: [u8; 32],
}

/// Join the world whose root is at `target`, until the deadline.
pub(super) fn dial(
    target: &Target<'_>,
    wish: &mut Wish<'_>,
    vigil: &mut Vigil,
) -> Result<Seat, JoinError> {
    let deadline = vigil.deadline();
    let start = Instant::now();
    let mut backoff = BACKOFF_MIN;
    let mut tries = Tries::default();
    loop {
        let (last, outlook) = match try_all(target, wish, vigil, &mut tries) {
            Ok(seat) => return Ok(seat),
            Err(Setback::Final(error)) => return Err(error),
            Err(Setback::Passing(why, outlook)) => (why, outlook),
            Err(Setback::Doubtful { why, .. }) => (why, Outlook::Poor),
        };
        vigil.look(outlook, || format!("the root at {target} (at last: {last})"));
        let now = Instant::now();
        let is_out_of_doubt = |doubt: &Doubt| target.is_certain() && now - doubt.since >= DOUBT;
        let is_over = now >= deadline || vigil.has_ended();
        if is_over || tries.doubt.as_ref().is_some_and(is_out_of_doubt) {
            return Err(match tries.doubt {
                Some(Doubt { kind, why, .. }) => {
                    let seen =
                        target.file_seen().map_or(String::new(), |seen| format!(" ({seen})"));
                    JoinError::Refused { kind, why: why + &seen }
                }
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
        target.rest((backoff + spread).min(deadline - now), tries.secret.as_ref());
        backoff = (2 * backoff).min(BACKOFF_MAX);
    }
}

/// What is remembered from one attempt to the next.
#[derive(Default)]
struct Tries {
    /// The secret that was last tried.
    secret: Option<[u8; 32]>,
    doubt: Option<Doubt>,
    names: Lookup,
}

/// What looked like a root, but not like ours.
struct Doubt {
    since: Instant,
    kind: Refusal,
    why: String,
}

/// One attempt at each address that `target` has now, unless it has others meanwhile.
fn try_all(
    target: &Target<'_>,
    wish: &mut Wish<'_>,
    vigil: &Vigil,
    tries: &mut Tries,
) -> Result<Seat, Setback> {
    let Found { addresses, secret } = target.find(&mut tries.names, vigil.rest_until())?;
    tries.secret = Some(secret);
    let mut last = may_pass("it has no address");
    for address in addresses {
        last = match attempt(address, target, &secret, wish, vigil) {
            Err(Setback::Passing(why, outlook)) => {
                Setback::Passing(format!("{address}: {why}"), outlook)
            }
            Err(Setback::Doubtful { kind, why }) => {
                let why = format!("{address}: {why}");
                if tries.doubt.is_none() {
                    tracing::warn!("{why}; trying again until the deadline");
                    let since = Instant::now();
                    tries.doubt = Some(Doubt { since, kind, why: why.clone() });
                }
                Setback::Doubtful { kind, why }
            }
            done => return done,
        };
        if target.has_changed(&secret) {
            break;
        }
    }
    Err(last)
}

fn attempt(
    address: SocketAddr,
    target: &Target<'_>,
    secret: &[u8; 32],
    wish: &mut Wish<'_>,
    vigil: &Vigil,
) -> Result<Seat, Setback> {
    let deadline = vigil.deadline();
    let left = deadline.saturating_duration_since(Instant::now()).max(BACKOFF_MIN);
    let connect = || TcpStream::connect_timeout(&address, left.min(CONNECT_TIMEOUT));
    let stream = opened(connect).map_err(|error| match remedy("socket", &error) {
        // There will be no more while all ranks of this process wait for this one.
        Some(_) => Setback::Final(system("opening a connection to the root")(error)),
        None => passing(error),
    })?;
    if stream.local_addr().is_ok_and(|local| local == address) {
        // With nobody listening on a port of the ephemeral range, TCP may connect us to ourselves.
        return Err(may_pass("nobody listens"));
    }
    tune(&stream, SILENCE).map_err(passing)?;
    let decoder = Decoder::new(STRANGER_BYTES_MAX + TEXT_BYTES_MAX);
    let mut line = Line { stream, decoder, sealer: None };
    let until = (Instant::now() + PROOF_TIMEOUT).min(deadline + GRACE);
    let nonces = line.prove(secret, wish.encrypt, until)?;
    if wish.encrypt {
        line.seal(secret, &nonces, until)?;
    }
    line.decoder.limit(root_bytes_max(wish.ranks));
    let card = match draw(wish.card, secret) {
        Ok(card) => card,
        Err(error) => {
            line.excuse(wish, error.to_string(), deadline);
            return Err(Setback::Final(error));
        }
    };
    let patience = deadline.saturating_duration_since(Instant::now());
    line.say(
        &Frame::Join(Join {
            rank: crate::control::codec::wire(wish.rank),
            ranks: crate::control::codec::wire(wish.ranks),
            patience_ms: millis(patience),
            report_ms: wish.report_after.map_or(NEVER, millis),
            silence_ms: millis(wish.silence),
            process: wish.process,
            member: wish.member.clone(),
            card,
        }),
        deadline + GRACE,
    )?;
    match line.hear_until_changed(target, secret, vigil)? {
        Frame::Table(table) if table.seats.len() == wish.ranks => {
            let secret = proof::world_secret(secret, &table.nonce);
            let Line { stream, decoder, sealer } = line;
            Ok(Seat { stream, decoder, sealer, table, secret })
        }
        Frame::Refused { kind, why } => Err(Setback::Final(JoinError::Refused { kind, why })),
        _ => Err(may_pass("the root said something that makes no sense here")),
    }
}

/// As it travels.
fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
