//! All ranks in one process, in memory: the reference transport and the test bed.
//!
//! A [`World`] is the only state; its ports find each other through it, never through a network, a
//! file or the environment. With [`Clock::Virtual`] nothing sleeps: what is pushed arrives after a
//! seeded delay in virtual time, [`World::advance`] moves that time to the next arrival, and one
//! seed driven by one thread reproduces one run exactly. With [`Clock::Real`] the ranks are threads
//! and the wires are as fast as safe code makes them.
//!
//! What this transport does not know: other processes, and what the bytes mean. It is strict where
//! others need not be: a caller that breaks the contract meets an assertion here.
//!
//! | room | what it holds |
//! |---|---|
//! | `world` | the world, its settings, who is cut off when |
//! | `timeline` | real and virtual time, and what is still to happen |
//! | `port` | cards, ports, and finding the others of a group |
//! | `endpoint` | one member's share of a group |
//! | `wire` | the bytes on their way from one member to another |
//! | `sender`, `receiver` | the two ends of a wire |
//! | `bell` | sleeping |
//! | `window` | memory that other members write |

mod bell;
mod endpoint;
mod port;
mod receiver;
mod sender;
mod timeline;
mod window;
mod wire;
mod world;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Caps, Port, Transport, TransportError, Unavailable};
use port::LoopbackPort;
use world::Shared;
pub use world::{Clock, Cut, World};

/// The transport of a [`World`], as a value: made by [`World::transport`] or
/// [`World::transport_of`].
#[derive(Clone)]
pub struct Loopback {
    shared: Arc<Shared>,
    /// Whose port [`Transport::open`] opens; `None` for the next rank that has none.
    rank: Option<usize>,
}

impl Transport for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn sends_in_the_open(&self) -> bool {
        false
    }

    fn probe(&self) -> Result<Caps, Unavailable> {
        Ok(Caps { latency_s: 1e-6, byte_s: 2e-10 })
    }

    fn open(&self, secret: [u8; 32]) -> Result<Box<dyn Port>, TransportError> {
        let rank = self.rank.unwrap_or_else(|| self.shared.next_unopened());
        if rank >= self.shared.ranks {
            let ranks = self.shared.ranks;
            return Err(TransportError::Refused {
                why: format!(
                    "this loopback world has {ranks} ranks and all are open; \
                     make it with World::new({})",
                    rank + 1
                ),
            });
        }
        Ok(Box::new(LoopbackPort::new(self.shared.clone(), rank, secret)))
    }
}

/// Lock, also after another thread's panic: no state here is left half-written by one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A generator that depends on the world's seed and on what it is for, and on nothing else: the
/// delays on one wire are then the same however the threads of the other wires interleave.
fn generator(seed: u64, purpose: &[u64]) -> fastrand::Rng {
    let mut mixed = seed;
    for &word in purpose {
        mixed = fastrand::Rng::with_seed(mixed ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).u64(..);
    }
    fastrand::Rng::with_seed(mixed)
}
