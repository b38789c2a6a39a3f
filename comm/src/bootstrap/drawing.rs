//! Drawing an id: a root for it on this host, where the user lets us listen.

use std::io::ErrorKind::AddrInUse;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use super::error::{JoinError, system};
use super::id::UniqueId;
use super::root::Root;
use super::site::Site;
use super::{listen, proof, sys};
use crate::transports::addresses;

/// As many addresses as an id has room for.
const V4_MAX: usize = 6;
const V6_MAX: usize = 2;

impl UniqueId {
    /// Open a root and draw the id that leads to it. It listens on `at`, or without one on every
    /// interface of this host, at any port. The root serves one world in a thread of its own until
    /// it is dropped. Errors: `Listen`, `System`.
    ///
    /// Where settings say which ports and interfaces are to be used, [`UniqueId::create_for`] keeps
    /// to them.
    pub fn create(at: Option<IpAddr>) -> Result<(UniqueId, Root), JoinError> {
        match at.filter(|ip| !ip.is_unspecified()) {
            Some(ip) => lead_to(listen::at(&[SocketAddr::new(ip, 0)])?, &[ip], None),
            None => Self::create_on(&Site::default()),
        }
    }

    pub(crate) fn create_on(site: &Site) -> Result<(UniqueId, Root), JoinError> {
        Self::create_keyed(site, None)
    }

    /// The same, for those who know the job's secret, too, if there is one.
    pub(super) fn create_keyed(
        site: &Site,
        job: Option<&[u8; 32]>,
    ) -> Result<(UniqueId, Root), JoinError> {
        let ips = match site.interface.as_deref().map(admitted) {
            Some(ips) if !ips.is_empty() => ips,
            _ => all()?,
        };
        let listen_on = |port| match ips[..] {
            [ip] => listen::at(&[SocketAddr::new(ip, port)]),
            _ => listen::everywhere(port),
        };
        let listener = match site.ports {
            None => listen_on(0)?,
            Some((first, last)) => on_one_of((first, last), listen_on)?,
        };
        lead_to(listener, &ips, job)
    }
}

/// Every address by which others may come, this host's own last.
fn all() -> Result<Vec<IpAddr>, JoinError> {
    let mut ips = sys::addresses().map_err(system("listing the interfaces"))?;
    ips.push(Ipv4Addr::LOCALHOST.into());
    Ok(ips)
}

/// The addresses that the user admits, but for those that are valid on a cable only: elsewhere
/// nobody knows on which. Without any, none: ranks that meet all the same say what is wrong.
fn admitted(interface: &str) -> Vec<IpAddr> {
    let is_of_cable = |ip: &IpAddr| match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let mut ips = addresses(interface).unwrap_or_default();
    ips.retain(|ip| !is_of_cable(ip));
    ips
}

/// A listener on one of these ports, the last first: ranks take them from the first on.
fn on_one_of(
    (first, last): (u16, u16),
    listen_on: impl Fn(u16) -> Result<TcpListener, JoinError>,
) -> Result<TcpListener, JoinError> {
    for port in (first..=last).rev() {
        match listen_on(port) {
            Err(JoinError::Listen { source, .. }) if source.kind() == AddrInUse => {}
            done => return done,
        }
    }
    let address = format!("any of the ports {first} to {last}");
    Err(JoinError::Listen { address, source: AddrInUse.into() })
}

/// Serve a root behind this listener; others reach it by `ips`.
fn lead_to(
    listener: TcpListener,
    ips: &[IpAddr],
    job: Option<&[u8; 32]>,
) -> Result<(UniqueId, Root), JoinError> {
    let secret = proof::random().map_err(system("drawing a secret"))?;
    let served = job.map_or(secret, |job| proof::keyed_secret(&secret, job));
    let root = Root::serve(listener, served, None).map_err(system("starting the root"))?;
    let bound = root.address();
    let speaks_v6 = bound.is_ipv6();
    let (own, far): (Vec<IpAddr>, Vec<IpAddr>) = ips.iter().partition(|ip| ip.is_loopback());
    let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = far.into_iter().partition(IpAddr::is_ipv4);
    let v6 = v6.into_iter().filter(|_| speaks_v6).take(V6_MAX);
    let all = v4.into_iter().take(V4_MAX).chain(v6).chain(own);
    let reached: Vec<_> = all.map(|ip| SocketAddr::new(ip, bound.port())).collect();
    Ok((UniqueId::new(&reached, &secret), root))
}
