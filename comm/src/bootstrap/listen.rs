//! Where the root listens.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use brigade_transports::opened;
use socket2::{Domain, SockRef, Socket, Type};

use super::error::JoinError;
use super::names::{Lookup, at_port};
use super::sys::host_name;
use super::vigil::{Outlook, Vigil};
use crate::launch::RootAddress;

/// Connections that may wait to be accepted: all ranks of a large job at once.
const BACKLOG: i32 = 4096;
/// How often a port that is taken is tried again.
const RETRY: Duration = Duration::from_millis(20);

/// A listener at the first of `addresses` that can be had.
pub(super) fn at(addresses: &[SocketAddr]) -> Result<TcpListener, JoinError> {
    let list = || addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
    let failed = |source| JoinError::Listen { address: list(), source };
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
/// again until the deadline. Beside it, what makes it doubtful that this is the process that shall
/// listen there: where several have rank 0, each waits for the others at a root of its own.
pub(super) fn for_root(
    address: &RootAddress,
    vigil: &mut Vigil,
) -> Result<(TcpListener, Option<String>), JoinError> {
    let (mut names, began, mut is_late) = (Lookup::default(), Instant::now(), false);
    loop {
        let (error, outlook) = match names.find(&address.host, vigil.rest_until()) {
            Ok(hosts) => match on_a_port(address, &hosts) {
                Ok((listener, is_ours)) => {
                    let late = is_late.then(|| began.elapsed());
                    return Ok((listener, doubt(&address.host, is_ours, late)));
                }
                Err(error) => (error, Outlook::Poor),
            },
            Err(source) => {
                let outlook = Outlook::of_name(&source);
                (JoinError::Listen { address: address.to_string(), source }, outlook)
            }
        };
        if Instant::now() >= vigil.deadline() || !may_pass(&error) {
            return Err(error);
        }
        is_late |= error.is_taken();
        vigil.look(outlook, || format!("a place to listen (at last: {error})"));
        std::thread::sleep(RETRY);
    }
}

/// What is doubtful about a root at `host`, which is one of ours or not, after so long a wait for
/// somebody else to go from there.
fn doubt(host: &str, is_ours: bool, late: Option<Duration>) -> Option<String> {
    let what = match (is_ours, late) {
        (false, _) => format!("{host} is no address of {}, where this root is", host_name()),
        (true, Some(late)) => {
            format!("another process had this root's place for {:.1} s", late.as_secs_f64())
        }
        (true, None) => return None,
    };
    Some(format!("{what} (do several processes have rank 0?)"))
}

/// A listener at the first port that can be had, and whether the host is ours. Errors: the last
/// one's.
fn on_a_port(
    address: &RootAddress,
    hosts: &[SocketAddr],
) -> Result<(TcpListener, bool), JoinError> {
    let mut ports = address.ports();
    let first = ports.next().expect("there is one port at least");
    ports.fold(on_port(hosts, first), |had, port| had.or_else(|_| on_port(hosts, port)))
}

fn on_port(hosts: &[SocketAddr], port: u16) -> Result<(TcpListener, bool), JoinError> {
    let hosts: Vec<_> = hosts.iter().map(|host| at_port(*host, port)).collect();
    match at(&hosts) {
        Err(JoinError::Listen { source, .. })
            if source.kind() == io::ErrorKind::AddrNotAvailable =>
        {
            everywhere(port).map(|listener| (listener, false))
        }
        done => done.map(|listener| (listener, true)),
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
