//! How the region's descriptor gets from the rank that made it to the others.
//!
//! Each port listens on a socket with a random name that no folder shows, and makes a region when
//! somebody needs it. A group uses the region of one of its members, its *host*, which all members
//! choose alike from the cards. The others connect to it; both ends prove that they know the job's
//! secret (`proof`), and the host's listening thread sends one byte with the descriptor.
//!
//! A port keeps what it got, so this happens once for each host: a second group of the same ranks
//! sends nothing.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

use super::directory::Region;
use super::held::Held;
use super::patience::{Line, Patience};
use super::probe::{Card, Name};
use super::sys;
use crate::proof::{Role, prove};
use crate::{MAKE_THREAD, NAP, TransportError, opened};

/// What both ends of the hand-over believe it is about.
const CONTEXT: &[u8] = b"shm region";
const BACKLOG: i32 = 1024;
/// How long the listener waits for one joiner, so that a stopped one cannot hold up the others.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a port that nobody here needs any more listens for joiners that are late. They have
/// joined the world already, and are dead or on their way.
const LINGER: Duration = Duration::from_secs(2);
/// A refusal may be a listener that lost its patience with us, so it is not believed at once.
const REFUSALS_MAX: u32 = 3;
const RETRY_FIRST: Duration = Duration::from_micros(200);
const RETRY_LAST: Duration = Duration::from_millis(20);

/// The regions that ports of this process use, by the name of the port that made each.
static OF_THIS_PROCESS: Held<Name, Region> = Held::new();

/// The region that a port makes when somebody needs it.
pub(super) struct Made {
    /// The port's name.
    by: Name,
    region: Mutex<Option<Arc<Region>>>,
    /// Who else will ask for it, and how many have got it.
    wanted: Mutex<BTreeSet<Name>>,
    handed: AtomicUsize,
}

impl Made {
    /// By the port of this name, none so far.
    pub(super) fn by(by: Name) -> Self {
        Self { by, region: Mutex::default(), wanted: Mutex::default(), handed: AtomicUsize::new(0) }
    }

    /// The region for a group that ports of these names join, of which ours may be one.
    pub(super) fn region_for(
        &self,
        names: impl IntoIterator<Item = Name>,
    ) -> Result<Arc<Region>, TransportError> {
        self.wanted().extend(names.into_iter().filter(|name| *name != self.by));
        self.region()
    }

    fn wanted(&self) -> MutexGuard<'_, BTreeSet<Name>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stay until everybody has the region who is still on the way to it, but not for long.
    pub(super) fn linger(&self) {
        let deadline = Instant::now() + LINGER;
        let lacks = || self.handed.load(Ordering::Relaxed) < self.wanted().len();
        while lacks() && Instant::now() < deadline {
            std::thread::sleep(RETRY_FIRST);
        }
    }

    /// The region, made now if nobody has asked before.
    fn region(&self) -> Result<Arc<Region>, TransportError> {
        let mut made = self.region.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(region) = &*made {
            return Ok(region.clone());
        }
        let region = OF_THIS_PROCESS.get_or(self.by, Region::create)?;
        *made = Some(region.clone());
        Ok(region)
    }
}

/// The socket of a port and the thread that answers it. Dropping it ends both.
pub(super) struct Listener {
    socket: Arc<Socket>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listen at the name on `card`.
    pub(super) fn open(
        card: &Card,
        secret: [u8; 32],
        made: Arc<Made>,
    ) -> Result<Self, TransportError> {
        let failed = |call| {
            move |e: io::Error| {
                TransportError::from_io(
                    call,
                    &e,
                    "opening the socket that hands over shared memory",
                )
            }
        };
        let socket = opened(|| Socket::new(Domain::UNIX, Type::STREAM, None));
        let socket = socket.map_err(failed("socket"))?;
        let address = SockAddr::unix(card.socket_name()).map_err(failed("bind"))?;
        socket.bind(&address).map_err(failed("bind"))?;
        socket.listen(BACKLOG).map_err(failed("listen"))?;
        let socket = Arc::new(socket);
        let serve = {
            let socket = socket.clone();
            move || serve(&socket, &secret, &made)
        };
        let thread = std::thread::Builder::new().name("brigade-shm".into()).spawn(serve);
        let thread = thread.map_err(failed(MAKE_THREAD))?;
        Ok(Self { socket, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Shutting a listening socket down makes `accept` return in the thread. It cannot fail on
        // a socket that listens; if it did, waiting for the thread would be waiting for ever.
        if self.socket.shutdown(std::net::Shutdown::Both).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // A panic of the thread has been printed, and nobody needs it any more.
            drop(thread.join());
        }
    }
}

fn serve(socket: &Socket, secret: &[u8; 32], made: &Made) {
    loop {
        match opened(|| socket.accept()) {
            // Whoever fails the hand-over sees its connection close, and says so on its side.
            Ok((joiner, _)) => drop(hand_over(joiner.into(), secret, made)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => {}
            // Out of descriptors or memory for now: the joiners retry until their deadlines.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)
                ) =>
            {
                std::thread::sleep(RETRY_LAST);
            }
            Err(_) => return,
        }
    }
}

fn hand_over(joiner: UnixStream, secret: &[u8; 32], made: &Made) -> Result<(), TransportError> {
    let failed = |e: io::Error| TransportError::from_io("read", &e, "hearing a joiner");
    if sys::peer_user(&joiner).map_err(failed)? != sys::own_user() {
        return Err(TransportError::Refused { why: "the joiner is another user".into() });
    }
    joiner.set_read_timeout(Some(NAP)).map_err(failed)?;
    joiner.set_write_timeout(Some(NAP)).map_err(failed)?;
    let mut patience = Patience::until(Instant::now() + PATIENCE, || true);
    let mut line = Line::over(joiner, &mut patience);
    prove(&mut line, secret, Role::Accepting, CONTEXT)?;
    let region = made.region()?;
    line.call(|joiner| sys::send_descriptor(joiner, region.descriptor())).map_err(failed)?;
    made.handed.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Ask the port with `card`, which is member `first`, for its region.
pub(super) fn fetch(
    card: &Card,
    first: usize,
    secret: &[u8; 32],
    mut patience: Patience<impl FnMut() -> bool>,
) -> Result<Arc<Region>, TransportError> {
    let (mut pause, mut refusals) = (RETRY_FIRST, 0);
    loop {
        let last = match attempt(card, secret, &mut patience) {
            Ok(fd) => return OF_THIS_PROCESS.get_or(card.name, || Region::adopt(fd, first)),
            // A port listens before its card goes out and for as long as it lives.
            Err(TransportError::System { errno: libc::ECONNREFUSED, .. }) => {
                let how = format!("process {} listens no more", card.pid);
                return Err(TransportError::PeerGone { peer: first, how });
            }
            // It ended in the middle, or the system is short of something for now.
            Err(error) => error,
        };
        if !patience.is_over()
            && let TransportError::Refused { why } = &last
        {
            refusals += 1;
            if refusals == REFUSALS_MAX {
                let why = format!("member {first} (process {}): {why}", card.pid);
                return Err(TransportError::Refused { why });
            }
        }
        if !patience.lasts() {
            let of = format!("member {first} (process {}; is it stopped?)", card.pid);
            let what = format!("getting shared memory from {of}, at last because {last},");
            return Err(patience.error(what));
        }
        std::thread::sleep(pause.min(patience.left()));
        pause = (pause * 2).min(RETRY_LAST);
    }
}

fn attempt(
    card: &Card,
    secret: &[u8; 32],
    patience: &mut Patience<impl FnMut() -> bool>,
) -> Result<OwnedFd, TransportError> {
    let failed = |e: io::Error| TransportError::from_io("connect", &e, "asking for shared memory");
    let socket = opened(|| Socket::new(Domain::UNIX, Type::STREAM, None)).map_err(failed)?;
    // For connecting, too: where the port's queue is full that ends as well, and is tried again.
    socket.set_write_timeout(Some(NAP)).map_err(failed)?;
    socket.set_read_timeout(Some(NAP)).map_err(failed)?;
    let address = SockAddr::unix(card.socket_name()).map_err(failed)?;
    socket.connect(&address).map_err(failed)?;
    if sys::peer_user(&socket).map_err(failed)? != sys::own_user() {
        return Err(TransportError::Refused { why: "its socket is another user's".into() });
    }
    let mut line = Line::over(UnixStream::from(OwnedFd::from(socket)), patience);
    prove(&mut line, secret, Role::Connecting, CONTEXT)?;
    let received = line.call(sys::receive_descriptor).map_err(failed)?;
    received.ok_or_else(|| TransportError::Refused { why: "it made no shared memory".into() })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_joiner_that_is_slow_without_being_silent_is_hung_up_on() {
        let card = Card::draw().unwrap();
        let made = Arc::new(Made::by(card.name));
        let _listener = Listener::open(&card, [1; 32], made).unwrap();
        let joiner = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        joiner.connect(&SockAddr::unix(card.socket_name()).unwrap()).unwrap();
        let since = Instant::now();
        while (&joiner).write_all(b"b").is_ok() {
            assert!(since.elapsed() < 10 * PATIENCE, "it is still heard");
            // What it has to say would take longer than that.
            std::thread::sleep(PATIENCE / 2);
        }
    }
}
