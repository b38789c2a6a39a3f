//! A world: the ranks that bootstrapped together, how they reach each other, and the line over
//! which they hear that one of them is lost. Communicators are groups within a world.

use std::sync::Arc;
use std::time::Instant;

use brigade_transports::{Endpoint, Group, Port, Transport};

use crate::bootstrap::Root;
use crate::control::Control;
use crate::{Error, Settings};

/// What all communicators of one rank share.
pub(crate) struct World {
    pub(crate) rank: u32,
    pub(crate) control: Arc<Control>,
    /// The root of this world if it runs in this process; it ends after the last member here.
    _root: Option<Arc<Root>>,
    ports: Vec<(&'static str, Box<dyn Port>)>,
    /// The cards of every rank, one for each of our ports, in the order of `ports`.
    cards: Vec<Vec<Option<Vec<u8>>>>,
    /// The running system of every rank, where it said so.
    hosts: Vec<Option<Vec<u8>>>,
}

/// The name under which a rank's running system stands among its cards.
const HOST: &str = "host";

/// A group's share of the transports.
pub(crate) struct Links {
    pub(crate) endpoints: Vec<Box<dyn Endpoint>>,
    pub(crate) names: Vec<&'static str>,
    /// Which endpoint serves each member; none for oneself.
    pub(crate) routes: Vec<Option<usize>>,
    /// Members that share this host's cores, oneself included.
    pub(crate) local_ranks: usize,
}

/// This rank's side of every transport, before the others are known.
pub(crate) struct Ports(Vec<(&'static str, Box<dyn Port>)>);

impl Ports {
    /// No transports, for a world of one rank.
    pub(crate) fn none() -> Self {
        Self(Vec::new())
    }

    /// Open every transport that can be had. At least one must.
    pub(crate) fn open(transports: &[Arc<dyn Transport>], secret: [u8; 32]) -> Result<Self, Error> {
        let (mut ports, mut reasons) = (Vec::new(), Vec::new());
        for transport in transports {
            match transport.open(secret) {
                Ok(port) => ports.push((transport.name(), port)),
                Err(error) => reasons.push(format!("{}: {error}", transport.name())),
            }
        }
        if ports.is_empty() {
            return Err(Error::join(format!("no transport can be used: {}", reasons.join("; "))));
        }
        for reason in reasons {
            tracing::warn!("{reason}");
        }
        Ok(Self(ports))
    }

    /// The cards of all ports in one string of bytes: name and card of each, with their lengths.
    pub(crate) fn cards(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let host = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let ports = self.0.iter().map(|(name, port)| (*name, port.card()));
        for (name, card) in ports.chain([(HOST, host)]) {
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
    /// A world from what bootstrap brought: the cards of every rank, by rank.
    pub(crate) fn new(
        rank: u32,
        ports: Ports,
        all_cards: &[Vec<u8>],
        control: Control,
        root: Option<Arc<Root>>,
    ) -> Self {
        let find = |(name, _): &(&'static str, Box<dyn Port>)| {
            all_cards.iter().map(|bytes| card_of(name, bytes)).collect()
        };
        let cards = ports.0.iter().map(find).collect();
        let hosts = all_cards.iter().map(|bytes| card_of(HOST, bytes)).collect();
        Self { rank, control: Arc::new(control), _root: root, ports: ports.0, cards, hosts }
    }

    /// Join a group: each member by the first transport that reaches it.
    pub(crate) fn join(
        &self,
        members: &[u32],
        me: usize,
        group: u64,
        settings: &Settings,
    ) -> Result<Links, Error> {
        let mut routes: Vec<Option<usize>> = vec![None; members.len()];
        let here = |rank: &&u32| self.hosts[**rank as usize] == self.hosts[self.rank as usize];
        let local_ranks = members.iter().filter(here).count();
        let mut links =
            Links { endpoints: Vec::new(), names: Vec::new(), routes: Vec::new(), local_ranks };
        let deadline = Instant::now() + settings.join_timeout;
        for (index, (name, port)) in self.ports.iter().enumerate() {
            let reached = |member: usize| {
                let card = self.cards[index][members[member] as usize].as_deref()?;
                let open = member == me || routes[member].is_none();
                (open && (member == me || port.reaches(card))).then_some(card)
            };
            let cards: Vec<Option<&[u8]>> = (0..members.len()).map(reached).collect();
            let served = cards.iter().flatten().count() - 1;
            if served == 0 {
                continue;
            }
            let wanted = Group { id: group, me, cards: &cards, deadline };
            let endpoint = port
                .join(&wanted)
                .map_err(|error| Error::join(format!("joining over {name}: {error}")))?;
            for member in (0..members.len()).filter(|&member| member != me) {
                if cards[member].is_some() {
                    routes[member] = Some(links.endpoints.len());
                }
            }
            links.endpoints.push(endpoint);
            links.names.push(*name);
        }
        let missing = (0..members.len()).find(|&member| member != me && routes[member].is_none());
        if let Some(member) = missing {
            return Err(Error::join(format!(
                "rank {} cannot reach rank {}: they share no transport; do both use \
                 BRIGADE_TRANSPORT={}?",
                self.rank, members[member], settings.transport
            )));
        }
        links.routes = routes;
        Ok(links)
    }
}
