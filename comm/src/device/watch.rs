//! The watch over kernels that wait: nobody else has a clock, and the caller may never look.
//!
//! A thread looks at the desk now and then. A block that stands at one place for longer than the
//! deadline, or a rank that is lost, ends every kernel of the group with an error that names the
//! place.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::layout::{phase, word};
use super::sys::{Desk, Still};
use crate::Error;
use crate::communicator::Shared;
use crate::control::NO_SIGNATURE;
use crate::say::warn;
use crate::wait::error_of;

/// How often the desk is looked at.
const ROUND: Duration = Duration::from_millis(20);
/// How long a rank that ended its kernels waits to hear who is to blame.
const VERDICT_WAIT: Duration = Duration::from_millis(600);

/// What the watch and the callers share.
pub(super) struct Watched {
    pub(super) shared: Arc<Shared>,
    pub(super) desk: Desk,
    /// Calls by their signatures.
    names: Mutex<Vec<(u32, String)>>,
    /// Why kernels were ended, once they were.
    cause: Mutex<Option<Error>>,
    ends: AtomicBool,
}

/// The thread that watches, until this is dropped.
pub(super) struct Watcher {
    watched: Arc<Watched>,
    thread: Option<JoinHandle<()>>,
}

impl Watched {
    pub(super) fn new(shared: Arc<Shared>, desk: Desk) -> Arc<Self> {
        let (names, cause) = (Mutex::default(), Mutex::default());
        Arc::new(Self { shared, desk, names, cause, ends: AtomicBool::new(false) })
    }

    /// From now on errors can name the call with this signature.
    pub(super) fn learn(&self, signature: u32, name: String) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if !names.iter().any(|(known, _)| *known == signature) {
            names.push((signature, name));
        }
    }

    fn name_or(&self, signature: u32, otherwise: &str) -> String {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let name = names.iter().find(|(known, _)| *known == signature);
        name.map_or_else(|| otherwise.to_owned(), |(_, name)| name.clone())
    }

    fn world_rank(&self, member: u32) -> u32 {
        self.shared.members.get(member as usize).copied().unwrap_or(member)
    }

    /// Why nothing can be called any more; costs two loads as long as all is well.
    pub(super) fn check(&self) -> Result<(), Error> {
        if !self.desk.has_fault() && self.shared.world.control.verdict().is_none() {
            return Ok(());
        }
        Err(self.error())
    }

    /// What ended the kernels, in words, told to the other ranks as well.
    fn error(&self) -> Error {
        let mut cause = self.cause.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &*cause {
            return error.clone();
        }
        let error = self.judge();
        self.desk.abort();
        *cause = Some(error.clone());
        error
    }

    fn judge(&self) -> Error {
        let control = &self.shared.world.control;
        let fault = self.desk.fault();
        if let Some(fault) = fault.filter(|fault| fault.what == word::FAULT_MISMATCH) {
            return self.mismatch(fault.peer, fault.ours, fault.theirs);
        }
        let during = self.name_or(fault.map_or(0, |fault| fault.ours), "a call on a device");
        match control.await_verdict(VERDICT_WAIT) {
            Some(verdict) => error_of(verdict, &during),
            None => Error::Aborted {
                rank: self.world_rank(self.shared.rank),
                why: format!("{during} was ended"),
            },
        }
    }

    /// Two ranks are in different calls, told by their signatures.
    pub(super) fn mismatch(&self, peer: u32, ours: u32, theirs: u32) -> Error {
        let control = &self.shared.world.control;
        let (rank, peer) = (self.world_rank(self.shared.rank), self.world_rank(peer));
        let call = self.name_or(ours, "a call on a device");
        let peer_call = self.name_or(theirs, "another call");
        let (ours, theirs) = ((rank as usize, &*call), (peer as usize, &*peer_call));
        error_of(control.report_mismatch(ours, theirs, self.shared.group, 0), &call)
    }

    /// A block that stands still, in words.
    fn place(&self, still: &Still) -> String {
        format!("rank {}, {}", self.world_rank(self.shared.rank), self.standing(still))
    }

    /// The same, of whatever rank.
    fn standing(&self, still: &Still) -> String {
        let name = self.name_or(still.signature, "a call on a device");
        let (peer, Still { sequence, step, .. }) = (self.world_rank(still.peer), still);
        let doing = phase(still.phase);
        format!("{name}, #{sequence} of the device, step {step}: {doing} rank {peer}")
    }

    /// Tell the others where this rank stands: they may be in calls of the host. Returns whether it
    /// was said.
    fn tell(&self, still: &Still) -> bool {
        // Calls on devices have numbers of their own, so it is compared with nothing.
        let (group, standing) = (self.shared.group, self.standing(still));
        self.shared.world.control.report_waiting(group, 0, NO_SIGNATURE, Vec::new(), &standing)
    }

    /// What the others have said that they wait for.
    fn others(&self) -> String {
        let members: Vec<usize> = self.shared.members.iter().map(|&rank| rank as usize).collect();
        format!("; {}", self.shared.world.control.waiting_summary(self.shared.group, &members))
    }

    /// End all kernels because one has stood still for so long.
    fn give_up(&self, still: &Still, stood: Duration) {
        let others = self.others();
        // Meanwhile somebody who came to the same end may have said so: that is what ends it then.
        if let Some(verdict) = self.shared.world.control.verdict() {
            self.end(error_of(verdict, &self.place(still)));
            return;
        }
        let waited_ms = stood.as_millis() as u64;
        self.end(Error::Timeout { place: self.place(still), waited_ms, others });
    }

    /// End everything with an error of this rank's own, and tell the others; or with what ended it
    /// before.
    pub(super) fn end(&self, error: Error) -> Error {
        let mut cause = self.cause.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = cause.is_none();
        let error = cause.get_or_insert(error).clone();
        drop(cause);
        self.desk.abort();
        if is_first {
            self.shared.world.control.give_up(&error.to_string());
        }
        error
    }
}

impl Watcher {
    pub(super) fn start(watched: &Arc<Watched>) -> std::io::Result<Self> {
        let ours = Arc::clone(watched);
        let thread = std::thread::Builder::new()
            .name(String::from("brigade-device"))
            .spawn(move || watch(&ours))?;
        Ok(Self { watched: Arc::clone(watched), thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.watched.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It panics nowhere, and if it did there would be nobody to tell.
            let _ended = thread.join();
        }
    }
}

fn watch(watched: &Watched) {
    let settings = Arc::clone(&watched.shared.settings);
    let mut standing: Option<(Still, Instant)> = None;
    let (mut told, mut reported) = (false, false);
    while !watched.ends.load(Ordering::Acquire) {
        std::thread::park_timeout(ROUND);
        if watched.shared.world.control.verdict().is_some() {
            watched.desk.abort();
            continue;
        }
        let still = watched.desk.still();
        match (still, &standing) {
            (Some(still), Some((known, since))) if still.is_same_wait(known) => {
                let stood = since.elapsed();
                if stood > settings.timeout {
                    watched.give_up(&still, stood);
                } else if stood > settings.report_after && !reported {
                    reported = true;
                    let (place, others) = (watched.place(&still), watched.others());
                    warn(&format!("{place} since {} ms{others}", stood.as_millis()));
                } else if stood > settings.report_after / 2 && !told {
                    told = watched.tell(&still);
                }
            }
            (still, _) => {
                if told {
                    watched.shared.world.control.report_going_on(watched.shared.group);
                }
                standing = still.map(|still| (still, Instant::now()));
                (told, reported) = (false, false);
            }
        }
    }
}
