//! Two ranks as threads, and a stream from one to the other whose every byte is known.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use brigade_transports::rdma::{Rdma, Settings};
use brigade_transports::{Endpoint, Group, Port, RecvWire, SendWire, Transport, TransportError};

/// How long anything may take before a trial counts as hung.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
/// The job's secret in tests.
pub(crate) const SECRET: [u8; 32] = [0x3c; 32];

/// How long a wire tries to replace its queue pairs where that shall come to nothing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Settings that give a queue pair up after half a second, and a wire after `reconnect`.
pub(crate) fn impatient(devices: Option<&str>, reconnect: Duration) -> Settings {
    Settings { timeout: 14, reconnect, devices: devices.map(Into::into), ..Settings::default() }
}

/// What is sent at `at` of the stream `key`.
pub(crate) fn contents(key: u64, at: usize, bytes: usize) -> Vec<u8> {
    let byte =
        |at: usize| (key.wrapping_add(at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (at..at + bytes).map(byte).collect()
}

/// The port of one rank.
pub(crate) fn open(settings: &Settings) -> Box<dyn Port> {
    Rdma::new(settings.clone()).open(SECRET).expect("open a port")
}

/// Join the group of two as member `me`.
pub(crate) fn join(port: &dyn Port, me: usize, cards: &[Vec<u8>; 2]) -> Box<dyn Endpoint> {
    let cards = [Some(&cards[0][..]), Some(&cards[1][..])];
    let deadline = Instant::now() + LIMIT;
    port.join(&Group { id: 1, me, cards: &cards, deadline }).expect("join")
}

/// Run the two members, each on its own thread, with its endpoint and both its wires.
pub(crate) fn pair(settings: &Settings, body: impl Fn(usize, &mut Member) + Sync) {
    let ports = [open(settings), open(settings)];
    let cards = [ports[0].card(), ports[1].card()];
    std::thread::scope(|scope| {
        for (me, port) in ports.iter().enumerate() {
            let (port, cards, body) = (&**port, &cards, &body);
            scope.spawn(move || body(me, &mut Member::new(join(port, me, cards), 1 - me)));
        }
    });
}

/// What became of each member.
pub(crate) type Outcome = [Result<(), TransportError>; 2];

/// Both members send to each other at the same time, in portions of random lengths, and check each
/// that arrives. `strike` runs on a thread of its own once member 0 has sent `strike_at`
/// bytes; when it returns, `more` go each way. Who has all, or comes to an error, leaves.
pub(crate) fn trial(
    settings: &Settings,
    seed: u64,
    (strike_at, more): (usize, usize),
    strike: impl FnOnce(),
) -> Outcome {
    assert!(more >= MORE_BYTES_MIN);
    let ports = [open(settings), open(settings)];
    let cards = [ports[0].card(), ports[1].card()];
    let stream = Stream { seed, sent: Default::default(), end: AtomicUsize::new(usize::MAX) };
    std::thread::scope(|scope| {
        let members = [0, 1].map(|me| {
            let (port, cards, stream) = (&*ports[me], &cards, &stream);
            scope.spawn(move || Member::new(join(port, me, cards), 1 - me).stream(me, stream))
        });
        let sent = || stream.sent.each_ref().map(|count| count.load(Ordering::Relaxed));
        // Who sends has both its wires.
        let is_due = || sent()[0] >= strike_at.max(1) && sent()[1] > 0;
        while !is_due() && !members.iter().any(|member| member.is_finished()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        strike();
        stream.end.store(sent()[0].max(sent()[1]) + more, Ordering::Relaxed);
        members.map(|member| member.join().expect("a member does not panic"))
    })
}

/// More than a member may send while the end of its stream is being decided.
const MORE_BYTES_MIN: usize = 1 << 19;

/// What both members of a trial know.
struct Stream {
    seed: u64,
    /// By each member so far.
    sent: [AtomicUsize; 2],
    /// How much each of them sends.
    end: AtomicUsize,
}

/// One member with its wires to and from the other.
pub(crate) struct Member {
    // Wires go before their endpoint.
    pub(crate) sender: Box<dyn SendWire>,
    pub(crate) receiver: Box<dyn RecvWire>,
    pub(crate) endpoint: Box<dyn Endpoint>,
}

impl Member {
    pub(crate) fn new(mut endpoint: Box<dyn Endpoint>, other: usize) -> Member {
        let sender = endpoint.sender(other, Instant::now() + LIMIT).expect("a wire");
        let receiver = endpoint.receiver(other).expect("a wire");
        Member { sender, receiver, endpoint }
    }

    /// Push all of `bytes`; how many were taken before an error.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        let mut at = 0;
        let started = Instant::now();
        while at < bytes.len() {
            at += self.sender.push(&bytes[at..])?;
            self.rest(started, || format!("sent {at} of {}", bytes.len()));
        }
        Ok(())
    }

    /// Pull all of `target`.
    pub(crate) fn receive(&mut self, target: &mut [u8]) -> Result<(), TransportError> {
        let mut at = 0;
        let started = Instant::now();
        while at < target.len() {
            at += self.receiver.pull_into(&mut target[at..])?;
            self.rest(started, || format!("received {at}"));
        }
        Ok(())
    }

    /// Send and receive a stream, at the same time.
    fn stream(mut self, me: usize, stream: &Stream) -> Result<(), TransportError> {
        let seed = stream.seed;
        let key = |from: usize| seed.wrapping_mul(2).wrapping_add(from as u64);
        let mut rng = fastrand::Rng::with_seed(key(me));
        let (mut sent, mut received, mut target) = (0, 0, vec![0; 1 << 17]);
        let mut portion = Vec::new();
        let mut started = Instant::now();
        loop {
            let end = stream.end.load(Ordering::Relaxed);
            if portion.is_empty() {
                let count = (1 << rng.u32(3..18)).min(end - sent);
                portion = contents(key(me), sent, count);
            }
            let pushed = self.sender.push(&portion)?;
            sent += pushed;
            portion.drain(..pushed);
            stream.sent[me].store(sent, Ordering::Relaxed);
            let room = (end - received).min(target.len());
            let pulled = self.receiver.pull_into(&mut target[..room])?;
            let known = contents(key(1 - me), received, pulled);
            assert!(target[..pulled] == known, "seed {seed}, member {me}, byte {received}");
            received += pulled;
            if sent == end && received == end {
                return Ok(());
            }
            if pushed + pulled == 0 {
                self.rest(started, || format!("seed {seed}, {me} sent {sent}, has {received}"));
            } else {
                started = Instant::now();
            }
        }
    }

    fn rest(&mut self, started: Instant, place: impl Fn() -> String) {
        assert!(started.elapsed() < LIMIT, "it hangs: {}", place());
        self.endpoint.doorbell().arm();
        self.endpoint.doorbell().wait(Duration::from_millis(1)).expect("wait");
    }
}
