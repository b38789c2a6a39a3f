//! Windows: memory of a rank that the others write and read while it does something else.
//!
//! The memory is the transport's (shared by processes, or known to devices), so bytes are copied
//! into it and out of it. What was put is settled for the owner once it has seen the signal that
//! the writer gave afterwards.

mod meeting;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use brigade_transports::{Bells, Endpoint, RemoteWindow, TransportError, WindowMemory};

use crate::header::Header;
use crate::run::Stop;
use crate::wait::{Standstill, Watch};
use crate::waiting::Waiting;
use crate::{Communicator, Error};

/// The longest sleep of one who waits for a signal: a lost peer is noticed this much later.
const NAP: Duration = Duration::from_millis(20);
/// That of one who waits while another thread sleeps at the bells.
const SHORT_NAP: Duration = Duration::from_micros(500);

/// A window of every rank of a group, as one rank sees them. Offsets and lengths are bytes.
///
/// Any thread may use it at any time. It outlives the communicator it was made of. Drop it when no
/// rank uses this one's memory any more: after a barrier, say.
pub struct Window {
    /// In front of the endpoints, which must outlive them. None for this rank itself.
    remotes: Vec<Option<Mutex<Box<dyn RemoteWindow>>>>,
    memory: Mutex<Box<dyn WindowMemory>>,
    ends: Mutex<Ends>,
    watch: Watch,
    local_ranks: usize,
    /// How large each rank's is.
    sizes: Vec<WindowSize>,
    /// What this rank added to its own counters.
    own_signals: Vec<AtomicU64>,
}

/// How much a rank exposes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowSize {
    /// Bytes of memory, zeros at first.
    pub bytes: usize,
    /// Counters, zero at first.
    pub signals: usize,
}

/// The transports' share of a window, and where to sleep.
struct Ends {
    endpoints: Vec<Box<dyn Endpoint>>,
    bells: Bells,
}

impl Communicator {
    /// Expose memory to the other ranks, and get hold of theirs. Collective: every rank calls it,
    /// each with a size of its own, which may be nothing.
    ///
    /// Cost: joining, two small all-gathers, and the memory.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] on every rank if one of them cannot: over TCP and network plugins there
    /// are no windows, nor over several transports at once. Otherwise those of a call.
    pub fn window(&self, size: WindowSize) -> Result<Window, Error> {
        meeting::meet(self, size)
    }
}

impl Window {
    /// This rank's number in the group.
    pub fn rank(&self) -> usize {
        self.watch.me as usize
    }

    /// How large the window of `rank` is.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a rank that does not exist.
    pub fn size_of(&self, rank: usize) -> Result<WindowSize, Error> {
        let ranks = self.sizes.len();
        let size = self.sizes.get(rank).copied();
        size.ok_or_else(|| Error::invalid(format!("a window: rank {rank} of {ranks} ranks")))
    }

    /// Write `data` into the window of `rank` (which may be this one) from byte `offset` on.
    /// Returns when `data` may be reused, which may be before it has arrived. Two ranks that write
    /// to one place without agreeing on an order leave there some of each.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a place outside of the window; what has ended the world.
    pub fn put(&self, rank: usize, offset: usize, data: &[u8]) -> Result<(), Error> {
        self.check_place("put", rank, offset, data.len())?;
        match &self.remotes[rank] {
            None => lock(&self.memory).write(offset, data),
            Some(remote) => {
                let outcome = lock(remote).put(offset, data);
                outcome.map_err(|error| self.judge("put", error))?;
            }
        }
        Ok(())
    }

    /// Read the window of `rank` (which may be this one) from byte `offset` on, after what this
    /// rank has put there.
    ///
    /// # Errors
    ///
    /// As for [`Window::put`].
    pub fn get(&self, rank: usize, offset: usize, target: &mut [u8]) -> Result<(), Error> {
        self.check_place("get", rank, offset, target.len())?;
        match &self.remotes[rank] {
            None => lock(&self.memory).read(offset, target),
            Some(remote) => {
                let outcome = lock(remote).get(offset, target);
                outcome.map_err(|error| self.judge("get", error))?;
            }
        }
        Ok(())
    }

    /// Add to a counter of `rank` (which may be this one). Whoever sees the sum there sees all that
    /// this rank put into that window before.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a counter that does not exist; what has ended the world.
    pub fn signal(&self, rank: usize, signal: usize, add: u64) -> Result<(), Error> {
        self.check_signal(rank, signal)?;
        match &self.remotes[rank] {
            None => {
                self.own_signals[signal].fetch_add(add, Ordering::Release);
            }
            Some(remote) => {
                let outcome = lock(remote).signal(signal, add);
                outcome.map_err(|error| self.judge("signal", error))?;
            }
        }
        Ok(())
    }

    /// What a counter of this rank has come to.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a counter that does not exist.
    pub fn signalled(&self, signal: usize) -> Result<u64, Error> {
        self.check_signal(self.rank(), signal)?;
        Ok(self.sum(signal))
    }

    /// Wait until a counter of this rank is `at_least` so much, and return what it is then.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a counter that does not exist; [`Error::Timeout`], which ends the
    /// world, if nothing comes for as long as calls may stand still; what has ended the world.
    pub fn wait(&self, signal: usize, at_least: u64) -> Result<u64, Error> {
        let came = self.wait_until(signal, at_least, None)?;
        Ok(came.expect("it waits until then"))
    }

    /// Like [`Window::wait`], but no longer than `timeout`: then `None`, and nothing has ended.
    ///
    /// # Errors
    ///
    /// As for [`Window::wait`].
    pub fn wait_for(
        &self,
        signal: usize,
        at_least: u64,
        timeout: Duration,
    ) -> Result<Option<u64>, Error> {
        self.wait_until(signal, at_least, Some(timeout))
    }

    fn wait_until(
        &self,
        signal: usize,
        at_least: u64,
        timeout: Option<Duration>,
    ) -> Result<Option<u64>, Error> {
        self.check_signal(self.rank(), signal)?;
        let come = || Some(self.sum(signal)).filter(|&sum| sum >= at_least);
        let mut waiting = Waiting::among(self.local_ranks);
        let began = Instant::now();
        loop {
            if let Some(sum) = come() {
                return Ok(Some(sum));
            }
            let left = timeout.map_or(NAP, |timeout| timeout.saturating_sub(began.elapsed()));
            if left.is_zero() {
                return Ok(None);
            }
            if waiting.is_brief() {
                continue;
            }
            let mut ends = match self.ends.try_lock() {
                Ok(ends) => ends,
                Err(TryLockError::Poisoned(ends)) => ends.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    // Another thread sleeps there, and looks around for all.
                    self.watch.stopped().map_or(Ok(()), Err)?;
                    std::thread::sleep(left.min(SHORT_NAP));
                    continue;
                }
            };
            let Ends { endpoints, bells } = &mut *ends;
            bells.arm(endpoints);
            if come().is_some() {
                bells.disarm(endpoints);
                continue;
            }
            // A bell that fails is one that does not ring: we look again after the nap.
            let _ = bells.wait(endpoints, left.min(NAP));
            if come().is_none() {
                let name = format!("signal {signal} of a window, for {at_least}");
                let header = &Header::of_message(self.watch.group);
                let still = Standstill { at: None, name: &name, header };
                self.watch.look_around(&mut waiting, endpoints, &still)?;
            }
        }
    }

    fn sum(&self, signal: usize) -> u64 {
        let others = lock(&self.memory).signal(signal);
        others.wrapping_add(self.own_signals[signal].load(Ordering::Acquire))
    }

    fn check_place(
        &self,
        what: &str,
        rank: usize,
        offset: usize,
        length: usize,
    ) -> Result<(), Error> {
        let bytes = self.size_of(rank)?.bytes;
        if offset > bytes || length > bytes - offset {
            return Err(Error::invalid(format!(
                "{what}: {length} bytes at {offset} are not within the {bytes} bytes of rank \
                 {rank}'s window"
            )));
        }
        self.watch.stopped().map_or(Ok(()), Err)
    }

    fn check_signal(&self, rank: usize, signal: usize) -> Result<(), Error> {
        let signals = self.size_of(rank)?.signals;
        if signal >= signals {
            return Err(Error::invalid(format!(
                "signal {signal} of the {signals} of rank {rank}'s window"
            )));
        }
        self.watch.stopped().map_or(Ok(()), Err)
    }

    fn judge(&self, what: &str, error: TransportError) -> Error {
        self.watch.judge(Stop::Wire(error), &format!("{what} on a window"))
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // Before the endpoints close, which others might take for something worse.
        self.watch.control.leave_group(self.watch.group);
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
