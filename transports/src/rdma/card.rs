//! What a rank tells the others: where its devices can be reached, and the card of the connection
//! over which queue pairs are agreed on.
//!
//! ```text
//! "BRD2"  atomics 1  count 1  count x address 22  the inner card      all integers little-endian
//! address: device 1  layer 1  mtu 1  prefix_bits 1  lid 2  gid 16
//! ```

use brigade_verbs::{Gid, LinkLayer};

use crate::CARD_BYTES_MAX;

const MAGIC: [u8; 4] = *b"BRD2";
const ADDRESS_BYTES: usize = 22;
/// What the inner card may need.
const INNER_BYTES_MAX: usize = 660;

/// The most addresses that a card lists.
pub(super) const ADDRESSES_MAX: usize = 16;
const _: () = assert!(6 + ADDRESS_BYTES * ADDRESSES_MAX + INNER_BYTES_MAX <= CARD_BYTES_MAX);

/// Where a port of a device can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// Which device of its rank.
    pub(super) device: u8,
    pub(super) layer: LinkLayer,
    /// The largest packet, as verbs count it.
    pub(super) mtu: u8,
    /// How many leading bits of the IP address name its network.
    pub(super) prefix_bits: u8,
    pub(super) lid: u16,
    pub(super) gid: Gid,
}

/// A rank as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Card {
    pub(super) addresses: Vec<Address>,
    /// Whether all its devices have atomic operations, which windows take at both ends.
    pub(super) has_atomics: bool,
    /// The card of the connection that carries the agreement.
    pub(super) inner: Vec<u8>,
}

impl Card {
    /// The card as bytes.
    pub(super) fn serialise(&self) -> Vec<u8> {
        assert!(self.addresses.len() <= ADDRESSES_MAX && self.inner.len() <= INNER_BYTES_MAX);
        let mut bytes = Vec::with_capacity(CARD_BYTES_MAX);
        bytes.extend(MAGIC);
        bytes.extend([u8::from(self.has_atomics), self.addresses.len() as u8]);
        for address in &self.addresses {
            let layer = match address.layer {
                LinkLayer::InfiniBand => 1,
                LinkLayer::Ethernet => 2,
            };
            bytes.extend([address.device, layer, address.mtu, address.prefix_bits]);
            bytes.extend(address.lid.to_le_bytes());
            bytes.extend(address.gid.0);
        }
        bytes.extend(&self.inner);
        bytes
    }

    /// Read a card that came from the network. Errors: what is wrong with it.
    pub(super) fn parse(bytes: &[u8]) -> Result<Card, &'static str> {
        let short = "the card ends early";
        let (magic, rest) = bytes.split_first_chunk().ok_or(short)?;
        if *magic != MAGIC {
            return Err("the card does not start as an rdma card does");
        }
        let (&[atomics, count], rest) = rest.split_first_chunk().ok_or(short)?;
        if atomics > 1 {
            return Err("the card neither has atomics nor lacks them");
        }
        if count == 0 || usize::from(count) > ADDRESSES_MAX {
            return Err("the card has an impossible number of addresses");
        }
        let listed = rest.split_at_checked(usize::from(count) * ADDRESS_BYTES).ok_or(short)?;
        let (rows, inner) = listed;
        if inner.len() > INNER_BYTES_MAX {
            return Err("the card is too long");
        }
        let (rows, _) = rows.as_chunks::<ADDRESS_BYTES>();
        let addresses = rows.iter().map(Address::parse).collect::<Result<_, _>>()?;
        Ok(Card { addresses, has_atomics: atomics == 1, inner: inner.to_vec() })
    }

    /// How many devices it lists.
    pub(super) fn devices(&self) -> usize {
        self.addresses.iter().map(|address| usize::from(address.device) + 1).max().unwrap_or(0)
    }

    /// Whether two ranks have a way to each other. Symmetric, so that both judge alike.
    pub(super) fn reaches(&self, other: &Card) -> bool {
        self.addresses.iter().any(|a| other.addresses.iter().any(|b| a.way_to(b) != Way::None))
    }
}

/// How an address looks from another, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    None,
    /// Addresses that are valid on one cable, which may be the same one.
    OneCable,
    /// IPv6 addresses of different networks.
    RoutedV6,
    /// IPv4 addresses of different networks.
    RoutedV4,
    /// IPv6 addresses of one network.
    SameV6,
    /// IPv4 addresses of one network, or one InfiniBand subnet.
    Same,
}

impl Address {
    fn parse(row: &[u8; ADDRESS_BYTES]) -> Result<Address, &'static str> {
        let [device, layer, mtu, prefix_bits, lid_low, lid_high, gid @ ..] = *row;
        let layer = match layer {
            1 => LinkLayer::InfiniBand,
            2 => LinkLayer::Ethernet,
            _ => return Err("the card names a link layer that there is not"),
        };
        if !(1..=5).contains(&mtu) || usize::from(device) >= ADDRESSES_MAX || prefix_bits > 128 {
            return Err("the card describes an impossible port");
        }
        let lid = u16::from_le_bytes([lid_low, lid_high]);
        Ok(Address { device, layer, mtu, prefix_bits, lid, gid: Gid(gid) })
    }

    /// How `other` looks from here. Symmetric.
    pub(super) fn way_to(&self, other: &Address) -> Way {
        match (self.layer, other.layer) {
            (LinkLayer::InfiniBand, LinkLayer::InfiniBand) => {
                // The upper half of a GID names the subnet.
                if self.gid.0[..8] == other.gid.0[..8] { Way::Same } else { Way::None }
            }
            (LinkLayer::Ethernet, LinkLayer::Ethernet) => self.way_by_ip(other),
            _ => Way::None,
        }
    }

    fn way_by_ip(&self, other: &Address) -> Way {
        let bits = u32::from(self.prefix_bits.min(other.prefix_bits));
        if let (Some(a), Some(b)) = (self.gid.ipv4(), other.gid.ipv4()) {
            let differ = (u32::from(a) ^ u32::from(b)).leading_zeros();
            return if differ >= bits.min(32) { Way::Same } else { Way::RoutedV4 };
        }
        if self.gid.ipv4().is_some() || other.gid.ipv4().is_some() {
            return Way::None;
        }
        match (self.gid.is_link_local(), other.gid.is_link_local()) {
            (true, true) => Way::OneCable,
            (false, false) => {
                let (a, b) = (u128::from_be_bytes(self.gid.0), u128::from_be_bytes(other.gid.0));
                if (a ^ b).leading_zeros() >= bits { Way::SameV6 } else { Way::RoutedV6 }
            }
            _ => Way::None,
        }
    }
}

/// The addresses, ours and theirs, that the `stripe`-th connection from member `from` (us) to
/// member `to` runs between: the best way there is, and among equals such that members and stripes
/// take turns with the devices. Indices into the two cards.
pub(super) fn choose(
    ours: &Card,
    theirs: &Card,
    from: usize,
    to: usize,
    stripe: usize,
) -> Option<(usize, usize)> {
    let turn = |card: &Card, address: &Address, member: usize| {
        let devices = card.devices().max(1);
        (usize::from(address.device) + devices - (member + stripe) % devices) % devices
    };
    let mut best: Option<((usize, usize), _)> = None;
    for (i, a) in ours.addresses.iter().enumerate() {
        for (j, b) in theirs.addresses.iter().enumerate() {
            let way = a.way_to(b);
            let rank = (way, usize::MAX - turn(ours, a, from), usize::MAX - turn(theirs, b, to));
            if way != Way::None && best.as_ref().is_none_or(|(_, known)| rank > *known) {
                best = Some(((i, j), rank));
            }
        }
    }
    best.map(|(pair, _)| pair)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    fn address(device: u8, ip: &str, prefix_bits: u8) -> Address {
        let gid = Gid(ip.parse::<Ipv6Addr>().unwrap().octets());
        Address { device, layer: LinkLayer::Ethernet, mtu: 5, prefix_bits, lid: 0, gid }
    }

    fn card(ips: &[(u8, &str)]) -> Card {
        let addresses = ips.iter().map(|(device, ip)| address(*device, ip, 24)).collect();
        Card { addresses, has_atomics: true, inner: vec![1, 2, 3] }
    }

    #[test]
    fn a_card_reads_back_and_its_beginnings_do_not() {
        let mut card = card(&[(0, "::ffff:10.0.0.1"), (1, "fe80::1")]);
        for has_atomics in [true, false] {
            card.has_atomics = has_atomics;
            assert_eq!(Card::parse(&card.serialise()).as_ref(), Ok(&card));
        }
        let mut bytes = card.serialise();
        bytes[4] = 2;
        assert!(Card::parse(&bytes).is_err());
        for length in 0..6 + 2 * ADDRESS_BYTES {
            assert!(Card::parse(&bytes[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn ways_are_judged_alike_from_both_ends() {
        let ips = ["::ffff:10.0.0.1", "::ffff:10.0.0.2", "::ffff:10.1.0.1", "fe80::1", "fd00::1"];
        for a in ips {
            for b in ips {
                let (a, b) = (address(0, a, 24), address(0, b, 24));
                assert_eq!(a.way_to(&b), b.way_to(&a));
            }
        }
        assert_eq!(address(0, ips[0], 24).way_to(&address(0, ips[1], 24)), Way::Same);
        assert_eq!(address(0, ips[0], 24).way_to(&address(0, ips[2], 24)), Way::RoutedV4);
        assert_eq!(address(0, ips[0], 24).way_to(&address(0, ips[3], 24)), Way::None);
    }

    #[test]
    fn devices_of_one_network_meet_and_stripes_take_turns() {
        // Two rails: the first devices share a network, and the second ones another.
        let a = card(&[(0, "::ffff:10.0.0.1"), (1, "::ffff:10.0.1.1")]);
        let b = card(&[(0, "::ffff:10.0.0.2"), (1, "::ffff:10.0.1.2")]);
        assert_eq!(choose(&a, &b, 0, 1, 0), Some((0, 0)));
        assert_eq!(choose(&a, &b, 0, 1, 1), Some((1, 1)));
        assert_eq!(choose(&a, &b, 1, 0, 0), Some((1, 1)));
        // One network: members 0 and 1 of one host use different devices.
        let flat = card(&[(0, "::ffff:10.0.0.1"), (1, "::ffff:10.0.0.2")]);
        assert_eq!(choose(&flat, &flat, 0, 1, 0), Some((0, 1)));
        assert_eq!(choose(&flat, &flat, 0, 1, 1), Some((1, 0)));
        assert_eq!(choose(&a, &card(&[(0, "fe80::1")]), 0, 1, 0), None);
    }
}
