//! Any network plugin of NCCL as a transport, for memory of the host.
//!
//! A plugin has connections of one direction, which are polled. Everything else that a transport
//! owes (who the peers are and whether they live, secrets, sleeping) it does not have. So each
//! endpoint has a connection of TCP with each peer beside the plugin's: there handles are handed
//! over, and there one hears that a peer has left or died. Bytes go by the plugin alone, through
//! slots that are registered with it once; a push fills one and sends it, and what cannot be sent
//! yet gathers in the next one.
//!
//! * `sys`: the plugins' interface, as C lays it out; `library`: finding and opening one; `net`,
//!   `calls`: its functions as methods
//! * `card`, `frame`: bytes from the network, read as hostile
//! * `region`, `outlet`, `inlet`: slots, and the two ends of a wire
//! * `port`, `endpoint`, `bell`: the rooms that every transport has; `steward`: the thread that
//!   meets peers (`peer`) when it is asked to (`hand`, `mouth`), and looks after what is on its way
//!   while nobody else does
//!
//! The interface has nothing to sleep at, so the bell looks at the wires every so often.

mod bell;
mod calls;
mod card;
mod endpoint;
mod frame;
mod hand;
mod inlet;
mod library;
mod mouth;
mod net;
mod outlet;
mod peer;
mod port;
mod region;
mod steward;
pub mod sys;
#[cfg(test)]
mod trial;

use std::sync::Arc;

use crate::tcp::{self, Tcp};
use crate::{Caps, Port, Transport, TransportError, Unavailable};

/// What every name of such a transport begins with.
pub const PREFIX: &str = "plugin:";
/// How many bytes a slot holds.
const SLOT_BYTES: usize = 128 << 10;
/// How many slots either end of a wire has; fewer than requests that a plugin takes.
const SLOTS: usize = 8;
const _: () = assert!(SLOTS <= sys::REQUESTS_MAX);
/// How many of them may be on their way before small messages are gathered.
const FLYING_MAX: usize = SLOTS / 2;

/// A network plugin as a transport.
pub struct Plugin {
    wanted: String,
    name: &'static str,
    tcp: tcp::Settings,
}

impl Plugin {
    /// The plugin `libnccl-net-NAME.so`, or the one in a file, as `NCCL_NET_PLUGIN` would have it.
    /// `tcp`: how its ranks meet. Nothing is loaded yet.
    pub fn new(name_or_path: &str, tcp: tcp::Settings) -> Plugin {
        let name = library::short_name(name_or_path);
        Plugin { wanted: name_or_path.to_owned(), name, tcp }
    }

    /// What was found, for a person to read. Loads the plugin.
    ///
    /// # Errors
    ///
    /// Why there is nothing to be found.
    pub fn describe(&self) -> Result<Vec<String>, Unavailable> {
        Ok(self.net()?.describe())
    }

    fn net(&self) -> Result<&'static net::Net, Unavailable> {
        library::load(&self.wanted, self.name)
    }
}

impl Transport for Plugin {
    fn name(&self) -> &'static str {
        self.name
    }

    fn sends_in_the_open(&self) -> bool {
        true
    }

    fn probe(&self) -> Result<Caps, Unavailable> {
        let net = self.net()?;
        Tcp::new(self.tcp.clone()).probe()?;
        Ok(net.caps())
    }

    fn open(&self, secret: [u8; 32]) -> Result<Box<dyn Port>, TransportError> {
        let net = self.net()?;
        let tcp = Tcp::new(self.tcp.clone()).open(secret)?;
        Ok(Box::new(port::PluginPort::new(net, Arc::from(tcp))))
    }
}
