//! How a group ends: nobody frees what another process still has open.
//!
//! NVIDIA leaves undefined what comes of memory that is freed while another process has it open. So
//! each rank, once its own kernels are done, closes what it has opened of others' and tells the
//! root so, from whom all hear it: not by a call, since ranks that are not there any more, or drop
//! their groups in another order, must not keep the others. The last rank of a process then waits
//! for those of other processes; what some of them may still have open is kept.

use std::mem::{forget, take};
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use brigade_cuda::{CudaError, Stream};

use super::looks::NAP;
use super::setup::parties;
use super::way::Way;
use super::{DeviceGroup, Inner, State};
use crate::Error;
use crate::say::warn;
use crate::wait::error_of;

/// How long kernels may take to end that were told to.
const MERCY: Duration = Duration::from_secs(2);
/// How long one who drops a group waits for those of other processes.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it looks.
const ROUND: Duration = Duration::from_millis(1);
/// What is done here, for errors.
const CLOSING: &str = "closing a group on devices";
/// Why something may be left of a group's calls.
const RUNS: &str = "its calls do not end";
const CAPTURED: &str = "a capture on the device is in the way of waiting for its calls, some of \
                        which may lie in graphs";

impl DeviceGroup {
    /// End the group: wait for the calls that were enqueued, close what was opened of other
    /// processes' memory, and wait until they have done likewise, no longer than a call may take.
    /// All ranks call it; nothing can be called afterwards, and what lies in graphs must not be
    /// launched. Ranks of one process do not wait for each other, so that one thread can close the
    /// groups of several ranks, one after the other: the last one waits. When it has returned
    /// without an error, no other process uses memory of this one. They hear of each other through
    /// rank 0 of the world, also where it is in no group of theirs: its process stays behind them,
    /// for up to ten seconds.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`], with the ranks that have not closed theirs, and what ended the group. It
    /// is closed nevertheless, and what others may have open is kept until the process ends.
    pub fn close(&self) -> Result<(), Error> {
        self.inner.end(self.inner.watched.shared.settings.timeout, true)
    }
}

impl Drop for DeviceGroup {
    fn drop(&mut self) {
        // Whoever unwinds waits for nobody, and who wants to hear how it ends closes the group.
        let patience = if std::thread::panicking() { Duration::ZERO } else { PATIENCE };
        let _ = self.inner.end(patience, false);
        drop(self.watcher.take());
        if self.inner.state().is_running {
            self.inner.keep_all();
        }
    }
}

impl Inner {
    /// `is_asked`: whether somebody wants to know that buffers of calls are open nowhere, too. Who
    /// said that they may stay open may free them when the group is dropped.
    fn end(&self, patience: Duration, is_asked: bool) -> Result<(), Error> {
        let is_asked = is_asked || self.keeps.load(Ordering::Relaxed);
        let mut state = self.state();
        if std::mem::replace(&mut state.is_closed, true) {
            return Ok(());
        }
        let (streams, is_unmarked) = (take(&mut state.streams), state.is_unmarked);
        drop(state);
        let inside = self.nodes.as_ref().map(|nodes| nodes.inside.inner.end(patience, is_asked));
        let alone = self.end_alone((&streams, is_unmarked), patience, is_asked);
        inside.unwrap_or(Ok(())).and(alone)
    }

    /// The same once no call is begun any more, but for the group inside of a node.
    fn end_alone(
        &self,
        (streams, is_unmarked): (&[Stream], bool),
        patience: Duration,
        is_asked: bool,
    ) -> Result<(), Error> {
        let begun = Instant::now();
        let rest = self.rest(streams, is_unmarked);
        let is_still = rest.is_ok();
        let late = |missing: &[u32]| self.late(begun, rest.err().unwrap_or(RUNS), missing);
        self.state().is_running = !is_still;
        let (own, number) = (&self.cards[self.group.rank as usize], self.cards[0].number);
        if self.cards.iter().all(|card| card.process == own.process) {
            return if is_still { self.watched.check() } else { Err(late(&[])) };
        }
        let mut state = self.state();
        if is_still {
            self.inboxes.let_go();
            state.imports.close();
            // In front of leaving, or the last one here would wait for one who has not said it.
            self.watched.shared.world.control.part((number, self.cards.len()), CLOSING);
        } else {
            self.inboxes.hold_on();
            state.imports.hold_on();
        }
        drop(state);
        let Some(lent) = parties::leave(number, self.group.rank) else {
            self.watched.shared.world.control.let_go(number);
            return if is_still { self.watched.check() } else { Err(late(&[])) };
        };
        let missing = match self.way {
            Way::Linked | Way::Met if is_still && (is_asked || !lent.is_empty()) => {
                self.await_others(number, begun.checked_add(patience))
            }
            _ => Vec::new(),
        };
        self.watched.shared.world.control.let_go(number);
        if is_still && missing.is_empty() {
            return self.watched.check();
        }
        if !lent.is_empty() {
            self.keep(lent.iter().map(|memory| memory.bytes()).sum(), &missing);
            forget(lent);
        }
        match self.watched.shared.world.control.verdict() {
            Some(verdict) => Err(error_of(verdict, CLOSING)),
            None => Err(late(&missing)),
        }
    }

    /// Wait for what was enqueued, no longer than a call may take. Errors: why something of it may
    /// be left.
    fn rest(&self, streams: &[Stream], is_unmarked: bool) -> Result<(), &'static str> {
        let desk = &self.watched.desk;
        if self.watched.check().is_err() {
            desk.abort();
        }
        // On a device that has failed, or is gone, nothing is left. What else may go wrong there is
        // told to whoever asks it next.
        let or_gone = |answer: Result<bool, CudaError>| {
            answer.unwrap_or_else(|error| !error.is_for_capture())
        };
        let is_empty = || {
            let mut streams = streams.iter();
            or_gone(self.last.is_done()) && streams.all(|stream| or_gone(stream.is_done()))
        };
        let end = |patience: Duration| {
            let begun = Instant::now();
            while !is_empty() {
                if begun.elapsed() >= patience {
                    return Err(RUNS);
                }
                std::thread::sleep(NAP);
            }
            let left = patience.saturating_sub(begun.elapsed());
            if is_unmarked { self.be_idle(left.max(ROUND)) } else { Ok(()) }
        };
        let is_captured = |stream: &Stream| stream.is_done().is_err_and(|it| it.is_for_capture());
        if streams.iter().any(is_captured) {
            return Err(CAPTURED);
        }
        match end(self.watched.shared.settings.timeout.max(MERCY)) {
            Err(why) if why == RUNS => {
                // Whatever still waits shall not wait for a desk that is gone.
                desk.abort();
                end(MERCY)
            }
            done => done,
        }
    }

    /// Wait for all that this process has on the device, since nothing less tells of graphs: no
    /// longer than this, for which a thread does it that may stay behind. A capture on the device
    /// is in the way, and then nothing was waited for.
    fn be_idle(&self, patience: Duration) -> Result<(), &'static str> {
        let context = self.context.clone();
        let (sender, end) = channel();
        let wait = move || drop(sender.send(context.synchronize()));
        let thread = std::thread::Builder::new().name(String::from("brigade-idle")).spawn(wait);
        let waited = thread.ok().and_then(|_| end.recv_timeout(patience).ok());
        match waited {
            None => Err(RUNS),
            Some(Err(error)) if error.is_for_capture() => Err(CAPTURED),
            Some(_) => Ok(()),
        }
    }

    /// Keep for good what a kernel may look at or write to that has not ended.
    fn keep_all(&self) {
        self.watched.desk.keep();
        self.inboxes.hold_on();
        let mut state = self.state();
        state.imports.hold_on();
        let State { kernels, plans, staging, scratch, .. } = &mut *state;
        forget((take(kernels), take(plans), take(staging), take(scratch)));
        forget((Arc::clone(&self.board), self._boards.clone()));
    }

    /// Wait for ranks of other processes to say that they have closed what they had opened, however
    /// long that takes if there is no deadline; those who have not.
    fn await_others(&self, number: u64, deadline: Option<Instant>) -> Vec<u32> {
        let control = &self.watched.shared.world.control;
        let own = &self.cards[self.group.rank as usize];
        let others = self.cards.iter().zip(&*self.watched.shared.members);
        let others = others.filter(|(card, _)| card.process != own.process);
        let others: Vec<u32> = others.map(|(_, rank)| *rank).collect();
        // What was said before comes in front of the answer.
        let _reports = control.waiting_reports(number);
        let is_late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        loop {
            let is_over = control.verdict().is_some() || !control.hears();
            // Who has left the world has closed its groups before.
            let has_closed =
                |rank: usize| control.has_parted(rank, number) || control.has_left(rank);
            let missing = others.iter().copied().filter(|rank| !has_closed(*rank as usize));
            let missing: Vec<u32> = missing.collect();
            if missing.is_empty() || is_over || is_late() {
                control.forget(number);
                return missing;
            }
            std::thread::sleep(ROUND);
        }
    }

    /// Why it could not be waited any longer.
    fn late(&self, begun: Instant, rest: &str, missing: &[u32]) -> Error {
        let rank = self.watched.shared.members[self.group.rank as usize];
        let hears = self.watched.shared.world.control.hears();
        let why = match missing {
            [] => rest.into(),
            missing if hears => format!("{} did not close it", ranks(missing)),
            missing => format!(
                "{} cannot be heard, for rank 0 has left (a barrier of all ranks behind closing \
                 lets it leave last),",
                ranks(missing)
            ),
        };
        let place = format!("rank {rank}, {CLOSING}: {why}");
        let waited_ms = begun.elapsed().as_millis() as u64;
        Error::Timeout { place, waited_ms, others: String::new() }
    }

    /// Say that memory is kept, the first time.
    fn keep(&self, bytes: usize, missing: &[u32]) {
        static SAID: Once = Once::new();
        let device = self.context.device().ordinal;
        let who = match missing {
            [] => String::from("a kernel here has not ended"),
            missing => format!("{} may have it open", ranks(missing)),
        };
        SAID.call_once(|| {
            warn(&format!(
                "{bytes} bytes of device {device} are kept until this process ends: {who}. Close \
                 groups on devices on all ranks (DeviceGroup::close, brigade_device_group_close, \
                 ncclCommFinalize)"
            ));
        });
    }
}

/// Some ranks in words.
fn ranks(ranks: &[u32]) -> String {
    let all: Vec<String> = ranks.iter().map(u32::to_string).collect();
    format!("rank {}", all.join(", rank "))
}
