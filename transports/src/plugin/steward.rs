//! The thread of an endpoint: it meets peers, hears what becomes of them, and looks after what is
//! on its way while nobody else does.
//!
//! It owns the endpoint of TCP. It waits for nobody in particular: what is to be said to a peer
//! lies there until the connection stands, and all else goes on meanwhile.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::frame::Frame;
use super::hand::{Hand, Request};
use super::inlet::Inlet;
use super::mouth::Mouth;
use super::net::Net;
use super::outlet::lock;
use super::peer::{Calling, Peer, left};
use crate::{Endpoint, MAKE_THREAD, Port, TransportError};

/// How often anything that cannot ring is looked at.
const LOOK: Duration = Duration::from_millis(1);
/// How long nothing may be looked at when there is nothing to look at.
const IDLE: Duration = Duration::from_millis(250);
/// How long one who leaves waits for what it has sent to arrive.
const LANDING: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 2048;

/// The first peer that ended without having left.
pub(super) type Deaths = Arc<Mutex<Option<TransportError>>>;

/// The running thread. Dropping it leaves the communicator.
pub(super) struct Steward {
    pub(super) hand: Hand,
    thread: Option<JoinHandle<()>>,
}

impl Steward {
    /// Begin, over `tcp`.
    pub(super) fn start(
        net: &'static Net,
        (mut tcp, port): (Box<dyn Endpoint>, Arc<dyn Port>),
        inlets: &[Option<Arc<Mutex<Inlet>>>],
        deaths: Deaths,
    ) -> Result<Steward, TransportError> {
        let failed = |call, error| TransportError::from_io(call, &error, "starting a steward");
        let (mouth, ear) = UnixStream::pair().map_err(|error| failed("socketpair", error))?;
        for end in [&mouth, &ear] {
            end.set_nonblocking(true).map_err(|error| failed("fcntl", error))?;
        }
        if !tcp.doorbell().also_hears(ear.as_fd()) {
            return Err(failed("epoll_ctl", std::io::Error::last_os_error()));
        }
        let (sender, requests) = mpsc::channel();
        let hand = Hand { requests: sender, mouth: Mouth(Arc::new(mouth)) };
        let mut peers = Vec::with_capacity(inlets.len());
        for (index, inlet) in inlets.iter().enumerate() {
            peers.push(match inlet {
                None => None,
                Some(inlet) => Some(Peer::new(tcp.receiver(index)?, Arc::clone(inlet))),
            });
        }
        let work = Work { net, peers, tcp, _port: port, requests, ear, deaths };
        let thread = std::thread::Builder::new()
            .name("brigade-plugin".into())
            .spawn(move || work.run())
            .map_err(|error| failed(MAKE_THREAD, error))?;
        Ok(Steward { hand, thread: Some(thread) })
    }
}

impl Drop for Steward {
    fn drop(&mut self) {
        self.hand.ask(Request::Leave);
        if let Some(thread) = self.thread.take() {
            let outcome = thread.join();
            debug_assert!(outcome.is_ok(), "the steward does not panic");
        }
    }
}

/// What the thread has. Fields are dropped in this order.
struct Work {
    net: &'static Net,
    peers: Vec<Option<Peer>>,
    tcp: Box<dyn Endpoint>,
    _port: Arc<dyn Port>,
    requests: mpsc::Receiver<Request>,
    ear: UnixStream,
    deaths: Deaths,
}

impl Work {
    fn run(mut self) {
        let mut leaving: Option<Instant> = None;
        loop {
            self.tcp.doorbell().arm();
            // What rang is looked at below, all of it.
            while let Ok(1..) = self.ear.read(&mut [0; 64]) {}
            while let Ok(request) = self.requests.try_recv() {
                match request {
                    Request::Connect { peer, calling } => self.connect(peer, calling),
                    Request::Leave => {
                        leaving = Some(Instant::now() + LANDING);
                        self.say_farewell();
                    }
                }
            }
            let mut is_busy = false;
            for peer in 0..self.peers.len() {
                if self.peers[peer].is_some() {
                    self.listen(peer);
                    is_busy |= self.tend(peer);
                }
            }
            let all_done = || self.peers.iter().flatten().all(|it| it.is_done);
            if leaving.is_some_and(|until| all_done() || Instant::now() >= until) {
                return;
            }
            let nap = if is_busy || leaving.is_some() { LOOK } else { IDLE };
            if self.tcp.doorbell().wait(nap).is_err() {
                std::thread::sleep(LOOK);
            }
        }
    }

    fn peer(&mut self, peer: usize) -> &mut Peer {
        self.peers[peer].as_mut().expect("only peers that are served are talked with")
    }

    fn connect(&mut self, peer: usize, calling: Calling) {
        let it = self.peer(peer);
        it.calling = Some(calling);
        match &it.gone {
            Some(gone) => {
                let gone = gone.clone();
                it.answer(Err(gone));
            }
            None => self.say(peer, &Frame::Want),
        }
    }

    /// Say something to a peer, as soon as there is a connection.
    fn say(&mut self, peer: usize, frame: &Frame) {
        let it = self.peer(peer);
        // To one that has hung up there is nothing to say.
        if it.from.is_some() {
            frame.serialise(&mut it.outbox);
            self.dial(peer);
            self.peer(peer).flush();
        }
    }

    /// Go on with making the connection of TCP with a peer to which something is to be said.
    /// Returns whether it does not stand yet.
    fn dial(&mut self, peer: usize) -> bool {
        let it = self.peers[peer].as_mut().expect("only peers that are served are talked with");
        if it.to.is_some() || it.outbox.is_empty() {
            return false;
        }
        let deadline = it.calling.as_ref().map_or_else(Instant::now, |calling| calling.deadline);
        match self.tcp.connect(peer, deadline) {
            Ok(to) => it.to = to,
            Err(error) => {
                it.outbox.clear();
                it.answer(Err(error));
                return false;
            }
        }
        it.to.is_none()
    }

    /// Hear what a peer says.
    fn listen(&mut self, peer: usize) {
        loop {
            let it = self.peer(peer);
            let Some(from) = &mut it.from else { return };
            let mut bytes = [0; READ_BYTES];
            match from.pull_into(&mut bytes) {
                Ok(0) => return,
                Ok(count) => it.inbox.extend(&bytes[..count]),
                Err(error) => return self.end(peer, error),
            }
            loop {
                let heard = match Frame::take(&mut self.peer(peer).inbox) {
                    Ok(None) => break,
                    Ok(Some(frame)) => self.hear(peer, frame),
                    Err(what) => Err(what),
                };
                if let Err(what) = heard {
                    let what = what.into();
                    return self.end(peer, TransportError::Corrupt { peer, what });
                }
            }
        }
    }

    /// Do what a peer says. Errors: it makes no sense.
    fn hear(&mut self, peer: usize, frame: Frame) -> Result<(), &'static str> {
        let net = self.net;
        let it = self.peer(peer);
        match frame {
            Frame::Want => {
                if it.listener.is_some() || it.has_accepted {
                    return Err("a second wish for the same wire");
                }
                let reply = match net.listen() {
                    Ok((handle, listener)) => {
                        it.listener = Some(listener);
                        Frame::Handle(Box::new(handle))
                    }
                    Err(failure) => Frame::Refuse(failure.to_string()),
                };
                self.say(peer, &reply);
            }
            Frame::Handle(handle) => {
                // Whoever wanted it may have given up meanwhile.
                if let Some(calling) = &mut it.calling {
                    calling.handle = Some(handle);
                }
            }
            Frame::Refuse(why) => {
                let why = format!("member {peer} cannot take a wire: {why}");
                it.answer(Err(TransportError::Refused { why }));
            }
            Frame::Left(bytes) => {
                let gone = left(peer);
                lock(&it.inlet).end(gone.clone(), Some(bytes));
                if let Some(outlet) = &it.outlet {
                    lock(outlet).end(gone.clone());
                }
                it.answer(Err(gone.clone()));
                (it.is_done, it.has_left, it.gone) = (true, true, Some(gone));
            }
            Frame::Had => it.is_done = true,
        }
        Ok(())
    }

    /// A connection has ended: with a peer that has left, or that has died.
    fn end(&mut self, peer: usize, error: TransportError) {
        let (net, deaths) = (self.net, Arc::clone(&self.deaths));
        let it = self.peer(peer);
        (it.from, it.to, it.is_done) = (None, None, true);
        it.outbox.clear();
        it.gone.get_or_insert_with(|| error.clone());
        if let Some(listener) = it.listener.take() {
            // Nothing is left to do about a listener that does not close.
            let _ = net.close_listen(listener);
        }
        // The plugin may have been the first to notice a death, so the wire's end says nothing.
        if it.has_left {
            return;
        }
        lock(&it.inlet).end(error.clone(), None);
        if let Some(outlet) = &it.outlet {
            lock(outlet).end(error.clone());
        }
        it.answer(Err(error.clone()));
        lock(&deaths).get_or_insert(error);
    }

    /// Go on with everything between us and a peer; whether it must be looked at again soon.
    fn tend(&mut self, peer: usize) -> bool {
        let net = self.net;
        let mut is_busy = self.dial(peer);
        let it = self.peer(peer);
        it.flush();
        if let Some(listener) = it.listener {
            is_busy = true;
            let accepted = net.accept(listener).map_err(|failure| failure.on_wire(peer));
            let connected = accepted.and_then(|end| match end {
                None => Ok(false),
                Some(end) => lock(&it.inlet).connect(net, end).map(|()| true),
            });
            if !matches!(connected, Ok(false)) {
                (it.listener, it.has_accepted) = (None, true);
                // A listener that does not close keeps nobody from going on.
                let _ = net.close_listen(listener);
            }
            if let Err(error) = connected {
                lock(&it.inlet).end(error, None);
            }
        }
        if it.to.is_some()
            && let Some(calling) = &mut it.calling
        {
            is_busy = true;
            if let Some(connected) = calling.go_on(net, peer) {
                it.outlet = connected.as_ref().ok().cloned();
                it.answer(connected);
            }
        }
        if let Some(outlet) = &it.outlet {
            is_busy |= !lock(outlet).tend();
        }
        let mut inlet = lock(&it.inlet);
        if inlet.is_awaited() {
            inlet.make_room();
            is_busy = true;
        }
        let has_had = inlet.is_complete() && !it.told;
        drop(inlet);
        if has_had {
            self.peer(peer).told = true;
            self.say(peer, &Frame::Had);
        }
        is_busy
    }

    /// Tell all peers how much they were sent, so that they know when they have had it all.
    fn say_farewell(&mut self) {
        for peer in 0..self.peers.len() {
            let Some(it) = &mut self.peers[peer] else { continue };
            let sent = it.outlet.as_ref().map_or(0, |outlet| lock(outlet).taken());
            it.is_done |= sent == 0;
            // A peer with which we never had to do is not told; it hears that nobody listens.
            let was_met = it.to.is_some() || it.has_accepted || it.listener.is_some();
            if was_met && it.from.is_some() {
                self.say(peer, &Frame::Left(sent));
            }
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        for listener in self.peers.iter_mut().flatten().filter_map(|peer| peer.listener.take()) {
            // Nothing is left to do about a listener that does not close.
            let _ = self.net.close_listen(listener);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::net::Thing;
    use super::super::trial;
    use super::*;
    use crate::loopback::World;
    use crate::{Group, Transport};

    /// A steward that meets one peer, whose listener is `listener`.
    fn work(listener: Thing) -> Work {
        let transport = World::new(2).transport();
        let ports = [0, 1].map(|_| transport.open([0; 32]).expect("a port"));
        let cards = [ports[0].card(), ports[1].card()];
        let cards = cards.each_ref().map(|card| Some(&card[..]));
        let group = Group { id: 1, me: 0, cards: &cards, deadline: Instant::now() };
        let mut tcp = ports[0].join(&group).expect("an endpoint");
        let from = tcp.receiver(1).expect("a wire");
        let mut peer = Peer::new(from, Arc::new(Mutex::new(Inlet::new(1))));
        peer.listener = Some(listener);
        let [port, _] = ports.map(Arc::from);
        let (_, requests) = mpsc::channel();
        let (_, ear) = UnixStream::pair().expect("a pair");
        let peers = vec![None, Some(peer)];
        Work {
            net: trial::net(),
            peers,
            tcp,
            _port: port,
            requests,
            ear,
            deaths: Deaths::default(),
        }
    }

    #[test]
    fn a_death_that_the_plugin_notices_first_is_a_death_and_leaving_is_none() {
        for (listener, leaves) in [(Thing(11), false), (Thing(12), true)] {
            let mut work = work(listener);
            let gone = TransportError::PeerGone { peer: 1, how: "so it seems".into() };
            if leaves {
                work.hear(1, Frame::Left(0)).expect("it makes sense");
            } else {
                lock(&work.peer(1).inlet).end(gone.clone(), None);
            }
            work.end(1, gone);
            assert_eq!(lock(&work.deaths).is_none(), leaves);
            assert_eq!(trial::closed("listen", listener), 1);
        }
    }
}
