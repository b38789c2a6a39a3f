//! A world: the ranks that bootstrapped together, how they reach each other, and the line over
//! which they hear that one of them is lost. Communicators are groups within a world.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Instant;

use brigade_transports::{Cores, Endpoint, Group, Port, Share, Transport, TransportError, opened};

use crate::control::Control;
use crate::nodes::Nodes;
use crate::wait::{Joining, Watch};
use crate::{Error, Settings, say};

/// What all communicators of one rank share.
pub(crate) struct World {
    pub(crate) rank: u32,
    pub(crate) control: Arc<Control>,
    /// Shared with worlds of survivors of this one.
    ports: Arc<Ports>,
    /// The cards of every rank, one for each of our ports, in their order.
    cards: Vec<Vec<Option<Vec<u8>>>>,
    /// The running system of every rank, where it said so: ranks with the same one share its
    /// cores, whichever transports may join them.
    hosts: Vec<Option<Vec<u8>>>,
    /// Which of them every rank may run on, where it said so.
    cores: Vec<Option<Cores>>,
    /// The network of every rank on its running system, where it said so: ranks with the same ones
    /// share what leads to others.
    networks: Vec<Option<Vec<u8>>>,
}

/// The name under which a rank's running system stands among its cards.
const HOST: &str = "host";
/// The name under which its cores do.
const CORES: &str = "cores";
/// The name under which its network does.
const NETWORK: &str = "network";

/// A group's share of the transports.
pub(crate) struct Links {
    pub(crate) endpoints: Vec<Box<dyn Endpoint>>,
    pub(crate) names: Vec<&'static str>,
    /// Which endpoint serves each member; none for oneself.
    pub(crate) routes: Vec<Option<usize>>,
    /// How many members have how many of this host's cores between them.
    pub(crate) share: Share,
}

/// Who has to do with whom in a group.
pub(crate) struct Dealings<'a> {
    /// Whether this rank has with that member.
    pub(crate) ours: &'a dyn Fn(usize) -> bool,
    /// Whether that member may have with any that it is joined to by this transport. All members
    /// find the same.
    pub(crate) any: &'a dyn Fn(usize, &str) -> bool,
}

impl Dealings<'_> {
    /// All with all.
    const ALL: Dealings<'static> = Dealings { ours: &|_| true, any: &|_, _| true };
}

/// This rank's side of every transport, before the others are known.
pub(crate) struct Ports {
    open: Vec<(&'static str, Box<dyn Port>)>,
    /// Why each of the others could not be opened.
    refused: Vec<String>,
}

impl Ports {
    /// No transports, for a world of one rank.
    pub(crate) fn none() -> Self {
        Self { open: Vec::new(), refused: Vec::new() }
    }

    /// Open every transport that can be had. At least one must.
    pub(crate) fn open(transports: &[Arc<dyn Transport>], secret: [u8; 32]) -> Result<Self, Error> {
        let (mut open, mut refused, mut is_exhausted) = (Vec::new(), Vec::new(), false);
        for transport in transports {
            match transport.open(secret) {
                Ok(port) => open.push((transport.name(), port)),
                // This error begins with the name by itself.
                Err(TransportError::Unavailable(missing)) => refused.push(missing.to_string()),
                Err(error) => {
                    is_exhausted |= error.is_exhausted();
                    refused.push(format!("{}: {error}", transport.name()));
                }
            }
        }
        if open.is_empty() {
            let what = format!("no transport can be used: {}", refused.join("; "));
            return Err(match is_exhausted {
                true => Error::Exhausted { what },
                false => Error::join(what),
            });
        }
        Ok(Self { open, refused })
    }

    /// The cards of all ports in one string of bytes: name and card of each, with their lengths.
    pub(crate) fn cards(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let host = opened(|| std::fs::read("/proc/sys/kernel/random/boot_id")).unwrap_or_default();
        let ports = self.open.iter().map(|(name, port)| (*name, port.card()));
        let cores = Cores::of_this_thread().to_bytes();
        let network = std::fs::metadata("/proc/self/ns/net").map(|it| it.ino().to_le_bytes());
        let network = network.map_or(Vec::new(), Vec::from);
        for (name, card) in ports.chain([(HOST, host), (CORES, cores), (NETWORK, network)]) {
            bytes.push(name.len() as u8);
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(&(card.len() as u16).to_le_bytes());
            bytes.extend_from_slice(&card);
        }
        bytes
    }
}

/// Find one transport's card among another rank's cards, which come from the network.
fn card_of(name: &str, mut bytes: &[u8]) -> Option<Vec<u8>> {
    fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
        let (head, tail) = bytes.split_at_checked(count)?;
        *bytes = tail;
        Some(head)
    }
    while !bytes.is_empty() {
        let name_bytes = usize::from(take(&mut bytes, 1)?[0]);
        let this_name = take(&mut bytes, name_bytes)?;
        let length = take(&mut bytes, 2)?;
        let length = u16::from_le_bytes([length[0], length[1]]);
        let card = take(&mut bytes, usize::from(length))?;
        if this_name == name.as_bytes() {
            return Some(card.to_vec());
        }
    }
    None
}

impl World {
    /// A world from what bootstrap brought: the cards of every rank, by rank. Rank 0 says, for all,
    /// what was asked for and is not to be had.
    pub(crate) fn new(rank: u32, ports: Ports, all_cards: &[Vec<u8>], control: Control) -> Self {
        if rank == 0 {
            Settings::warn_of_unknown_variables();
            ports.refused.iter().for_each(|reason| say::warn(reason));
        }
        Self::with_ports(rank, Arc::new(ports), all_cards, control)
    }

    fn with_ports(rank: u32, ports: Arc<Ports>, all_cards: &[Vec<u8>], control: Control) -> Self {
        let find = |(name, _): &(&'static str, Box<dyn Port>)| {
            all_cards.iter().map(|bytes| card_of(name, bytes)).collect()
        };
        let cards = ports.open.iter().map(find).collect();
        let hosts = all_cards.iter().map(|bytes| card_of(HOST, bytes)).collect();
        let networks = all_cards.iter().map(|bytes| card_of(NETWORK, bytes)).collect();
        let cores_of = |bytes: &Vec<u8>| Cores::parse(&card_of(CORES, bytes)?);
        let cores = all_cards.iter().map(cores_of).collect();
        Self { rank, control: Arc::new(control), ports, cards, hosts, cores, networks }
    }

    /// The same ranks and ports, for some that meet when this world may have ended: what ended it
    /// has no hold on them, and nobody judges until they have a root of their own; but they hear of
    /// losses among themselves.
    pub(crate) fn meeting(&self, members: &[u32]) -> Self {
        let (cards, hosts, cores) = (self.cards.clone(), self.hosts.clone(), self.cores.clone());
        let (ports, control) = (Arc::clone(&self.ports), Arc::new(self.control.meeting(members)));
        let networks = self.networks.clone();
        Self { rank: self.rank, control, ports, cards, hosts, cores, networks }
    }

    /// What this rank shows of itself to those with whom it makes another world of these ports.
    pub(crate) fn own_cards(&self) -> Vec<u8> {
        self.ports.cards()
    }

    /// Another world of these ports, in which this one is rank `rank`.
    pub(crate) fn anew(&self, rank: u32, all_cards: &[Vec<u8>], control: Control) -> Self {
        Self::with_ports(rank, Arc::clone(&self.ports), all_cards, control)
    }

    /// This rank could not join the group of all. The others may have, and nothing else would tell
    /// them why they are left by it.
    pub(crate) fn without_us(&self, error: Error) -> Error {
        self.control.give_up(&error.to_string());
        error
    }

    /// This rank could not join that group, and the world goes on: whoever waits there for it hears
    /// why, unless the reason is another that could not, of which all have been told, or one that
    /// ends the world.
    pub(crate) fn without_us_in(&self, group: u64, error: Error) -> Error {
        if matches!(error, Error::Join { .. } | Error::Transport { .. }) {
            let is_told = self.control.unjoined(group).is_some();
            let why = if is_told { String::new() } else { format!("rank {}, {error}", self.rank) };
            self.control.leave_group_because(group, &why);
        }
        error
    }

    /// Join the group of `watch`, for what `name` says: each member by the first transport that
    /// reaches it. A transport [of all](Port::is_of_all) whom it reaches is joined by those, too,
    /// whom others reach before.
    pub(crate) fn join(
        &self,
        watch: &Watch,
        settings: &Settings,
        name: &str,
    ) -> Result<Links, Error> {
        self.join_some((watch, watch.group), settings, name, &Dealings::ALL)
    }

    /// Join a group of the members of `watch` in which not all have to do with each other. Who has
    /// to do with this rank finds that, too, and what others have opened for a group that it cannot
    /// join does not stay.
    pub(crate) fn join_some(
        &self,
        (watch, group): (&Watch, u64),
        settings: &Settings,
        name: &str,
        dealings: &Dealings<'_>,
    ) -> Result<Links, Error> {
        let joined = self.join_each((watch, group), settings, name, dealings);
        if joined.is_err() {
            self.ports.open.iter().for_each(|(_, port)| port.forget(group));
        }
        joined
    }

    fn join_each(
        &self,
        (watch, group): (&Watch, u64),
        settings: &Settings,
        name: &str,
        dealings: &Dealings<'_>,
    ) -> Result<Links, Error> {
        let (members, me) = (&watch.members[..], watch.me as usize);
        // All routes are known from the cards. Whoever lacks one says so before it joins anything,
        // or the others would wait for it.
        let mut ports = self.ports_to(members, me, &settings.transport)?;
        for (member, port) in ports.iter_mut().enumerate() {
            *port = port.filter(|_| (dealings.ours)(member));
        }
        let share = self.share(members);
        let (endpoints, names, routes) = (Vec::new(), Vec::new(), vec![None; members.len()]);
        let mut links = Links { endpoints, names, routes, share };
        let deadline = Instant::now() + settings.join_patience();
        for (index, (transport, port)) in self.ports.open.iter().enumerate() {
            let serves = ports.contains(&Some(index));
            let is_of_all = |member: usize| {
                let reached =
                    || self.card(index, members[member]).is_some_and(|it| port.reaches(it));
                port.is_of_all() && member != me && reached()
            };
            // A seat that is kept for one who does not come is not given back before the world
            // ends. So whoever is reached there joins, or nobody, by what all of them know.
            let meets = |member: usize| {
                (member == me || is_of_all(member)) && (dealings.any)(member, transport)
            };
            let mut everybody = 0..members.len();
            let is_met = everybody.clone().any(is_of_all) && everybody.any(meets);
            if !serves && !is_met {
                continue;
            }
            let is_in =
                |member: usize| member == me || ports[member] == Some(index) || is_of_all(member);
            let card = |member: usize| self.card(index, members[member]);
            let cards: Vec<Option<&[u8]>> =
                (0..members.len()).map(|member| card(member).filter(|_| is_in(member))).collect();
            let all = Group { id: group, me, cards: &cards, deadline };
            let joining = Joining { port: &**port, transport, name };
            let endpoint = match watch.await_joining(&mut links.endpoints, &joining, &all) {
                Ok(endpoint) if serves => endpoint,
                // It was joined for others, and is left at once.
                Ok(_) => continue,
                // Nobody is joined to us by it. The others keep our seat, and need nobody in it.
                Err(Error::Join { .. } | Error::Transport { .. }) if !serves => continue,
                Err(error) => return Err(error),
            };
            for (route, port) in links.routes.iter_mut().zip(&ports) {
                if *port == Some(index) {
                    *route = Some(links.endpoints.len());
                }
            }
            links.endpoints.push(endpoint);
            links.names.push(*transport);
        }
        Ok(links)
    }

    /// How members lie on nodes. Every rank finds the same.
    pub(crate) fn nodes(&self, members: &[u32]) -> Option<Nodes> {
        Nodes::of(members.iter().map(|&rank| self.node(rank)))
    }

    /// What makes the node of a rank, where it said so: its running system, and there a network.
    pub(crate) fn node(&self, rank: u32) -> Option<[&[u8]; 2]> {
        let cards = [&self.hosts[rank as usize], &self.networks[rank as usize]];
        let [host, network] = cards.map(|card| card.as_deref().filter(|card| !card.is_empty()));
        Some([host?, network?])
    }

    /// Our share of this host's cores, in a group of these members.
    fn share(&self, members: &[u32]) -> Share {
        let me = self.rank as usize;
        let members = members.iter().map(|&rank| rank as usize);
        let here = members.filter(|&rank| self.hosts[rank] == self.hosts[me]);
        let own = self.cores[me].clone().unwrap_or_else(Cores::of_this_thread);
        own.share(here.map(|rank| self.cores[rank].as_ref()))
    }

    /// The card that `rank` has for our port `index`.
    fn card(&self, index: usize, rank: u32) -> Option<&[u8]> {
        self.cards[index][rank as usize].as_deref()
    }

    /// Which of our ports reaches each member first; none for oneself.
    fn ports_to(
        &self,
        members: &[u32],
        me: usize,
        asked: &str,
    ) -> Result<Vec<Option<usize>>, Error> {
        let mut ports = Vec::with_capacity(members.len());
        for (member, &rank) in members.iter().enumerate() {
            let reaches = |index: &usize| {
                let (_, port) = &self.ports.open[*index];
                self.card(*index, rank).is_some_and(|card| port.reaches(card))
            };
            let first = (0..self.ports.open.len()).find(|index| member != me && reaches(index));
            if first.is_none() && member != me {
                let refused = match self.ports.refused.join("; ") {
                    reasons if reasons.is_empty() => String::new(),
                    reasons => format!("; on this rank {reasons}"),
                };
                return Err(Error::join(format!(
                    "rank {} cannot reach rank {rank}: they share no transport; do both use \
                     BRIGADE_TRANSPORT={asked}?{refused}",
                    self.rank
                )));
            }
            ports.push(first);
        }
        Ok(ports)
    }
}
