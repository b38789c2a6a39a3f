//! What a waiting rank watches between its naps: the verdicts of others, members that have died,
//! members that have left, and the deadline.
//!
//! A rank that finds something may be the second one: somebody else has died, or given up, and what
//! it sees comes of that. So it listens for a while, and a verdict that it hears meanwhile is its
//! error. If it hears none it has one of its own, and tells the root. In the order in which it
//! looks:
//!
//! | It sees                            | and listens for     | Its error   | The root is told |
//! |------------------------------------|---------------------|-------------|------------------|
//! | a verdict                          |                     | that one    |                  |
//! | a wire whose peer is gone          | `VERDICT_WAIT`      | `PeerLost`  | `ReportLost`     |
//! | ..and hears that the peer has left | `CLOSED_GRACE` more | `PeerLeft`  | `Abort`          |
//! | ..or that one could not join       |                     | `Join`      |                  |
//! | a wire that fails or has no header | `PASSED_ON_WAIT`    | `Transport` | `Abort`          |
//! | the header of another call         | (1)                 | `Mismatch`  | `ReportMismatch` |
//! | that it is interrupted             |                     | `Aborted`   | `Abort`          |
//! | that it stands for `TELL_AFTER`    |                     |             | `Waiting` (2)    |
//! | that it stands for `report_after`  |                     | a warning   | `Ask`            |
//! | a member that could not join       |                     | `Join`      |                  |
//! | that whom it waits for has left    | `LEFT_GRACE`        | `PeerLeft`  | `Abort`          |
//! | that it stands for `timeout`       |                     | `Timeout`   | `Ask`, `Abort`   |
//!
//! (1) `PASSED_ON_WAIT`, and only if its peer is ahead, whose own word of that is better: the root
//! is told `Waiting` first.
//!
//! (2) and `GoesOn` when that is over: what a rank has waited for is not where it is.
//!
//! Who waits for a wire or a window to open looks likewise, but for the deadline (`opening`): one
//! that cannot be opened is as a wire that fails, and one whose peer is gone as that. Who joins a
//! group goes on whoever leaves; if that fails it tells nobody here, as its caller says so to those
//! who wait in that group. Behind whatever it tells that ends the world, a rank waits for a second
//! to hear the verdict itself, and if it hears none, as where the root is stopped, decides alone.

mod crossing;
mod opening;
mod stall;
mod standstill;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use brigade_transports::{Endpoint, TransportError};

use crate::Error;
use crate::control::{Control, History, NO_SIGNATURE, SETTLE_WAIT, Verdict, WaitingReport};
use crate::header::Header;
use crate::interrupt;
use crate::run::Stop;
use crate::say::warn;
pub(crate) use opening::{Joining, Opening};
pub(crate) use stall::Stall;
pub(crate) use standstill::{At, Standstill};

/// A call that has stood still for so long tells the others which call it is in.
const TELL_AFTER: Duration = Duration::from_millis(60);
/// How long a rank that finds a wire broken waits to hear who is to blame.
const VERDICT_WAIT: Duration = Duration::from_millis(600);
/// How long a rank that finds something else wrong waits to hear that another is to blame.
pub(crate) const PASSED_ON_WAIT: Duration = Duration::from_millis(200);
/// How long after a rank has closed its wire word of its leaving may still be on its way.
const CLOSED_GRACE: Duration = Duration::from_millis(100);

/// What a waiting rank watches, and how it words what it finds.
pub(crate) struct Watch {
    pub(crate) control: Arc<Control>,
    /// The world rank of each member.
    pub(crate) members: Arc<[u32]>,
    /// The index of this rank among the members.
    pub(crate) me: u32,
    pub(crate) group: u64,
    /// What this rank has called.
    pub(crate) history: History,
    /// Whether the root takes this rank for one that waits here.
    pub(crate) stands: AtomicBool,
    pub(crate) report_after: Duration,
    pub(crate) timeout: Duration,
}

impl Watch {
    /// Why no further call can be made, if a rank has found that out. Costs a load.
    #[inline]
    pub(crate) fn stopped(&self) -> Option<Error> {
        self.control.verdict().map(|verdict| error_of(verdict, "a pause between calls"))
    }

    /// This rank's number in the world.
    pub(crate) fn world_rank(&self) -> u32 {
        self.members[self.me as usize]
    }

    /// Look for reasons to stop waiting. `stall`: once nothing has moved for long.
    pub(crate) fn look_around(
        &self,
        stall: Option<&mut Stall>,
        endpoints: &mut [Box<dyn Endpoint>],
        still: &Standstill<'_>,
    ) -> Result<(), Error> {
        let Some(stall) = stall else { return self.hear(endpoints, still.name) };
        self.listen(stall, endpoints, still)?;
        let stood = stall.stood();
        if stood > self.timeout {
            let place = still.place(self.world_rank(), &self.members);
            let waited_ms = stood.as_millis() as u64;
            let others = self.others_and_hint(still);
            // While the root was asked, somebody who came to the same end may have said so, and
            // have gone: that sentence knows more of him.
            if let Some(verdict) = self.control.verdict() {
                return Err(error_of(verdict, still.name));
            }
            return Err(self.give_up(Error::Timeout { place, waited_ms, others }));
        }
        Ok(())
    }

    /// The same but for the deadline: for a wait that has one of its own.
    fn listen(
        &self,
        stall: &mut Stall,
        endpoints: &mut [Box<dyn Endpoint>],
        still: &Standstill<'_>,
    ) -> Result<(), Error> {
        self.hear(endpoints, still.name)?;
        self.report(stall, still);
        match self.unjoined(still.name) {
            Some(error) => Err(error),
            None => self.look_for_leavers(stall, still),
        }
    }

    /// Why to stop, whatever is waited for.
    fn hear(&self, endpoints: &mut [Box<dyn Endpoint>], name: &str) -> Result<(), Error> {
        if let Some(verdict) = self.control.verdict() {
            return Err(error_of(verdict, name));
        }
        for endpoint in endpoints {
            endpoint.check().map_err(|error| self.judge(Stop::Wire(error), name))?;
        }
        if interrupt::is_wanted() {
            return Err(self.abort(&format!("interrupted during {name}")));
        }
        Ok(())
    }

    /// Say that this rank stands still, to the root soon, to people late.
    fn report(&self, stall: &mut Stall, still: &Standstill<'_>) {
        let stood = stall.stood();
        if stood > TELL_AFTER && !stall.is_told {
            stall.is_told = self.tell(still.header, still.name);
        }
        if stood > self.report_after && !stall.is_reported {
            stall.is_reported = true;
            let place = still.place(self.world_rank(), &self.members);
            let others = self.others_and_hint(still);
            warn(&format!("{place} since {} ms{others}", stood.as_millis()));
        }
    }

    /// Tell the root which call we stand in, and which ones we made before. Messages between two
    /// ranks stand between two calls and are compared with nothing. Returns whether it was said.
    fn tell(&self, header: &Header, name: &str) -> bool {
        let last = self.history.last();
        let (sequence, signature, description) = match header.sequence_if_collective() {
            Some(_) => (last, *header.for_wire(0).bytes(), format!("#{last} {name}")),
            None => (last + 1, NO_SIGNATURE, name.to_owned()),
        };
        let past = self.history.before(sequence);
        let is_told =
            self.control.report_waiting(self.group, sequence, signature, past, &description);
        self.stands.fetch_or(is_told, Ordering::Relaxed);
        is_told
    }

    /// What was waited for is there. Costs a load, unless the root was told that we wait.
    #[inline]
    pub(crate) fn goes_on(&self) {
        if self.stands.load(Ordering::Relaxed) && self.stands.swap(false, Ordering::Relaxed) {
            self.control.report_going_on(self.group);
        }
    }

    /// A rank that left will send nothing more; give what it sent time to arrive.
    fn look_for_leavers(&self, stall: &mut Stall, still: &Standstill<'_>) -> Result<(), Error> {
        let Some(rank) = self.leaver(still) else { return Ok(()) };
        if !stall.outlasts_leaver() {
            return Ok(());
        }
        Err(self.give_up(Error::PeerLeft { rank, during: still.name.to_owned() }))
    }

    /// That a member could not join in the first place, as the root tells those who have said that
    /// they wait. All others hear it, too, so the world may go on without this group.
    fn unjoined(&self, during: &str) -> Option<Error> {
        let (_, why) = self.control.unjoined(self.group)?;
        Some(Error::join(format!("{during} waits in vain: {why}")))
    }

    /// A rank that left, and without which there is no going on.
    fn leaver(&self, still: &Standstill<'_>) -> Option<u32> {
        if !matches!(still.at, At::Anyone) {
            return still
                .peer()
                .map(|peer| self.members[peer as usize])
                .filter(|&rank| self.has_left(rank));
        }
        // Any of them would do, so all must have left.
        let me = self.world_rank();
        let mut others = self.members.iter().copied().filter(|&rank| rank != me).peekable();
        let first = others.peek().copied();
        first.filter(|_| others.all(|rank| self.has_left(rank)))
    }

    /// Whether a rank has left the world, or only this group.
    fn has_left(&self, rank: u32) -> bool {
        let rank = rank as usize;
        self.control.has_left(rank) || self.control.has_parted(rank, self.group)
    }

    fn others(&self) -> String {
        self.others_of(self.control.waiting_reports(self.group).as_deref())
    }

    /// What the root has answered of them, in words.
    fn others_of(&self, reports: Option<&[WaitingReport]>) -> String {
        let members: Vec<usize> = self.members.iter().map(|&rank| rank as usize).collect();
        format!("; {}", self.control.summary_of(self.group, &members, reports))
    }

    /// What to tell the caller when a run stopped, and what to tell the other ranks.
    pub(crate) fn judge(&self, stop: Stop, during: &str) -> Error {
        match stop {
            Stop::Mismatch { peer, ours, theirs } => {
                self.judge_mismatch(peer, &ours, &theirs, during)
            }
            Stop::Wire(TransportError::PeerGone { peer, how }) => {
                self.judge_gone(self.members[peer], how, during)
            }
            // A peer that died may show as a connection that cannot be made.
            Stop::Wire(source) => match self.control.await_verdict(PASSED_ON_WAIT) {
                Some(verdict) => error_of(verdict, during),
                None => self.give_up(Error::Transport { source, during: during.to_owned() }),
            },
        }
    }

    /// End the world because of what happened here, and word it for the caller.
    pub(crate) fn abort(&self, why: &str) -> Error {
        self.control.give_up(why);
        Error::Aborted { rank: self.world_rank(), why: why.to_owned() }
    }

    /// End the world with an error of our own. The others hear of it before our caller does.
    fn give_up(&self, error: Error) -> Error {
        self.control.give_up(&error.to_string());
        error
    }

    fn judge_mismatch(&self, peer: u32, ours: &Header, theirs: &Header, during: &str) -> Error {
        let (rank, peer_rank) = (self.world_rank(), self.members[peer as usize]);
        let Some(peer_call) = theirs.describe() else {
            let what = "the call does not begin with a header".to_owned();
            let source = TransportError::Corrupt { peer: peer as usize, what };
            return self.judge(Stop::Wire(source), during);
        };
        let (number, peer_number) =
            (ours.sequence_if_collective(), theirs.sequence_if_collective());
        let lead = ours.lead_over(theirs);
        if lead.is_some_and(|lead| lead < 0) {
            // The peer left our call behind in the belief that it had nothing to send to us. What
            // it called instead it will tell when it stands still.
            self.tell(ours, during);
            if let Some(verdict) = self.control.await_verdict(PASSED_ON_WAIT) {
                return error_of(verdict, during);
            }
        }
        let past = lead.filter(|lead| *lead > 0).and_then(|lead| self.history.back(lead as u64));
        let ours_then = past.unwrap_or(*ours);
        let (number, mut call) = match past.and_then(|past| Some((past, past.describe()?))) {
            Some((past, call)) => (past.sequence_if_collective(), call),
            None => (number, during.to_owned()),
        };
        let mut peer_call = peer_call;
        if number == peer_number && ours.describe().as_ref() == Some(&peer_call) {
            call = format!("{call}, {}", ours.describe_wire());
            peer_call = format!("{peer_call}, {}", theirs.describe_wire());
        }
        let numbered = |call: String, number: Option<u32>| {
            number.map_or(call.clone(), |number| format!("#{number} {call}"))
        };
        let (call, peer_call) = (numbered(call, number), numbered(peer_call, peer_number));
        let peer_call = ours_then.named_beside(theirs, &peer_call);
        let verdict = self.control.report_mismatch(
            (rank as usize, &call),
            (peer_rank as usize, &peer_call),
            self.group,
            u64::from(number.unwrap_or(0)),
        );
        error_of(verdict, during)
    }

    fn judge_gone(&self, rank: u32, mut how: String, during: &str) -> Error {
        if let Some(error) = self.hear_about(rank, VERDICT_WAIT, during) {
            return error;
        }
        if !self.control.hears() {
            // A process that lives and has closed this wire looks the same.
            how.push_str(": it has ended or given up, and no root is left that knows");
        }
        self.control.report_lost(rank as usize, &how);
        if let Some(error) = self.hear_about(rank, SETTLE_WAIT, during) {
            return error;
        }
        how.push_str(": it has ended or given up, and the root says nothing (is it stopped?)");
        error_of(self.control.decide(Verdict::Lost { rank: rank as usize, how }), during)
    }

    /// A broken wire may be somebody else's fault: the peer may have given up because a third rank
    /// died. Whoever heard of it first is right, so wait a moment for the verdict.
    fn hear_about(&self, rank: u32, timeout: Duration, during: &str) -> Option<Error> {
        let deadline = Instant::now() + timeout;
        let mut left = None;
        // Word of one who leaves only this group comes to those who ask.
        let mut ask_at = Instant::now() + CLOSED_GRACE / 4;
        while Instant::now() < deadline {
            if left.is_none() && Instant::now() > ask_at {
                let _partings_come_before = self.control.waiting_reports(self.group);
                ask_at = Instant::now() + CLOSED_GRACE;
            }
            if let Some(verdict) = self.control.verdict() {
                return Some(error_of(verdict, during));
            }
            // Who has heard that before us closes its wires.
            if let Some(error) = self.unjoined(during) {
                return Some(error);
            }
            if self.has_left(rank) && left.get_or_insert_with(Instant::now).elapsed() > CLOSED_GRACE
            {
                return Some(self.give_up(Error::PeerLeft { rank, during: during.to_owned() }));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }
}

/// A verdict as the error of a call.
pub(crate) fn error_of(verdict: &Verdict, during: &str) -> Error {
    let during = during.to_owned();
    match verdict {
        Verdict::Lost { rank, how } => {
            Error::PeerLost { rank: *rank as u32, how: how.clone(), during }
        }
        Verdict::Mismatch { rank_a, call_a, rank_b, call_b, .. } => Error::Mismatch {
            rank: *rank_a as u32,
            call: call_a.clone(),
            peer: *rank_b as u32,
            peer_call: call_b.clone(),
        },
        Verdict::Aborted { rank, why } => Error::Aborted { rank: *rank as u32, why: why.clone() },
        Verdict::RootLost { how } => Error::RootLost { how: how.clone(), during },
    }
}
