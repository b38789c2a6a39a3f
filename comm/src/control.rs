//! How ranks hear, while they wait for something else, that waiting is in vain.
//!
//! A star: each rank keeps the connection to the root over which it joined. The root judges (see
//! `court`) and tells everybody; a monitor thread per rank listens and writes the verdict down.
//! Nobody is woken by it: a rank that waits looks at [`Control::verdict`] every few milliseconds.
//!
//! What the star is not: a way to move data, and a failure detector for stopped processes. A
//! process that is stopped or slow keeps its connection and is not lost; deadlines are for that. If
//! it is the root's, nobody passes anything on: who finds what ends the world then decides alone.
//! What is said after the proof is sealed where the rank asks for that (`Settings::encrypt`), and
//! else neither encrypted nor authenticated one by one.

pub(crate) mod codec;
pub(crate) mod court;
pub(crate) mod decoder;
pub(crate) mod frame;
mod history;
mod monitor;
pub(crate) mod order;
mod summary;
mod verdict;

use std::fmt::Debug;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use brigade_transports::seal::Sealer;
use brigade_transports::{OursAlone, opened};

use crate::locked::locked;
use codec::wire;
use decoder::Decoder;
use frame::{Frame, Waiting};
use monitor::Heard;

pub(crate) use court::NO_SIGNATURE;
pub use frame::{CARD_BYTES_MAX, Member, RANKS_MAX};
pub(crate) use history::History;
pub(crate) use summary::shortened;
pub use verdict::{Refusal, Verdict, WaitingReport};

/// How long a report may take to leave this process.
const SAY_TIMEOUT: Duration = Duration::from_secs(1);
/// How many reports of waiting may be on their way to the root at a time, some 1.6 KB each. More
/// than its socket takes unread would end the connection, as if it were gone: a root that is
/// stopped or slow is not, and a world may have hundreds of groups.
const UNREAD_MAX: u32 = 16;
/// How long a question to the root may stay without an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// How long who has told the root what ends the world waits to hear so: should its process end the
/// root now, the others would blame it for what it has found. A root that is only slow may know
/// better why the world ends, and what a rank has decided alone it keeps.
pub(crate) const SETTLE_WAIT: Duration = Duration::from_secs(1);
/// How long the root may take to let us go.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// One rank's place in the star. Kept for as long as any communicator of the world lives;
/// dropping it leaves the world.
#[derive(Debug)]
pub struct Control {
    rank: usize,
    ranks: usize,
    heard: Arc<Heard>,
    line: Option<Line>,
    /// Whose star tells who is still there, where some ranks of a world meet.
    star: Option<Arc<Control>>,
    leaving: AtomicBool,
    /// What ends after the rank has left, and the others of its process: the root.
    kept: Option<Box<dyn Debug + Send + Sync>>,
}

#[derive(Debug)]
struct Line {
    stream: OursAlone<TcpStream>,
    /// Held while a frame is written, so that frames of two threads do not mix; what seals them, if
    /// they are sealed.
    turn: Mutex<Option<Sealer>>,
    monitor: Mutex<Option<JoinHandle<()>>>,
    /// Held while a question is open; the last question's token.
    question: Mutex<()>,
    token: AtomicU32,
}

impl Control {
    /// The star of a world of one: no threads, no sockets, verdicts only from oneself.
    pub(crate) fn alone() -> Self {
        let heard = Heard::new(Vec::new());
        heard.stop_listening();
        Self::without_line((0, 1), heard, None)
    }

    /// For a meeting of `members` (world ranks), whatever has become of the world: it hears in this
    /// star who of them is lost or leaves, and nothing else has a verdict on it but what they find
    /// themselves.
    pub(crate) fn meeting(self: &Arc<Self>, members: &[u32]) -> Self {
        let members = members.iter().map(|&rank| rank as usize).collect();
        let heard = self.heard.meeting(members);
        Self::without_line((self.rank, self.ranks), heard, Some(Arc::clone(self)))
    }

    fn without_line(
        (rank, ranks): (usize, usize),
        heard: Arc<Heard>,
        star: Option<Arc<Self>>,
    ) -> Self {
        let leaving = AtomicBool::new(false);
        Self { rank, ranks, heard, line: None, star, leaving, kept: None }
    }

    /// Who tells of leavers and of those who wait.
    fn star(&self) -> &Self {
        self.star.as_deref().unwrap_or(self)
    }

    /// Go on over the connection that brought us in. `decoder` holds what has already been read;
    /// `sealer` seals what we say, if anything does.
    pub(crate) fn start(
        rank: usize,
        ranks: usize,
        beside_root: Vec<usize>,
        stream: TcpStream,
        decoder: Decoder,
        sealer: Option<Sealer>,
    ) -> std::io::Result<Self> {
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(Some(SAY_TIMEOUT))?;
        let heard = Heard::new(beside_root);
        let monitor = heard.listen(opened(|| stream.try_clone())?, decoder, rank)?;
        let line = Line {
            stream: OursAlone::new(stream),
            turn: Mutex::new(sealer),
            monitor: Mutex::new(Some(monitor)),
            question: Mutex::new(()),
            token: AtomicU32::new(0),
        };
        let leaving = AtomicBool::new(false);
        Ok(Self { rank, ranks, heard, line: Some(line), star: None, leaving, kept: None })
    }

    /// Let go of `root` only after this rank has left.
    pub(crate) fn keep(&mut self, root: impl Debug + Send + Sync + 'static) {
        self.kept = Some(Box::new(root));
    }

    /// The caller's rank in the world.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks the world has.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Why the world cannot go on, once the root has decided so. Costs one atomic load.
    pub fn verdict(&self) -> Option<&Verdict> {
        self.heard.verdict()
    }

    /// Ranks that left as they should, in the order in which they did. Once the root has ended, as
    /// it does with the last rank of its process, nobody notices further deaths. Takes a lock.
    pub fn left_ranks(&self) -> Vec<usize> {
        self.star().heard.left_ranks()
    }

    /// Whether `rank` left as it should. Takes a lock.
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.star().heard.has_left(rank)
    }

    /// How `rank` was lost, if it was: the verdict tells of the first one only. Takes a lock.
    pub(crate) fn lost(&self, rank: usize) -> Option<String> {
        self.star().heard.lost(rank)
    }

    /// Say that this rank leaves communicator `group` of so many members, though not the world.
    pub(crate) fn leave_group(&self, group: u64, members: usize) {
        self.say_that_we_leave(group, members, "");
    }

    /// Say that this rank leaves communicator `group` because it could not join it, and in which
    /// words whoever waits there shall hear that, by [`Control::unjoined`].
    pub(crate) fn leave_group_because(&self, group: u64, why: &str) {
        self.say_that_we_leave(group, 0, why);
    }

    fn say_that_we_leave(&self, group: u64, members: usize, why: &str) {
        let star = self.star();
        star.heard.forget_group(group);
        let why = why.to_owned();
        // Without a root there is nobody to tell.
        let _sent = star.say(&Frame::LeaveGroup { group, members: wire(members), why });
    }

    /// The first rank that could not join communicator `group`, and why; known as of
    /// [`Control::has_parted`]. Takes a lock.
    pub(crate) fn unjoined(&self, group: u64) -> Option<(usize, String)> {
        self.star().heard.unjoined(group)
    }

    /// Say that this rank will want to hear, before it lets go of something, who is done with
    /// `group`: a root in another rank's process shall not end until it has `let_go`.
    pub(crate) fn hold(&self, group: u64) {
        // Without a root there is nobody to tell.
        let _sent = self.say(&Frame::Hold { group });
    }

    pub(crate) fn let_go(&self, group: u64) {
        let _sent = self.say(&Frame::LetGo { group });
    }

    /// Say that this rank is done with `group` of so many members, and hear from now on of all
    /// others that are or will be. `description` is what it does meanwhile.
    pub(crate) fn part(&self, (group, members): (u64, usize), description: &str) {
        let (members, why) = (wire(members), String::new());
        // Without a root there is nobody to tell.
        let _sent = self.say(&Frame::LeaveGroup { group, members, why });
        // Who stands there is told, also of what the root knew before. A short one, without which
        // we would hear of nobody, so it is said in any case.
        self.heard.ask_about(group);
        let (seq, signature, past) = (0, NO_SIGNATURE, Vec::new());
        let description = description.to_owned();
        let said = Waiting { group, seq, signature, past, description };
        let _counted = self.heard.may_report(u32::MAX);
        let _sent = self.say(&Frame::Waiting(said));
    }

    /// Nobody waits in `group` any more.
    pub(crate) fn forget(&self, group: u64) {
        self.heard.forget_group(group);
    }

    /// Whether there is a root from which more may be heard.
    pub(crate) fn hears(&self) -> bool {
        let star = self.star();
        star.line.is_some() && star.heard.is_listening()
    }

    /// Whether `rank` has left communicator `group`. Takes a lock. Known of those who left before
    /// this rank last told or asked the root about the group, and of those who leave afterwards.
    pub(crate) fn has_parted(&self, rank: usize, group: u64) -> bool {
        self.star().heard.has_parted(rank, group)
    }

    /// Tell the root that `rank` is out of reach. It becomes a verdict within 50 ms, unless that
    /// rank is leaving at this moment: then look at [`Control::left_ranks`].
    pub fn report_lost(&self, rank: usize, how: &str) {
        let report = Frame::ReportLost { rank: wire(rank), how: how.to_owned() };
        if !self.say(&report) && !self.has_left(rank) {
            self.heard.note_lost(rank, how.to_owned());
        }
    }

    /// Tell the root that two ranks are in calls that do not fit together; what ends the world
    /// then, as of [`Control::settle`].
    pub(crate) fn report_mismatch(
        &self,
        (rank_a, call_a): (usize, &str),
        (rank_b, call_b): (usize, &str),
        group: u64,
        seq: u64,
    ) -> &Verdict {
        let (call_a, call_b) = (call_a.to_owned(), call_b.to_owned());
        let verdict = Verdict::Mismatch { rank_a, call_a, rank_b, call_b, group, seq };
        match self.say(&Frame::ReportMismatch(verdict.clone())) {
            true => self.settle(verdict),
            false => self.decide(verdict),
        }
    }

    /// Tell the root that this rank gives up for everybody.
    pub fn abort(&self, why: &str) {
        if !self.say(&Frame::Abort { why: why.to_owned() }) {
            self.heard.decide(Verdict::Aborted { rank: self.rank, why: why.to_owned() });
        }
    }

    /// Give up for everybody, and wait until this rank has heard so itself, as for
    /// [`Control::settle`]. What was decided before stands.
    pub(crate) fn give_up(&self, why: &str) {
        if self.verdict().is_none() {
            self.abort(why);
            self.settle(Verdict::Aborted { rank: self.rank, why: why.to_owned() });
        }
    }

    /// What ends the world, after this rank has told the root of something that does: what it hears
    /// within a second, or else `own`. A root that is stopped takes what it is told and passes
    /// nothing on: then this rank decides alone, so that whatever it does in this world ends.
    fn settle(&self, own: Verdict) -> &Verdict {
        self.await_verdict(SETTLE_WAIT).unwrap_or_else(|| self.decide(own))
    }

    /// Decide alone, unless something was decided before; what was.
    pub(crate) fn decide(&self, own: Verdict) -> &Verdict {
        self.heard.settle(own);
        self.verdict().expect("it is decided now")
    }

    /// Say that call `seq` of communicator `group` keeps us waiting; `description` names it, number
    /// and all. The root compares the `signature` with those of other ranks that wait in the same
    /// call, and those of the calls before in `past`, the latest first, with ranks that are not as
    /// far yet; it decides on a mismatch where they differ. For the slow path: costs a system call.
    /// Returns whether that is done: while the root reads nothing, only the first few of all calls
    /// are told, and the others are to try again.
    pub fn report_waiting(
        &self,
        group: u64,
        seq: u64,
        signature: [u8; 32],
        past: Vec<[u8; 32]>,
        description: &str,
    ) -> bool {
        let star = self.star();
        star.heard.ask_about(group);
        // Without a root there is nobody to compare with, and nothing else to do about it.
        if !self.hears() {
            return true;
        }
        if !star.heard.may_report(UNREAD_MAX) {
            return false;
        }
        let description = description.to_owned();
        let _sent = star.say(&Frame::Waiting(Waiting { group, seq, signature, past, description }));
        true
    }

    /// Tell the root, if there is one, that the call of `group` that we told of waits no more.
    pub fn report_going_on(&self, group: u64) {
        let _sent = self.star().say(&Frame::GoesOn { group });
    }

    /// Wait for the root to decide, for at most so long.
    pub(crate) fn await_verdict(&self, timeout: Duration) -> Option<&Verdict> {
        let deadline = Instant::now() + timeout;
        while self.verdict().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.verdict()
    }

    /// Leave the world: others will not take our end for a loss. Done by dropping, too.
    pub fn leave(&self) {
        if self.leaving.swap(true, Ordering::AcqRel) {
            return;
        }
        self.heard.leave();
        if let Some(line) = &self.line {
            let _sent = self.write(line, &Frame::Leave);
            // The root may be gone already, and then there is nobody to tell.
            let _closed = line.stream.shutdown(Shutdown::Write);
        }
    }

    /// Whether the root got it; if not, the caller decides alone.
    fn say(&self, frame: &Frame) -> bool {
        let is_open = !self.leaving.load(Ordering::Acquire) && self.heard.is_listening();
        is_open && self.line.as_ref().is_some_and(|line| self.write(line, frame))
    }

    fn write(&self, line: &Line, frame: &Frame) -> bool {
        let mut bytes = frame.encode();
        let mut turn = locked(&line.turn);
        if let Some(sealer) = &mut *turn {
            bytes = sealer.seal_all(&bytes);
        }
        let sent = (&*line.stream).write_all(&bytes).is_ok();
        if !sent {
            // Half a frame may be out: nothing that followed would be understood.
            let _closed = line.stream.shutdown(Shutdown::Both);
        }
        sent
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.leave();
        if let Some(line) = &self.line {
            if !self.heard.wait_until_over(LEAVE_TIMEOUT) {
                // Makes the monitor's read return; it fails only if that has happened already.
                let _closed = line.stream.shutdown(Shutdown::Both);
            }
            if let Some(monitor) = locked(&line.monitor).take() {
                // A monitor that panicked has printed why, and a destructor must not.
                let _ended = monitor.join();
            }
        }
        drop(self.kept.take());
    }
}

#[cfg(test)]
mod tests;
