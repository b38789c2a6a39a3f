//! Windows: memory of a rank that the others write and read while it does something else.
//!
//! The memory is the transport's where it has such a thing (shared by processes, or known to
//! devices), so bytes are copied into it and out of it. Ranks that cannot reach it by themselves
//! (over TCP, network plugins, or another transport than the one that has the memory) ask by
//! messages, which a thread of the owner carries out; `ways` says who asks how. What was put is
//! settled for the owner once it has seen the signal that the writer gave afterwards.
//!
//! * `meeting`, `ways`: how the windows of a group come to know each other
//! * `request`: messages, read as hostile; `asker`, `clerk`: those who send and carry them out
//! * `size`: how much of it a rank exposes; `ends`: the transports' share of it, and where to sleep
//! * `held`: the own window, and how its users hear of the thread that serves it

mod asker;
mod clerk;
mod ends;
mod held;
mod meeting;
mod request;
mod size;
#[cfg(test)]
mod tests;
mod ways;

use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use brigade_transports::{Endpoint, TransportError};

use crate::Error;
use crate::eagerness::Eagerness;
use crate::header::Header;
use crate::locked::locked;
use crate::maker::Maker;
use crate::numbers::beyond;
use crate::run::Stop;
use crate::wait::{At, Stall, Standstill, Watch};
use ends::{Ends, NAP, SHORT_NAP};
use held::Held;
pub use size::WindowSize;
use ways::{Rest, Way};

/// A window of every rank of a group, as one rank sees them. Offsets and lengths are bytes.
///
/// Any thread may use it at any time. It outlives the communicator it was made of. Drop it when no
/// rank uses this one's memory any more: after a barrier, say.
pub struct Window {
    /// In front of what serves and sleeps, whose endpoints must outlive wires and memory.
    ways: Vec<Way>,
    held: Arc<Held>,
    rest: Arc<Rest>,
    /// What ended the window first, which is what every later call returns.
    ended: OnceLock<Error>,
    /// How a wait begins.
    waiting: Eagerness,
    /// How large each rank's is.
    sizes: Vec<WindowSize>,
    maker: Maker,
}

impl Window {
    /// This rank's number in the group.
    pub fn rank(&self) -> usize {
        self.held.watch.me as usize
    }

    /// How many ranks have one.
    pub fn size(&self) -> usize {
        self.sizes.len()
    }

    /// How large the window of `rank` is.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a rank that does not exist.
    pub fn size_of(&self, rank: usize) -> Result<WindowSize, Error> {
        let size = self.sizes.get(rank).copied();
        let beyond = || Error::invalid(format!("a window: rank {}", beyond(rank, self.size())));
        size.ok_or_else(beyond)
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
        match &self.ways[rank] {
            Way::Own => self.held.write(offset, data),
            Way::Direct(remote) => {
                let outcome = locked(remote).put(offset, data);
                outcome.map_err(|error| self.judge("put", error))?;
            }
            Way::Messages(asker) => {
                let outcome = locked(asker).put(&self.held, offset, data);
                outcome.map_err(|error| self.end(error))?;
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
        match &self.ways[rank] {
            Way::Own => self.held.read(offset, target),
            Way::Direct(remote) => {
                let outcome = locked(remote).get(offset, target);
                outcome.map_err(|error| self.judge("get", error))?;
            }
            Way::Messages(asker) => {
                let outcome = locked(asker).get(&self.held, offset, target);
                outcome.map_err(|error| self.end(error))?;
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
        match &self.ways[rank] {
            Way::Own => self.held.add(signal, add),
            Way::Direct(remote) => {
                let outcome = locked(remote).signal(signal, add);
                outcome.map_err(|error| self.judge("signal", error))?;
            }
            Way::Messages(asker) => {
                let outcome = locked(asker).signal(&self.held, signal, add);
                outcome.map_err(|error| self.end(error))?;
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
        Ok(self.held.sum(signal))
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
        let mut sum = self.held.sum(signal);
        if sum >= at_least {
            return Ok(Some(sum));
        }
        let come = || Some(self.held.sum(signal)).filter(|&sum| sum >= at_least);
        let mut waiting = self.waiting.clone();
        let (began, mut served) = (Instant::now(), self.held.served());
        loop {
            let before = (sum, served);
            (sum, served) = (self.held.sum(signal), self.held.served());
            if sum >= at_least {
                self.held.watch.goes_on();
                return Ok(Some(sum));
            }
            if sum != before.0 {
                // What is still to come may take as long again.
                waiting.moved();
            }
            if served != before.1 {
                // What ranks sent before they left is still on its way.
                waiting.stall.iter_mut().for_each(Stall::forget_leaver);
            }
            let left = timeout.map_or(NAP, |timeout| timeout.saturating_sub(began.elapsed()));
            if left.is_zero() {
                self.held.watch.goes_on();
                return Ok(None);
            }
            if waiting.is_brief() {
                continue;
            }
            let name = || format!("signal {signal} of a window, for {at_least}");
            match &*self.rest {
                Rest::Bells(ends) => {
                    self.sleep_at_bells(ends, left, &come, (waiting.stall.as_mut(), &name))?;
                }
                Rest::Clerk { .. } => {
                    self.sleep_till_looked(left, &come);
                    if come().is_none() {
                        self.look_around(waiting.stall.as_mut(), &mut [], &name())?;
                    }
                }
            }
        }
    }

    /// Sleep until the serving thread has looked around, or this rank has signalled itself.
    fn sleep_till_looked(&self, left: Duration, come: &dyn Fn() -> Option<u64>) {
        let looks = self.held.looks.count();
        if come().is_none() {
            self.held.looks.wait(looks, left.min(NAP));
        }
    }

    /// Sleep until a peer may have signalled, where each reaches the counters by itself.
    fn sleep_at_bells(
        &self,
        ends: &Mutex<Ends>,
        left: Duration,
        come: &dyn Fn() -> Option<u64>,
        (stall, name): (Option<&mut Stall>, &dyn Fn() -> String),
    ) -> Result<(), Error> {
        let mut ends = match ends.try_lock() {
            Ok(ends) => ends,
            Err(TryLockError::Poisoned(ends)) => ends.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // Another thread sleeps there, and looks at the endpoints for all. It may do so
                // for longer than we care to stand still.
                std::thread::sleep(left.min(SHORT_NAP));
                if come().is_some() {
                    return Ok(());
                }
                return self.look_around(stall, &mut [], &name());
            }
        };
        let Ends { endpoints, bells } = &mut *ends;
        bells.arm(endpoints);
        if come().is_some() {
            bells.disarm(endpoints);
            return Ok(());
        }
        if endpoints.is_empty() {
            self.sleep_till_looked(left, come);
        } else {
            // A bell that fails is one that does not ring: we look again after the nap.
            self.held.sleep_at_bells(|nap| drop(bells.wait(endpoints, left.min(nap))));
        }
        if come().is_none() {
            self.look_around(stall, endpoints, &name())?;
        }
        Ok(())
    }

    fn look_around(
        &self,
        stall: Option<&mut Stall>,
        endpoints: &mut [Box<dyn Endpoint>],
        name: &str,
    ) -> Result<(), Error> {
        let watch = &self.held.watch;
        let header = &Header::of_message(watch.group);
        let seen =
            watch.look_around(stall, endpoints, &Standstill { at: At::Anyone, name, header });
        seen.map_err(|error| self.end(error))
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
        self.check_goes_on()
    }

    fn check_signal(&self, rank: usize, signal: usize) -> Result<(), Error> {
        let signals = self.size_of(rank)?.signals;
        if signal >= signals {
            return Err(Error::invalid(format!(
                "signal {signal} of the {signals} of rank {rank}'s window"
            )));
        }
        self.check_goes_on()
    }

    fn judge(&self, what: &str, error: TransportError) -> Error {
        self.end(self.held.watch.judge(Stop::Wire(error), &format!("{what} on a window")))
    }

    /// Why no further call can be made, if that is known. Costs two loads.
    fn check_goes_on(&self) -> Result<(), Error> {
        match self.ended.get() {
            Some(error) => Err(error.clone()),
            None => self.held.watch.stopped().map_or(Ok(()), |error| Err(self.end(error))),
        }
    }

    /// What has ended the window: this, or what did before.
    #[cold]
    fn end(&self, error: Error) -> Error {
        self.ended.get_or_init(|| error).clone()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if self.maker.is_parent() {
            // All of it stays, down to the thread that this process has not.
            std::mem::forget(std::mem::take(&mut self.ways));
            return std::mem::forget((Arc::clone(&self.held), Arc::clone(&self.rest)));
        }
        // Before the endpoints close, which others might take for something worse.
        let Watch { control, group, members, .. } = &self.held.watch;
        control.leave_group(*group, members.len());
    }
}
