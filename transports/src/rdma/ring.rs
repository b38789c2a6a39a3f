//! The receiving end of a wire: a ring that the peer's device writes into, the queue pairs that
//! tell what has arrived, and the words that tell the peer what was read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_verbs::{Completion, Memory, Status};

use super::arrived::Arrived;
use super::frame::Turn;
use super::hand::{Hand, Request};
use super::inlets::{FRESH_MAX, Incoming, Inlet, LIMITS};
use super::limits::{CREDITS, LINE_BYTES, PIECES};
use super::local::Local;
use super::path::also;
use super::silence::{self, Silence};
use crate::TransportError;

/// How many completions are taken at a time.
const BATCH: usize = 16;
/// The most inlets that were replaced and have not given back all their receives yet: a device that
/// is gone never does.
const RETIRED_MAX: usize = 16;
const _: () = assert!(FRESH_MAX <= RETIRED_MAX);
/// How much longer than the sender we wait for a queue pair, so that it says why there is none.
const LAST_WORD: Duration = Duration::from_secs(1);

/// The ring as its reader sees it.
pub(super) struct Ring {
    incoming: Arc<Incoming>,
    local: Arc<Local>,
    peer: usize,
    hand: Hand,
    mouths: Vec<Mouth>,
    /// How many inlets were taken.
    known: u32,
    /// Whose successors are in use. What has arrived through them counts.
    retired: Vec<Mouth>,
    arrived: Arrived,
    /// Lines and pieces that were consumed, in all, and those that the sender was told.
    consumed: u32,
    told: u32,
    pieces_untold: u32,
    /// Words may have been lost.
    must_tell: bool,
    /// Why an inlet failed, the first since something arrived; and whether that is known.
    cause: Option<(TransportError, bool)>,
    /// Since when no inlet works.
    dead: Option<Instant>,
}

/// An inlet in use.
struct Mouth {
    inlet: Arc<Inlet>,
    /// Words to the sender that are posted and not completed.
    words: u32,
    /// How many have completed, modulo 2^32, and since when none has.
    completed: u32,
    silence: Silence,
    /// Receives that are posted and not completed.
    receives: u32,
    is_dead: bool,
}

impl Mouth {
    fn new(inlet: Arc<Inlet>) -> Mouth {
        let (words, completed, silence) = (0, 0, Silence::default());
        Mouth { inlet, words, completed, silence, receives: LIMITS.receives, is_dead: false }
    }
}

impl Ring {
    pub(super) fn new(incoming: Arc<Incoming>, local: Arc<Local>, peer: usize, hand: Hand) -> Ring {
        let arrived = Arrived::new(incoming.ring_bytes);
        let mut ring = Ring {
            incoming,
            local,
            peer,
            hand,
            mouths: Vec::new(),
            known: 0,
            retired: Vec::new(),
            arrived,
            consumed: 0,
            told: 0,
            pieces_untold: 0,
            must_tell: false,
            cause: None,
            dead: None,
        };
        ring.adopt();
        ring
    }

    /// Where the piece that is read lies and how long it is, once it has arrived.
    #[inline]
    pub(super) fn piece(&mut self) -> Result<Option<(usize, usize)>, TransportError> {
        let first = match self.arrived.first() {
            Ok(None) => {
                self.look()?;
                self.arrived.first()
            }
            known => known,
        };
        first.map_err(|what| self.corrupt(what))
    }

    fn corrupt(&self, what: String) -> TransportError {
        TransportError::Corrupt { peer: self.peer, what }
    }

    /// The memory that pieces lie in.
    #[inline]
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.incoming.memory
    }

    /// The number of the piece that is read.
    pub(super) fn next(&self) -> u32 {
        self.arrived.next()
    }

    /// The piece has been read: its place may be written again.
    pub(super) fn release(&mut self) {
        let lines = self.arrived.release();
        self.consumed = self.consumed.wrapping_add(lines as u32);
        self.pieces_untold += 1;
        if self.has_news() {
            self.tell();
        }
    }

    /// Whether enough was consumed that the sender should know.
    fn has_news(&self) -> bool {
        let untold_bytes = self.consumed.wrapping_sub(self.told) as usize * LINE_BYTES;
        untold_bytes >= self.incoming.ring_bytes / 4
            || self.pieces_untold >= PIECES as u32 / 4
            || self.must_tell
    }

    /// Tell the sender what was consumed, over the first inlet that works. If none does, there is
    /// still news when one has come.
    fn tell(&mut self) {
        for index in 0..self.mouths.len() {
            self.look_at_words(index);
            let mouth = &mut self.mouths[index];
            if !mouth.inlet.takes_words() || mouth.words == CREDITS {
                continue;
            }
            match mouth.inlet.end.pair.post_number(0, self.consumed) {
                Ok(()) => {
                    mouth.words += 1;
                    (self.told, self.pieces_untold) = (self.consumed, 0);
                    self.must_tell = false;
                    return;
                }
                Err(_) => self.fail(index, Status::REFUSED),
            }
        }
    }

    /// What came of the words that were posted on an inlet.
    fn look_at_words(&mut self, index: usize) {
        let mut batch = [Completion::default(); BATCH];
        let polled = self.mouths[index].inlet.end.sends.poll(&mut batch);
        for completion in &batch[..polled.unwrap_or(0)] {
            let mouth = &mut self.mouths[index];
            mouth.words = mouth.words.saturating_sub(1);
            mouth.completed = mouth.completed.wrapping_add(1);
            if !completion.status().is_success() {
                self.fail(index, completion.status());
            }
        }
    }

    /// Take the numbers of what has arrived.
    pub(super) fn look(&mut self) -> Result<(), TransportError> {
        if self.incoming.count() != self.known {
            self.adopt();
        }
        for index in 0..self.mouths.len() {
            let mut batch = [Completion::default(); BATCH];
            loop {
                let Ok(count) = self.mouths[index].inlet.end.arrivals.poll(&mut batch) else {
                    self.fail(index, Status::DEVICE_FAILED);
                    break;
                };
                for completion in &batch[..count] {
                    self.arrive(index, completion)?;
                }
                if count < BATCH {
                    break;
                }
            }
        }
        if !self.retired.is_empty() {
            self.look_at_retired()?;
        }
        if self.has_news() {
            self.tell();
        }
        Ok(())
    }

    #[inline]
    fn arrive(&mut self, index: usize, completion: &Completion) -> Result<(), TransportError> {
        let mouth = &mut self.mouths[index];
        mouth.receives = mouth.receives.saturating_sub(1);
        if !completion.status().is_success() {
            self.fail(index, completion.status());
            return Ok(());
        }
        if mouth.inlet.works() {
            match mouth.inlet.end.pair.post_receive(0) {
                Ok(()) => mouth.receives += 1,
                Err(_) => self.fail(index, Status::REFUSED),
            }
        }
        if self.cause.is_some() {
            self.revive(index);
        }
        self.note(completion)
    }

    /// A piece has arrived.
    #[inline]
    fn note(&mut self, completion: &Completion) -> Result<(), TransportError> {
        let Some(number) = completion.immediate() else { return Ok(()) };
        self.arrived.note(number, completion.bytes()).map_err(|what| self.corrupt(what))
    }

    /// Take inlets that are new.
    #[cold]
    fn adopt(&mut self) {
        for (stripe, inlet) in self.incoming.take_fresh() {
            self.known = self.known.wrapping_add(1);
            let mouth = Mouth::new(inlet);
            if stripe == self.mouths.len() {
                self.mouths.push(mouth);
                continue;
            }
            self.retired.push(std::mem::replace(&mut self.mouths[stripe], mouth));
            // What was told through that one may be lost.
            self.must_tell = true;
            self.dead = None;
        }
    }

    /// What arrived through inlets before they were stopped, until each has given back all its
    /// receives.
    #[cold]
    fn look_at_retired(&mut self) -> Result<(), TransportError> {
        for index in 0..self.retired.len() {
            let mut batch = [Completion::default(); BATCH];
            loop {
                let mouth = &mut self.retired[index];
                let Ok(count) = mouth.inlet.end.arrivals.poll(&mut batch) else {
                    mouth.receives = 0;
                    break;
                };
                mouth.receives = mouth.receives.saturating_sub(count as u32);
                for completion in batch[..count].iter().filter(|it| it.status().is_success()) {
                    self.note(completion)?;
                }
                if count < BATCH {
                    break;
                }
            }
        }
        self.retired.retain(|mouth| mouth.receives > 0);
        let surplus = self.retired.len().saturating_sub(RETIRED_MAX);
        self.retired.drain(..surplus);
        Ok(())
    }

    /// Something has arrived through an inlet that works.
    #[cold]
    fn revive(&mut self, index: usize) {
        if self.mouths[index].inlet.works() {
            (self.dead, self.cause) = (None, None);
        }
    }

    /// An inlet has failed: tell the sender, who stops it and sends again what it may have lost.
    #[cold]
    fn fail(&mut self, index: usize, status: Status) {
        let was_dead = std::mem::replace(&mut self.mouths[index].is_dead, true);
        // All that was posted is thrown away, so that is said often.
        if !was_dead || status != Status::FLUSHED {
            self.learn(index, status);
        }
        if was_dead {
            return;
        }
        let inlet = Arc::clone(&self.mouths[index].inlet);
        if status == Status::FLUSHED {
            // What was thrown away may be found before what failed.
            self.look_at_words(index);
        }
        if inlet.works() {
            inlet.stop();
            let turn = Turn { stripe: index as u8, turn: inlet.turn };
            self.hand.ask(Request::Broken { peer: self.peer, turn });
        }
        // A word that went this way may be lost: say it again.
        self.must_tell = true;
        self.tell();
    }

    /// An inlet whose words come to nothing has failed. Asks for the time only while there are any.
    fn break_silence(&mut self) {
        for index in 0..self.mouths.len() {
            if self.mouths[index].words > 0 {
                self.look_at_words(index);
            }
            let mouth = &mut self.mouths[index];
            if mouth.words == 0 || !mouth.inlet.works() {
                mouth.silence = Silence::default();
                continue;
            }
            let Some(limit) = silence::limit(&self.local.settings) else { return };
            let counts = (mouth.words, mouth.completed);
            if mouth.silence.is_too_long(counts, Instant::now(), limit) {
                self.fail(index, Status::SILENT);
            }
        }
    }

    /// Note why an inlet failed, unless more is known of one that failed before.
    #[cold]
    fn learn(&mut self, index: usize, status: Status) {
        if self.cause.as_ref().is_none_or(|(_, is_known)| !is_known) {
            let Inlet { end, theirs, .. } = &*self.mouths[index].inlet;
            let is_known = status != Status::FLUSHED || end.fact(&self.local).is_some();
            self.cause = Some((end.blame(&self.local, theirs, self.peer, status), is_known));
        }
    }

    /// Why nothing arrives any more: the sender has given up, or no inlet works and none has come
    /// for too long.
    #[cold]
    pub(super) fn dead(&mut self) -> Option<TransportError> {
        if let Some(why) = self.incoming.lost() {
            let how = format!("it has given up sending, since for it {why}");
            return Some(TransportError::PeerGone { peer: self.peer, how });
        }
        self.break_silence();
        if self.mouths.iter().any(|mouth| mouth.inlet.works()) {
            return None;
        }
        let patience = self.local.settings.reconnect;
        let waited = self.dead.get_or_insert_with(Instant::now).elapsed();
        if !patience.is_zero() && waited.saturating_sub(LAST_WORD) < patience {
            return None;
        }
        self.learn(0, Status::FLUSHED);
        let (cause, _) = self.cause.clone()?;
        let waited = waited.as_secs_f64();
        let tale = format!("; the sender has not replaced the queue pair within {waited:.1} s");
        Some(if patience.is_zero() { cause } else { also(cause, &tale) })
    }
}
