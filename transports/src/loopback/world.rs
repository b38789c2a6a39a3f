//! The world that the ranks of one process share: its settings, its time, and who is cut off.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::port::Members;
use super::timeline::{NEVER, Timeline, nanoseconds};
use super::{Loopback, lock};
use crate::Port;

/// What a wire accepts is cut at multiples of this, so that no element is cut in two.
pub(super) const BLOCK_BYTES: usize = 64;

/// Which time a world lives in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The machine's: ranks are threads, and sleepers sleep.
    Real,
    /// Moved by [`World::advance`] only.
    Virtual,
}

/// When a rank is cut off from all others, as if its process had been killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Once it has pushed so many bytes, over all its wires.
    AfterBytes(u64),
    /// At this moment of the world's time.
    At(Duration),
}

/// Ranks in one process that reach each other through memory.
///
/// The settings come first, then the ports:
///
/// ```
/// use brigade_transports::loopback::{Clock, World};
/// use std::time::Duration;
///
/// let us = Duration::from_micros;
/// let world = World::new(2).clock(Clock::Virtual).seed(7).delay(us(1)..us(20)).short_pulls();
/// let ports = [world.port(0), world.port(1)];
/// assert!(ports[0].reaches(&ports[1].card()));
/// assert!(!world.advance(), "nothing was sent, so nothing will ever arrive");
/// ```
pub struct World {
    shared: Arc<Shared>,
}

impl World {
    /// A world of `ranks` ranks: real clock, no delay, no faults, 64 KiB in a piece and 256 KiB of
    /// credit on each wire.
    pub fn new(ranks: usize) -> Self {
        assert!(ranks > 0 && u32::try_from(ranks).is_ok(), "a world has ranks, but not {ranks}");
        // Cards of another world, in this process or not, must not pass for ours: no seed here.
        let id = getrandom::u64().unwrap_or_else(|_| fastrand::u64(..));
        let shared = Shared {
            id,
            ranks,
            settings: Settings::default(),
            timeline: Timeline::real(),
            cut_at_ns: (0..ranks).map(|_| AtomicU64::new(NEVER)).collect(),
            cut_after_bytes: vec![u64::MAX; ranks],
            pushed_bytes: (0..ranks).map(|_| AtomicU64::new(0)).collect(),
            opened: AtomicUsize::new(0),
            groups: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// What all delays and all short pushes and pulls are drawn from.
    pub fn seed(mut self, seed: u64) -> Self {
        self.unshared().settings.seed = seed;
        self
    }

    /// How much a wire takes before its receiver must pull: a multiple of 64 bytes.
    pub fn credit_bytes(mut self, bytes: usize) -> Self {
        assert!(bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES), "credit of {bytes} bytes");
        let settings = &mut self.unshared().settings;
        settings.credit_bytes = bytes;
        settings.bulk_bytes = settings.bulk_bytes.min(bytes);
        self
    }

    /// How much travels in one piece: a multiple of 64 bytes. Raises the credit if need be.
    pub fn bulk_bytes(mut self, bytes: usize) -> Self {
        assert!(bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES), "pieces of {bytes} bytes");
        let settings = &mut self.unshared().settings;
        settings.bulk_bytes = bytes;
        settings.credit_bytes = settings.credit_bytes.max(bytes);
        self
    }

    /// How long each piece, each returned credit and each remote write takes to arrive. What
    /// travels on one wire stays in order.
    pub fn delay(mut self, delay: Range<Duration>) -> Self {
        assert!(delay.start <= delay.end, "a delay from {:?} to {:?}", delay.start, delay.end);
        self.unshared().settings.delay_ns = nanoseconds(delay.start)..nanoseconds(delay.end);
        self
    }

    /// Cut `rank` off from all others. What had arrived from it by then can still be pulled; what
    /// was on its way is lost. The rank itself finds all others gone.
    pub fn drop_peer(mut self, rank: usize, cut: Cut) -> Self {
        assert!(rank < self.shared.ranks, "rank {rank} of {}", self.shared.ranks);
        let shared = self.unshared();
        match cut {
            Cut::AfterBytes(bytes) => shared.cut_after_bytes[rank] = bytes,
            Cut::At(moment) => {
                shared.cut_at_ns[rank] = AtomicU64::new(nanoseconds(moment));
                shared.timeline.plan(nanoseconds(moment));
                shared.settings.timed_cuts = true;
            }
        }
        self
    }

    /// Let `push` take less than there is room for, by a multiple of 64 bytes, but never nothing.
    pub fn short_pushes(mut self) -> Self {
        self.unshared().settings.short_pushes = true;
        self
    }

    /// Let wires hold what they are lent, and read it when they are asked what they still hold.
    pub fn late_sends(mut self) -> Self {
        self.unshared().settings.late_sends = true;
        self
    }

    /// Let `pull` hand over smaller slices and less than has arrived, but never nothing.
    pub fn short_pulls(mut self) -> Self {
        self.unshared().settings.short_pulls = true;
        self
    }

    /// Which time the world lives in.
    pub fn clock(mut self, clock: Clock) -> Self {
        let shared = self.unshared();
        shared.timeline = match clock {
            Clock::Real => Timeline::real(),
            Clock::Virtual => Timeline::stopped(),
        };
        for at_ns in &shared.cut_at_ns {
            let at_ns = at_ns.load(Ordering::SeqCst);
            if at_ns != NEVER {
                shared.timeline.plan(at_ns);
            }
        }
        self
    }

    /// The transport whose ports become rank 0, 1, 2, ... in the order in which they are opened.
    pub fn transport(&self) -> Loopback {
        Loopback { shared: self.shared.clone(), rank: None }
    }

    /// The transport whose port becomes `rank`.
    pub fn transport_of(&self, rank: usize) -> Loopback {
        assert!(rank < self.shared.ranks, "rank {rank} of {}", self.shared.ranks);
        Loopback { shared: self.shared.clone(), rank: Some(rank) }
    }

    /// The port of `rank`, with a secret of zeroes.
    pub fn port(&self, rank: usize) -> Box<dyn Port> {
        assert!(rank < self.shared.ranks, "rank {rank} of {}", self.shared.ranks);
        Box::new(super::LoopbackPort::new(self.shared.clone(), rank, [0; 32]))
    }

    /// Move virtual time to the next moment at which something arrives, and ring every doorbell.
    ///
    /// Returns false if nothing is on its way: if then no rank can go on by itself, none ever will.
    /// Panics in a world of real time.
    pub fn advance(&self) -> bool {
        self.shared.advance()
    }

    /// The world's time: since it was made, or virtual.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.shared.timeline.now_ns())
    }

    /// The state while nobody else has it yet.
    fn unshared(&mut self) -> &mut Shared {
        Arc::get_mut(&mut self.shared).expect("settings are chosen before ports are opened")
    }
}

pub(super) struct Settings {
    pub(super) seed: u64,
    pub(super) bulk_bytes: usize,
    pub(super) credit_bytes: usize,
    pub(super) delay_ns: Range<u64>,
    pub(super) short_pushes: bool,
    pub(super) late_sends: bool,
    pub(super) short_pulls: bool,
    pub(super) timed_cuts: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 0,
            bulk_bytes: 64 << 10,
            credit_bytes: 256 << 10,
            delay_ns: 0..0,
            short_pushes: false,
            late_sends: false,
            short_pulls: false,
            timed_cuts: false,
        }
    }
}

impl Settings {
    /// Whether anything takes time to arrive. If not, the fast paths need no clock.
    pub(super) fn delayed(&self) -> bool {
        self.delay_ns.end > 0
    }

    /// The next delay, in nanoseconds.
    pub(super) fn draw_delay_ns(&self, rng: &mut fastrand::Rng) -> u64 {
        if self.delay_ns.is_empty() { self.delay_ns.start } else { rng.u64(self.delay_ns.clone()) }
    }
}

/// What all ports of a world share.
pub(super) struct Shared {
    pub(super) id: u64,
    pub(super) ranks: usize,
    pub(super) settings: Settings,
    pub(super) timeline: Timeline,
    cut_at_ns: Vec<AtomicU64>,
    cut_after_bytes: Vec<u64>,
    pushed_bytes: Vec<AtomicU64>,
    opened: AtomicUsize,
    pub(super) groups: Mutex<HashMap<u64, Arc<Members>>>,
}

impl Shared {
    /// Whether wires move by time alone, and the time is not ours to move.
    pub(super) fn moves_by_time(&self) -> bool {
        !self.timeline.is_virtual() && (self.settings.delayed() || self.settings.timed_cuts)
    }

    pub(super) fn next_unopened(&self) -> usize {
        self.opened.fetch_add(1, Ordering::SeqCst)
    }

    /// When `rank` is cut off; [`NEVER`] as far as is known.
    pub(super) fn cut_at_ns(&self, rank: usize) -> u64 {
        self.cut_at_ns[rank].load(Ordering::SeqCst)
    }

    /// Whether `rank` is cut off by now. Reads the clock only in worlds where somebody will be.
    pub(super) fn is_cut(&self, rank: usize) -> bool {
        let at_ns = self.cut_at_ns(rank);
        at_ns != NEVER && at_ns <= self.timeline.now_ns()
    }

    /// How many of `bytes` that `rank` wants to push leave it before it is cut off.
    pub(super) fn leaves(&self, rank: usize, bytes: usize) -> usize {
        let limit = self.cut_after_bytes[rank];
        if limit == u64::MAX {
            return bytes;
        }
        let left = limit.saturating_sub(self.pushed_bytes[rank].load(Ordering::SeqCst));
        let blocks = left.next_multiple_of(BLOCK_BYTES as u64);
        bytes.min(usize::try_from(blocks).unwrap_or(usize::MAX))
    }

    /// Count what `rank` has pushed, and cut it off when it was its last.
    pub(super) fn left(&self, rank: usize, bytes: usize) {
        let limit = self.cut_after_bytes[rank];
        if limit == u64::MAX {
            return;
        }
        let before = self.pushed_bytes[rank].fetch_add(bytes as u64, Ordering::SeqCst);
        if before + bytes as u64 >= limit {
            self.cut_at_ns[rank].fetch_min(self.timeline.now_ns(), Ordering::SeqCst);
            self.ring_all();
        }
    }

    pub(super) fn advance(&self) -> bool {
        let moved = self.timeline.advance();
        if moved {
            self.ring_all();
        }
        moved
    }

    pub(super) fn ring_all(&self) {
        for members in lock(&self.groups).values() {
            members.ring_all();
        }
    }
}
