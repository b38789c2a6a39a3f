//! Making a link: try the peer's addresses, best first and overlapping in time, until one answers
//! that proves to be the peer; then open the other sockets to the same address. What fails may
//! pass, as where a listener is full or its process was stopped in the middle of a proof, so all of
//! it is tried again for a while; whichever link the peer makes meanwhile will do, too.
//!
//! Source for the overlapping: RFC 8305, Happy Eyeballs.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::card::Card;
use super::handshake::{self, Answer, Failed, Hello};
use super::link::Proved;
use super::pairs::{Pair, Turn};
use super::patience::Patience;
use super::route::{Candidate, candidates};
use super::shared::Shared;
use super::tries::{Failures, Tries};
use super::{options, sys};
use crate::{TransportError, opened};

/// How long an address has to answer before the next one is tried beside it.
const HEAD_START: Duration = Duration::from_millis(150);
/// How long a peer that dials us is kept waiting while nobody answers us. The kernel has called a
/// second time by then, a second after the first.
const UNHEARD: Duration = Duration::from_millis(1500);
/// How long such a peer then has to come to us.
const YIELD: Duration = Duration::from_millis(500);
/// How long one that answered may take to prove itself while there are others to try.
const PROOF_PATIENCE: Duration = Duration::from_secs(3);
/// Sockets to a peer on another machine: one flow rarely fills a fast network, and a lost packet
/// holds up only its own flow.
const SOCKETS_APART: usize = 4;

/// What came of dialling.
enum Dialled {
    /// The sockets of a link.
    Linked(Vec<Proved>),
    /// The peer is dialling us and its link counts. It keeps this open meanwhile.
    Crossing(Socket),
    /// The peer is dialling us and ours counts, but nobody answers us: it shall make the link.
    Yielding,
}

/// Which link is wanted, by whom, for how long.
pub(super) struct Call {
    pub(super) shared: Arc<Shared>,
    pub(super) pair: Arc<Pair>,
    pub(super) group: u64,
    pub(super) me: usize,
    pub(super) to: usize,
    pub(super) theirs: Card,
    pub(super) patience: Patience,
}

impl Call {
    /// Have the link stand.
    pub(super) fn link(&self) -> Result<(), TransportError> {
        let started = Instant::now();
        let mut tries = Tries::default();
        let mut turn = self.pair.turn(None, &self.patience);
        loop {
            match turn {
                Turn::Linked => return Ok(()),
                Turn::TooLate => {
                    // It has heard from us, so what it sends is what does not come.
                    let what = format!(
                        "the connection that {} began to make (is it stopped, or does a firewall \
                         drop its calls?)",
                        self.whom()
                    );
                    let waited_ms = started.elapsed().as_millis() as u64;
                    return Err(TransportError::Timeout { what, waited_ms });
                }
                Turn::Dial => {}
            }
            let dialled = self.dial();
            if let Ok(Dialled::Linked(sockets)) = dialled {
                return self.finish(sockets);
            }
            self.pair.gave_up();
            turn = match dialled {
                Ok(Dialled::Crossing(socket)) => self.pair.turn(Some(&socket), &self.patience),
                Ok(Dialled::Yielding) => {
                    self.patience.sleep(YIELD);
                    self.pair.turn(None, &self.patience)
                }
                Ok(Dialled::Linked(_)) => unreachable!("it has returned"),
                Err(failures) => match tries.pause(&failures, self.patience.deadline()) {
                    Some(pause) => {
                        self.patience.sleep(pause);
                        self.pair.turn(None, &self.patience)
                    }
                    None => return Err(self.explain(&failures, started)),
                },
            };
        }
    }

    fn finish(&self, sockets: Vec<Proved>) -> Result<(), TransportError> {
        let failed = |call, error| TransportError::from_io(call, &error, "finishing a link");
        let link = self.pair.dialled(sockets).map_err(|error| failed("fcntl", error))?;
        let stands = self.shared.links.stands(self.group, &link);
        stands.map_err(|error| failed("epoll_ctl", error))
    }

    /// Try every address once.
    fn dial(&self) -> Result<Dialled, Box<Failures>> {
        let mut left = candidates(&self.shared.card, &self.shared.interfaces, &self.theirs);
        self.shared.routes.prefer(&self.theirs.id, &mut left);
        let mut failures = Box::<Failures>::default();
        while !left.is_empty() {
            let Some((socket, candidate)) = self.connect(&mut left, &mut failures) else { break };
            match self.complete(socket, candidate, left.is_empty()) {
                Ok(dialled) => {
                    if let Dialled::Linked(sockets) = &dialled {
                        self.shared.routes.remember(&self.theirs, candidate, sockets.len());
                    }
                    return Ok(dialled);
                }
                Err(Failed { error: gone @ TransportError::PeerGone { .. }, .. }) => {
                    failures.gone = Some(gone);
                    return Err(failures);
                }
                Err(Failed { error, is_denied }) => {
                    failures.is_denied |= is_denied;
                    failures.note(candidate.address, &error.to_string());
                }
            }
        }
        if failures.yields { Ok(Dialled::Yielding) } else { Err(failures) }
    }

    /// Have one socket connected to an address of `left`, and strike out those that were tried.
    fn connect(
        &self,
        left: &mut Vec<Candidate>,
        failures: &mut Failures,
    ) -> Option<(Socket, Candidate)> {
        let mut waiting: Vec<(Socket, Candidate)> = Vec::new();
        let mut untried = left.clone().into_iter();
        let begun = Instant::now();
        let mut next_start = begun;
        loop {
            let now = Instant::now();
            failures.yields = now - begun > UNHEARD && self.pair.keeps_waiting();
            let is_over = failures.yields || self.patience.left().is_zero();
            if is_over || waiting.is_empty() && untried.len() == 0 {
                failures.late.extend(waiting.iter().map(|(_, candidate)| candidate.address));
                left.clear();
                return None;
            }
            if (waiting.is_empty() || now >= next_start)
                && let Some(candidate) = untried.next()
            {
                next_start = now + HEAD_START;
                match self.start(candidate.address) {
                    Ok(socket) => waiting.push((socket, candidate)),
                    Err(error) => failures.note_io(candidate.address, &error),
                }
                continue;
            }
            let mut pause = self.patience.nap();
            if untried.len() > 0 {
                pause = pause.min(next_start - now);
            }
            let fds: Vec<_> = waiting.iter().map(|(socket, _)| socket.as_raw_fd()).collect();
            let ready = sys::poll(&fds, libc::POLLOUT, pause.as_millis() as i32 + 1);
            let Some(index) = ready.ok()?.iter().position(|ready| *ready) else { continue };
            let (socket, candidate) = waiting.swap_remove(index);
            match socket.take_error() {
                Ok(None) => {
                    // Those that were overtaken stay in the list, in case this one is not the peer.
                    let failed = |tried: &Candidate| failures.has(tried.address);
                    left.retain(|other| *other != candidate && !failed(other));
                    return Some((socket, candidate));
                }
                Ok(Some(error)) | Err(error) => {
                    failures.note_io(candidate.address, &error);
                    next_start = Instant::now();
                }
            }
        }
    }

    /// Begin to connect one socket.
    fn start(&self, address: SocketAddr) -> io::Result<Socket> {
        let domain = Domain::for_address(address);
        let socket = opened(|| Socket::new(domain, Type::STREAM, Some(Protocol::TCP)))?;
        socket.set_nonblocking(true)?;
        match socket.connect(&SockAddr::from(address)) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(socket),
        }
    }

    /// Say who we are on the first socket, then open the others the same way.
    fn complete(
        &self,
        first: Socket,
        candidate: Candidate,
        is_last: bool,
    ) -> Result<Dialled, Failed> {
        let wanted = self.shared.settings.sockets_per_peer;
        let automatic = if options::is_local(&first) { 1 } else { SOCKETS_APART };
        let count = if wanted == 0 { automatic } else { wanted };
        let mut hello = Hello {
            target: self.theirs.id,
            group: self.group,
            attempt: fastrand::u64(..),
            from: self.me as u32,
            to: self.to as u32,
            socket: 0,
            sockets: count.clamp(1, handshake::SOCKETS_MAX.into()) as u16,
        };
        let patience = match is_last {
            true => self.patience.clone(),
            false => self.patience.at_most(Instant::now() + PROOF_PATIENCE),
        };
        let mut sockets = Vec::with_capacity(hello.sockets.into());
        let mut next = Some(first);
        for index in 0..hello.sockets {
            let socket = match next.take() {
                Some(socket) => socket,
                None => match self.another(candidate)? {
                    Some(socket) => socket,
                    None => return Ok(Dialled::Yielding),
                },
            };
            let failed = |error| TransportError::from_io("fcntl", &error, "making a link");
            socket.set_nonblocking(false).map_err(failed)?;
            options::tune(&socket, &self.shared.settings, options::is_local(&socket))?;
            hello.socket = index;
            let terms = self.shared.terms();
            let (answer, seals) = handshake::call(&socket, &hello, terms, &patience)?;
            match answer {
                Answer::Linked => sockets.push(Proved { socket, seals }),
                Answer::Crossing => return Ok(Dialled::Crossing(socket)),
                Answer::GroupLeft => {
                    let how = "it has left the communicator".into();
                    return Err(TransportError::PeerGone { peer: self.to, how }.into());
                }
            }
        }
        Ok(Dialled::Linked(sockets))
    }

    /// One more socket to an address that worked; none where we are to yield.
    fn another(&self, candidate: Candidate) -> Result<Option<Socket>, TransportError> {
        let mut failures = Failures::default();
        match self.connect(&mut vec![candidate], &mut failures) {
            Some((socket, _)) => Ok(Some(socket)),
            None if failures.yields => Ok(None),
            None => Err(TransportError::Refused { why: failures.text() }),
        }
    }

    fn whom(&self) -> String {
        format!("member {} (host {})", self.to, self.theirs.name)
    }

    /// Why there is no link.
    fn explain(&self, failures: &Failures, started: Instant) -> TransportError {
        let Failures { late, tried, refused, gone, .. } = failures;
        let text = failures.text();
        if let Some(gone) = gone {
            gone.clone()
        } else if self.patience.left().is_zero() {
            let mut what = format!("connecting to {}", self.whom());
            if !late.is_empty() {
                let late: Vec<String> = late.iter().map(SocketAddr::to_string).collect();
                let late = late.join(", ");
                what += &format!(" at {late} (no answer: does a firewall drop the call?)");
            }
            if !text.is_empty() {
                what += &format!(" ({text}; is it stopped?)");
            }
            let waited_ms = started.elapsed().as_millis() as u64;
            TransportError::Timeout { what, waited_ms }
        } else if !tried.is_empty() && *refused == tried.len() {
            let how = format!("nobody listens any more where its card says: {text}");
            TransportError::PeerGone { peer: self.to, how }
        } else if tried.is_empty() {
            let why = format!("no address of {} can be reached from here", self.whom());
            TransportError::Refused { why }
        } else {
            let why = format!("no connection to {}: {text}", self.whom());
            TransportError::Refused { why }
        }
    }
}

#[cfg(test)]
mod tests;
