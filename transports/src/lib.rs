//! How bytes move between two ranks.
//!
//! A transport knows ranks of a group by their index, and nothing of what they compute: it has
//! never heard of an all-reduce. It offers, for every ordered pair of ranks, one first-in-first-out
//! *wire*; a *doorbell* to sleep at until some wire may have moved; and, where it can, *windows*:
//! registered memory that a peer writes directly. [`Transport`] is a value, not a registry entry:
//! whoever builds a communicator lists the transports it may use.
//!
//! | | lives for | made by |
//! |---|---|---|
//! | [`Transport`] | the program | the user: `Shm::new()`, `Tcp::new(settings)` |
//! | [`Port`] | one rank in a world | [`Transport::open`]; its card travels by bootstrap |
//! | [`Endpoint`] | one communicator | [`Port::join`] |
//! | [`SendWire`] | one communicator, one peer | [`Endpoint::connect`] |
//! | [`RecvWire`] | one communicator, one peer | [`Endpoint::receiver`] |
//!
//! # The contract
//!
//! * The caller has checked ranks, lengths and aliasing. An implementation asserts what it relies
//!   on and does not check it again for the caller.
//! * Nothing here waits, except [`Port::join_while`] (until a deadline, or as long as its caller
//!   wants), [`Port::join`], [`Endpoint::sender`] (both until a deadline that they are given) and
//!   [`Doorbell::wait`] (until a timeout). `connect`, `import`, `push` and `pull` do what can be
//!   done now and return.
//! * Errors are what the caller could not know: a peer that went away, bytes that are not ours, a
//!   system call that failed. A wire that has failed keeps failing in the same way.
//! * A wire is used by one thread at a time, both directions of a pair independently.
//! * A member leaves by dropping its wires and its endpoint. What it had pushed by then still
//!   arrives, provided that it left nothing unread itself; then its wires report
//!   [`TransportError::PeerGone`] to those who use them, and to nobody else. Wires do not outlive
//!   their endpoint.
//! * What a transport cannot do it says beforehand, by returning `None`; no method fails only
//!   because it was not implemented.
#![warn(missing_docs)]

mod bells;
mod caches;
mod cores;
mod error;
mod forks;
mod lending;
pub mod loopback;
mod pieces;
pub mod plugin;
pub mod proof;
pub mod rdma;
pub mod seal;
pub mod shm;
mod sys;
pub mod tcp;

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

pub use bells::Bells;
pub use caches::{copy_past_caches, outgrows_caches};
pub use cores::{Cores, Share, step_aside};
pub use error::{MAKE_THREAD, TransportError, Unavailable, remedy};
pub use forks::OursAlone;
pub use lending::{Lending, LendingStats};
pub use sys::opened;
pub use tcp::silence::keepalive;

/// What a transport is good for, asked before it is used: for people, and for those who choose
/// among networks. Algorithms are chosen without it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Caps {
    /// Rough cost of one small message, in seconds.
    pub latency_s: f64,
    /// Rough cost of one more byte, in seconds.
    pub byte_s: f64,
}

/// A way to move bytes, as a value.
pub trait Transport: Send + Sync {
    /// The name users select it by: `shm`, `tcp`, ...
    fn name(&self) -> &'static str;

    /// Whether this machine has what the transport needs, and if not, why not and what to do.
    fn probe(&self) -> Result<Caps, Unavailable>;

    /// Whether bytes may leave this machine as they are, for whoever listens on the way to read.
    fn sends_in_the_open(&self) -> bool;

    /// Open one rank's side: listeners, devices, registered pools. Called once for each rank of a
    /// world, before anything is known of the others. `secret` is the job's: whoever connects must
    /// prove that it knows it.
    fn open(&self, secret: [u8; 32]) -> Result<Box<dyn Port>, TransportError>;
}

/// One rank's side of a transport, before and between communicators.
pub trait Port: Send + Sync {
    /// What peers must know to reach this rank, at most [`CARD_BYTES_MAX`] bytes. Cards come from
    /// the network: whoever reads one parses it as hostile.
    fn card(&self) -> Vec<u8>;

    /// Whether the rank with this card can be reached, judged from the two cards alone, so that
    /// both sides judge alike.
    fn reaches(&self, card: &[u8]) -> bool;

    /// Whether all members that it reaches join a group of it, also those who have other wires
    /// between them: they share one thing, which each finds by the cards of all. Whom such a port
    /// reaches, that one's port reaches, too, and nobody else.
    fn is_of_all(&self) -> bool {
        false
    }

    /// Join a communicator. Every member of the group calls this with the same `id`, members and
    /// order. May wait for the others until the deadline, and asks `go_on` meanwhile, some fifty
    /// times a second, with the member that it waits for: once that says no, this is
    /// [`TransportError::CalledOff`].
    fn join_while(
        &self,
        group: &Group<'_>,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Box<dyn Endpoint>, TransportError>;

    /// This rank does not join that communicator after all: what others have opened for it goes,
    /// and so does what still comes.
    fn forget(&self, _group: u64) {}

    /// [`Port::join_while`] for those who have nothing else to hear until the deadline.
    fn join(&self, group: &Group<'_>) -> Result<Box<dyn Endpoint>, TransportError> {
        self.join_while(group, &mut |_| true)
    }
}

/// The most bytes a card may have.
pub const CARD_BYTES_MAX: usize = 1024;

/// Who makes up a communicator.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// The communicator's number: the same on all members, never used twice within a world.
    pub id: u64,
    /// The index of the caller in `cards`.
    pub me: usize,
    /// One card for each member; `None` for members that this transport does not serve, or, where
    /// it [is of all](Port::is_of_all), does not reach.
    pub cards: &'a [Option<&'a [u8]>],
    /// When to give up waiting for the others.
    pub deadline: Instant,
}

/// The longest sleep of one who waits for others to come. Events that ring no bell, such as a
/// failed attempt, are noticed up to this much later.
const NAP: Duration = Duration::from_millis(20);

/// One communicator's share of a transport.
pub trait Endpoint: Send {
    /// The wire to member `to`, or `None` while it does not stand: to be asked again, at best when
    /// the doorbell rings, with the same deadline, at which this is an error. Each wire is handed
    /// out once, and nobody asks for it again.
    fn connect(
        &mut self,
        to: usize,
        deadline: Instant,
    ) -> Result<Option<Box<dyn SendWire>>, TransportError>;

    /// [`Endpoint::connect`] for those who have nothing else to do until the deadline.
    fn sender(
        &mut self,
        to: usize,
        deadline: Instant,
    ) -> Result<Box<dyn SendWire>, TransportError> {
        loop {
            self.doorbell().arm();
            if let Some(outcome) = self.connect(to, deadline).transpose() {
                self.doorbell().disarm();
                return outcome;
            }
            self.doorbell().wait(NAP)?;
        }
    }

    /// The wire from member `from`. Each is asked for once at the most. Never waits: a peer that
    /// has not connected yet is a wire on which nothing has arrived.
    fn receiver(&mut self, from: usize) -> Result<Box<dyn RecvWire>, TransportError>;

    /// Where to sleep until a wire of this endpoint may have moved.
    fn doorbell(&mut self) -> &mut dyn Doorbell;

    /// Look for members that have died, which a wire in memory cannot show by itself. Called every
    /// few milliseconds by those who wait, never on the hot path.
    ///
    /// A member that left in good order is no error here: the others may have no more to do with
    /// it. Its wires say so to those who still want something of it.
    fn check(&mut self) -> Result<(), TransportError>;

    /// Memory that peers can write directly, where this transport has such a thing.
    fn windows(&mut self) -> Option<&mut dyn Windows>;

    /// What became of memory that was lent to this rank's wires, for people to look at.
    fn lending(&self) -> LendingStats {
        LendingStats::default()
    }
}

/// The sending end of a wire: an ordered stream of bytes.
pub trait SendWire: Send {
    /// Take as many of `bytes` as there is room for now, and return how many. What was taken is
    /// copied: the caller may reuse it at once. Everything taken is visible to the receiver without
    /// a further call. A later call must offer the untaken bytes again, unchanged, or a prefix of
    /// them: the wire may already have started on them.
    ///
    /// A wire that stages in slots takes multiples of 64 bytes unless it takes everything, so that
    /// its slots begin at whole elements; a wire that is a byte stream may take any number. In
    /// return the caller pushes multiples of 64 bytes except at the end of a message, as long as
    /// the wire takes multiples of 64.
    fn push(&mut self, bytes: &[u8]) -> Result<usize, TransportError>;

    /// Like `push`, except that the wire may send the bytes from where they lie. Whether it does is
    /// its choice, call by call; most wires copy, as this one does.
    ///
    /// # Safety
    ///
    /// If the answer says that bytes are held, then what was taken stays as it is until
    /// [`SendWire::held`] does not count it any more, or [`SendWire::recall`] has returned.
    unsafe fn lend(&mut self, bytes: &[u8]) -> Result<Lending, TransportError> {
        Ok(Lending { taken: self.push(bytes)?, is_held: false })
    }

    /// How many bytes, counted back from the last one taken, reach to the earliest lent byte that
    /// is still in use; pushed bytes in between count too. Zero: nothing is held. The receiver may
    /// wait for what is held until this has been called often enough.
    fn held(&mut self) -> Result<usize, TransportError> {
        Ok(0)
    }

    /// Let go of all that was lent, sent or not. A wire that has to break off something for that
    /// has failed.
    fn recall(&mut self) {}
}

/// The receiving end of a wire.
pub trait RecvWire: Send {
    /// Hand arrived bytes to `sink`, at most `limit` in all, in order, in slices whose lengths are
    /// multiples of `granule` (the element size; `limit` is a multiple of it too), and return how
    /// many were handed over. The slices lie where they arrived, need not be aligned, and are gone
    /// after the call. Stops early when `limit` is reached; may be called again at once. An element
    /// that was pushed in parts is put together first.
    fn pull(
        &mut self,
        limit: usize,
        granule: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, TransportError>;

    /// Fill `target` from its start with arrived bytes, as many as there are now, and return how
    /// many. For plain receives, where a transport can often spare itself a staging copy.
    fn pull_into(&mut self, target: &mut [u8]) -> Result<usize, TransportError>;

    /// [`RecvWire::pull_into`] for a target that [outgrows the caches](outgrows_caches): a wire
    /// that copies leaves them as they are.
    fn pull_past_caches(&mut self, target: &mut [u8]) -> Result<usize, TransportError> {
        self.pull_into(target)
    }
}

/// Sleeping without missing anything: arm, look at every wire once more, then wait.
pub trait Doorbell {
    /// From now on, whatever moves a wire of this endpoint rings.
    fn arm(&mut self);

    /// Sleep until it rang since `arm`, or for `timeout`. May return early, but not so often that
    /// waiting is spinning. Disarms.
    fn wait(&mut self, timeout: Duration) -> Result<(), TransportError>;

    /// Stop listening without having slept here.
    fn disarm(&mut self);

    /// What becomes readable when the bell rings while it is armed, so that one sleep can cover
    /// several bells. From the first call on the bell rings that way, which may cost more: ask only
    /// where there are several. `None` where the bell has no such thing.
    fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// From now on `wait` also ends when `other` becomes readable after `arm`. Whether this bell
    /// can do that.
    fn also_hears(&mut self, _other: BorrowedFd<'_>) -> bool {
        false
    }
}

/// One-sided access: a member exposes memory, others write into it and signal.
///
/// This is what RDMA writes and device peer memory offer natively. A window is named by a
/// descriptor that its owner sends to whoever may use it, over any channel. Transports without it
/// need nothing: communicators make windows of messages over their wires.
pub trait Windows {
    /// Whether all members that this transport serves can import what is exposed. Where some lack
    /// what that takes, its owner exposes nothing, and still imports what others expose.
    fn is_for_all(&self) -> bool {
        true
    }

    /// Expose `bytes` of zeroed memory with `signals` counters to all members. The memory belongs
    /// to the transport (registered, shared, pinned) and is freed with the endpoint.
    fn expose(&mut self, bytes: usize, signals: usize) -> Result<LocalWindow, TransportError>;

    /// Use the window that member `peer` described; `None` while it cannot be reached yet, and then
    /// this is to be asked again, as [`Endpoint::connect`] is, before another one of that member.
    fn import(
        &mut self,
        peer: usize,
        descriptor: &[u8],
    ) -> Result<Option<Box<dyn RemoteWindow>>, TransportError>;
}

/// Memory of ours that peers write.
pub struct LocalWindow {
    /// What a peer needs to import the window.
    pub descriptor: Vec<u8>,
    /// The memory and its counters.
    pub memory: Box<dyn WindowMemory>,
}

/// The owner's view of a window.
pub trait WindowMemory: Send {
    /// Copy out of the window. A peer may be writing: bytes are only settled once the signal that
    /// its owner agreed on with the writer has been seen.
    fn read(&self, offset: usize, target: &mut [u8]);

    /// Write into the window from the owner's side.
    fn write(&mut self, offset: usize, bytes: &[u8]);

    /// The value of a counter; everything its writer put before signalling is visible.
    fn signal(&self, index: usize) -> u64;
}

/// A peer's window.
///
/// # Panics
///
/// Where an offset, a length or an index reaches beyond [`RemoteWindow::size`]: the caller has
/// checked it.
pub trait RemoteWindow: Send {
    /// How many bytes and how many counters its descriptor has.
    fn size(&self) -> (usize, usize);

    /// Start writing `bytes` at `offset`. The bytes are copied or sent before the call returns.
    fn put(&mut self, offset: usize, bytes: &[u8]) -> Result<(), TransportError>;

    /// Read from the window.
    fn get(&mut self, offset: usize, target: &mut [u8]) -> Result<(), TransportError>;

    /// Add to a counter of the window after every earlier put has landed, and ring its owner.
    fn signal(&mut self, index: usize, add: u64) -> Result<(), TransportError>;
}
