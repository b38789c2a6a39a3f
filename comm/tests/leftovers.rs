//! Communicators and windows that are dropped leave nothing behind in their process, however many
//! there were, nor in the memory that ranks of a host share.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use brigade_comm::transports::transports;
use brigade_comm::{Communicator, Op, Settings, WindowSize};
use brigade_transports::{
    Caps, Doorbell, Endpoint, Group, Port, RecvWire, SendWire, Transport, TransportError,
    Unavailable, Windows,
};

/// What this process holds.
#[derive(Clone, Copy, Debug)]
struct Holdings {
    threads: usize,
    files: usize,
    mappings: usize,
    resident_kb: usize,
}

impl Holdings {
    /// Threads and files exactly; what the allocator keeps varies a little.
    fn no_more_than(self, before: Self) -> bool {
        self.threads <= before.threads
            && self.files <= before.files
            && self.mappings <= before.mappings + 8
            && self.resident_kb <= before.resident_kb + (4 << 10)
    }
}

fn holdings() -> Holdings {
    let entries = |folder: &str| std::fs::read_dir(folder).expect("a folder of the system").count();
    let text = |file: &str| std::fs::read_to_string(file).expect("a file of the system");
    let status = text("/proc/self/status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line of memory");
    let number = line.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok());
    Holdings {
        threads: entries("/proc/self/task"),
        files: entries("/proc/self/fd"),
        mappings: text("/proc/self/maps").lines().count(),
        resident_kb: number.expect("a number"),
    }
}

/// Calls of every kind of work, blocking and in flight.
fn work(member: &Communicator) {
    let mut data = vec![1i64; 20_000];
    member.all_reduce(&mut data, Op::Sum).expect("an all-reduce");
    let started = member.scope(|scope| scope.all_reduce(&mut data, Op::Max).map(|_| ()));
    started.expect("a scope").expect("a start");
    member.barrier().expect("a barrier");
}

fn over(transport: &str) -> Settings {
    Settings { transport: transport.into(), ..Settings::default() }
}

fn groups_of_one_world(transport: &str, groups: usize) {
    let members = Communicator::local_world(4, &over(transport)).expect("a world");
    std::thread::scope(|scope| {
        for member in &members {
            scope.spawn(move || {
                for _ in 0..groups {
                    let group = member.split(Some(0), 0).expect("a split").expect("a group");
                    work(&group);
                }
            });
        }
    });
}

fn windows_of_one_world(transport: &str, windows: usize) {
    const BYTES: usize = 100_000;
    let members = Communicator::local_world(4, &over(transport)).expect("a world");
    std::thread::scope(|scope| {
        for member in &members {
            scope.spawn(move || {
                for _ in 0..windows {
                    let size = WindowSize { bytes: BYTES, signals: 1 };
                    let window = member.window(size).expect("a window");
                    let to = (member.rank() + 1) % member.size();
                    window.put(to, 0, &[1; BYTES]).expect("a put");
                    window.signal(to, 0, 1).expect("a signal");
                    window.wait(0, 1).expect("a signal");
                    member.barrier().expect("nobody needs the windows any more");
                }
            });
        }
    });
}

fn worlds(transport: &str, worlds: usize) {
    for _ in 0..worlds {
        groups_of_one_world(transport, 1);
    }
}

/// A second round holds no more than the first, which was as long. Threads that have been told to
/// end may need a moment.
fn check(what: &str, round: impl Fn()) {
    round();
    let before = holdings();
    round();
    let mut after = holdings();
    for _ in 0..100 {
        if after.no_more_than(before) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
        after = holdings();
    }
    panic!("{what}: {before:?} became {after:?}");
}

/// One test, because what a process holds is one number for all tests in it.
#[test]
fn communicators_and_windows_leave_nothing_behind() {
    // Ranks 0 and 2 ask each other over TCP, and rank 1 asks nobody; or ranks 0 and 1 ask each
    // other by shared memory, and both and rank 2 over TCP.
    windows_leave_no_seats(&[0, 1], true);
    windows_leave_no_seats(&[0, 1, 2], false);
    for transport in ["loopback", "shm", "tcp"] {
        check(&format!("groups over {transport}"), || groups_of_one_world(transport, 50));
        check(&format!("windows over {transport}"), || windows_of_one_world(transport, 20));
        check(&format!("worlds over {transport}"), || worlds(transport, 20));
    }
}

/// Another transport, by which not all ranks reach each other: those of kind 2 reach all, and all
/// others those of their own kind and of that one. Ranks have these kinds, round and round.
struct Kinds {
    inner: Arc<dyn Transport>,
    kinds: &'static [u8],
    has_windows: bool,
    opened: AtomicUsize,
}

impl Kinds {
    fn transport(name: &str, kinds: &'static [u8], has_windows: bool) -> Arc<dyn Transport> {
        let inner = transports(&over(name)).expect("a transport").remove(0);
        Arc::new(Self { inner, kinds, has_windows, opened: AtomicUsize::new(0) })
    }
}

impl Transport for Kinds {
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
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        let (kind, has_windows) = (self.kinds[number % self.kinds.len()], self.has_windows);
        Ok(Box::new(PortOfKind { inner: self.inner.open(secret)?, kind, has_windows }))
    }
}

struct PortOfKind {
    inner: Box<dyn Port>,
    kind: u8,
    has_windows: bool,
}

impl Port for PortOfKind {
    fn card(&self) -> Vec<u8> {
        [vec![self.kind], self.inner.card()].concat()
    }

    fn reaches(&self, card: &[u8]) -> bool {
        let (kind, card) = card.split_first().expect("a card of ours");
        let is_near = self.kind == 2 || *kind == 2 || self.kind == *kind;
        is_near && self.inner.reaches(card)
    }

    fn is_of_all(&self) -> bool {
        self.inner.is_of_all()
    }

    fn join_while(
        &self,
        group: &Group<'_>,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Box<dyn Endpoint>, TransportError> {
        let cards: Vec<_> = group.cards.iter().map(|card| card.map(|card| &card[1..])).collect();
        let endpoint = self.inner.join_while(&Group { cards: &cards, ..*group }, go_on)?;
        Ok(if self.has_windows { endpoint } else { Box::new(WithoutWindows(endpoint)) })
    }
}

struct WithoutWindows(Box<dyn Endpoint>);

impl Endpoint for WithoutWindows {
    fn connect(
        &mut self,
        to: usize,
        deadline: Instant,
    ) -> Result<Option<Box<dyn SendWire>>, TransportError> {
        self.0.connect(to, deadline)
    }

    fn receiver(&mut self, from: usize) -> Result<Box<dyn RecvWire>, TransportError> {
        self.0.receiver(from)
    }

    fn doorbell(&mut self) -> &mut dyn Doorbell {
        self.0.doorbell()
    }

    fn check(&mut self) -> Result<(), TransportError> {
        self.0.check()
    }

    fn windows(&mut self) -> Option<&mut dyn Windows> {
        None
    }
}

/// What the memory takes that ranks of this process share.
fn shared_kb() -> u64 {
    let folder = std::fs::read_dir("/proc/self/fd").expect("a folder of the system");
    let paths = folder.map(|entry| entry.expect("an entry").path());
    let is_memory = |path: &PathBuf| {
        let target = std::fs::read_link(path).unwrap_or_default();
        target.to_string_lossy().starts_with("/memfd:brigade")
    };
    let blocks = |path: PathBuf| std::fs::metadata(path).map_or(0, |memory| memory.blocks());
    paths.filter(is_memory).map(blocks).sum::<u64>() / 2
}

/// Go through all memory that this rank's wires have: they take theirs as bytes first lie there.
fn fill_rings(member: &Communicator) {
    const BYTES: usize = 4 << 20;
    for by in 1..member.size() {
        let [to, from] = [by, member.size() - by].map(|by| (member.rank() + by) % member.size());
        let (sent, mut got) = (vec![1_u8; BYTES], vec![0_u8; BYTES]);
        let messages = member.messages().send(&sent, to).recv(&mut got, from);
        messages.run().expect("messages");
    }
}

/// How many windows are made in a row.
const WINDOWS: usize = 30;
/// What each may leave: of its two groups a page that tells where their memory lies, of which there
/// are a thousand for all, and on the average a little more.
const WINDOW_KB: u64 = 9;

/// Make windows and let them go; what is shared then.
fn shared_after_windows(member: &Communicator) -> u64 {
    const BYTES: usize = 100_000;
    for _ in 0..WINDOWS {
        let window = member.window(WindowSize { bytes: BYTES, signals: 1 }).expect("a window");
        for to in (0..member.size()).filter(|&to| to != member.rank()) {
            window.put(to, 0, &[1; BYTES]).expect("a put");
            window.signal(to, 0, 1).expect("a signal");
        }
        window.wait(0, member.size() as u64 - 1).expect("signals");
        member.barrier().expect("nobody needs the windows any more");
    }
    member.barrier().expect("all have dropped theirs");
    let shared = shared_kb();
    member.barrier().expect("all have looked");
    shared
}

/// Three ranks that reach each other over TCP, as far as their kinds do, or else by shared memory:
/// nothing of their windows stays there while their world goes on, not even where a rank has to do
/// with nobody by it who has with others.
fn windows_leave_no_seats(kinds: &'static [u8], has_windows: bool) {
    let both = [Kinds::transport("tcp", kinds, true), Kinds::transport("shm", &[2], has_windows)];
    let world = Communicator::local_world_over(3, &over("auto"), &both).expect("a world");
    let shared = std::thread::scope(|scope| {
        let ranks = world.iter().map(|member| {
            scope.spawn(move || {
                fill_rings(member);
                [(); 2].map(|()| shared_after_windows(member))
            })
        });
        let ranks: Vec<_> = ranks.collect();
        let shared = ranks.into_iter().map(|rank| rank.join().expect("no panic"));
        shared.max_by_key(|[first, second]| second.saturating_sub(*first)).expect("three ranks")
    });
    let [first, second] = shared;
    let most = first + WINDOWS as u64 * WINDOW_KB;
    assert!(second <= most, "{kinds:?}: {first} KiB became {second} KiB");
}
