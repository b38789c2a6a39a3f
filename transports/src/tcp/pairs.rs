//! Links between two ranks: who makes them, and where the ones that arrive wait for their owner.
//!
//! Whichever rank needs a link first dials. When both dial at once the lower index wins: its
//! listener answers `Crossing`, and the other rank takes the link that is on its way. The socket of
//! that answer stays open until then, so that the end of a rank that was making a link ends the
//! wait for it: whoever waited dials. So it does where nobody answers the rank that was to make it,
//! as where a firewall drops what goes one way. A link may arrive before its owner has joined the
//! communicator, so the listener files it here by group and peer.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use socket2::Socket;

use super::handshake::{self, Answer, Hello};
use super::link::{Link, Proved};
use super::patience::{LOOK, Patience};
use crate::TransportError;
use crate::sys::{Changes, Epoll};

/// The link to one peer in one communicator, from before it stands.
pub(super) struct Pair {
    link: OnceLock<Arc<Link>>,
    making: Mutex<Making>,
    changed: Condvar,
}

#[derive(Default)]
struct Making {
    is_dialling: bool,
    /// Where the other rank hangs while we dial.
    crossing: Option<Socket>,
    arriving: Option<Arriving>,
}

/// A link of which some sockets have come in.
struct Arriving {
    attempt: u64,
    sockets: Vec<Option<Proved>>,
}

/// What a rank that needs a link is to do.
pub(super) enum Turn {
    /// Nothing: it stands.
    Linked,
    /// Dial, and report to [`Pair::dialled`] or [`Pair::gave_up`].
    Dial,
    /// The other rank is making it, and it did not come in time.
    TooLate,
}

impl Pair {
    fn new() -> Arc<Pair> {
        let making = Mutex::default();
        Arc::new(Pair { link: OnceLock::new(), making, changed: Condvar::new() })
    }

    /// The link, once it stands. One load: asked on the hot path until it does.
    pub(super) fn link(&self) -> Option<&Arc<Link>> {
        self.link.get()
    }

    /// Settle who makes the link. Waits where the other rank has begun, be it that some of its
    /// sockets have come in, or that it has told us so on `crossing`, until it hangs up.
    pub(super) fn turn(&self, crossing: Option<&Socket>, patience: &Patience) -> Turn {
        let mut making = self.lock();
        loop {
            if self.link.get().is_some() {
                return Turn::Linked;
            }
            let arriving = making.arriving.iter().flat_map(|it| it.sockets.iter().flatten());
            let arriving = arriving.map(|proved| &proved.socket);
            let mut signs = arriving.chain(crossing).peekable();
            // Whoever files a link holds the lock, and it stands before the other rank hangs up.
            if signs.peek().is_none() || signs.any(has_hung_up) {
                assert!(!making.is_dialling, "each wire is asked for once");
                *making = Making { is_dialling: true, ..Making::default() };
                return Turn::Dial;
            }
            let left = patience.left();
            if left.is_zero() {
                return Turn::TooLate;
            }
            // Now and then it is looked whether the other rank still makes it.
            let woken = self.changed.wait_timeout(making, left.min(LOOK));
            making = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether the other rank has dialled, too, and waits for the link that we make.
    pub(super) fn keeps_waiting(&self) -> bool {
        self.lock().crossing.as_ref().is_some_and(|socket| !has_hung_up(socket))
    }

    /// We dialled, and these sockets were all answered with `Linked`; the link that counts.
    ///
    /// One side arbitrates, so one link is made, unless the other rank has called off its own in
    /// the moment in which it came to stand here. Then that one counts, and ends what uses it:
    /// whoever calls off has failed.
    pub(super) fn dialled(&self, sockets: Vec<Proved>) -> io::Result<Arc<Link>> {
        let link = Link::new(sockets)?;
        let mut making = self.lock();
        (making.is_dialling, making.crossing) = (false, None);
        Ok(self.link.get_or_init(|| link).clone())
    }

    /// We dialled in vain.
    pub(super) fn gave_up(&self) {
        let mut making = self.lock();
        (making.is_dialling, making.crossing) = (false, None);
    }

    /// A socket of a link that the other rank is making. Answers it; returns the link if this was
    /// the last socket.
    fn arrive(
        &self,
        hello: &Hello,
        mut proved: Proved,
        until: Instant,
    ) -> io::Result<Option<Arc<Link>>> {
        let mut making = self.lock();
        // This process may have been stopped for longer than the caller waits: a link that stands
        // here alone would be in the way of those that it makes since.
        if has_hung_up(&proved.socket) {
            return Ok(None);
        }
        if self.link.get().is_some() || making.is_dialling && hello.to < hello.from {
            handshake::answer(&mut proved, Answer::Crossing, until)?;
            making.crossing = Some(proved.socket).filter(|_| making.is_dialling);
            return Ok(None);
        }
        // The answer goes out first: once the link stands, our wires may write on this socket.
        handshake::answer(&mut proved, Answer::Linked, until)?;
        let sockets = usize::from(hello.sockets);
        let fresh =
            || Arriving { attempt: hello.attempt, sockets: (0..sockets).map(|_| None).collect() };
        let arriving = making.arriving.get_or_insert_with(fresh);
        if arriving.attempt != hello.attempt || arriving.sockets.len() != sockets {
            *arriving = fresh();
        }
        arriving.sockets[usize::from(hello.socket)] = Some(proved);
        if arriving.sockets.iter().any(Option::is_none) {
            return Ok(None);
        }
        let arrived = making.arriving.take().expect("it was just completed");
        let link = Link::new(arrived.sockets.into_iter().flatten().collect())?;
        let stands = self.link.get_or_init(|| link).clone();
        self.changed.notify_all();
        Ok(Some(stands))
    }

    fn lock(&self) -> MutexGuard<'_, Making> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many communicators that we have left are remembered: who still calls for one hears that.
const LEFT_MAX: usize = 1 << 14;

/// All links of a port, by communicator and peer. Only those who proved the secret get in here.
#[derive(Default)]
pub(super) struct Links {
    groups: Mutex<Groups>,
    /// Why no more sockets are filed, once that is so.
    failure: OnceLock<TransportError>,
}

#[derive(Default)]
struct Groups {
    joined: HashMap<u64, Members>,
    left: HashSet<u64>,
    /// The same, in the order in which we left.
    left_in_order: VecDeque<u64>,
}

#[derive(Default)]
struct Members {
    bell: Option<Arc<Epoll>>,
    pairs: HashMap<u32, Arc<Pair>>,
}

impl Links {
    /// The pair of us and `peer`; `None` once we have left the communicator.
    pub(super) fn pair(&self, group: u64, peer: u32) -> Option<Arc<Pair>> {
        let mut groups = self.lock();
        if groups.left.contains(&group) {
            return None;
        }
        let members = groups.joined.entry(group).or_default();
        Some(members.pairs.entry(peer).or_insert_with(Pair::new).clone())
    }

    /// From now on links of `group` ring `bell`, those that stand already included.
    pub(super) fn join(&self, group: u64, bell: Arc<Epoll>) -> io::Result<()> {
        let mut groups = self.lock();
        let has_left = groups.left.contains(&group);
        let members = groups.joined.entry(group).or_default();
        assert!(members.bell.is_none() && !has_left, "a group number is used once");
        for link in members.pairs.values().filter_map(|pair| pair.link()) {
            watch(&bell, link)?;
        }
        members.bell = Some(bell);
        Ok(())
    }

    /// A link of `group` stands: let it ring.
    pub(super) fn stands(&self, group: u64, link: &Link) -> io::Result<()> {
        match self.lock().joined.get(&group).and_then(|members| members.bell.as_ref()) {
            Some(bell) => watch(bell, link),
            None => Ok(()),
        }
    }

    /// Forget the communicator and refuse what still comes for it.
    pub(super) fn leave(&self, group: u64) {
        let mut groups = self.lock();
        let forgotten = groups.joined.remove(&group);
        if groups.left.insert(group) {
            groups.left_in_order.push_back(group);
        }
        if groups.left_in_order.len() > LEFT_MAX
            && let Some(oldest) = groups.left_in_order.pop_front()
        {
            groups.left.remove(&oldest);
        }
        drop(groups);
        // Its sockets are closed without the lock.
        drop(forgotten);
    }

    /// File a socket whose caller has proved itself.
    pub(super) fn file(&self, hello: &Hello, mut proved: Proved, until: Instant) -> io::Result<()> {
        let Some(pair) = self.pair(hello.group, hello.from) else {
            return handshake::answer(&mut proved, Answer::GroupLeft, until);
        };
        match pair.arrive(hello, proved, until)? {
            Some(link) => self.stands(hello.group, &link),
            None => Ok(()),
        }
    }

    /// From now on nobody files anything here.
    pub(super) fn fail(&self, why: TransportError) {
        // The first reason counts.
        let _ = self.failure.set(why);
    }

    /// Whether each link of `group` that was asked for stands, or may still come. One load, unless
    /// none comes any more.
    pub(super) fn check(&self, group: u64) -> Result<(), TransportError> {
        let Some(failure) = self.failure.get() else { return Ok(()) };
        let groups = self.lock();
        let mut pairs = groups.joined.get(&group).into_iter().flat_map(|it| it.pairs.values());
        match pairs.all(|pair| pair.link().is_some()) {
            true => Ok(()),
            false => Err(failure.clone()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Add a link's sockets to a bell. Both who files a link and who joins may do so.
fn watch(bell: &Epoll, link: &Link) -> io::Result<()> {
    for socket in &link.sockets {
        match bell.add(socket.as_fd(), Changes::All) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
    }
    Ok(())
}

/// Whether the other end has closed a socket on which it has nothing to say yet.
fn has_hung_up(socket: &Socket) -> bool {
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    match socket.recv_with_flags(&mut [MaybeUninit::uninit()], flags) {
        Ok(count) => count == 0,
        Err(error) => !super::ends::is_later(&error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);
    const HELLO: Hello =
        Hello { target: [0; 16], group: 1, attempt: 2, from: 1, to: 0, socket: 0, sockets: 2 };

    fn sockets() -> (Socket, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ours.into(), listener.accept().unwrap().0.into())
    }

    fn plain(socket: Socket) -> Proved {
        Proved { socket, seals: None }
    }

    #[test]
    fn of_groups_that_were_left_the_last_ones_are_remembered_and_no_more() {
        let links = Links::default();
        let last = 3 * LEFT_MAX as u64;
        for group in 0..=last {
            links.join(group, Arc::new(Epoll::new().unwrap())).unwrap();
            assert!(links.pair(group, 1).is_some());
            links.leave(group);
            assert!(links.pair(group, 1).is_none());
        }
        assert!(links.pair(last - LEFT_MAX as u64 + 1, 1).is_none());
        let groups = links.lock();
        assert!(groups.joined.is_empty());
        assert_eq!((groups.left.len(), groups.left_in_order.len()), (LEFT_MAX, LEFT_MAX));
    }

    #[test]
    fn a_rank_whose_crossing_peer_dies_dials() {
        let (lower, higher) = (Pair::new(), Pair::new());
        let deadline = Instant::now() + PATIENCE;
        assert!(matches!(lower.turn(None, &Patience::until(deadline)), Turn::Dial));
        let (ours, theirs) = sockets();
        assert!(lower.arrive(&HELLO, plain(theirs), deadline).unwrap().is_none());
        let mut answer = [0];
        io::Read::read_exact(&mut &ours, &mut answer).unwrap();
        assert_eq!(answer, [Answer::Crossing as u8]);
        let briefly = Patience::until(Instant::now() + 3 * LOOK);
        assert!(matches!(higher.turn(Some(&ours), &briefly), Turn::TooLate));
        drop(lower);
        assert!(matches!(higher.turn(Some(&ours), &Patience::until(deadline)), Turn::Dial));
        assert!(Instant::now() < deadline);
    }

    #[test]
    fn a_rank_whose_peer_dies_in_the_middle_of_its_sockets_dials() {
        let pair = Pair::new();
        let deadline = Instant::now() + PATIENCE;
        let (theirs, ours) = sockets();
        assert!(pair.arrive(&HELLO, plain(ours), deadline).unwrap().is_none());
        let briefly = Patience::until(Instant::now() + 3 * LOOK);
        assert!(matches!(pair.turn(None, &briefly), Turn::TooLate));
        drop(theirs);
        assert!(matches!(pair.turn(None, &Patience::until(deadline)), Turn::Dial));
        assert!(Instant::now() < deadline);
    }

    #[test]
    fn a_link_that_was_called_off_when_it_stood_counts_and_shows_its_end() {
        let (pair, until) = (Pair::new(), Instant::now() + PATIENCE);
        assert!(matches!(pair.turn(None, &Patience::until(until)), Turn::Dial));
        let (theirs, ours) = sockets();
        let lower = Hello { from: 0, to: 1, sockets: 1, ..HELLO };
        let stands =
            pair.arrive(&lower, plain(ours), until).unwrap().expect("the lower one's counts");
        drop(theirs);
        let (_accepted, dialled) = sockets();
        let counts = pair.dialled(vec![plain(dialled)]).unwrap();
        assert!(Arc::ptr_eq(&counts, &stands));
        assert!(has_hung_up_soon(&counts.sockets[0]));
    }

    /// The answer lies there for the other end, whose end may take a moment.
    fn has_hung_up_soon(socket: &Socket) -> bool {
        let until = Instant::now() + PATIENCE;
        while !has_hung_up(socket) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        has_hung_up(socket)
    }

    #[test]
    fn no_link_is_made_with_who_has_hung_up() {
        let (pair, until) = (Pair::new(), Instant::now() + PATIENCE);
        let (theirs, ours) = sockets();
        drop(theirs);
        let alone = Hello { sockets: 1, ..HELLO };
        assert!(pair.arrive(&alone, plain(ours), until).unwrap().is_none());
        let (theirs, ours) = sockets();
        assert!(pair.arrive(&alone, plain(ours), until).unwrap().is_some());
        drop(theirs);
    }
}
