//! The thread that talks with the peers of an endpoint, and looks after what is on its way to them.
//!
//! It owns the endpoint of TCP. It dials when one of our wires is wanted, answers when a peer wants
//! one of its own, carries news of failed queue pairs and has them replaced, and learns from a
//! connection's end that the peer has left or died. It waits for nobody in particular: what is to
//! be said to a peer lies there until the connection stands, and all else goes on meanwhile.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::frame::{Accepted, Frame};
use super::hand::{Hand, Request};
use super::lane::Lane;
use super::link::Link;
use super::mend::Mender;
use super::shared::{Gone, Shared};
use super::sys::Gong;
use crate::{Endpoint, MAKE_THREAD, TransportError};

/// How often lanes are looked after while something is on its way.
const LOOK: Duration = Duration::from_millis(50);
/// How often it is found out whether anything is.
const IDLE: Duration = Duration::from_millis(250);
/// How often a connection is looked at that does not stand yet; that it does rings.
const DIALLING: Duration = Duration::from_millis(10);
/// How long one who leaves waits for what it has sent to land.
const LANDING: Duration = Duration::from_secs(5);
/// And for its farewells to go out.
const FAREWELL: Duration = Duration::from_secs(1);
/// How much is read of a connection at a time.
const READ_BYTES: usize = 2048;

/// The running thread. Dropping it leaves the communicator.
pub(super) struct Exchange {
    pub(super) hand: Hand,
    thread: Option<JoinHandle<()>>,
}

impl Exchange {
    /// Start talking over `tcp`.
    pub(super) fn start(
        mut tcp: Box<dyn Endpoint>,
        shared: &Arc<Shared>,
    ) -> Result<Exchange, TransportError> {
        let failed = |call, error| TransportError::from_io(call, &error, "starting an exchange");
        let gong = Arc::new(Gong::new().map_err(|error| failed("eventfd", error))?);
        if !tcp.doorbell().also_hears(gong.as_fd()) {
            let error = std::io::Error::last_os_error();
            return Err(failed("epoll_ctl", error));
        }
        let (sender, requests) = mpsc::channel();
        let hand = Hand { requests: sender, gong };
        let links = shared.peers.iter().enumerate().map(|(index, peer)| match peer {
            Some(_) => tcp.receiver(index).map(|from| Some(Link::new(from))),
            None => Ok(None),
        });
        let links = links.collect::<Result<_, _>>()?;
        let (lanes, mender) = (Vec::new(), Mender::default());
        let talk = Talk { shared: Arc::clone(shared), tcp, links, requests, lanes, mender };
        let thread = std::thread::Builder::new()
            .name("brigade-rdma".into())
            .spawn(move || talk.run())
            .map_err(|error| failed(MAKE_THREAD, error))?;
        Ok(Exchange { hand, thread: Some(thread) })
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.hand.ask(Request::Leave);
        if let Some(thread) = self.thread.take() {
            let outcome = thread.join();
            debug_assert!(outcome.is_ok(), "the exchange does not panic");
        }
    }
}

/// What the thread has.
struct Talk {
    shared: Arc<Shared>,
    tcp: Box<dyn Endpoint>,
    links: Vec<Option<Link>>,
    requests: mpsc::Receiver<Request>,
    lanes: Vec<(usize, Arc<Lane>)>,
    mender: Mender,
}

impl Talk {
    fn run(mut self) {
        let mut leaving: Option<Instant> = None;
        loop {
            self.tcp.doorbell().arm();
            let mut has_moved = false;
            while let Ok(request) = self.requests.try_recv() {
                has_moved = true;
                match request {
                    Request::Leave => leaving = Some(Instant::now() + LANDING),
                    other => self.serve(other),
                }
            }
            for peer in 0..self.links.len() {
                has_moved |= self.dial(peer);
                has_moved |= self.listen(peer);
                has_moved |= self.links[peer].as_mut().is_some_and(Link::flush);
            }
            for (peer, offer) in self.mender.tick(&self.shared) {
                self.say(peer, &offer);
            }
            let all_settled = self.tend();
            if leaving.is_some_and(|until| all_settled || Instant::now() >= until) {
                return self.say_farewell();
            }
            if has_moved {
                self.tcp.doorbell().disarm();
                continue;
            }
            let nap = match leaving {
                Some(_) => Duration::from_millis(1),
                None if self.links.iter().flatten().any(Link::is_dialling) => DIALLING,
                None if all_settled && self.mender.is_idle() => IDLE,
                None => LOOK,
            };
            if self.tcp.doorbell().wait(nap).is_err() {
                std::thread::sleep(nap);
            }
        }
    }

    fn serve(&mut self, request: Request) {
        match request {
            Request::Offer { peer, frame, deadline, answer } => {
                let gone = self.shared.gone(peer).map(|gone| gone.error(peer));
                let link = self.link(peer);
                (link.answer, link.deadline) = (Some(answer), deadline);
                match gone {
                    Some(gone) => _ = self.answered(peer, Err(gone)),
                    None => self.say(peer, &frame),
                }
            }
            Request::Tend { peer, lane } => self.lanes.push((peer, lane)),
            Request::Stop { peer, turn } => self.say(peer, &Frame::Stop(turn)),
            Request::Broken { peer, turn } => self.say(peer, &Frame::Broken(turn)),
            Request::Lost { peer, why } => {
                self.shared.chimes.strike();
                self.say(peer, &Frame::Lost { why });
            }
            Request::Knock { peer } => {
                // A window's door was opened over the connection, so it stands.
                let link = self.link(peer);
                link.knocks = link.to.is_some();
                link.flush();
            }
            Request::Leave => unreachable!("taken by the loop"),
        }
    }

    fn link(&mut self, peer: usize) -> &mut Link {
        self.links[peer].as_mut().expect("only peers that are served are talked with")
    }

    /// Say something to a peer, as soon as there is a connection.
    fn say(&mut self, peer: usize, frame: &Frame) {
        let link = self.link(peer);
        // To one that has hung up there is nothing to say.
        if link.from.is_some() {
            frame.serialise(&mut link.outbox);
            self.dial(peer);
            self.link(peer).flush();
        }
    }

    /// Go on with making the connection to a peer, if there is something to be said to it. Returns
    /// whether that has come to an end.
    fn dial(&mut self, peer: usize) -> bool {
        let waits = self.links[peer].as_mut().filter(|link| link.is_dialling());
        let Some(link) = waits else { return false };
        match self.tcp.connect(peer, link.deadline) {
            Ok(None) => return false,
            Ok(to) => link.to = to,
            Err(error) => {
                link.outbox.clear();
                // Mostly somebody waits for the answer to what was to be said.
                let _heard = self.answered(peer, Err(error));
            }
        }
        true
    }

    /// Pass on what became of our offer to a peer. Errors: there was none.
    fn answered(
        &mut self,
        peer: usize,
        outcome: Result<Accepted, TransportError>,
    ) -> Result<(), &'static str> {
        let answer = self.link(peer).answer.take().ok_or("an answer to no offer")?;
        // Whoever asked may have given up meanwhile.
        let _heard = answer.send(outcome);
        self.shared.chimes.strike();
        Ok(())
    }

    /// Hear what a peer says. Returns whether it said anything.
    fn listen(&mut self, peer: usize) -> bool {
        let Some(link) = &mut self.links[peer] else { return false };
        let Some(from) = &mut link.from else { return false };
        let mut bytes = [0; READ_BYTES];
        let count = match from.pull_into(&mut bytes) {
            Ok(0) => return false,
            Ok(count) => count,
            Err(error) => {
                self.end(peer, &error);
                return true;
            }
        };
        link.inbox.extend(&bytes[..count]);
        loop {
            let taken = Frame::take(&mut self.link(peer).inbox);
            let outcome = match taken {
                Ok(None) => return true,
                Ok(Some(frame)) => self.hear(peer, frame),
                Err(what) => Err(what),
            };
            if let Err(what) = outcome {
                self.end(peer, &TransportError::Corrupt { peer, what: what.into() });
                return true;
            }
        }
    }

    /// A connection has ended.
    fn end(&mut self, peer: usize, error: &TransportError) {
        let how = match error {
            TransportError::PeerGone { how, .. } => how.clone(),
            other => other.to_string(),
        };
        self.shared.lose(peer, Gone { how, pieces: None, since: Instant::now() });
        let gone = self.shared.gone(peer).expect("it was just lost").error(peer);
        let link = self.link(peer);
        (link.from, link.to) = (None, None);
        link.outbox.clear();
        link.knocks = false;
        // Somebody may wait for an answer.
        let _heard = self.answered(peer, Err(gone));
    }

    /// Do what a peer says. Errors: it makes no sense.
    fn hear(&mut self, peer: usize, frame: Frame) -> Result<(), &'static str> {
        match frame {
            Frame::Offer { ring_bytes, stripes } => {
                let accepted = self.shared.accept(peer, ring_bytes as usize, &stripes);
                self.answer(peer, accepted);
            }
            Frame::Door { stripe } => {
                let accepted = self.shared.open_door(peer, &stripe);
                self.answer(peer, accepted);
            }
            Frame::Knock => self.shared.chimes.strike(),
            Frame::Accept { address, stripes } => self.answered(peer, Ok((address, stripes)))?,
            Frame::Refuse { why } => {
                let why = format!("member {peer} cannot take a wire or a door: {why}");
                self.answered(peer, Err(TransportError::Refused { why }))?;
            }
            Frame::Stop(turn) => {
                self.shared.stop(peer, turn);
                self.say(peer, &Frame::Stopped(turn));
            }
            Frame::Stopped(turn) => {
                if let Some(lane) = self.lane(peer)
                    && lane.lock().stopped(turn)
                {
                    self.mender.begin(peer, lane, turn.stripe.into());
                    self.shared.chimes.strike();
                }
            }
            Frame::Broken(turn) => {
                if let Some(lane) = self.lane(peer) {
                    lane.lock().fail_there(turn);
                }
            }
            Frame::Replace(turn, offered) => {
                let reply = match self.shared.replace(peer, turn, &offered) {
                    Ok(accepted) => Frame::Replaced(turn, accepted),
                    Err(error) => Frame::Kept { turn, why: error.to_string() },
                };
                self.say(peer, &reply);
            }
            Frame::Replaced(turn, accepted) => {
                if self.mender.replaced(&self.shared, (peer, turn), &accepted) {
                    self.say(peer, &Frame::Linked(turn));
                    self.shared.chimes.strike();
                }
            }
            Frame::Kept { turn, why } => self.mender.kept(peer, turn, why),
            Frame::Linked(turn) => self.shared.link(peer, turn),
            Frame::Lost { why } => self.shared.forsake(peer, why),
            Frame::Bye { pieces } => {
                let how = "it has left the communicator".into();
                let pieces = Some(pieces);
                self.shared.lose(peer, Gone { how, pieces, since: Instant::now() });
            }
        }
        Ok(())
    }

    /// The sending end of the wire to a peer, if there is one.
    fn lane(&self, peer: usize) -> Option<Arc<Lane>> {
        self.lanes.iter().find(|(to, _)| *to == peer).map(|(_, lane)| Arc::clone(lane))
    }

    fn answer(&mut self, peer: usize, accepted: Result<Accepted, TransportError>) {
        let reply = match accepted {
            Ok((address, stripes)) => Frame::Accept { address, stripes },
            Err(error) => Frame::Refuse { why: error.to_string() },
        };
        self.say(peer, &reply);
    }

    /// Look after all lanes. Returns whether all that was sent has landed.
    fn tend(&self) -> bool {
        let mut all_settled = true;
        for (peer, lane) in &self.lanes {
            let is_open = lane.is_busy.load(Ordering::Relaxed) && self.shared.gone(*peer).is_none();
            all_settled &= !is_open || lane.tend();
        }
        all_settled
    }

    /// Tell all peers how much they were sent, and hang up.
    fn say_farewell(mut self) {
        for peer in 0..self.links.len() {
            let Some(link) = &self.links[peer] else { continue };
            let was_heard_of = link.to.is_some() || self.shared.has_incoming(peer);
            if was_heard_of && link.from.is_some() {
                let pieces = self.lane(peer).map_or(0, |lane| lane.lock().sent());
                self.say(peer, &Frame::Bye { pieces });
            }
        }
        let until = Instant::now() + FAREWELL;
        while self.links.iter_mut().flatten().any(|link| {
            link.flush();
            link.has_unsent()
        }) && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
