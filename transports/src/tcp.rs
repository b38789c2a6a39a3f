//! Wires over TCP.
//!
//! A port is a listener, on all addresses with IPv4 and IPv6, and a card that names them. Nothing
//! is connected until a wire is asked for. Then the rank that needs it dials the peer's addresses,
//! nearest first; whoever answers must prove that it is that very rank and knows the job's secret.
//! The link that results carries both directions of the pair: the acknowledgements of one ride on
//! the bytes of the other. Between machines a link has several sockets, and the sender gives the
//! next piece of the stream to whichever has room.
//!
//! * `address`, `route`: which addresses there are and in which order to try them
//! * `card`, `handshake`, `frame`: bytes from the network, read as hostile
//! * `listen`, `dial`, `tries`, `link`, `pairs`: how a link comes to stand; `dialler`, `patience`:
//!   beside whom, and for how long; `options`, `silence`: what its sockets are told
//! * `wire`, `stripe`, `gather`: the hot path, over one socket and over several; `ends`: what goes
//!   over each, as it is or sealed; `bell`: sleeping
//!
//! TCP does not protect the bytes that travel: the proof keeps strangers out. Listeners-in read
//! nothing, and change nothing unnoticed, where [`Settings::encrypt`] is set.

mod address;
mod bell;
mod card;
mod dial;
mod dialler;
mod ends;
mod frame;
mod gather;
mod handshake;
mod link;
mod listen;
mod options;
mod pairs;
mod patience;
mod port;
mod probe;
mod route;
mod shared;
pub(crate) mod silence;
mod stripe;
mod sys;
mod tries;
mod wire;

use std::fmt::Write;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

pub use address::{Filter, Interface};
pub use handshake::SOCKETS_MAX;
pub use route::{Reach, Route};

use crate::{Caps, Port, Transport, TransportError, Unavailable};

/// How to use TCP. The default needs no change on most machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Sockets between two ranks, at most [`SOCKETS_MAX`]; 0 means one on the same machine and four
    /// between machines. The rank that dials decides.
    pub sockets_per_peer: usize,
    /// Which interfaces to use, in the words of [`Filter::parse`]; all of them if `None`.
    pub interface: Option<String>,
    /// The ports to listen on, one for each rank of a machine; any if `None`.
    pub ports: Option<RangeInclusive<u16>>,
    /// Seal all that travels (see [`crate::seal`]); the same on all ranks, or they do not reach
    /// each other.
    pub encrypt: bool,
    /// How long nothing may be heard of a peer's machine until it counts as gone.
    pub silence: Duration,
    /// The largest piece of the stream that one socket of several gets at a time.
    pub segment_bytes: usize,
    /// The congestion control to ask for; the system's if `None`, except on loopback, where reno
    /// is asked for because it does not pace.
    pub congestion: Option<String>,
    /// The size of each socket's two buffers; the kernel's own choice if `None`.
    pub buffer_bytes: Option<usize>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            sockets_per_peer: 0,
            interface: None,
            ports: None,
            encrypt: false,
            silence: Duration::from_secs(10),
            segment_bytes: 256 << 10,
            congestion: None,
            buffer_bytes: None,
        }
    }
}

/// TCP as a transport.
pub struct Tcp {
    settings: Settings,
    routes: Arc<route::Routes>,
}

impl Tcp {
    /// TCP, used as `settings` say. Wrong settings show in [`Transport::probe`] and
    /// [`Transport::open`].
    pub fn new(settings: Settings) -> Tcp {
        Tcp { settings, routes: Arc::default() }
    }

    /// The addresses that peers will be told, best first.
    pub fn interfaces(&self) -> Result<Vec<Interface>, TransportError> {
        probe::usable_interfaces(&self.settings)
    }

    /// How the peers of every port of this value were reached so far.
    pub fn routes(&self) -> Vec<Route> {
        self.routes.list()
    }

    /// Which addresses are used and which routes were picked, and why, for a person to read.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        match self.interfaces() {
            Ok(interfaces) => {
                for Interface { name, address, prefix_bits, speed_mbit, .. } in interfaces {
                    let speed = speed_mbit.map_or(String::new(), |mbit| format!(", {mbit} Mb/s"));
                    writeln!(text, "listens at {address}/{prefix_bits} ({name}{speed})")
                        .expect("a string takes what is written");
                }
            }
            Err(error) => return error.to_string(),
        }
        for Route { host, address, reach, sockets } in self.routes() {
            writeln!(text, "reached {host} at {address}: {reach}, {sockets} sockets")
                .expect("a string takes what is written");
        }
        text
    }
}

impl Transport for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn sends_in_the_open(&self) -> bool {
        !self.settings.encrypt
    }

    fn probe(&self) -> Result<Caps, Unavailable> {
        match probe::usable_interfaces(&self.settings) {
            Ok(interfaces) => {
                let is_near = interfaces.iter().all(|interface| interface.is_loopback);
                Ok(probe::caps(is_near, probe::fastest_mbit(&interfaces)))
            }
            Err(TransportError::Unavailable(unavailable)) => Err(unavailable),
            Err(other) => Err(Unavailable {
                transport: "tcp",
                why: other.to_string(),
                next_step: "allow this process to list the machine's network interfaces".into(),
            }),
        }
    }

    fn open(&self, secret: [u8; 32]) -> Result<Box<dyn Port>, TransportError> {
        let port = port::TcpPort::open(self.settings.clone(), self.routes.clone(), secret)?;
        Ok(Box::new(port))
    }
}
