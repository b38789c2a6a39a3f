//! What a joining rank and the root say to each other, in the order in which they do.

use std::io::{self, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use brigade_transports::TransportError;
use brigade_transports::seal::{Offer, Sealer};

use crate::bootstrap::proof::{self, Nonces, Side, random};
use crate::bootstrap::target::{Setback, Target};
use crate::bootstrap::vigil::{Outlook, Vigil};
use crate::bootstrap::wish::Wish;
use crate::control::Refusal;
use crate::control::decoder::Decoder;
use crate::control::frame::{Frame, Unable, VERSION};

/// How long the root may take to tell us that the deadline has passed.
pub(super) const GRACE: Duration = Duration::from_millis(500);
pub(super) const BACKOFF_MIN: Duration = Duration::from_millis(1);
/// How long what has come in time is still read.
const LAST_LOOK: Duration = Duration::from_millis(100);
/// How often a rank that waits for the others looks whether its root is still the right one.
const LOOK: Duration = Duration::from_millis(50);

/// A connection that waits, until a time that each call is given.
pub(super) struct Line {
    pub(super) stream: TcpStream,
    pub(super) decoder: Decoder,
    /// What seals all that is said, once that was agreed on.
    pub(super) sealer: Option<Sealer>,
}

impl Line {
    /// Prove the secret, and have the root prove it.
    pub(super) fn prove(
        &mut self,
        secret: &[u8; 32],
        encrypt: bool,
        until: Instant,
    ) -> Result<Nonces, Setback> {
        let joining = random().map_err(passing)?;
        self.say(&Frame::Hello { version: VERSION, nonce: joining }, until)?;
        let nonces = match self.hear(until)? {
            Frame::Challenge { nonce: root } => Nonces { joining, root },
            other => return Err(doubtful(other)),
        };
        let mac = proof::show(secret, Side::Joining { encrypt }, &nonces);
        self.say(&Frame::Proof { mac, encrypt }, until)?;
        let root = Side::Root { encrypt };
        match self.hear(until)? {
            Frame::Proven { mac } if proof::check(secret, root, &nonces, &mac) => Ok(nonces),
            other => Err(doubtful(other)),
        }
    }

    /// Agree on keys: whatever is said from now on is sealed.
    pub(super) fn seal(
        &mut self,
        secret: &[u8; 32],
        nonces: &Nonces,
        until: Instant,
    ) -> Result<(), Setback> {
        let refused = |error: TransportError| may_pass(&error.to_string());
        let (offer, share) = Offer::new(secret, &nonces.context()).map_err(refused)?;
        self.say(&Frame::Share { share }, until)?;
        let seals = match self.hear(until)? {
            Frame::Share { share } => offer.conclude(&share).map_err(refused)?,
            _ => return Err(may_pass("it does not encrypt as it has to")),
        };
        self.sealer = Some(seals.sealer);
        self.decoder.open_with(seals.opener).map_err(|error| may_pass(&error.to_string()))
    }

    /// Let the others know why this rank does not come, as far as that is possible. The root has
    /// read it when this returns: with this rank's end it may end itself.
    pub(super) fn excuse(&mut self, wish: &Wish<'_>, why: String, deadline: Instant) {
        let until = deadline.min(Instant::now() + GRACE);
        let unable = Frame::Unable(Unable {
            rank: crate::control::codec::wire(wish.rank),
            ranks: crate::control::codec::wire(wish.ranks),
            process: wish.process,
            member: wish.member.clone(),
            why,
        });
        let _heard = self.say(&unable, until).and_then(|()| self.hear(until));
    }

    pub(super) fn say(&mut self, frame: &Frame, until: Instant) -> Result<(), Setback> {
        self.stream.set_write_timeout(Some(left(until)?)).map_err(passing)?;
        let bytes = frame.encode();
        let sealed = self.sealer.as_mut().map(|sealer| sealer.seal_all(&bytes));
        self.stream.write_all(&sealed.unwrap_or(bytes)).map_err(passing)
    }

    /// Like `hear`, but end when `target` no longer leads here: the root of an earlier job, whose
    /// other ranks are gone, would let us wait for ever. And when it is known that some will not
    /// come.
    pub(super) fn hear_until_changed(
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
            match self.decoder.read(&mut self.stream) {
                Ok(0) => return Err(may_pass("it closed the connection")),
                Ok(_) => {}
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

pub(super) fn passing(error: io::Error) -> Setback {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => may_pass("it does not answer"),
        _ => may_pass(&error.to_string()),
    }
}

pub(super) fn may_pass(why: &str) -> Setback {
    Setback::Passing(why.to_owned(), Outlook::Open)
}

fn doubtful(frame: Frame) -> Setback {
    match frame {
        // Anybody may have written it, and a terminal obeys some bytes. Before it has proved itself
        // a root gives no other reasons.
        Frame::Refused { kind: kind @ (Refusal::Version | Refusal::Secret), why } => {
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
        let decoder = Decoder::new(FRAME_BYTES_MAX);
        (Line { stream, decoder, sealer: None }, listener.accept().unwrap().0)
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
        // Nor has he any advice to give.
        let why = "rank 1 encrypts and rank 0 does not".to_owned();
        let advice = doubtful(Frame::Refused { kind: Refusal::EncryptionDiffers, why });
        assert!(matches!(advice, Setback::Doubtful { kind: Refusal::Secret, .. }));
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
