//! The root's thread: it brings the ranks together and then judges for them.
//!
//! One loop around one poll. It never waits for a single connection: each has a bounded inbox, a
//! bounded outbox and a time by which it must have proved the secret, and when too many strangers
//! come the oldest goes. When all ranks have come the listener is closed, and its port is free.

mod callers;
mod owner;

use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_transports::seal::SHARE_BYTES;
use brigade_transports::{OursAlone, seal};

use super::bell::{Bell, Ending};
use super::conn::{Conn, Phase};
use super::proof::{self, Nonces, Side, random};
use super::roster::{Failure, Roster};
use super::sys::{Watch, poll};
use super::{listen, process};
use crate::control::Refusal;
use crate::control::court::Court;
use crate::control::frame::{Frame, Join, RANK_BYTES_MAX, Unable, VERSION};
use crate::control::order::{Audience, Order};
use crate::say::warn;

/// How long a failed root tells latecomers why it failed.
const AFTERMATH: Duration = Duration::from_secs(5);
/// How long the root's own last words may take.
const FAREWELL: Duration = Duration::from_millis(200);

/// The root's thread, before and after all have come.
pub(super) struct Hub {
    bell: Arc<Bell>,
    listener: Option<OursAlone<TcpListener>>,
    secret: [u8; 32],
    nonce: [u8; 32],
    /// Where it listens, in words.
    place: String,
    process: [u8; 16],
    conns: Vec<Conn>,
    /// Ranks of this process.
    own: Vec<usize>,
    /// Once it was told to end.
    ending: Option<Ending>,
    stage: Stage,
}

enum Stage {
    Gathering(Roster),
    Sitting(Court),
    /// Without an end it stays as long as its owner.
    Failed {
        last_words: Arc<[u8]>,
        until: Option<Instant>,
    },
}

impl Hub {
    pub(super) fn new(
        (listener, doubt): (TcpListener, Option<String>),
        [secret, nonce]: [[u8; 32]; 2],
        bell: Arc<Bell>,
    ) -> io::Result<Self> {
        let place = listen::place(listener.local_addr()?);
        Ok(Self {
            bell,
            place,
            listener: Some(OursAlone::new(listener)),
            secret,
            nonce,
            process: process::process_token(false)?,
            conns: Vec::new(),
            own: Vec::new(),
            ending: None,
            stage: Stage::Gathering(Roster::new(doubt)),
        })
    }

    pub(super) fn run(mut self) {
        while self.turn() {}
    }

    /// Sleep until something happens and do what it asks for. Returns whether to go on.
    fn turn(&mut self) -> bool {
        let mut watches: Vec<_> = self.conns.iter().map(Conn::watch).collect();
        watches.extend(self.listener.as_ref().map(|l| Watch::new(l.as_fd(), false)));
        // It goes on ringing.
        if self.ending.is_none() {
            watches.push(Watch::new(self.bell.ear(), false));
        }
        let timeout = self.due().map(|due| due.saturating_duration_since(Instant::now()));
        if let Err(error) = poll(&mut watches, timeout) {
            let why = "ends, as it cannot wait for its connections any longer: poll";
            let why = format!("the root at {} {why}: {error}", self.place);
            warn(&why);
            // Who has a seat takes it for the loss of the root, which it is.
            if matches!(self.stage, Stage::Gathering(_)) {
                self.farewell(&why);
            }
            return false;
        }
        let (conns, others) = watches.split_at(self.conns.len());
        let has_callers = self.listener.is_some() && others[0].happened();
        for (index, _) in conns.iter().enumerate().filter(|(_, watch)| watch.happened()) {
            self.attend(index);
        }
        if has_callers {
            self.accept();
        }
        self.hear_owner();
        self.look_at_the_clock(Instant::now());
        self.flush();
        self.conns.retain(|conn| !conn.dead);
        let is_gathering = matches!(self.stage, Stage::Gathering(_));
        self.bell.note_whether_it_awaits(is_gathering && !self.conns.iter().all(Conn::is_stranger));
        if self.bell.has_rung() && self.may_end(Instant::now()) {
            self.farewell("the root was closed");
            return false;
        }
        match &self.stage {
            Stage::Gathering(_) => true,
            Stage::Sitting(court) => !court.is_over() || !self.conns.is_empty(),
            Stage::Failed { until, .. } => until.is_none_or(|until| Instant::now() < until),
        }
    }

    fn due(&self) -> Option<Instant> {
        let stage = match &self.stage {
            Stage::Gathering(roster) => roster.due(),
            Stage::Sitting(court) => court.due(),
            Stage::Failed { until, .. } => *until,
        };
        let ending = self.ending.as_ref().map(Ending::until);
        self.conns.iter().filter_map(Conn::due).chain(stage).chain(ending).min()
    }

    fn attend(&mut self, index: usize) {
        let (frames, end) = self.conns[index].read();
        for frame in frames {
            if !self.conns[index].dead {
                self.hear(index, frame, Instant::now());
            }
        }
        if let Some(how) = end {
            self.part(index, &how);
        }
    }

    fn hear(&mut self, index: usize, frame: Frame, now: Instant) {
        match (self.conns[index].phase, frame) {
            (Phase::Greeting, Frame::Hello { version, nonce }) => self.greet(index, version, nonce),
            (Phase::Proving(nonces), Frame::Proof { mac, encrypt }) => {
                self.verify(index, &nonces, &mac, encrypt);
            }
            (Phase::Sealing(nonces), Frame::Share { share }) => self.seal(index, &nonces, &share),
            (Phase::Proven, Frame::Join(join)) => self.seat(index, join, now),
            (Phase::Proven, Frame::Unable(unable)) => self.excuse(index, unable, now),
            (_, Frame::Share { .. }) => self.part(index, "it spoke out of turn"),
            (Phase::Seated(rank), frame) => match &mut self.stage {
                Stage::Sitting(court) => {
                    if matches!(frame, Frame::Waiting(_)) {
                        self.conns[index].say(Frame::Noted.encode().into());
                    }
                    let orders = court.hear(rank, frame, now);
                    let gone = court.is_gone(rank);
                    self.dispatch(orders);
                    if gone {
                        self.conns[index].close(now);
                    }
                }
                Stage::Gathering(_) => self.part(index, "it spoke out of turn"),
                Stage::Failed { .. } => {}
            },
            _ => self.part(index, "it spoke out of turn"),
        }
    }

    fn greet(&mut self, index: usize, version: u16, joining: [u8; 32]) {
        if version != VERSION {
            if let Stage::Gathering(roster) = &mut self.stage {
                roster.other_version = Some(version);
            }
            let why = format!("the root speaks version {VERSION}, not {version}");
            return self.refuse(index, Refusal::Version, &why);
        }
        let Ok(root) = random() else {
            return self.part(index, "the system has no random bytes");
        };
        self.conns[index].phase = Phase::Proving(Nonces { joining, root });
        self.conns[index].say(Frame::Challenge { nonce: root }.encode().into());
    }

    fn verify(&mut self, index: usize, nonces: &Nonces, mac: &[u8; 32], encrypt: bool) {
        if !proof::check(&self.secret, Side::Joining { encrypt }, nonces, mac) {
            if let Stage::Gathering(roster) = &mut self.stage {
                roster.strangers += 1;
            }
            return self.refuse(index, Refusal::Secret, "the root knows another secret");
        }
        let mac = proof::show(&self.secret, Side::Root { encrypt }, nonces);
        let conn = &mut self.conns[index];
        conn.phase = if encrypt { Phase::Sealing(*nonces) } else { Phase::Proven };
        conn.decoder.limit(RANK_BYTES_MAX);
        conn.say(Frame::Proven { mac }.encode().into());
    }

    /// Agree on keys with one who has proved the secret.
    fn seal(&mut self, index: usize, nonces: &Nonces, theirs: &[u8; SHARE_BYTES]) {
        let (share, seals) = match seal::accept(&self.secret, &nonces.context(), theirs) {
            Ok(agreed) => agreed,
            Err(error) => return self.part(index, &error.to_string()),
        };
        let conn = &mut self.conns[index];
        conn.phase = Phase::Proven;
        // The last that is said in the open.
        conn.say(Frame::Share { share }.encode().into());
        if let Err(error) = conn.seal(seals) {
            self.part(index, &error.to_string());
        }
    }

    fn seat(&mut self, index: usize, join: Join, now: Instant) {
        let (process, nonce) = (self.process, self.nonce);
        let encrypts = self.conns[index].is_sealed();
        let Some(roster) = self.roster(index, now) else { return };
        let silence = Duration::from_millis(join.silence_ms.into());
        match roster.seat(join, encrypts, now) {
            Ok(rank) => {
                let complete = roster.complete(&process, nonce);
                let own = roster.ranks_of(&process);
                let old = self.conns.iter_mut().filter(|conn| conn.rank() == Some(rank));
                old.for_each(|conn| conn.dead = true);
                if let Err(error) = self.conns[index].sit(rank, silence) {
                    return self.part(index, &error.to_string());
                }
                if let Some(table) = complete {
                    self.own = own;
                    self.stage = Stage::Sitting(Court::new(table.seats.len()));
                    self.listener = None;
                    self.conns.iter_mut().filter(|c| c.is_stranger()).for_each(|c| c.dead = true);
                    self.dispatch(vec![(Audience::All, Frame::Table(table))]);
                }
            }
            Err(failure) => self.fail(failure, now),
        }
    }

    fn excuse(&mut self, index: usize, unable: Unable, now: Instant) {
        let is_own = unable.process == self.process;
        let Some(roster) = self.roster(index, now) else { return };
        match roster.excuse(unable, now) {
            // When this process ends the root does, too: nobody can come instead.
            Ok(why) if is_own => self.fail(Failure { kind: Refusal::RankUnable, why }, now),
            Ok(_) => {
                self.conns[index].say(Frame::Noted.encode().into());
                self.conns[index].close(now);
            }
            Err(failure) => self.fail(failure, now),
        }
    }

    /// The roster for one who has proved the secret, while there is one.
    fn roster(&mut self, index: usize, now: Instant) -> Option<&mut Roster> {
        match &self.stage {
            Stage::Gathering(_) => {}
            Stage::Sitting(_) => self.part(index, "it came after all others"),
            Stage::Failed { last_words, .. } => {
                let last_words = Arc::clone(last_words);
                self.conns[index].say(last_words);
                self.conns[index].close(now);
            }
        }
        if let Stage::Gathering(roster) = &mut self.stage { Some(roster) } else { None }
    }

    /// Tell all who have proved the secret, with a seat or just asking for one.
    fn fail(&mut self, failure: Failure, now: Instant) {
        let Failure { kind, why } = failure;
        let last_words: Arc<[u8]> = Frame::Refused { kind, why }.encode().into();
        let proven = |conn: &&mut Conn| matches!(conn.phase, Phase::Proven | Phase::Seated(_));
        for conn in self.conns.iter_mut().filter(proven) {
            conn.say(Arc::clone(&last_words));
            conn.close(now);
        }
        self.stage = Stage::Failed { last_words, until: Some(now + AFTERMATH) };
    }

    fn refuse(&mut self, index: usize, kind: Refusal, why: &str) {
        self.conns[index].say(Frame::Refused { kind, why: why.to_owned() }.encode().into());
        self.conns[index].close(Instant::now());
    }

    /// A connection is over.
    fn part(&mut self, index: usize, how: &str) {
        let rank = self.conns[index].rank();
        self.conns[index].dead = true;
        let Some(rank) = rank else { return };
        match &mut self.stage {
            Stage::Gathering(roster) => roster.vacate(rank, Instant::now()),
            Stage::Sitting(court) => {
                let orders = court.ended(rank, how);
                self.dispatch(orders);
            }
            Stage::Failed { .. } => {}
        }
    }

    /// Say all that there is to say. What one hears in a row goes out as one: an answer does not
    /// count as many that were not read, however much it is.
    fn dispatch(&mut self, orders: Vec<Order>) {
        if orders.is_empty() {
            return;
        }
        let seated = self.conns.iter().enumerate();
        let seated = seated.filter_map(|(index, conn)| Some((conn.rank()?, index)));
        let seated: HashMap<usize, usize> = seated.collect();
        for said in orders.chunk_by(|(one, _), (other, _)| one == other) {
            let bytes: Arc<[u8]> = said.iter().flat_map(|(_, frame)| frame.encode()).collect();
            match said[0].0 {
                Audience::All => {
                    seated.values().for_each(|at| self.conns[*at].say(Arc::clone(&bytes)));
                }
                Audience::One(rank) => {
                    if let Some(at) = seated.get(&rank) {
                        self.conns[*at].say(bytes);
                    }
                }
            }
        }
    }

    fn look_at_the_clock(&mut self, now: Instant) {
        for conn in &mut self.conns {
            if conn.due().is_some_and(|due| due <= now) {
                conn.dead = true;
            }
        }
        match &mut self.stage {
            Stage::Gathering(roster) => {
                if let Some(failure) = roster.expired(now) {
                    self.fail(failure, now);
                } else if let Some(report) = roster.report(now) {
                    warn(&format!("the root at {} {report}", self.place));
                }
            }
            Stage::Sitting(court) => {
                let orders = court.tick(now);
                self.dispatch(orders);
            }
            Stage::Failed { .. } => {}
        }
    }

    /// Send what can be sent. Ranks in our own process come last: when one hears the verdict
    /// first it may end the process, and the others would blame it.
    fn flush(&mut self) {
        for own in [false, true] {
            for index in 0..self.conns.len() {
                let rank = self.conns[index].rank();
                if own == rank.is_some_and(|rank| self.own.contains(&rank))
                    && let Some(how) = self.conns[index].flush()
                {
                    self.part(index, &how);
                }
            }
        }
    }

    /// Last words to everybody, but not for ever; `why` it ends, for those who have not joined.
    fn farewell(&mut self, why: &str) {
        let until = Instant::now() + FAREWELL;
        match &self.stage {
            Stage::Gathering(roster) => {
                let why = format!("{why}: {}", roster.missing());
                self.fail(Failure { kind: Refusal::RootClosed, why }, Instant::now());
            }
            Stage::Sitting(_) => self.dispatch(vec![(Audience::All, Frame::RootEnds)]),
            Stage::Failed { .. } => {}
        }
        loop {
            self.flush();
            self.conns.retain(Conn::has_unsent);
            let left = until.saturating_duration_since(Instant::now());
            let mut watches: Vec<_> = self.conns.iter().map(Conn::watch).collect();
            if watches.is_empty() || left.is_zero() || poll(&mut watches, Some(left)).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
