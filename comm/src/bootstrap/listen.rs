//! Where the root listens.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::time::{Duration, Instant};

use brigade_transports::opened;
use socket2::{Domain, SockRef, Socket, Type};

use super::sys::host_name;
use super::{JoinError, Outlook, Vigil};
use crate::launch::RootAddress;

/// Connections that may wait to be accepted: all ranks of a large job at once.
const BACKLOG: i32 = 4096;
/// How often a port that is taken is tried again.
const RETRY: Duration = Duration::from_millis(20);

/// A listener at the first of `addresses` that can be had.
pub(super) fn at(addresses: &[SocketAddr]) -> Result<TcpListener, JoinError> {
    let failed = |source| JoinError::Listen { address: format!("{addresses:?}"), source };
    let listener = opened(|| TcpListener::bind(addresses)).map_err(failed)?;
    SockRef::from(&listener).listen(BACKLOG).map_err(failed)?;
    Ok(listener)
}

/// A listener on every interface, for IPv6 and IPv4, or for IPv4 where there is nothing else.
pub(super) fn everywhere(port: u16) -> Result<TcpListener, JoinError> {
    let both = || -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
        socket.set_only_v6(false)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    match opened(both) {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            at(&[SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))])
        }
        done => {
            done.map_err(|source| JoinError::Listen { address: format!("[::]:{port}"), source })
        }
    }
}

/// A listener at the address that the job was given: at its host if that is one of ours, else
/// (names in front of us, translated addresses) on every interface. Ports that are taken are tried
/// again until the deadline.
pub(super) fn for_root(address: &RootAddress, vigil: &mut Vigil) -> Result<TcpListener, JoinError> {
    loop {
        let mut last = None;
        for port in address.ports() {
            match on_port(address, port) {
                Ok(listener) => return Ok(listener),
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) if Instant::now() >= vigil.deadline() || !may_pass(&error) => {
                return Err(error);
            }
            Some(error) => {
                vigil.look(Outlook::Poor, || format!("a place to listen (at last: {error})"));
            }
            None => {}
        }
        std::thread::sleep(RETRY);
    }
}

fn on_port(address: &RootAddress, port: u16) -> Result<TcpListener, JoinError> {
    let failed = |source| JoinError::Listen { address: address.to_string(), source };
    let hosts = (address.host.as_str(), port).to_socket_addrs().map_err(failed)?;
    let hosts: Vec<_> = hosts.collect();
    match at(&hosts) {
        Err(JoinError::Listen { source, .. })
            if source.kind() == io::ErrorKind::AddrNotAvailable =>
        {
            everywhere(port)
        }
        done => done,
    }
}

fn may_pass(error: &JoinError) -> bool {
    match error {
        JoinError::Listen { source, .. } => source.kind() != io::ErrorKind::PermissionDenied,
        _ => false,
    }
}

/// How the root's own process reaches a listener that is bound to `bound`: what listens on every
/// interface listens on IPv4's loopback too.
pub(super) fn own_address(bound: SocketAddr) -> SocketAddr {
    let ip = if bound.ip().is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { bound.ip() };
    SocketAddr::new(ip, bound.port())
}

/// Where a listener is that is bound to `bound`, in words for other hosts.
pub(super) fn place(bound: SocketAddr) -> String {
    if bound.ip().is_unspecified() {
        format!("port {} of every interface of {}", bound.port(), host_name())
    } else {
        bound.to_string()
    }
}
