//! The devices of a rank, and the addresses at which they can be reached.

use std::net::IpAddr;
use std::sync::Arc;

use brigade_verbs::{
    CompletionQueue, Device, GidEntry, GidKind, LinkLayer, PortState, ProtectionDomain, QueuePair,
    VerbsError,
};

use super::cache::Cache;
use super::card::{ADDRESSES_MAX, Address, Card};
use super::endpoint::RdmaEndpoint;
use super::local::{Local, Place};
use super::stripe::LIMITS;
use super::{NAME, Settings};
use crate::tcp::{self, Tcp};
use crate::{Endpoint, Group, Port, TransportError, Unavailable};

/// The most GIDs of one port that a card lists.
const GIDS_PER_PORT: usize = 3;

/// What a machine has that can be used.
pub(super) struct Found {
    pub(super) devices: Vec<Arc<Device>>,
    pub(super) addresses: Vec<Place>,
}

impl Found {
    /// What the fastest port carries, in gigabits a second, if its driver says so.
    pub(super) fn fastest_gbit(&self) -> Option<f64> {
        let rates = self.addresses.iter().filter_map(|it| it.device.rate_gbit(it.port));
        rates.filter(|rate| *rate > 0.0).max_by(f64::total_cmp)
    }
}

/// Look for usable addresses. Errors: what is missing, and what to do.
pub(super) fn find(settings: &Settings) -> Result<Found, Unavailable> {
    let all = Device::open_all().map_err(|error| match error {
        VerbsError::Missing { why } => missing_library(why),
        other => unavailable(other.to_string(), "look at the kernel's log and the device files"),
    })?;
    if all.is_empty() {
        let next = "load the driver of a device, or make a soft one: \
                    `rdma link add rxe0 type rxe netdev eth0`";
        return Err(unavailable("there is no RDMA device".into(), next));
    }
    let names: Vec<&str> = all.iter().map(|device| device.name()).collect();
    let is_wanted = |device: &&Arc<Device>| match &settings.devices {
        None => true,
        Some(list) => list.split(',').any(|name| name.trim() == device.name()),
    };
    let devices: Vec<_> = all.iter().filter(is_wanted).cloned().collect();
    if devices.is_empty() {
        let list = settings.devices.as_deref().unwrap_or("");
        let why = format!("the setting `{list}` names none of {}", names.join(", "));
        return Err(unavailable(why, "name a device of this machine"));
    }
    let prefixes = Prefixes::read();
    let (mut addresses, mut refused) = (Vec::new(), Vec::new());
    for (index, device) in devices.iter().enumerate().take(ADDRESSES_MAX) {
        match places(index as u8, device, settings, &prefixes) {
            Ok(places) => addresses.extend(places),
            Err(why) => refused.push(why),
        }
    }
    addresses.truncate(ADDRESSES_MAX);
    if addresses.is_empty() {
        let next = "bring the link up, give its network interface an IP address, or use tcp";
        return Err(unavailable(refused.join("; "), next));
    }
    Ok(Found { devices, addresses })
}

fn unavailable(why: String, next_step: &str) -> Unavailable {
    Unavailable { transport: NAME, why, next_step: next_step.into() }
}

/// What to say where libibverbs is missing.
pub(super) fn missing_library(why: String) -> Unavailable {
    unavailable(why, "install rdma-core (packages libibverbs1 and ibverbs-providers)")
}

/// How long the networks' names are of this machine's IP addresses.
struct Prefixes(Vec<(IpAddr, u8)>);

impl Prefixes {
    fn read() -> Prefixes {
        let interfaces = Tcp::new(tcp::Settings::default()).interfaces().unwrap_or_default();
        Prefixes(interfaces.into_iter().map(|it| (it.address, it.prefix_bits)).collect())
    }

    /// A GID of no interface of ours shares its network with nobody.
    fn of(&self, entry: &GidEntry) -> u8 {
        let own = entry.gid.address();
        self.0.iter().find(|(ip, _)| *ip == own).map_or(128, |(_, bits)| *bits)
    }
}

/// The usable addresses of a device. Errors: why there are none.
fn places(
    index: u8,
    device: &Arc<Device>,
    settings: &Settings,
    prefixes: &Prefixes,
) -> Result<Vec<Place>, String> {
    let mut found = Vec::new();
    let mut reasons = Vec::new();
    let name = device.name();
    if device.is_iwarp() {
        return Err(format!("{name} speaks iWARP, whose connections only librdmacm can make"));
    }
    for port in device.ports().map_err(|error| error.to_string())? {
        let number = port.number;
        if !port.is_active {
            reasons.push(format!("{name} port {number} is not active"));
            continue;
        }
        if let Err(error) = try_out(device, number) {
            reasons.push(format!("{name} port {number}: {error}"));
            continue;
        }
        let rows = rows(device, &port, settings);
        if rows.is_empty() {
            reasons.push(format!(
                "{name} port {number} has no usable GID (of InfiniBand or RoCE version 2)"
            ));
        }
        for (row, why) in rows {
            let is_ib = port.link_layer == LinkLayer::InfiniBand;
            let mtu_cap = settings.mtu_bytes.ilog2() as u8 - 7;
            found.push(Place {
                device: Arc::clone(device),
                port: number,
                gid_index: (!is_ib).then_some(row.index),
                address: Address {
                    device: index,
                    layer: port.link_layer,
                    mtu: port.mtu.min(mtu_cap),
                    prefix_bits: if is_ib { 64 } else { prefixes.of(&row) },
                    lid: port.lid,
                    gid: row.gid,
                },
                why,
            });
        }
    }
    if found.is_empty() { Err(reasons.join("; ")) } else { Ok(found) }
}

/// Whether a port has queue pairs such as wires send over: devices may have others only.
fn try_out(device: &Arc<Device>, port: u8) -> Result<(), VerbsError> {
    let domain = ProtectionDomain::new(device)?;
    let queue = CompletionQueue::new(device, LIMITS.sends, None)?;
    QueuePair::new(&domain, port, &queue, &queue, LIMITS).map(drop)
}

/// The rows of a port's table to use, the best first, with the reason.
fn rows(device: &Device, port: &PortState, settings: &Settings) -> Vec<(GidEntry, &'static str)> {
    let mut all = device.gids(port.number, port.gids);
    if let Some(index) = settings.gid_index {
        all.retain(|row| row.index == index);
        return all.into_iter().map(|row| (row, "as set")).collect();
    }
    if port.link_layer == LinkLayer::InfiniBand {
        return all.into_iter().take(1).map(|row| (row, "the port's own")).collect();
    }
    all.retain(|row| row.kind == GidKind::RoceV2);
    let reason = |row: &GidEntry| {
        if row.gid.ipv4().is_some() {
            (0, "RoCE version 2, IPv4")
        } else if row.gid.is_link_local() {
            (2, "RoCE version 2, one cable only")
        } else {
            (1, "RoCE version 2, IPv6")
        }
    };
    all.sort_by_key(|row| (reason(row).0, row.index));
    all.truncate(GIDS_PER_PORT);
    all.into_iter().map(|row| (row, reason(&row).1)).collect()
}

/// One rank's side of rdma.
pub(super) struct RdmaPort {
    local: Arc<Local>,
    tcp: Box<dyn Port>,
}

impl RdmaPort {
    pub(super) fn open(
        settings: Settings,
        found: Found,
        tcp: Box<dyn Port>,
    ) -> Result<RdmaPort, TransportError> {
        let Found { devices, addresses: places } = found;
        let domains = devices.iter().map(ProtectionDomain::new).collect::<Result<_, _>>();
        let domains = domains.map_err(super::failed)?;
        let addresses = places.iter().map(|place| place.address).collect();
        let has_atomics = places.iter().all(|place| place.device.has_atomics());
        let card = Card { addresses, has_atomics, inner: tcp.card() };
        let cache = Cache::new(settings.cache_bytes);
        let local = Arc::new(Local { settings, places, domains, card, cache });
        Ok(RdmaPort { local, tcp })
    }
}

impl Port for RdmaPort {
    fn card(&self) -> Vec<u8> {
        self.local.card.serialise()
    }

    fn reaches(&self, card: &[u8]) -> bool {
        Card::parse(card)
            .is_ok_and(|card| self.local.card.reaches(&card) && self.tcp.reaches(&card.inner))
    }

    fn join_while(
        &self,
        group: &Group<'_>,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Box<dyn Endpoint>, TransportError> {
        let corrupt = |peer, what: &str| TransportError::Corrupt { peer, what: what.into() };
        let parse = |(peer, card): (usize, &Option<&[u8]>)| {
            card.map(|card| Card::parse(card).map_err(|what| corrupt(peer, what))).transpose()
        };
        let cards: Vec<_> = group.cards.iter().enumerate().map(parse).collect::<Result<_, _>>()?;
        let inner: Vec<Option<&[u8]>> =
            cards.iter().map(|card| card.as_ref().map(|card| &card.inner[..])).collect();
        let tcp = self.tcp.join_while(&Group { cards: &inner, ..*group }, go_on)?;
        Ok(Box::new(RdmaEndpoint::start(Arc::clone(&self.local), tcp, group.me, cards)?))
    }

    fn forget(&self, group: u64) {
        self.tcp.forget(group);
    }
}
