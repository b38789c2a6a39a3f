//! How a rank reaches the windows of the others, and how the others reach its own.
//!
//! An owner's memory is that of its first transport which has memory that all whom it joins to the
//! owner reach. Whoever is joined to it by that transport reaches it; all others ask, and the owner
//! serves them. Both sides judge that alike, from what the owner has said and from the transport
//! that joins the two.
//!
//! Requests of a rank and the answers to it share a link, on which nothing else travels, so a rank
//! that closes its side has read everything that came there, and what it sent last still arrives.
//! Hence two groups: in one a rank asks those with a higher number than its own, in the other those
//! with a lower one.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use brigade_transports::{Bells, Endpoint, RecvWire, RemoteWindow, SendWire, TransportError};

use super::asker::Asker;
use super::clerk::{Clerk, Desk};
use super::ends::Ends;
use super::held::Held;
use super::size::WindowSize;
use crate::Error;
use crate::communicator::Shared;
use crate::wait::Opening as Waited;
use crate::world::{Dealings, Links};

/// What a rank does when it joins the groups of a window.
pub(super) const MAKING: &str = "making a window: joining";

/// Both directions between two ranks.
type Wires = (Box<dyn SendWire>, Box<dyn RecvWire>);

/// How this rank reaches one window.
pub(super) enum Way {
    /// It is its own.
    Own,
    /// By itself.
    Direct(Mutex<Box<dyn RemoteWindow>>),
    /// By asking its owner.
    Messages(Box<Mutex<Asker>>),
}

/// Who sleeps at the bells: they are kept until nothing needs their endpoints any more.
pub(super) enum Rest {
    /// Whoever waits, one at a time: every peer rings by itself.
    Bells(Mutex<Ends>),
    /// The thread that serves the others.
    Clerk { _serves: Clerk },
}

/// What the ways are made of.
pub(super) struct Opening<'a> {
    pub(super) shared: &'a Shared,
    pub(super) me: usize,
    /// Those of upward and of downward requests. The windows of transports are of the first.
    pub(super) groups: [u64; 2],
    /// In the first group.
    pub(super) links: Links,
    /// The endpoint whose memory this rank exposes.
    pub(super) native: Option<usize>,
    /// What each rank states, and what it says of its memory.
    pub(super) told: &'a [(WindowSize, &'a [u8])],
    pub(super) held: &'a Arc<Held>,
}

impl Opening<'_> {
    /// Open the way to every window, and begin to serve.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for what could not be done; then the links are still there, and with them
    /// what the others may be about to open. Otherwise what has ended the world.
    pub(super) fn open(&mut self) -> Result<(Vec<Way>, Rest), Error> {
        let ranks = self.told.len();
        let asks: Vec<bool> = (0..ranks).map(|rank| self.asks(rank)).collect();
        let serves: Vec<bool> = (0..ranks).map(|rank| self.serves(rank)).collect();
        let downward = self.join_downward(&|rank| asks[rank] || serves[rank])?;
        let mut ways = Vec::with_capacity(ranks);
        let mut desks = Vec::new();
        for rank in 0..ranks {
            if serves[rank] {
                desks.push(self.desk(rank, &downward)?);
            }
            ways.push(match self.links.routes[rank] {
                None => Way::Own,
                Some(_) if asks[rank] => Way::Messages(self.asker(rank, &downward)?),
                Some(route) => Way::Direct(self.import(rank, route)?),
            });
        }
        let mut endpoints = std::mem::take(&mut self.links.endpoints);
        let bells = Bells::join(&mut endpoints);
        let ends = Ends { endpoints, bells };
        if desks.is_empty() && !asks.contains(&true) {
            return Ok((ways, Rest::Bells(Mutex::new(ends))));
        }
        let clerk = Clerk::start(Arc::clone(self.held), desks, ends, self.links.share);
        let refused = |error| Error::invalid(format!("cannot start a thread: {error}"));
        let clerk = clerk.map_err(refused)?;
        Ok((ways, Rest::Clerk { _serves: clerk }))
    }

    /// Whether this rank cannot reach the window of `rank` by itself.
    fn asks(&self, rank: usize) -> bool {
        let joined_by = self.links.routes[rank].map(|route| self.links.names[route]);
        joined_by.is_some_and(|name| !is_of(self.told[rank].1, name))
    }

    /// Whether `rank` cannot reach the window of this one.
    fn serves(&self, rank: usize) -> bool {
        self.links.routes[rank].is_some_and(|route| self.native != Some(route))
    }

    /// Join the second group with those that have messages, and add what serves it to the
    /// endpoints; which of them serves each member.
    fn join_downward(&mut self, ours: &dyn Fn(usize) -> bool) -> Result<Vec<Option<usize>>, Error> {
        let Shared { world, settings, .. } = self.shared;
        let watch = &self.held.watch;
        // Where the memory of each is that of the transport nobody asks over it.
        let dealings = Dealings { ours, any: &|rank, name| !is_of(self.told[rank].1, name) };
        let joined = world.join_some((watch, self.groups[1]), settings, MAKING, &dealings);
        let joined = joined.map_err(|error| world.without_us_in(watch.group, error));
        let Links { endpoints, routes, .. } = joined.map_err(|error| match error {
            Error::Join { .. } | Error::Transport { .. } => Error::invalid(error.to_string()),
            ended => ended,
        })?;
        let before = self.links.endpoints.len();
        self.links.endpoints.extend(endpoints);
        Ok(routes.into_iter().map(|route| route.map(|at| before + at)).collect())
    }

    /// The group in which `asker` asks `asked`, and the endpoint that joins us to `rank` there.
    fn way_of(
        &self,
        (asker, asked): (usize, usize),
        rank: usize,
        downward: &[Option<usize>],
    ) -> (u64, usize) {
        let (group, routes) = match asker < asked {
            true => (self.groups[0], &self.links.routes[..]),
            false => (self.groups[1], downward),
        };
        (group, routes[rank].expect("both groups were joined with it"))
    }

    /// Both wires between us and `rank`.
    fn wires(&mut self, rank: usize, route: usize) -> Result<Wires, Error> {
        let deadline = Instant::now() + self.shared.settings.join_patience();
        let to =
            self.await_from(rank, route, "wire", |endpoint| endpoint.connect(rank, deadline))?;
        let from = self.links.endpoints[route].receiver(rank);
        Ok((to, from.map_err(refused)?))
    }

    /// Ask `open` until it gives something.
    fn await_from<T>(
        &mut self,
        rank: usize,
        route: usize,
        what: &str,
        open: impl FnMut(&mut dyn Endpoint) -> Result<Option<T>, TransportError>,
    ) -> Result<T, Error> {
        let opening = Waited { peer: rank as u32, route, what, name: "making a window" };
        let endpoints = &mut self.links.endpoints;
        let opened = self.held.watch.await_opening(endpoints, &opening, open);
        opened?.map_err(refused)
    }

    fn asker(
        &mut self,
        rank: usize,
        downward: &[Option<usize>],
    ) -> Result<Box<Mutex<Asker>>, Error> {
        let share = self.links.share;
        let (group, route) = self.way_of((self.me, rank), rank, downward);
        let (requests, answers) = self.wires(rank, route)?;
        Ok(Box::new(Mutex::new(Asker::new((rank, group), requests, answers, share))))
    }

    fn desk(&mut self, rank: usize, downward: &[Option<usize>]) -> Result<Desk, Error> {
        let (group, route) = self.way_of((rank, self.me), rank, downward);
        let (answers, requests) = self.wires(rank, route)?;
        Ok(Desk::new((rank, group), requests, answers))
    }

    fn import(&mut self, rank: usize, route: usize) -> Result<Mutex<Box<dyn RemoteWindow>>, Error> {
        let ((stated, said), owner) = (self.told[rank], self.shared.members[rank]);
        let (_, descriptor) = parts(said).expect("its transport's name was read before");
        if self.links.endpoints[route].windows().is_none() {
            let name = self.links.names[route];
            return Err(Error::invalid(format!(
                "the window of rank {owner} is memory of {name}, which has none for windows here; \
                 over transports without {name} (BRIGADE_TRANSPORT) there are windows by messages"
            )));
        }
        let import = |endpoint: &mut dyn Endpoint| {
            endpoint.windows().expect("asked before").import(rank, descriptor)
        };
        let imported = self.await_from(rank, route, "way", import);
        let imported = imported.map_err(|error| match error {
            Error::Invalid { what } => {
                Error::invalid(format!("the window of rank {owner}: {what}"))
            }
            ended => ended,
        })?;
        // Later calls are held against what was stated, and the transport trusts them.
        let (bytes, signals) = imported.size();
        if stated != (WindowSize { bytes, signals }) {
            return Err(Error::invalid(format!(
                "the window of rank {owner}: it states {} bytes and {} signals, but its descriptor \
                 has {bytes} bytes and {signals} signals",
                stated.bytes, stated.signals
            )));
        }
        Ok(Mutex::new(imported))
    }
}

/// The transport whose memory a window is, and what its peers need to know of it; from the network.
fn parts(said: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = said.split_first()?;
    rest.split_at_checked(usize::from(length))
}

/// What a transport cannot do.
fn refused(error: TransportError) -> Error {
    Error::invalid(error.to_string())
}

/// Whether a rank says that its window is memory of the transport with this name.
fn is_of(said: &[u8], name: &str) -> bool {
    parts(said).is_some_and(|(says, _)| says == name.as_bytes())
}
