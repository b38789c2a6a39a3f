//! Wires over RDMA: the sender's device writes into a ring in the receiver's memory.
//!
//! A port is what its devices can be reached at, beside a listener of TCP. Nothing is connected
//! until a wire is asked for. Then the two ranks agree, over a TCP connection on which both have
//! proved that they know the job's secret, on queue pairs and on the key to a ring; that
//! connection stays, and tells when the peer leaves or dies. A wire has one or several queue pairs,
//! over different devices where there are.
//!
//! * `card`, `frame`: bytes from the network, read as hostile; `card` also chooses addresses
//! * `port`, `local`: devices; `endpoint`: one communicator
//! * `exchange`, `hand`, `link`: the thread that talks with the peers and looks after what is on
//!   its way
//! * `path`: opening a queue pair between two addresses
//! * `limits`: how a stream is cut, and how much of it may be on its way
//! * `lane`, `stripe`: the sending end: pieces, credit, memory that is lent, and sending again over
//!   another queue pair; `mend`: replacing one that has failed
//! * `ring`, `inlets`: the receiving end; `arrived`: pieces put in order
//! * `silence`: queue pairs that forget what they were asked for
//! * `wire`: both ends as wires, the hot path
//! * `window`: memory that peers reach on their own
//! * `cache`: registrations of memory that is lent; `unmap`: what becomes of that memory;
//!   `dmabuf`: memory of other devices
//! * `shared`: what all of these look at; `bell`: sleeping; `sys`: system calls
//!
//! Each piece of the stream is written with a number that comes out at the receiver after the
//! bytes have landed. Numbers put pieces of several queue pairs in order, and tell pieces that come
//! twice. A queue pair that fails is stopped at both ends before what it may not have delivered is
//! sent again over another one: so no byte is lost, and no late packet lands in a later piece. It
//! is replaced as well: a link that was gone for a moment does not end a job that has no other.

mod arrived;
mod bell;
mod cache;
mod card;
mod dmabuf;
mod endpoint;
mod exchange;
mod frame;
mod hand;
mod inlets;
mod lane;
mod limits;
mod link;
mod local;
mod mend;
mod path;

mod port;
mod ring;
mod shared;
mod silence;
mod stripe;
mod sys;
mod unmap;
mod window;
mod wire;

use std::ops::RangeInclusive;
use std::time::Duration;

use brigade_verbs::VerbsError;

use crate::tcp::{self, Tcp};
use crate::{Caps, Port, Transport, TransportError, Unavailable};

const NAME: &str = "rdma";

/// How to use RDMA. The default needs no change on most machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Queue pairs from one rank to another, at most 8; 0 means one for each device of the rank
    /// that has fewer, at most four.
    pub queue_pairs: usize,
    /// Which devices to use, by name: `mlx5_0,mlx5_1`; all of them if `None`.
    pub devices: Option<String>,
    /// The row of each port's table of GIDs to use; chosen by network if `None`.
    pub gid_index: Option<u8>,
    /// What all rings towards one rank may hold together, in bytes.
    pub inbound_bytes: usize,
    /// What one ring may hold at the most, in bytes; a power of two from 16 KiB to 64 MiB.
    pub ring_bytes: usize,
    /// How much of its callers' memory a rank keeps registered at most, in bytes, so that devices
    /// send from where it lies; 0 to copy every byte.
    pub cache_bytes: usize,
    /// The largest packet, in bytes: 256 to 4096. The smaller of both ends' counts.
    pub mtu_bytes: u32,
    /// How long to wait for an answer: 4.096 us times two to the power of this, at most 31.
    pub timeout: u8,
    /// How often to try again without an answer, at most 6.
    pub retries: u8,
    /// How often to try again when a receiver is not ready, at most 6.
    pub receiver_retries: u8,
    /// How long to try to replace queue pairs that have failed when no other works, before the
    /// wire fails; zero not to replace any.
    pub reconnect: Duration,
    /// InfiniBand's service level, or RoCE's priority, at most 15.
    pub service_level: u8,
    /// The traffic class of routed headers: on RoCE, differentiated services and congestion bits.
    pub traffic_class: u8,
    /// Which network interfaces the agreement may use, as for TCP.
    pub interface: Option<String>,
    /// Which ports the agreement may use, as for TCP.
    pub ports: Option<RangeInclusive<u16>>,
    /// How long nothing may be heard of a peer's machine, as for TCP.
    pub silence: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            queue_pairs: 0,
            devices: None,
            gid_index: None,
            inbound_bytes: 4 << 20,
            ring_bytes: 1 << 20,
            cache_bytes: 256 << 20,
            mtu_bytes: 4096,
            // An answer within 134 ms, six times more: a second until a path counts as dead. Less
            // fails on busy machines whose device is a program.
            timeout: 15,
            retries: 6,
            receiver_retries: 6,
            reconnect: Duration::from_secs(10),
            service_level: 0,
            traffic_class: 0,
            interface: None,
            ports: None,
            silence: tcp::Settings::default().silence,
        }
    }
}

/// RDMA as a transport.
#[derive(Clone, Debug, Default)]
pub struct Rdma {
    settings: Settings,
}

impl Rdma {
    /// RDMA, used as `settings` say.
    ///
    /// # Panics
    ///
    /// When a setting is out of the bounds that its documentation names.
    pub fn new(settings: Settings) -> Rdma {
        assert!(settings.queue_pairs <= frame::STRIPES_MAX);
        assert!(settings.ring_bytes.is_power_of_two());
        let possible = frame::RING_BYTES_MIN as usize..=frame::RING_BYTES_MAX as usize;
        assert!(possible.contains(&settings.ring_bytes));
        assert!((256..=4096).contains(&settings.mtu_bytes));
        assert!(settings.timeout <= 31 && settings.service_level <= 15);
        assert!(settings.retries <= 6 && settings.receiver_retries <= 6);
        Rdma { settings }
    }

    /// Which addresses of which devices are used and why, for a person to read: a line each.
    ///
    /// # Errors
    ///
    /// When there are none, with what is missing.
    pub fn describe(&self) -> Result<Vec<String>, Unavailable> {
        let found = port::find(&self.settings)?;
        let mut lines: Vec<_> = found.addresses.iter().map(local::Place::describe).collect();
        lines.push(cache::describe(self.settings.cache_bytes));
        lines.push(dmabuf::describe(&found.devices));
        Ok(lines)
    }

    /// Whether some device that can be used is one, and not a program of the kernel.
    pub fn has_hardware(&self) -> bool {
        let is_hardware = |place: &local::Place| place.device.is_hardware();
        port::find(&self.settings).is_ok_and(|found| found.addresses.iter().any(is_hardware))
    }

    /// The connection that carries the agreement.
    fn tcp(&self) -> Tcp {
        Tcp::new(tcp::Settings {
            sockets_per_peer: 1,
            interface: self.settings.interface.clone(),
            ports: self.settings.ports.clone(),
            silence: self.settings.silence,
            ..tcp::Settings::default()
        })
    }
}

impl Transport for Rdma {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sends_in_the_open(&self) -> bool {
        true
    }

    fn probe(&self) -> Result<Caps, Unavailable> {
        self.tcp().probe()?;
        let found = port::find(&self.settings)?;
        let gbit = found.fastest_gbit().unwrap_or(25.0);
        Ok(Caps { latency_s: 4e-6, byte_s: 8e-9 / gbit })
    }

    fn open(&self, secret: [u8; 32]) -> Result<Box<dyn Port>, TransportError> {
        let found = port::find(&self.settings)?;
        let tcp = self.tcp().open(secret)?;
        Ok(Box::new(port::RdmaPort::open(self.settings.clone(), found, tcp)?))
    }
}

/// A call of the library that failed, as the transport's error.
fn failed(error: VerbsError) -> TransportError {
    match error {
        VerbsError::Missing { why } => TransportError::Unavailable(port::missing_library(why)),
        VerbsError::Call { call, errno, what } => TransportError::System { call, errno, what },
    }
}
