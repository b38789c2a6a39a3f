//! Ports, groups and members as threads.

use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use brigade_transports::{Endpoint, Group, Port, RecvWire, SendWire, Transport, TransportError};

/// A transport of the table.
#[derive(Clone, Copy)]
pub(crate) struct Make {
    /// Makes one for each of so many ranks, all of one world.
    transports: fn(usize) -> Vec<Box<dyn Transport>>,
    /// What its wires hold in a group of so many.
    sizes: fn(usize) -> Sizes,
}

impl Make {
    pub(crate) const fn new(
        transports: fn(usize) -> Vec<Box<dyn Transport>>,
        sizes: fn(usize) -> Sizes,
    ) -> Self {
        Self { transports, sizes }
    }

    pub(crate) fn transports(self, ranks: usize) -> Vec<Box<dyn Transport>> {
        (self.transports)(ranks)
    }
}

/// What lengths are on the edge for a wire.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    /// What it stages at a time.
    pub(crate) bulk_bytes: usize,
    /// What it takes at least before its receiver must pull.
    pub(crate) credit_bytes: usize,
}

/// How long anything may take before a test fails. Generous: the machine may be busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// The job's secret in tests.
pub(crate) const SECRET: [u8; 32] = [0x5a; 32];

/// Whether this machine has what the transport needs. Says so where it has not.
pub(crate) fn is_usable(make: Make) -> bool {
    let probed = make.transports(1)[0].probe();
    if let Err(unavailable) = &probed {
        eprintln!("nothing was tested: {unavailable}");
    }
    probed.is_ok()
}

/// The ports of all ranks and what they tell each other.
pub(crate) struct Ports {
    pub(crate) ports: Vec<Box<dyn Port>>,
    pub(crate) cards: Vec<Vec<u8>>,
    sizes: fn(usize) -> Sizes,
}

impl Ports {
    pub(crate) fn open(make: Make, ranks: usize) -> Self {
        Self::open_with(make, &vec![SECRET; ranks])
    }

    /// One port for each secret.
    pub(crate) fn open_with(make: Make, secrets: &[[u8; 32]]) -> Self {
        let transports = make.transports(secrets.len());
        let ports: Vec<Box<dyn Port>> = transports
            .iter()
            .zip(secrets)
            .map(|(transport, secret)| transport.open(*secret).expect("open a port"))
            .collect();
        let cards = ports.iter().map(|port| port.card()).collect();
        Self { ports, cards, sizes: make.sizes }
    }

    /// Let `rank` join group `id`. `order[member]` is the member's rank, or `None` if it is not
    /// served.
    pub(crate) fn join(
        &self,
        id: u64,
        order: &[Option<usize>],
        me: usize,
        patience: Duration,
    ) -> Result<Box<dyn Endpoint>, TransportError> {
        let cards: Vec<Option<&[u8]>> =
            order.iter().map(|rank| rank.map(|rank| &self.cards[rank][..])).collect();
        let rank = order[me].expect("who joins is served");
        let deadline = Instant::now() + patience;
        self.ports[rank].join(&Group { id, me, cards: &cards, deadline })
    }

    /// Let `me` join, as it is expected to.
    pub(crate) fn member(&self, id: u64, order: &[Option<usize>], me: usize) -> Member {
        let endpoint = self.join(id, order, me, LIMIT).expect("join");
        let sizes = (self.sizes)(order.iter().flatten().count());
        Member { me, sizes, endpoint, deadline: Instant::now() + LIMIT }
    }

    /// Run `body` once for each member of a group, each on its own thread, and pass on panics.
    pub(crate) fn group(&self, id: u64, order: &[Option<usize>], body: impl Fn(Member) + Sync) {
        std::thread::scope(|scope| {
            let served = (0..order.len()).filter(|&me| order[me].is_some());
            let threads: Vec<_> = served
                .map(|me| {
                    let body = &body;
                    scope.spawn(move || body(self.member(id, order, me)))
                })
                .collect();
            let panics: Vec<_> =
                threads.into_iter().filter_map(|thread| thread.join().err()).collect();
            if let Some(first) = panics.into_iter().next() {
                resume_unwind(first);
            }
        });
    }
}

/// Run `body` for each of `ranks` members of one group on fresh ports.
pub(crate) fn members(make: Make, ranks: usize, body: impl Fn(Member) + Sync) {
    let order: Vec<_> = (0..ranks).map(Some).collect();
    Ports::open(make, ranks).group(1, &order, body);
}

/// One member of a group, on its own thread.
pub(crate) struct Member {
    pub(crate) me: usize,
    pub(crate) sizes: Sizes,
    pub(crate) endpoint: Box<dyn Endpoint>,
    pub(crate) deadline: Instant,
}

impl Member {
    pub(crate) fn sender(&mut self, to: usize) -> Box<dyn SendWire> {
        self.endpoint.sender(to, Instant::now() + LIMIT).expect("the wire to a member")
    }

    pub(crate) fn receiver(&mut self, from: usize) -> Box<dyn RecvWire> {
        self.endpoint.receiver(from).expect("the wire from a member")
    }

    /// Call `attempt` until it gives something; in between, sleep at the doorbell as users do.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut attempt: impl FnMut() -> Result<Option<T>, TransportError>,
    ) -> Result<T, TransportError> {
        loop {
            if let Some(done) = attempt()? {
                return Ok(done);
            }
            self.endpoint.doorbell().arm();
            if let Some(done) = attempt()? {
                self.endpoint.doorbell().disarm();
                return Ok(done);
            }
            self.endpoint.doorbell().wait(Duration::from_millis(20)).expect("wait");
            self.endpoint.check().expect("nobody died");
            assert!(Instant::now() < self.deadline, "member {} waits for {what}", self.me);
        }
    }

    /// Push all of `bytes`.
    pub(crate) fn send(&mut self, wire: &mut dyn SendWire, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            at += self
                .until("room", || Ok(Some(wire.push(&bytes[at..])?).filter(|&took| took > 0)))
                .expect("push");
        }
    }

    /// Pull all of `target`.
    pub(crate) fn receive(&mut self, wire: &mut dyn RecvWire, target: &mut [u8]) {
        let mut at = 0;
        while at < target.len() {
            at += self
                .until("bytes", || {
                    Ok(Some(wire.pull_into(&mut target[at..])?).filter(|&got| got > 0))
                })
                .expect("pull");
        }
    }

    /// The error that `attempt` comes to, while it gives nothing else.
    pub(crate) fn until_error(
        &mut self,
        mut attempt: impl FnMut() -> Result<usize, TransportError>,
    ) -> TransportError {
        let error = self.until("an error", || attempt().map(|_| None::<()>));
        error.expect_err("it gives nothing but errors")
    }
}

/// Assert that an error blames `peer` for having gone.
pub(crate) fn assert_gone(error: &TransportError, who: usize) {
    match error {
        TransportError::PeerGone { peer, how } => {
            assert_eq!(*peer, who, "{error}");
            assert!(!how.is_empty(), "it says what was seen");
        }
        other => panic!("member {who} is gone, but the error is: {other}"),
    }
}
