//! The table of addresses that a port has, as the kernel shows it in its files.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Device;

/// A port's global address: sixteen bytes, written as an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

/// What a GID is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand, or the first version of RoCE, which does not leave its Ethernet.
    Local,
    /// RoCE over UDP.
    RoceV2,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its place in the table, which connections name.
    pub index: u8,
    /// The address.
    pub gid: Gid,
    /// What it is good for.
    pub kind: GidKind,
}

impl Gid {
    /// The IP address that it stands for, on Ethernet.
    pub fn address(&self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// The IPv4 address that it stands for, if it does.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// Whether it is valid on one cable only.
    pub fn is_link_local(&self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl Device {
    /// The addresses in use of a port, in the table's order; at most the first `rows` rows are
    /// looked at. None where the kernel's files cannot be read.
    pub fn gids(&self, port: u8, rows: u32) -> Vec<GidEntry> {
        let folder = format!("/sys/class/infiniband/{}/ports/{port}", self.name());
        let row = |index: u8| {
            let gid = fs::read_to_string(format!("{folder}/gids/{index}")).ok()?;
            let gid: Ipv6Addr = gid.trim().parse().ok()?;
            if gid.is_unspecified() {
                return None;
            }
            // Rows that are not in use cannot be read; InfiniBand has no such file for any.
            let kind = fs::read_to_string(format!("{folder}/gid_attrs/types/{index}"));
            let kind = match kind.unwrap_or_default().trim() {
                "RoCE v2" => GidKind::RoceV2,
                _ => GidKind::Local,
            };
            Some(GidEntry { index, gid: Gid(gid.octets()), kind })
        };
        let rows = u8::try_from(rows).unwrap_or(u8::MAX);
        (0..rows).filter_map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_are_addresses() {
        let mapped = Gid("::ffff:10.77.0.1".parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!(mapped.ipv4(), Some(Ipv4Addr::new(10, 77, 0, 1)));
        assert!(!mapped.is_link_local());
        let local = Gid("fe80::1".parse::<Ipv6Addr>().unwrap().octets());
        assert!(local.is_link_local() && local.ipv4().is_none());
        assert_eq!(local.to_string(), "fe80::1");
    }
}
