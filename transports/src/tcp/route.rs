//! In which order to try the addresses of a peer, judged from its card and our own interfaces.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::address::Interface;
use super::card::Card;

/// An address to try, and why it might work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) address: SocketAddr,
    pub(super) reach: Reach,
}

/// How an address of a peer looks from here, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// The peer is on this machine, in this network namespace.
    Loopback,
    /// One of our interfaces is on the same network.
    SameNetwork,
    /// The kernel may know a way.
    Routed,
    /// Only an address valid on one cable, tried on each of ours.
    LinkLocal,
    /// A bridge of containers: the same addresses exist on many machines.
    PrivateBridge,
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reach::Loopback => "same machine and network namespace",
            Reach::SameNetwork => "same network as one of our interfaces",
            Reach::Routed => "reached through a router",
            Reach::LinkLocal => "link-local address",
            Reach::PrivateBridge => "private bridge",
        })
    }
}

/// The most addresses that are tried for one peer.
const CANDIDATES_MAX: usize = 64;

/// The addresses of `theirs` worth trying, best first. Wrong guesses are harmless: whoever answers
/// must prove that it is the owner of the card.
pub(super) fn candidates(mine: &Card, ours: &[Interface], theirs: &Card) -> Vec<Candidate> {
    let near = mine.shares_loopback(theirs);
    let mut found = Vec::new();
    for &address in &theirs.addresses {
        let Some(port) = theirs.port_for(&address) else { continue };
        if address.is_loopback() {
            if near {
                let address = SocketAddr::new(address, port);
                found.push(Candidate { address, reach: Reach::Loopback });
            }
        } else if !near && mine.addresses.contains(&address) {
            // The same address on two machines is a private bridge: it would lead back to us.
        } else {
            outside(ours, address, port, &mut found);
        }
    }
    found.sort_by_key(|candidate| candidate.reach);
    found.truncate(CANDIDATES_MAX);
    found
}

/// Candidates for an address that is not a loopback address.
fn outside(ours: &[Interface], address: IpAddr, port: u16, found: &mut Vec<Candidate>) {
    if let IpAddr::V6(v6) = address
        && is_link_local(v6)
    {
        let cables = ours.iter().filter(|interface| match interface.address {
            IpAddr::V6(own) => is_link_local(own) && !interface.is_private_bridge(),
            IpAddr::V4(_) => false,
        });
        found.extend(cables.map(|cable| Candidate {
            address: SocketAddrV6::new(v6, port, 0, cable.index).into(),
            reach: Reach::LinkLocal,
        }));
        return;
    }
    let neighbour = ours.iter().find(|ours| !ours.is_loopback && ours.is_neighbour(address));
    // Machines whose routes come by BGP have their own address on `lo`.
    let speaks_its_family = ours.iter().any(|ours| match ours.address {
        IpAddr::V4(own) => address.is_ipv4() && !own.is_loopback(),
        IpAddr::V6(own) => address.is_ipv6() && !own.is_loopback() && !is_link_local(own),
    });
    let reach = match neighbour {
        Some(bridge) if bridge.is_private_bridge() => Reach::PrivateBridge,
        Some(_) => Reach::SameNetwork,
        None if speaks_its_family => Reach::Routed,
        None => return,
    };
    found.push(Candidate { address: SocketAddr::new(address, port), reach });
}

/// How a peer was reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The peer's machine, as it calls itself.
    pub host: String,
    /// The address that was picked.
    pub address: SocketAddr,
    /// Why it was picked.
    pub reach: Reach,
    /// How many sockets a link to it has.
    pub sockets: usize,
}

/// The routes that worked, by the peer's id.
#[derive(Default)]
pub(super) struct Routes(Mutex<HashMap<[u8; 16], Route>>);

impl Routes {
    /// Move the address that worked before to the front.
    pub(super) fn prefer(&self, id: &[u8; 16], candidates: &mut [Candidate]) {
        if let Some(route) = self.lock().get(id)
            && let Some(place) = candidates.iter().position(|new| new.address == route.address)
        {
            candidates[..=place].rotate_right(1);
        }
    }

    /// This one worked.
    pub(super) fn remember(&self, peer: &Card, candidate: Candidate, sockets: usize) {
        let Candidate { address, reach } = candidate;
        let route = Route { host: peer.name.clone(), address, reach, sockets };
        self.lock().insert(peer.id, route);
    }

    /// All of them, ordered by host and address.
    pub(super) fn list(&self) -> Vec<Route> {
        let mut routes: Vec<Route> = self.lock().values().cloned().collect();
        routes.sort_by(|a, b| (&a.host, a.address).cmp(&(&b.host, b.address)));
        routes
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 16], Route>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_link_local(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(host: u8, addresses: &[&str]) -> Card {
        Card {
            id: [host; 16],
            host: [host; 16],
            netns: 1,
            port4: 4,
            port6: 6,
            name: format!("host{host}"),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        }
    }

    fn ours(list: &[(&str, &str, u8)]) -> Vec<Interface> {
        let interface = |(index, (name, address, prefix_bits)): (usize, &(&str, &str, u8))| {
            let address: IpAddr = address.parse().unwrap();
            Interface {
                name: name.to_string(),
                index: index as u32 + 1,
                address,
                prefix_bits: *prefix_bits,
                is_loopback: address.is_loopback(),
                speed_mbit: None,
            }
        };
        list.iter().enumerate().map(interface).collect()
    }

    fn check(mine: &Card, ours: &[Interface], theirs: &Card, expected: &[&str]) {
        let found = candidates(mine, ours, theirs);
        let found: Vec<String> = found.iter().map(|found| found.address.to_string()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn near_peers_use_loopback_first_and_far_ones_never() {
        let interfaces = ours(&[("eth0", "10.0.0.1", 24), ("lo", "127.0.0.1", 8)]);
        let mine = card(1, &["10.0.0.1", "127.0.0.1"]);
        check(&mine, &interfaces, &mine.clone(), &["127.0.0.1:4", "10.0.0.1:4"]);
        let theirs = card(2, &["10.0.0.2", "127.0.0.1", "::1"]);
        check(&mine, &interfaces, &theirs, &["10.0.0.2:4"]);
    }

    #[test]
    fn neighbours_come_before_routes_and_bridges_last() {
        let interfaces = ours(&[
            ("eth0", "10.0.0.1", 24),
            ("docker0", "172.17.0.1", 16),
            ("eth1", "fe80::1", 64),
        ]);
        let mine = card(1, &["10.0.0.1", "172.17.0.1"]);
        let theirs =
            card(2, &["172.17.0.1", "172.17.0.9", "192.168.7.7", "fd00::7", "10.0.0.2", "fe80::2"]);
        let expected = ["10.0.0.2:4", "192.168.7.7:4", "[fe80::2%3]:6", "172.17.0.9:4"];
        check(&mine, &interfaces, &theirs, &expected);
    }

    #[test]
    fn an_address_on_lo_may_be_routed() {
        let mut interfaces = ours(&[("lo", "127.0.0.1", 8), ("lo", "10.9.0.1", 32)]);
        interfaces[1].is_loopback = true;
        let mine = card(1, &["10.9.0.1"]);
        check(&mine, &interfaces, &card(2, &["10.9.0.2"]), &["10.9.0.2:4"]);
    }

    #[test]
    fn ranks_judge_alike_whether_they_reach_each_other() {
        let lonely = card(1, &["127.0.0.1"]);
        let v6 = card(2, &["fd00::2"]);
        let both = card(3, &["10.0.0.3", "fd00::3"]);
        for (a, b, reach) in [
            (&lonely, &lonely, true),
            (&lonely, &both, false),
            (&v6, &both, true),
            (&v6, &lonely, false),
        ] {
            assert_eq!((a.reaches(b), b.reaches(a)), (reach, reach));
        }
    }
}
