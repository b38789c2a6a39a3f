//! The listener of a port: one thread that accepts, and a short-lived one for each caller until it
//! has proved itself.
//!
//! Callers are hostile until then. Each has [`HANDSHAKE`] for everything together, and there are at
//! most [`CALLERS_MAX`] at a time; more wait in the kernel. When it is full, whoever has been at it
//! for more than [`PATIENCE`] is cut off. Honest callers need milliseconds, so a flood of silent
//! ones holds them up a little, and for ever never.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::link::Proved;
use super::shared::Shared;
use super::{handshake, options, sys};
use crate::{MAKE_THREAD, OursAlone, TransportError, Unavailable, opened};

/// How long a caller may take to prove itself.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long it may take when others are waiting.
const PATIENCE: Duration = Duration::from_secs(1);
const CALLERS_MAX: usize = 128;
const BACKLOG: i32 = 4096;

/// Listening sockets, not yet served.
pub(super) struct Bound {
    sockets: Vec<OursAlone<Socket>>,
    pub(super) port4: u16,
    pub(super) port6: u16,
}

impl Bound {
    /// Listen with IPv4 and IPv6 on all addresses, on the first free port of `ports` or on any.
    pub(super) fn new(ports: Option<&RangeInclusive<u16>>) -> Result<Bound, TransportError> {
        let v4 = listen(Ipv4Addr::UNSPECIFIED.into(), ports, 0)?;
        let port4 = v4.as_ref().map_or(0, |(_, port)| *port);
        let v6 = listen(Ipv6Addr::UNSPECIFIED.into(), ports, port4)?;
        let port6 = v6.as_ref().map_or(0, |(_, port)| *port);
        let both = v4.into_iter().chain(v6);
        let sockets: Vec<_> = both.map(|(socket, _)| OursAlone::new(socket)).collect();
        if sockets.is_empty() {
            return Err(unavailable("neither IPv4 nor IPv6 is enabled", "enable one of them"));
        }
        Ok(Bound { sockets, port4, port6 })
    }
}

/// One family's listener and its port; `None` where the machine does not have the family.
fn listen(
    any: IpAddr,
    ports: Option<&RangeInclusive<u16>>,
    same_as: u16,
) -> Result<Option<(Socket, u16)>, TransportError> {
    let failed = |call, error: &io::Error, port: u16| {
        TransportError::from_io(call, error, format!("listening at {}", SocketAddr::new(any, port)))
    };
    let anywhere = 0..=0;
    // The port that the other family got comes first: one rule for a firewall is enough then.
    let choices = Some(same_as).filter(|&port| port != 0).into_iter();
    for port in choices.chain(ports.unwrap_or(&anywhere).clone()) {
        let socket = match opened(|| unbound(any.is_ipv4())) {
            Err(error) if is_family_missing(&error) => return Ok(None),
            other => other.map_err(|error| failed("socket", &error, port))?,
        };
        let bound = socket
            .bind(&SockAddr::from(SocketAddr::new(any, port)))
            .and_then(|()| socket.listen(BACKLOG));
        match bound {
            Ok(()) => {
                let own = socket.local_addr().map_err(|error| failed("getsockname", &error, port));
                let own = own?.as_socket().expect("an IP socket has an IP address");
                return Ok(Some((socket, own.port())));
            }
            Err(error) if is_family_missing(&error) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(failed("bind", &error, port)),
        }
    }
    let range = ports.unwrap_or(&anywhere);
    let why = format!("every port from {} to {} is taken", range.start(), range.end());
    Err(unavailable(&why, "widen the port range (each rank of a machine needs one port)"))
}

fn unbound(is_ipv4: bool) -> io::Result<Socket> {
    let domain = if is_ipv4 { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    if !is_ipv4 {
        socket.set_only_v6(true)?;
    }
    // A port whose last connections are still fading away is free for us.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn is_family_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
}

fn unavailable(why: &str, next_step: &str) -> TransportError {
    let (why, next_step) = (why.into(), next_step.into());
    Unavailable { transport: "tcp", why, next_step }.into()
}

/// A running listener; dropping it stops it.
pub(super) struct Listener {
    thread: Option<JoinHandle<()>>,
    stop: Option<UnixStream>,
}

impl Listener {
    /// Serve `bound`: file every caller that proves itself in the links of `shared`.
    pub(super) fn start(bound: Bound, shared: Arc<Shared>) -> Result<Listener, TransportError> {
        let failed = |call, error| TransportError::from_io(call, &error, "starting to listen");
        let pair = opened(UnixStream::pair);
        let (stop, stopped) = pair.map_err(|error| failed("socketpair", error))?;
        let thread = std::thread::Builder::new()
            .name("brigade-tcp".into())
            .spawn(move || serve(&bound.sockets, &stopped, &shared))
            .map_err(|error| failed(MAKE_THREAD, error))?;
        Ok(Listener { thread: Some(thread), stop: Some(stop) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let outcome = thread.join();
            debug_assert!(outcome.is_ok(), "the listener does not panic");
        }
    }
}

/// Accept until the other end of `stopped` is dropped. Should the system refuse to wait for that,
/// whoever waits for a link hears of it.
fn serve(listening: &[OursAlone<Socket>], stopped: &UnixStream, shared: &Arc<Shared>) {
    let fds: Vec<_> = listening
        .iter()
        .map(|socket| socket.as_raw_fd())
        .chain(std::iter::once(stopped.as_raw_fd()))
        .collect();
    let mut callers = VecDeque::new();
    loop {
        let ready = match sys::poll(&fds, libc::POLLIN, -1) {
            Ok(ready) => ready,
            Err(error) => {
                shared.links.fail(TransportError::from_io("poll", &error, "listening for peers"));
                break;
            }
        };
        if ready[listening.len()] {
            break;
        }
        for (socket, _) in listening.iter().zip(&ready).filter(|(_, ready)| **ready) {
            make_room(&mut callers);
            match opened(|| socket.accept()) {
                Ok((caller, _)) => admit(caller, shared, &mut callers),
                Err(error) => pause_after(&error),
            }
        }
    }
    for caller in callers {
        caller.cut_off();
    }
}

/// When files or memory are short, the same caller would be found again at once: leave the
/// processor to those who can free something.
fn pause_after(error: &io::Error) {
    if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Wait until one more caller can be served, for [`PATIENCE`] at the most.
fn make_room(callers: &mut VecDeque<Arc<Caller>>) {
    loop {
        callers.retain(|caller| caller.lock().is_some());
        match callers.front() {
            Some(oldest) if callers.len() >= CALLERS_MAX => {
                if oldest.since.elapsed() >= PATIENCE {
                    oldest.cut_off();
                } else {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            _ => return,
        }
    }
}

/// Someone who has not proved itself yet. Holds a second handle to its socket, to cut it off.
struct Caller {
    socket: Mutex<Option<Socket>>,
    since: Instant,
}

impl Caller {
    fn lock(&self) -> MutexGuard<'_, Option<Socket>> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// End its handshake now, if it is still at it.
    fn cut_off(&self) {
        if let Some(socket) = self.lock().take() {
            // It may have hung up by itself; then there is nothing to shut down.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Whether it was still allowed; from now on it cannot be cut off.
    fn pass(&self) -> bool {
        self.lock().take().is_some()
    }
}

/// Give a caller its own thread and its deadline.
fn admit(socket: Socket, shared: &Arc<Shared>, callers: &mut VecDeque<Arc<Caller>>) {
    let Ok(handle) = opened(|| socket.try_clone()) else { return };
    let since = Instant::now();
    let caller = Arc::new(Caller { socket: Mutex::new(Some(handle)), since });
    callers.push_back(caller.clone());
    let shared = shared.clone();
    let spawned = std::thread::Builder::new().name("brigade-hello".into()).spawn({
        let caller = caller.clone();
        move || {
            // A caller that fails is not told why and nobody here waits for it: whoever was to
            // call and could not will say so on its side.
            let _ = receive(socket, &caller, &shared);
            caller.pass();
        }
    });
    if spawned.is_err() {
        caller.cut_off();
    }
}

fn receive(socket: Socket, caller: &Caller, shared: &Shared) -> Result<(), TransportError> {
    let until = Instant::now() + HANDSHAKE;
    let failed = |call, error: io::Error| TransportError::from_io(call, &error, "taking a call");
    socket.set_nonblocking(false).map_err(|error| failed("fcntl", error))?;
    let (hello, seals) = handshake::hear(&socket, &shared.card.id, shared.terms(), until)?;
    options::tune(&socket, &shared.settings, options::is_local(&socket))?;
    if !caller.pass() {
        return Ok(());
    }
    shared
        .links
        .file(&hello, Proved { socket, seals }, until)
        .map_err(|error| failed("write", error))
}
