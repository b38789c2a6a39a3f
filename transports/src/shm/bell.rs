//! Sleeping and waking: one word per member and group.
//!
//! A full barrier between moving a ring and looking at the word would cost the mover the whole
//! transfer of the line it has just written. So where every member's system has `membarrier`, the
//! sleeper, who has time, issues it for everybody, and the mover looks at once.
//!
//! A word cannot be slept at together with sockets. A member that must do so opens a *door*: a
//! socket of its own with a name that no folder shows, and says in the word that it sleeps there.
//! Whoever rings then sends one byte to the door. That costs the ringer 3 µs more and the sleeper
//! 5, so only members that sleep at several bells do it. Anybody on this host may send to a door;
//! it wakes the sleeper, who finds nothing and sleeps again.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

use super::probe::Card;
use super::region::{Line, Shared};
use super::{order, sys};
use crate::{Doorbell, TransportError, opened};

/// More knocks than a door holds, unless its system was told to let it hold many.
const KNOCKS_MAX: usize = 1024;

/// Whose barrier stands between a moved ring and the look at a bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Barrier {
    /// The sleeper's, which reaches into all threads of all members.
    Sleeper,
    /// Each side's own.
    Both,
}

/// The name of a door.
#[derive(Clone)]
pub(super) struct Door(Arc<str>);

impl Door {
    /// Of the port with this card, in the group with this key.
    pub(super) fn of(card: &Card, key: u64) -> Self {
        Self(card.bell_name(key).into())
    }

    fn address(&self) -> Option<SockAddr> {
        SockAddr::unix(&*self.0).ok()
    }

    fn open(&self) -> Option<Socket> {
        let socket = opened(|| Socket::new(Domain::UNIX, Type::DGRAM, None)).ok()?;
        socket.set_nonblocking(true).ok()?;
        socket.bind(&self.address()?).ok()?;
        Some(socket)
    }
}

/// The owner's end of a bell.
pub(super) struct Bell {
    word: Shared<Line<AtomicU32>>,
    barrier: Barrier,
    door: Door,
    /// The door, once it is open.
    open: Option<Socket>,
}

impl Bell {
    pub(super) fn new(word: Shared<Line<AtomicU32>>, barrier: Barrier, door: Door) -> Self {
        Self { word, barrier, door, open: None }
    }

    /// Forget who has knocked.
    fn empty_door(&self) {
        if let Some(socket) = &self.open {
            let _knocks = forget(|| socket.recv(&mut [MaybeUninit::uninit()]).is_ok());
        }
    }
}

/// Take knocks until there is none, or so many that somebody knocks without end: anybody may, and
/// whoever is kept at the door misses its deadline.
fn forget(mut takes_one: impl FnMut() -> bool) -> usize {
    (0..KNOCKS_MAX).take_while(|_| takes_one()).count()
}

impl Doorbell for Bell {
    fn arm(&mut self) {
        // Whoever saw the word armed before may knock late. Those knocks must not fill the door,
        // and those that still come wake for nothing.
        self.empty_door();
        let armed = if self.open.is_some() { order::ARMED_AT_SOCKET } else { order::ARMED };
        order::arm(&self.word.0, armed, || match self.barrier {
            // Registered when the port was opened, so this works; were it ever to fail, the
            // timeout of `wait` bounds what a missed ring costs.
            Barrier::Sleeper => drop(sys::memory_barrier()),
            Barrier::Both => fence(Ordering::SeqCst),
        });
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), TransportError> {
        let end = Instant::now() + timeout;
        while order::may_sleep(&self.word.0) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let slept = match &self.open {
                Some(socket) => {
                    let heard = sys::first_readable(&[socket.as_fd()], left);
                    self.empty_door();
                    heard.map(drop)
                }
                None => sys::futex_wait(&self.word.0, order::ARMED, left),
            };
            slept.map_err(|e| TransportError::from_io("futex", &e, "sleeping at a doorbell"))?;
        }
        order::disarm(&self.word.0);
        Ok(())
    }

    fn disarm(&mut self) {
        order::disarm(&self.word.0);
    }

    fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        if self.open.is_none() {
            self.open = self.door.open();
        }
        self.open.as_ref().map(AsFd::as_fd)
    }
}

/// What one member knocks with at the doors of all others, made when it is first needed.
#[derive(Default)]
pub(super) struct Knocker(OnceLock<Socket>);

impl Knocker {
    fn knock(&self, door: &Door) {
        let make = || {
            let socket = opened(|| Socket::new(Domain::UNIX, Type::DGRAM, None)).ok()?;
            socket.set_nonblocking(true).ok().map(|()| socket)
        };
        if let (Some(socket), Some(address)) = (self.socket(make), door.address()) {
            // A door that is full of knocks has been heard, and one that has gone needs none.
            // Without a socket to send from the sleeper sleeps until its timeout.
            let _sent = socket.send_to(&[1], &address);
        }
    }

    /// What to knock with. Where none could be made, as when a process has as many files open as it
    /// may, the next knock tries again.
    fn socket(&self, make: impl FnOnce() -> Option<Socket>) -> Option<&Socket> {
        if self.0.get().is_none() {
            // Two threads may make one each; the first one's is kept.
            let _kept = self.0.set(make()?);
        }
        self.0.get()
    }
}

/// A peer's end of a bell.
#[derive(Clone)]
pub(super) struct Ringer {
    word: Shared<Line<AtomicU32>>,
    barrier: Barrier,
    door: Door,
    knocker: Arc<Knocker>,
}

impl Ringer {
    pub(super) fn new(
        word: Shared<Line<AtomicU32>>,
        barrier: Barrier,
        door: Door,
        knocker: Arc<Knocker>,
    ) -> Self {
        Self { word, barrier, door, knocker }
    }

    /// Wake the bell's owner if it sleeps. Called after something was moved.
    #[inline]
    pub(super) fn ring(&self) {
        let wake = order::must_wake(&self.word.0, || match self.barrier {
            Barrier::Sleeper => compiler_fence(Ordering::SeqCst),
            Barrier::Both => fence(Ordering::SeqCst),
        });
        if wake != order::QUIET {
            self.wake(wake);
        }
    }

    #[cold]
    fn wake(&self, armed: u32) {
        if armed == order::ARMED_AT_SOCKET {
            return self.knocker.knock(&self.door);
        }
        // The word is mapped and aligned, so the call cannot fail; a sleeper has a timeout anyway.
        let woken = sys::futex_wake(&self.word.0);
        debug_assert!(woken.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_had_nothing_to_knock_with_once_tries_again() {
        let knocker = Knocker::default();
        let make = || Socket::new(Domain::UNIX, Type::DGRAM, None).ok();
        assert!(knocker.socket(|| None).is_none());
        assert!(knocker.socket(make).is_some());
        assert!(knocker.socket(|| panic!("there is one")).is_some());
    }

    #[test]
    fn who_knocks_without_end_does_not_keep_the_owner_at_the_door() {
        let mut knocks = 3;
        let mut some = || {
            knocks -= 1;
            knocks >= 0
        };
        assert_eq!((forget(&mut some), knocks), (3, -1));
        let mut taken = 0;
        forget(|| {
            taken += 1;
            taken < 10 * KNOCKS_MAX
        });
        assert_eq!(taken, KNOCKS_MAX);
    }
}
