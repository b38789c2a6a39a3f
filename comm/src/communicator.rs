//! The communicator: a group of ranks that make the same calls in the same order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brigade_schedule::{Algorithm, Collective};
use brigade_transports::LendingStats;

use crate::aside::Aside;
use crate::call::{Buffers, Call, Counts};
use crate::choice::Choice;
use crate::control::History;
use crate::drive::Driver;
use crate::eagerness::Eagerness;
use crate::engine::{Engine, Seat};
use crate::inside;
use crate::maker::Maker;
use crate::nodes::numbers;
use crate::purpose::Purpose;
use crate::select::Selector;
use crate::wait::{Watch, error_of};
use crate::work::progress::Progress;
use crate::world::World;
use crate::{Dtype, Error, Settings};

/// Calls up to this size go by the algorithm with the fewest steps.
pub(crate) const SMALL_BYTES: usize = 16 << 10;

/// One rank's handle on a group of ranks: of a job's by [`Communicator::from_env`], of threads by
/// [`Communicator::local_world`].
///
/// Calls on one communicator are carried out in the order in which they are made; calls from two
/// threads are serialised. Every member must make the same calls in the same order; if they do not,
/// all of them get [`Error::Mismatch`]. Communicators are independent of one another: one may wait
/// while another works.
///
/// Dropping it leaves the group. A rank that still needs this one then gets an error that names
/// it, [`Error::PeerLeft`], which ends the world. In a child made by `fork` it is the parent's, and
/// can only be dropped, which changes nothing.
pub struct Communicator {
    shared: Arc<Shared>,
}

/// What the communicator shares with its progress thread.
pub(crate) struct Shared {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// By which functions that run inside its calls know it: see [`inside`].
    pub(crate) number: u64,
    engine: Mutex<Engine>,
    /// What never changes lies beside the engine, so that nobody waits for a call to look at it.
    selector: Arc<Selector>,
    pub(crate) transport_names: Vec<&'static str>,
    /// Which of the transports serves each member.
    pub(crate) routes: Arc<[Option<usize>]>,
    pub(crate) progress: Arc<Progress<Self>>,
    pub(crate) world: Arc<World>,
    /// The world rank of each member.
    pub(crate) members: Arc<[u32]>,
    pub(crate) group: u64,
    pub(crate) settings: Arc<Settings>,
    pub(crate) splits: AtomicU64,
    /// How often each list of members was tried that shrinking leaves.
    pub(crate) shrinks: Mutex<BTreeMap<u64, u64>>,
    sent_bytes: AtomicU64,
    /// By groups of its own, which calls on devices of several nodes are made of.
    pub(crate) sent_in_parts: AtomicU64,
    calls: AtomicU64,
    maker: Maker,
}

/// Counters of one communicator on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Payload bytes sent to other ranks, without headers and transport framing.
    pub sent_bytes: u64,
    /// Calls carried out.
    pub calls: u64,
}

impl Communicator {
    /// The communicator of `members` of a world; each of them calls this with the same arguments.
    /// `name` says in errors what it is made for.
    pub(crate) fn of_members(
        world: &Arc<World>,
        members: Arc<[u32]>,
        group: u64,
        settings: Arc<Settings>,
        name: &str,
    ) -> Result<Self, Error> {
        let me = members.iter().position(|&rank| rank == world.rank).expect("we are a member");
        let ranks = members.len() as u32;
        let watch = Watch {
            control: Arc::clone(&world.control),
            members: Arc::clone(&members),
            me: me as u32,
            group,
            history: History::default(),
            stands: AtomicBool::new(false),
            report_after: settings.report_after,
            timeout: settings.timeout,
        };
        let links = world.join(&watch, &settings, name)?;
        let waiting = Eagerness::among(links.share, Aside::of(me, members.len(), links.share));
        let routes: Arc<[_]> = links.routes.into();
        let driver = Driver::new(links.endpoints, Arc::clone(&routes), watch, waiting);
        let selector = Selector { small_bytes: SMALL_BYTES, nodes: world.nodes(&members) };
        let (selector, number) = (Arc::new(selector), inside::number());
        let seat = Seat { rank: me as u32, ranks, group, number };
        let engine = Engine::new(seat, Arc::clone(&settings), Arc::clone(&selector), driver);
        let shared = Shared {
            rank: me as u32,
            ranks,
            number,
            engine: Mutex::new(engine),
            selector,
            transport_names: links.names,
            routes,
            progress: Arc::default(),
            world: Arc::clone(world),
            members,
            group,
            settings,
            splits: AtomicU64::new(0),
            shrinks: Mutex::default(),
            sent_bytes: AtomicU64::new(0),
            sent_in_parts: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            maker: Maker::this(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Carry out one call; returns when it is complete on this rank.
    ///
    /// Cost: that of [`Communicator::algorithm_for`] the call; nothing is allocated once a call of
    /// the same shape has been made before, as long as the plans of all shapes are no more than a
    /// thousand, and 64 MiB or eight. (A short call's has a few kilobytes, a long one's up to
    /// 30 MiB.)
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a call that makes no sense, which leaves everything as it was;
    /// otherwise what ended the group.
    pub fn run(&self, call: &Call, buffers: Buffers<'_>) -> Result<(), Error> {
        self.shared.drain()?;
        self.shared.run_now(call, buffers).map_err(|error| *error)
    }

    /// Refuse a call that makes no sense by itself, as [`Communicator::run`] would.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`].
    pub fn check(&self, call: &Call) -> Result<(), Error> {
        call.validate(self.shared.ranks, self.shared.rank)
    }

    /// The algorithm that a call of this shape is carried out by.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is none.
    pub fn algorithm_for(&self, call: &Call) -> Result<Algorithm, Error> {
        self.choice_for(call).map(|choice| choice.algorithm)
    }

    /// The same, and why it is that one.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is none.
    pub fn choice_for(&self, call: &Call) -> Result<Choice, Error> {
        call.validate(self.shared.ranks, self.shared.rank)?;
        self.shared.choice(call)
    }

    /// The ranks in the order in which `algorithm` goes along them in a call of this shape, node by
    /// node and the root first; `None` if it goes by their numbers.
    pub fn order_for(&self, call: &Call, algorithm: Algorithm) -> Option<Vec<u32>> {
        self.shared.selector.order(call.collective, algorithm)
    }

    /// The number of each rank's node: a running system and its network. They are numbered as they
    /// come up, so that of rank 0 is 0; all ranks hear the same. Who could not tell where it runs
    /// counts as a node of its own.
    pub fn nodes(&self) -> Vec<usize> {
        let Shared { members, world, .. } = &*self.shared;
        numbers(members.iter().map(|&rank| world.node(rank)))
    }

    /// The transports that serve this group, each with how many of its members.
    pub fn transports(&self) -> Vec<(String, usize)> {
        let routes = &self.shared.routes;
        let serves = |at| routes.iter().filter(move |&&route| route == Some(at)).count();
        let names = self.shared.transport_names.iter().enumerate();
        names.map(|(at, name)| (name.to_string(), serves(at))).collect()
    }

    /// Counters of this communicator.
    pub fn stats(&self) -> Stats {
        let Shared { sent_bytes, sent_in_parts, calls, .. } = &*self.shared;
        Stats {
            sent_bytes: sent_bytes.load(Ordering::Relaxed) + sent_in_parts.load(Ordering::Relaxed),
            calls: calls.load(Ordering::Relaxed),
        }
    }

    /// What became of this rank's memory that calls lent to devices, in all its communicators over
    /// the transports of this one. All zero over transports that copy. Waits for the call in
    /// flight; from a function that runs inside it, all zero.
    pub fn lending(&self) -> LendingStats {
        let Ok(engine) = self.shared.lock() else { return LendingStats::default() };
        let all = engine.driver.endpoints.iter().map(|endpoint| endpoint.lending());
        all.fold(LendingStats::default(), LendingStats::plus)
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// End this world on all ranks: whoever waits gets [`Error::Aborted`] with this reason. Returns
    /// once this rank has heard so itself, and refuses further calls; within a second at most. The
    /// others hear it when the process that brought the ranks together goes on, if it is stopped.
    pub fn abort(&self, why: &str) {
        // Where the network is stuck, whoever is told later is told by what is lost.
        self.shared.world.control.give_up(why);
    }

    /// Why this world cannot go on, once that is known: a lost rank, an abort, a mismatch. For
    /// those who watch while another thread is inside a call; costs a load as long as all is well.
    pub fn ended(&self) -> Option<Error> {
        self.shared.world.control.verdict().map(|verdict| error_of(verdict, "no call"))
    }

    /// Whether this member of the group has gone, as far as is known: [`Error::PeerLost`] for one
    /// whose process has ended, [`Error::PeerLeft`] for one that has closed its communicator. Once
    /// the process is lost that brought the ranks together, further losses are not known.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the group has no such rank.
    pub fn gone(&self, rank: usize) -> Result<Option<Error>, Error> {
        let Shared { members, world, group, .. } = &*self.shared;
        let Some(&rank) = members.get(rank) else {
            return Err(Error::invalid(format!("rank {rank} of a group of {}", members.len())));
        };
        let (control, at) = (&world.control, rank as usize);
        if let Some(how) = control.lost(at) {
            return Ok(Some(Error::PeerLost { rank, how, during: "no call".to_owned() }));
        }
        let has_left = control.has_left(at) || control.has_parted(at, *group);
        Ok(has_left.then(|| Error::PeerLeft { rank, during: "what comes next".to_owned() }))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.shared.maker.is_parent() {
            // All of it stays, down to the threads that this process has not.
            return std::mem::forget(Arc::clone(&self.shared));
        }
        // Calls on their way end first: others wait for what this rank still sends in them.
        self.shared.progress.close();
        // What follows them may still use what the caller keeps with the communicator.
        self.shared.progress.callbacks.close(self.shared.settings.timeout);
        // Before the wires close, which others might take for something worse.
        let Shared { world, members, group, .. } = &*self.shared;
        world.control.leave_group(*group, members.len());
    }
}

impl Shared {
    /// The engine, once the call in flight has ended. Refused to a function that runs inside it.
    #[inline]
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Engine>, Error> {
        inside::refuse(self.number)?;
        Ok(self.engine())
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        // A panic inside a call (of a user's operator, say) leaves the engine broken, not locked.
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wait until nothing is queued. Where this thread is asked to end that, what is queued ends,
    /// and the world with it. Refused to a function that runs inside a call.
    #[inline]
    pub(crate) fn drain(&self) -> Result<(), Error> {
        inside::refuse(self.number)?;
        let why = "interrupted behind calls that were started before";
        self.progress.drain(|| self.world.control.give_up(why));
        Ok(())
    }

    /// Carry out a call on this thread, which is inside no other, without regard to the queue.
    pub(crate) fn run_now(&self, call: &Call, buffers: Buffers<'_>) -> Result<(), Box<Error>> {
        let mut engine = self.engine();
        let outcome = engine.call(call, buffers);
        self.count(&engine, outcome.is_ok());
        outcome
    }

    /// Carry out a piece of a call with `whole` elements in every block on this thread, likewise:
    /// the last one counts as the call.
    pub(crate) fn run_piece(
        &self,
        (piece, whole, is_last): (&Call, usize, bool),
        buffers: Buffers<'_>,
    ) -> Result<(), Error> {
        let purpose = match piece.counts {
            Counts::Even(count) if count != whole => Purpose::Piece(whole),
            _ => Purpose::Itself,
        };
        let mut engine = self.lock()?;
        let outcome = engine.call_for(purpose, piece, buffers);
        self.count(&engine, outcome.is_ok() && is_last);
        outcome.map_err(|error| *error)
    }

    /// Carry out a call that is a part of something else, behind all that is queued.
    pub(crate) fn run_for(
        &self,
        purpose: Purpose,
        call: &Call,
        buffers: Buffers<'_>,
    ) -> Result<(), Error> {
        self.drain()?;
        let mut engine = self.lock()?;
        let outcome = engine.call_for(purpose, call, buffers);
        self.count(&engine, outcome.is_ok());
        outcome.map_err(|error| *error)
    }

    /// Everybody's bytes, in the order of ranks; the same number of each. Ranks have met when it
    /// ends.
    pub(crate) fn exchange(&self, purpose: Purpose, mine: &[u8]) -> Result<Vec<u8>, Error> {
        let mut all = vec![0; mine.len() * self.ranks as usize];
        let call = Call::moving(Collective::AllGather, Dtype::U8, mine.len());
        let buffers = Buffers::OutOfPlace { input: mine, output: &mut all };
        self.run_for(purpose, &call, buffers)?;
        Ok(all)
    }

    /// The algorithm that a call will use.
    pub(crate) fn choice(&self, call: &Call) -> Result<Choice, Error> {
        self.selector.choose(call, self.ranks, &self.settings)
    }

    /// Why this communicator can be used no more, after a call that panicked.
    pub(crate) fn broken(&self) -> Error {
        let engine = self.engine();
        let error = engine.broken().cloned();
        error.unwrap_or_else(|| Error::invalid("a call panicked before it began"))
    }

    /// Publish the counters that the engine keeps.
    pub(crate) fn count(&self, engine: &Engine, carried_out: bool) {
        self.sent_bytes.store(engine.sent_bytes, Ordering::Relaxed);
        let calls = self.calls.load(Ordering::Relaxed);
        self.calls.store(calls + u64::from(carried_out), Ordering::Relaxed);
    }
}

/// A number for a new group that all its members derive alike, and that differs from those of
/// other groups except with the chance of a 64-bit collision.
pub(crate) fn derive_group(parent: u64, number: u64, color: u64) -> u64 {
    // The finaliser of MurmurHash3, by which every input bit changes half of the output bits.
    let mix = |mut x: u64| {
        x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        x ^ (x >> 33)
    };
    mix(mix(mix(parent.wrapping_add(1)) ^ number) ^ color.wrapping_add(1))
}
