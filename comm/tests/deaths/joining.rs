//! A rank that waits in the middle of joining a group, or of making a window, for a process that is
//! stopped hears what every other wait hears.
//!
//! Nobody asks a stopped process for anything while its threads still run, so each rank waits at a
//! gate in front of one group until it is told to go on. Ranks do what their standard input says.

use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use brigade_comm::bootstrap::UniqueId;
use brigade_comm::launch::Launch;
use brigade_comm::transports::transports;
use brigade_comm::{Communicator, Error, Settings, WindowSize, interrupt_by};
use brigade_transports::{Caps, Endpoint, Group, Port, Transport, TransportError, Unavailable};

use super::PATIENCE;
use super::process::{Process, Said};

const RANKS: usize = 3;
/// How long a rank may take to hear that it waits in vain.
const HEARD_WITHIN: Duration = Duration::from_secs(2);
/// How long joining may take: long beyond that.
const JOIN_MS: u64 = 15_000;
/// In front of which group the gate is, counted from 1, as a rank joins them.
const GATE: &str = "TEST_GATE";
/// What a rank says there.
const AT_THE_GATE: &str = "rank: at the gate";

static IS_OPEN: AtomicBool = AtomicBool::new(false);
static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

#[test]
#[ignore = "one process of the worlds in this file"]
fn one_rank() {
    if std::env::var("BRIGADE_RANK").is_err() {
        return;
    }
    let (sender, orders) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match &line[..] {
                "go" => IS_OPEN.store(true, Ordering::Relaxed),
                "interrupt" => IS_INTERRUPTED.store(true, Ordering::Relaxed),
                _ => {}
            }
            let _for_nobody = sender.send(line);
        }
    });
    interrupt_by(Some(Box::new(|| IS_INTERRUPTED.load(Ordering::Relaxed))));
    let outcome = be_one(&orders);
    println!("\nrank: {:?}", outcome.err());
    // Whoever leaves now would be heard, too.
    while orders.recv().is_ok() {}
}

fn be_one(orders: &Receiver<String>) -> Result<(), Error> {
    let settings = Settings::from_env()?;
    let launch = Launch::discover().expect("its place is in the environment");
    let inner = transports(&settings)?.remove(0);
    let gate = std::env::var(GATE).expect("a gate").parse().expect("a number");
    let gated = Arc::new(Gated { inner, rank: launch.rank, gate });
    let comm = Communicator::join_over(launch, settings, &[gated])?;
    println!("\nrank: joined");
    while let Ok(order) = orders.recv() {
        match &order[..] {
            "split" => drop(split(&comm)?),
            "window" => {
                if let Some(pair) = split(&comm)? {
                    pair.window(WindowSize { bytes: 64, signals: 1 })?;
                }
            }
            "abort" => comm.abort("somebody has had enough"),
            _ => {}
        }
    }
    Ok(())
}

/// The first two ranks; the last one looks on.
fn split(comm: &Communicator) -> Result<Option<Communicator>, Error> {
    comm.split((comm.rank() + 1 < RANKS).then_some(0), 0)
}

/// Another transport with a gate. Over shared memory, whose groups meet in the memory of one of
/// them, that is always the last one's.
struct Gated {
    inner: Arc<dyn Transport>,
    rank: usize,
    gate: usize,
}

impl Transport for Gated {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn probe(&self) -> Result<Caps, Unavailable> {
        self.inner.probe()
    }

    fn sends_in_the_open(&self) -> bool {
        self.inner.sends_in_the_open()
    }

    fn open(&self, secret: [u8; 32]) -> Result<Box<dyn Port>, TransportError> {
        /// Where a card of shared memory has the first byte of its port's name, which is random.
        /// The memory of a group is that of the port with the least one.
        const NAME_AT: usize = 52;
        let mut inner = self.inner.open(secret)?;
        let is_ours =
            |card: &[u8]| usize::from(card[NAME_AT]) * RANKS / 256 == RANKS - 1 - self.rank;
        while self.name() == "shm" && !is_ours(&inner.card()) {
            inner = self.inner.open(secret)?;
        }
        Ok(Box::new(GatedPort { inner, gate: self.gate, joined: AtomicUsize::new(0) }))
    }
}

struct GatedPort {
    inner: Box<dyn Port>,
    gate: usize,
    joined: AtomicUsize,
}

impl Port for GatedPort {
    fn card(&self) -> Vec<u8> {
        self.inner.card()
    }

    fn reaches(&self, card: &[u8]) -> bool {
        self.inner.reaches(card)
    }

    fn is_of_all(&self) -> bool {
        self.inner.is_of_all()
    }

    fn join_while(
        &self,
        group: &Group<'_>,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Box<dyn Endpoint>, TransportError> {
        if self.joined.fetch_add(1, Ordering::Relaxed) + 1 == self.gate {
            println!("\n{AT_THE_GATE}");
            while !IS_OPEN.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.inner.join_while(group, go_on)
    }
}

/// Where ranks wait for one that is stopped.
#[derive(Clone, Copy)]
struct Place {
    transport: &'static str,
    /// What makes them join, if it is not joining the world.
    order: Option<&'static str>,
    gate: usize,
    stopped: usize,
    /// The words for it in errors.
    during: &'static str,
}

const WORLD: Place =
    Place { transport: "shm", order: None, gate: 1, stopped: 2, during: "during joining over shm" };
const SPLIT: Place = Place {
    transport: "shm",
    order: Some("split"),
    gate: 2,
    stopped: 1,
    during: "during split: joining over shm",
};
/// Over TCP, where the two ranks make the wires by which they ask each other in the last of the
/// groups: of the world, the two, requests to the higher rank, requests to the lower one.
const WINDOW: Place = Place {
    transport: "tcp",
    order: Some("window"),
    gate: 4,
    stopped: 1,
    during: "during making a window",
};

impl Place {
    /// Have rank 0 wait there, and then do something to the world: it says so soon, in a sentence
    /// with these words.
    fn check(&self, happens: impl FnOnce(&mut [Process]), words: &[&str]) {
        let (id, _root) = UniqueId::create(None).expect("a root");
        let mut world: Vec<Process> = (0..RANKS).map(|rank| self.start(rank, &id)).collect();
        if let Some(order) = self.order {
            for process in &mut world {
                assert_eq!(process.said(PATIENCE), Said::Joined);
                process.order(order);
            }
        }
        let gated = if self.order.is_some() { RANKS - 1 } else { RANKS };
        for process in &world[..gated] {
            assert_eq!(process.line(PATIENCE).as_deref(), Some(AT_THE_GATE));
        }
        world[self.stopped].stop();
        (0..gated).filter(|rank| *rank != self.stopped).for_each(|rank| world[rank].order("go"));
        let waiting = Duration::from_millis(400);
        assert_eq!(world[0].said(waiting), Said::Nothing, "it waits for the stopped rank");
        let begin = Instant::now();
        happens(&mut world);
        let said = world[0].line(PATIENCE).expect("every wait ends");
        let after = begin.elapsed();
        println!("after {after:?}: {said}");
        for words in words {
            assert!(said.contains(words), "{words} is not in: {said}");
        }
        assert!(after < HEARD_WITHIN, "only after {after:?}: {said}");
    }

    fn start(&self, rank: usize, id: &UniqueId) -> Process {
        let (how, gate) = ((self.transport, JOIN_MS), [(GATE, self.gate.to_string())]);
        Process::rank("joining::one_rank", (rank, RANKS), id, how, &gate)
    }

    fn check_a_death(&self) {
        // Neither rank 0 nor the stopped one.
        let dies = RANKS - self.stopped;
        let lost = format!("rank {dies} is lost");
        self.check(|world| world[dies].kill(), &[&lost, self.during]);
    }

    fn check_an_abort(&self) {
        self.check(|world| world[2].order("abort"), &["rank 2 aborted: somebody has had enough"]);
    }

    fn check_an_interrupt(&self, rank: usize) {
        let aborted = format!("rank {rank} aborted: interrupted {}", self.during);
        self.check(|world| world[rank].order("interrupt"), &[&aborted]);
    }
}

#[test]
fn who_joins_the_world_hears_of_a_rank_that_dies() {
    WORLD.check_a_death();
}

#[test]
fn who_joins_the_world_can_be_interrupted_and_others_hear_of_it() {
    WORLD.check_an_interrupt(0);
    WORLD.check_an_interrupt(1);
}

#[test]
fn who_splits_hears_of_a_rank_that_dies() {
    SPLIT.check_a_death();
}

#[test]
fn who_splits_hears_that_another_rank_gives_up() {
    SPLIT.check_an_abort();
}

#[test]
fn who_splits_can_be_interrupted() {
    SPLIT.check_an_interrupt(0);
}

#[test]
fn who_makes_a_window_hears_of_a_rank_that_dies() {
    WINDOW.check_a_death();
}

#[test]
fn who_makes_a_window_hears_that_another_rank_gives_up() {
    WINDOW.check_an_abort();
}

#[test]
fn who_makes_a_window_can_be_interrupted() {
    WINDOW.check_an_interrupt(0);
}
