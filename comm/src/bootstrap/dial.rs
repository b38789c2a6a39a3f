//! The joining side: find the root, prove the secret, ask for a seat, wait for the others.
//!
//! Until the deadline everything that may pass is tried again: a root that is not up yet, a name
//! that does not resolve yet, a stale id file, a port that someone else has. Only what the root
//! says after it has proved the secret is final.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use brigade_transports::{opened, remedy};

use super::conn::tune;
use super::names::Lookup;
use super::proof::{self, Nonces, Side, random};
use super::target::{Found, Setback, Target};
use super::{CardMaker, JoinError, Outlook, SILENCE, Vigil, draw, system};
use crate::control::decoder::Decoder;
use crate::control::frame::{Frame, Join, NEVER, STRANGER_BYTES_MAX, TEXT_BYTES_MAX};
use crate::control::frame::{Table, Unable, VERSION, root_bytes_max};
use crate::control::{Member, Refusal};

/// How long one address may take to connect, when others could be tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a root may take to prove itself.
const PROOF_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the root may take to tell us that the deadline has passed.
const GRACE: Duration = Duration::from_millis(500);
/// How long what has come in time is still read.
const LAST_LOOK: Duration = Duration::from_millis(100);
/// How often a rank that waits for the others looks whether its root is still the right one.
const LOOK: Duration = Duration::from_millis(50);
/// For how long a root that knows another secret than its id may be on its way out.
const DOUBT: Duration = Duration::from_secs(2);
const BACKOFF_MIN: Duration = Duration::from_millis(1);
const BACKOFF_MAX: Duration = Duration::from_millis(100);

/// What a rank asks for.
pub(super) struct Wish<'a> {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) card: &'a mut CardMaker<'a>,
    pub(super) process: [u8; 16],
    pub(super) member: Member,
    /// After how long the root shall tell who is missing.
    pub(super) report_after: Option<Duration>,
    pub(super) silence: Duration,
}

/// A seat, and the connection that stays open.
pub(super) struct Seat {
    pub(super) stream: TcpStream,
    pub(super) decoder: Decoder,
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
    let mut line = Line { stream, decoder: Decoder::new(STRANGER_BYTES_MAX + TEXT_BYTES_MAX) };
    line.prove(secret, (Instant::now() + PROOF_TIMEOUT).min(deadline + GRACE))?;
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
            rank: crate::control::court::wire(wish.rank),
            ranks: crate::control::court::wire(wish.ranks),
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
            Ok(Seat { stream: line.stream, decoder: line.decoder, table, secret })
        }
        Frame::Refused { kind, why } => Err(Setback::Final(JoinError::Refused { kind, why })),
        _ => Err(may_pass("the root said something that makes no sense here")),
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

    /// Let the others know why this rank does not come, as far as that is possible. The root has
    /// read it when this returns: with this rank's end it may end itself.
    fn excuse(&mut self, wish: &Wish<'_>, why: String, deadline: Instant) {
        let until = deadline.min(Instant::now() + GRACE);
        let unable = Frame::Unable(Unable {
            rank: crate::control::court::wire(wish.rank),
            ranks: crate::control::court::wire(wish.ranks),
            process: wish.process,
            member: wish.member.clone(),
            why,
        });
        let _heard = self.say(&unable, until).and_then(|()| self.hear(until));
    }

    fn say(&mut self, frame: &Frame, until: Instant) -> Result<(), Setback> {
        self.stream.set_write_timeout(Some(left(until)?)).map_err(passing)?;
        self.stream.write_all(&frame.encode()).map_err(passing)
    }

    /// Like `hear`, but end when `target` no longer leads here: the root of an earlier job, whose
    /// other ranks are gone, would let us wait for ever. And when it is known that some will not
    /// come.
    fn hear_until_changed(
        &mut self,
        target: &Target<'_>,
        secret: &[u8; 32],
        vigil: &Vigil,
    ) -> Result<Frame, Setback> {
        let until = vigil.deadline() + GRACE;
        let may_end = target.may_change() || vigil.may_end();
        while may_end && !self.has_heard(LOOK)? && Instant::now() < until {
            if vigil.has_ended() {
                return Err(may_pass("others will not come"));
            }
            // When all have come, rank 0 removes the file, and a later job may write its own. But
            // then the answer is on its way.
            if target.has_changed(secret) && !self.has_heard(GRACE)? {
                return Err(may_pass("another job has taken over the file"));
            }
        }
        self.hear(until)
    }

    /// Whether something has come, waiting for it at most so long.
    fn has_heard(&mut self, patience: Duration) -> Result<bool, Setback> {
        self.stream.set_read_timeout(Some(patience)).map_err(passing)?;
        match self.stream.peek(&mut [0]) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(passing(error)),
        }
    }

    fn hear(&mut self, until: Instant) -> Result<Frame, Setback> {
        let mut bytes = [0; 16 << 10];
        let mut end = until;
        loop {
            match self.decoder.next() {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(malformed) => {
                    return Err(may_pass(&format!("it is not a root of ours: {malformed}")));
                }
            }
            let patience = match left(end) {
                // Who was stopped until the time was over has mostly been answered meanwhile.
                Err(_) if end == until => {
                    end = Instant::now() + LAST_LOOK;
                    BACKOFF_MIN
                }
                left => left?,
            };
            self.stream.set_read_timeout(Some(patience)).map_err(passing)?;
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(may_pass("it closed the connection")),
                Ok(count) => self.decoder.push(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(passing(error)),
            }
        }
    }
}

fn left(until: Instant) -> Result<Duration, Setback> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(may_pass("it does not answer")) } else { Ok(left) }
}

fn passing(error: io::Error) -> Setback {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => may_pass("it does not answer"),
        _ => may_pass(&error.to_string()),
    }
}

/// As it travels.
fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

fn may_pass(why: &str) -> Setback {
    Setback::Passing(why.to_owned(), Outlook::Open)
}

fn doubtful(frame: Frame) -> Setback {
    match frame {
        // Anybody may have written it, and a terminal obeys some bytes.
        Frame::Refused { kind, why } => {
            let harmless = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
            Setback::Doubtful { kind, why: why.chars().map(harmless).collect() }
        }
        _ => Setback::Doubtful {
            kind: Refusal::Secret,
            why: "it cannot prove the job's secret".into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const FRAME_BYTES_MAX: usize = 1 << 20;

    fn line() -> (Line, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Line { stream, decoder: Decoder::new(FRAME_BYTES_MAX) }, listener.accept().unwrap().0)
    }

    #[test]
    fn who_was_stopped_until_the_time_was_over_still_hears_what_came_in_time() {
        let (mut line, mut root) = line();
        let why = "one is missing".to_owned();
        let frame = Frame::Refused { kind: Refusal::RanksMissing, why };
        root.write_all(&frame.encode()).unwrap();
        assert!(line.has_heard(Duration::from_secs(20)).is_ok_and(|has| has));
        assert!(line.hear(Instant::now()).is_ok_and(|heard| heard == frame));
        assert!(line.hear(Instant::now()).is_err(), "there is no more");
    }

    #[test]
    fn what_a_stranger_says_does_nothing_to_a_terminal() {
        let why = "the root's \x1b[2J\x07 secret".to_owned();
        let Setback::Doubtful { why, .. } = doubtful(Frame::Refused { kind: Refusal::Secret, why })
        else {
            panic!("nothing that a stranger says is certain");
        };
        assert_eq!(why, "the root's \u{fffd}[2J\u{fffd} secret");
    }

    #[test]
    fn who_speaks_without_end_is_not_heard_out() {
        let (mut line, mut root) = line();
        let speaker = std::thread::spawn(move || {
            let length = (FRAME_BYTES_MAX as u32).to_le_bytes();
            root.write_all(&length).unwrap();
            while root.write_all(&[0]).is_ok() {
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        let start = Instant::now();
        assert!(line.hear(start).is_err());
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
        drop(line);
        speaker.join().unwrap();
    }
}
