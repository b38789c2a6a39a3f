//! Which addresses this machine has, and which of them the user wants used.

use std::net::IpAddr;

use super::sys;
use crate::{TransportError, opened};

/// An address of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The interface's name, such as `eth0`.
    pub name: String,
    /// The kernel's number for the interface, which a link-local address needs beside it.
    pub index: u32,
    /// One of its addresses.
    pub address: IpAddr,
    /// How many leading bits of the address name its network.
    pub prefix_bits: u8,
    /// Whether it reaches this machine only.
    pub is_loopback: bool,
    /// What the driver says of its speed, in megabits a second.
    pub speed_mbit: Option<u32>,
}

impl Interface {
    /// Whether `other` is on the network that this address is on.
    pub fn is_neighbour(&self, other: IpAddr) -> bool {
        is_within(other, self.address, self.prefix_bits)
    }

    /// Whether this looks like a bridge that containers or virtual machines of one machine share.
    /// Such networks carry the same addresses on every machine, so they are tried last.
    pub fn is_private_bridge(&self) -> bool {
        const BRIDGES: [&str; 6] = ["docker", "virbr", "br-", "podman", "cni", "lxc"];
        BRIDGES.iter().any(|bridge| self.name.starts_with(bridge))
    }
}

/// Every address of the interfaces that are up and that `filter` admits, the fastest first,
/// private bridges and loopback last.
pub(super) fn interfaces(filter: &Filter) -> Result<Vec<Interface>, TransportError> {
    let raw = sys::addresses()
        .map_err(|error| TransportError::from_io("getifaddrs", &error, "listing interfaces"))?;
    let mut found: Vec<Interface> = raw
        .into_iter()
        .map(|raw| Interface {
            speed_mbit: speed_mbit(&raw.name),
            name: raw.name,
            index: raw.index,
            address: raw.address,
            prefix_bits: raw.prefix_bits,
            is_loopback: raw.is_loopback,
        })
        .filter(|interface| filter.admits(interface))
        .collect();
    let slowness = |interface: &Interface| u32::MAX - interface.speed_mbit.unwrap_or(0);
    found.sort_by_key(|interface| {
        (interface.is_loopback, interface.is_private_bridge(), slowness(interface))
    });
    Ok(found)
}

/// What the driver reports, where it does; virtual interfaces mostly do not.
fn speed_mbit(name: &str) -> Option<u32> {
    let path = format!("/sys/class/net/{name}/speed");
    let text = opened(|| std::fs::read_to_string(&path)).ok()?;
    text.trim().parse::<u32>().ok().filter(|&speed| speed > 0)
}

/// Which interfaces to use: a comma list of names (`eth` means every name that starts so, `=eth0`
/// means that one), addresses (`10.0.0.5`) and networks (`10.0.0.0/8`, `fd00::/8`); a leading `^`
/// turns it into a list of what not to use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    excludes: bool,
    items: Vec<Item>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    NamePrefix(String),
    Name(String),
    Network(IpAddr, u8),
}

impl Filter {
    /// Read a filter. Errors: the sentence to show to whoever wrote it.
    pub fn parse(text: &str) -> Result<Filter, String> {
        let (excludes, list) = match text.trim().strip_prefix('^') {
            Some(list) => (true, list),
            None => (false, text.trim()),
        };
        let mut items = Vec::new();
        for word in list.split(',').map(str::trim) {
            let word = match word.strip_prefix('^') {
                Some(word) if excludes => word,
                Some(_) => {
                    return Err(format!("`{text}`: put the `^` first, it turns the whole list"));
                }
                None => word,
            };
            items.push(Item::parse(word).map_err(|why| format!("`{text}`: {why}"))?);
        }
        Ok(Filter { excludes, items })
    }

    /// Whether an interface may be used. Without a list every one may; with one that includes,
    /// loopback has to be named as well.
    pub fn admits(&self, interface: &Interface) -> bool {
        let is_listed = self.items.iter().any(|item| item.matches(interface));
        self.items.is_empty() || is_listed != self.excludes
    }
}

impl Item {
    fn parse(word: &str) -> Result<Item, String> {
        if word.is_empty() {
            return Err("an entry of the list is empty".into());
        }
        if let Some(name) = word.strip_prefix('=') {
            return Ok(Item::Name(name.into()));
        }
        if let Some((address, bits)) = word.split_once('/') {
            let address: IpAddr =
                address.parse().map_err(|_| format!("`{address}` is not an IP address"))?;
            let most = if address.is_ipv4() { 32 } else { 128 };
            return match bits.parse() {
                Ok(bits) if bits <= most => Ok(Item::Network(address, bits)),
                _ => Err(format!("`/{bits}` is not a length from /0 to /{most}")),
            };
        }
        Ok(match word.parse::<IpAddr>() {
            Ok(address) => Item::Network(address, 128),
            Err(_) => Item::NamePrefix(word.into()),
        })
    }

    fn matches(&self, interface: &Interface) -> bool {
        match self {
            Item::Name(name) => interface.name == *name,
            Item::NamePrefix(prefix) => interface.name.starts_with(prefix),
            Item::Network(network, bits) => is_within(interface.address, *network, *bits),
        }
    }
}

/// Whether the first `bits` bits of two addresses of one family agree.
fn is_within(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let differ = u32::from(a) ^ u32::from(b);
            differ.leading_zeros() >= u32::from(bits.min(32))
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let differ = u128::from(a) ^ u128::from(b);
            differ.leading_zeros() >= u32::from(bits.min(128))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str, prefix_bits: u8) -> Interface {
        let address: IpAddr = address.parse().unwrap();
        let is_loopback = address.is_loopback();
        Interface {
            name: name.into(),
            index: 1,
            address,
            prefix_bits,
            is_loopback,
            speed_mbit: None,
        }
    }

    fn check(filter: &str, admitted: &[&str]) {
        let all = [
            interface("lo", "127.0.0.1", 8),
            interface("eth0", "10.1.2.3", 24),
            interface("eth0", "fd00::3", 64),
            interface("eth10", "10.9.2.3", 24),
            interface("docker0", "172.17.0.1", 16),
        ];
        let filter = Filter::parse(filter).unwrap();
        let found: Vec<String> = all
            .iter()
            .filter(|interface| filter.admits(interface))
            .map(|interface| interface.address.to_string())
            .collect();
        assert_eq!(found, admitted, "{filter:?}");
    }

    #[test]
    fn names_addresses_and_networks_include_or_exclude() {
        check("eth", &["10.1.2.3", "fd00::3", "10.9.2.3"]);
        check("=eth1", &[]);
        check("=eth0", &["10.1.2.3", "fd00::3"]);
        check("10.0.0.0/8", &["10.1.2.3", "10.9.2.3"]);
        check("10.9.2.3, lo", &["127.0.0.1", "10.9.2.3"]);
        check("fd00::/8", &["fd00::3"]);
        check("^docker0,lo", &["10.1.2.3", "fd00::3", "10.9.2.3"]);
        check("^docker0,^eth", &["127.0.0.1"]);
        check("0.0.0.0/0", &["127.0.0.1", "10.1.2.3", "10.9.2.3", "172.17.0.1"]);
    }

    #[test]
    fn nonsense_is_named() {
        for (text, word) in
            [("eth0,^lo", "first"), ("10.0.0.0/33", "/32"), ("eth0,,lo", "empty"), ("x/8", "`x`")]
        {
            let why = Filter::parse(text).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
    }

    #[test]
    fn this_machine_has_a_loopback_address_and_it_comes_last() {
        let all = interfaces(&Filter::default()).unwrap();
        assert!(all.last().is_some_and(|last| last.is_loopback), "{all:?}");
        assert!(all.iter().any(|interface| interface.is_neighbour("127.0.0.9".parse().unwrap())));
    }
}
