//! Worlds of threads, joined as processes would join.

use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::{LocalWindow, RecvWire, SendWire, Windows};

const SECRET: [u8; 32] = [7; 32];
const PATIENCE: Duration = Duration::from_secs(20);

fn open(ranks: usize) -> Vec<Box<dyn Port>> {
    (0..ranks).map(|_| Shm::new().open(SECRET).expect("a port opens")).collect()
}

/// Run `rank` on a thread for each of `ranks` members that have joined group 1 of one world.
fn world(ranks: usize, rank: impl Fn(usize, Box<dyn Endpoint>) + Sync) {
    let ports = open(ranks);
    let cards: Vec<_> = ports.iter().map(|port| port.card()).collect();
    let cards: Vec<_> = cards.iter().map(|card| Some(&card[..])).collect();
    thread::scope(|scope| {
        for (me, port) in ports.iter().enumerate() {
            let (cards, rank) = (&cards, &rank);
            scope.spawn(move || {
                let group = Group { id: 1, me, cards, deadline: Instant::now() + PATIENCE };
                rank(me, port.join(&group).expect("the group joins"));
            });
        }
    });
}

fn push_all(wire: &mut dyn SendWire, mut bytes: &[u8]) {
    let end = Instant::now() + PATIENCE;
    while !bytes.is_empty() {
        let taken = wire.push(bytes).expect("the wire works");
        bytes = &bytes[taken..];
        if taken == 0 {
            assert!(Instant::now() < end, "nobody pulls");
            thread::yield_now();
        }
    }
}

fn pull_all(wire: &mut dyn RecvWire, mut target: &mut [u8]) {
    let end = Instant::now() + PATIENCE;
    while !target.is_empty() {
        let filled = wire.pull_into(target).expect("the wire works");
        target = &mut target[filled..];
        if filled == 0 {
            assert!(Instant::now() < end, "nobody pushes");
            thread::yield_now();
        }
    }
}

#[test]
fn everybody_hears_everybody() {
    for ranks in [1, 2, 3, 64] {
        world(ranks, |me, mut endpoint| {
            let others: Vec<_> = (0..ranks).filter(|other| *other != me).collect();
            let deadline = Instant::now() + PATIENCE;
            let mut out: Vec<_> =
                others.iter().map(|to| endpoint.sender(*to, deadline).unwrap()).collect();
            let mut wires: Vec<_> =
                others.iter().map(|from| endpoint.receiver(*from).unwrap()).collect();
            for (wire, to) in out.iter_mut().zip(&others) {
                push_all(&mut **wire, format!("{me:4} greets {to:4}").as_bytes());
            }
            for (wire, from) in wires.iter_mut().zip(&others) {
                let mut heard = [0; 16];
                pull_all(&mut **wire, &mut heard);
                assert_eq!(heard, format!("{from:4} greets {me:4}").as_bytes());
            }
        });
    }
}

fn resident_bytes(region: &Region) -> u64 {
    sys::resident_bytes(region.descriptor()).expect("the region is a file")
}

#[test]
fn a_second_group_is_cheap_and_all_memory_comes_back() {
    let ports: Vec<_> = (0..8).map(|_| Shm::new().port(SECRET).unwrap()).collect();
    let cards: Vec<_> = ports.iter().map(|port| port.card()).collect();
    let cards: Vec<_> = cards.iter().map(|card| Some(&card[..])).collect();
    let join = |id: u64, me: usize| {
        let group = Group { id, me, cards: &cards, deadline: Instant::now() + PATIENCE };
        ports[me].join(&group).expect("the group joins")
    };
    let first: Vec<_> = (0..ports.len()).map(|me| join(1, me)).collect();
    let region_of = |port: &ShmPort| {
        let region = port.held.lock().unwrap().values().next().cloned();
        region.unwrap_or_else(|| port.made.region_for([]).unwrap())
    };
    let region = region_of(&ports[0]);
    let is_shared = |port| Arc::ptr_eq(&region, &region_of(port));
    assert!(ports.iter().all(is_shared), "a process maps a region once");
    let start = Instant::now();
    let mut second: Vec<_> = (0..ports.len()).map(|me| join(2, me)).collect();
    // All eight members, one after the other, in less than one of them may take.
    assert!(start.elapsed() < Duration::from_millis(40), "{:?}", start.elapsed());
    let before = resident_bytes(&region);
    let mut sender = second[0].sender(1, Instant::now()).unwrap();
    assert!(sender.push(&[7; 200_000]).unwrap() > 0);
    assert!(resident_bytes(&region) > before + 100_000);
    drop((sender, second));
    assert!(resident_bytes(&region) <= before, "the last to leave gives the memory back");
    drop(first);
}

#[test]
fn another_secret_is_refused_and_a_missing_host_is_named() {
    let mut ports = [SECRET, [8; 32]].map(|secret| Shm::new().port(secret).unwrap());
    // The second to be asked is the host: it has the lesser name.
    ports.sort_by_key(|port| std::cmp::Reverse(port.card.name));
    let cards = [ports[0].card(), ports[1].card()];
    let cards = [Some(&cards[0][..]), Some(&cards[1][..])];
    let [asking, host] = ports;
    let group = || Group { id: 1, me: 0, cards: &cards, deadline: Instant::now() + PATIENCE / 50 };
    let refused = asking.join(&group()).err().expect("the secrets differ");
    assert!(matches!(&refused, TransportError::Refused { why } if why.contains("member 1")));
    drop(host);
    let gone = asking.join(&group()).err().expect("nobody is there");
    assert!(matches!(&gone, TransportError::PeerGone { peer: 1, .. }), "{gone}");
}

#[test]
fn a_host_that_leaves_at_once_leaves_nobody_behind() {
    let mut ports = open(2);
    ports.sort_by_key(|port| std::cmp::Reverse(Card::parse(&port.card()).map(|card| card.name)));
    let cards = [ports[0].card(), ports[1].card()];
    let cards = [Some(&cards[0][..]), Some(&cards[1][..])];
    let group = |me| Group { id: 1, me, cards: &cards, deadline: Instant::now() + PATIENCE };
    let host = ports.pop().expect("there are two");
    thread::scope(|scope| {
        drop(host.join(&group(1)).expect("the host joins"));
        scope.spawn(move || drop(host));
        thread::sleep(Duration::from_millis(50));
        ports[0].join(&group(0)).expect("the other joins later");
    });
}

#[test]
fn a_host_of_several_groups_stays_until_the_members_of_all_have_come() {
    let mut ports: Vec<_> = (0..3).map(|_| Shm::new().port(SECRET).unwrap()).collect();
    ports.sort_by_key(|port| std::cmp::Reverse(port.card.name));
    let cards = [0, 1, 2].map(|member| ports[member].card());
    let host = ports.pop().expect("there are three");
    let cards = |other: usize| [Some(&cards[other][..]), Some(&cards[2][..])];
    let deadline = Instant::now() + PATIENCE;
    for (id, other) in [(1, 0), (2, 1)] {
        drop(host.join(&Group { id, me: 1, cards: &cards(other), deadline }).unwrap());
    }
    drop(ports[0].join(&Group { id: 1, me: 0, cards: &cards(0), deadline }).unwrap());
    thread::scope(|scope| {
        scope.spawn(move || drop(host));
        thread::sleep(Duration::from_millis(50));
        ports[1].join(&Group { id: 2, me: 0, cards: &cards(1), deadline }).unwrap();
    });
}

/// A stopped process: its kernel takes the calls for which there is room, and nobody answers.
#[test]
fn who_waits_for_a_stopped_member_is_asked_whether_to_go_on() {
    use socket2::{Domain, SockAddr, Socket, Type};
    let mut stopped = Card::draw().unwrap();
    stopped.name[0] = 0;
    let mut ports = (0..).map(|_| Shm::new().port(SECRET).unwrap());
    let port = ports.find(|port| port.card.name > stopped.name).expect("it has the lesser name");
    let cards = [port.card(), stopped.to_bytes()];
    let cards = [Some(&cards[0][..]), Some(&cards[1][..])];
    let address = SockAddr::unix(stopped.socket_name()).unwrap();
    let socket = || Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    let listens = socket();
    listens.bind(&address).unwrap();
    listens.listen(0).unwrap();
    let join = |patience: Duration, answers: usize| {
        let group = Group { id: 1, me: 0, cards: &cards, deadline: Instant::now() + patience };
        let (start, mut asked) = (Instant::now(), 0);
        let joined = port.join_while(&group, &mut |member| {
            asked += 1;
            assert_eq!(member, 1);
            asked < answers
        });
        (joined.err().expect("nobody answers"), asked, start.elapsed())
    };
    // The call that is left behind takes the room of the next one.
    for _ in ["a call is taken", "none is"] {
        let (error, asked, took) = join(PATIENCE, 3);
        assert!(matches!(&error, TransportError::CalledOff { .. }), "{error}");
        assert!(error.to_string().contains("member 1"), "{error}");
        assert!(asked == 3 && took < PATIENCE / 4, "{asked} times in {took:?}");
        let (error, asked, took) = join(PATIENCE / 50, usize::MAX);
        assert!(matches!(&error, TransportError::Timeout { .. }), "{error}");
        assert!(asked > 3 && took < PATIENCE / 4, "{asked} times in {took:?}");
    }
}

/// Two ends of one group, without ports, and a view of its area.
fn two_ends(pids: [u32; 2]) -> ([ShmEndpoint; 2], area::Area, Layout) {
    let region = Arc::new(Region::create().unwrap());
    let layout = Layout::new(2, &Settings::default());
    let area = |seat| region.area(7, layout.bytes(), (seat, 2), Instant::now()).unwrap();
    let card = |pid| Card { pid, ..Card::draw().unwrap() };
    let cards = pids.map(card);
    let end = |seat: u32| {
        let taken = cards.iter().cloned().enumerate().collect();
        ShmEndpoint::new(area(seat), layout, Seats { taken, ours: seat, key: 7 })
    };
    ([end(0), end(1)], area(0), layout)
}

#[test]
fn impossible_words_in_shared_memory_are_errors() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let own = std::process::id();
    let too_long = Settings::default().piece_bytes as u64 + 1;
    let flags = [too_long << 32 | 1, 1, 57 << 32 | 5];
    for flag in flags {
        let ([_sender, mut end], area, layout) = two_ends([own; 2]);
        let mut wire = end.receiver(0).unwrap();
        area.shared::<AtomicU64>(layout.slots(0, 1)).store(flag, Ordering::Release);
        for _ in 0..2 {
            let error = wire.pull_into(&mut [0; 8]).unwrap_err();
            assert!(matches!(error, TransportError::Corrupt { peer: 0, .. }), "{flag:#x}: {error}");
        }
    }
    let ([mut end, _receiver], area, layout) = two_ends([own; 2]);
    let mut wire = end.sender(1, Instant::now()).unwrap();
    area.shared::<AtomicU64>(layout.tail(0, 1)).store(99, Ordering::Release);
    let error = (0..1000).find_map(|_| wire.push(&[0; 4096]).err()).expect("it looks in time");
    assert!(matches!(error, TransportError::Corrupt { peer: 1, .. }), "{error}");
}

#[test]
fn a_process_is_watched_through_one_file_however_many_groups_there_are() {
    let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let pid = other.id().to_string();
    let watches = || {
        let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let about = files.filter_map(|file| {
            let about = format!("/proc/self/fdinfo/{}", file.file_name().to_string_lossy());
            std::fs::read_to_string(about).ok()
        });
        let is_of_other =
            |line: &str| line.split_once("Pid:").is_some_and(|(_, other)| other.trim() == pid);
        about.filter(|about| about.lines().any(is_of_other)).count()
    };
    let cards = [std::process::id(), other.id()].map(|pid| Card { pid, ..Card::draw().unwrap() });
    let region = Arc::new(Region::create().unwrap());
    let layout = Layout::new(2, &Settings::default());
    let end = |key| {
        let area = region.area(key, layout.bytes(), (0, 2), Instant::now() + PATIENCE).unwrap();
        let taken = cards.iter().cloned().enumerate().collect();
        ShmEndpoint::new(area, layout, Seats { taken, ours: 0, key })
    };
    let mut ends: Vec<_> = (10..30).map(end).collect();
    assert_eq!(watches(), 1);
    ends.truncate(1);
    assert_eq!(ends[0].check(), Ok(()));
    other.kill().unwrap();
    other.wait().unwrap();
    ends[0].check().expect_err("it has ended");
    drop(ends);
    assert_eq!(watches(), 0);
}

#[test]
fn who_left_without_ever_asking_for_a_wire_is_gone_behind_what_it_sent() {
    let ([mut end, mut other], _area, _layout) = two_ends([std::process::id(); 2]);
    let (mut receives, mut sends) =
        (end.receiver(1).unwrap(), end.sender(1, Instant::now()).unwrap());
    let mut wire = other.sender(0, Instant::now()).unwrap();
    wire.push(b"last words").unwrap();
    assert_eq!((end.check(), receives.pull_into(&mut [0; 4])), (Ok(()), Ok(4)));
    drop((wire, other));
    assert_eq!(end.check(), Ok(()));
    let mut heard = [0; 8];
    assert_eq!((receives.pull_into(&mut heard), &heard[..6]), (Ok(6), &b" words"[..]));
    let gone = receives.pull_into(&mut heard).unwrap_err();
    assert!(matches!(gone, TransportError::PeerGone { peer: 1, .. }), "{gone}");
    // It has never looked at what came.
    let full = (0..10_000).find_map(|_| sends.push(&[0; 4096]).err());
    assert!(matches!(full, Some(TransportError::PeerGone { peer: 1, .. })), "{full:?}");
    let ([mut end, other], _area, _layout) = two_ends([std::process::id(); 2]);
    let mut receives = end.receiver(1).unwrap();
    drop(other);
    assert_eq!((receives.pull_into(&mut heard), end.check()), (Ok(0), Ok(())));
    let gone = receives.pull_into(&mut heard).unwrap_err();
    assert!(matches!(gone, TransportError::PeerGone { peer: 1, .. }), "{gone}");
}

#[test]
fn a_process_that_ends_without_leaving_is_named() {
    let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let ([mut end, _unused], _area, _layout) = two_ends([std::process::id(), other.id()]);
    assert_eq!(end.check(), Ok(()));
    other.kill().unwrap();
    other.wait().unwrap();
    for _ in 0..2 {
        let error = end.check().unwrap_err();
        assert!(matches!(error, TransportError::PeerGone { peer: 1, .. }), "{error}");
    }
}

#[test]
fn a_window_of_impossible_size_is_refused_and_one_of_many_counters_takes_no_memory() {
    let ([mut owner, mut end], _area, _layout) = two_ends([std::process::id(); 2]);
    let LocalWindow { descriptor, memory } = owner.expose(100, 3).unwrap();
    let place = window::Place::parse(&descriptor).unwrap();
    for (bytes, signals) in [(u64::MAX, 0), (u64::MAX - 63, 1), (1 << 50, 3)] {
        let hostile = window::Place { bytes, signals, ..place }.to_bytes();
        assert!(end.import(0, &hostile).is_err(), "{bytes} bytes and {signals} signals");
    }
    // Where the region is long, so many counters lie within it. Their owner's word is compared
    // with this size later.
    let many = window::Place { bytes: 1, signals: u32::MAX, ..place }.to_bytes();
    if let Ok(Some(imported)) = end.import(0, &many) {
        assert_eq!(imported.size(), (1, u32::MAX as usize));
    }
    let mut window = end.import(0, &descriptor).unwrap().expect("at once");
    window.signal(2, 5).unwrap();
    assert_eq!([0, 1, 2].map(|index| memory.signal(index)), [0, 0, 5]);
}

#[test]
fn windows_that_follow_each_other_do_not_use_the_directory_up() {
    let region = Arc::new(Region::create().unwrap());
    let kept = region.take(100).unwrap();
    for round in 0..directory::ENTRIES {
        let index = region.take(100).unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert!(index != kept && region.offset(index) != region.offset(kept));
        region.give_back(index);
    }
}

#[test]
fn groups_that_follow_each_other_do_not_use_the_directory_up_either() {
    let region = Arc::new(Region::create().unwrap());
    let deadline = Instant::now() + 3 * PATIENCE;
    let kept = region.area(directory::KEY_MIN, 10_000, (0, 1), deadline).unwrap();
    for round in 0..2 * directory::ENTRIES as u64 {
        let key = (round + 3).wrapping_mul(0x9e37_79b9_7f4a_7c15).max(3);
        let area = region.area(key, 10_000, (0, 1), deadline);
        drop(area.unwrap_or_else(|error| panic!("round {round}: {error}")));
    }
    assert!(!kept.has_left(0) && resident_bytes(&region) < 8 << 20);
}

#[test]
fn who_cannot_use_a_groups_memory_does_not_keep_it_from_being_given_back() {
    let region = Arc::new(Region::create().unwrap());
    let area = |seat, bytes| region.area(7, bytes, (seat, 2), Instant::now() + PATIENCE);
    let kept = area(0, 10_000).unwrap();
    let index = region.find(7, 10_000, Instant::now()).unwrap();
    assert!(area(1, 100_000).is_err(), "it lays it out differently");
    assert!(kept.has_left(1) && !kept.has_left(0));
    drop(kept);
    assert_eq!(region.take(10_000).unwrap(), index, "it is there for others");
}

/// Keys of two buckets, so that whoever claims an entry has company, and entries change hands.
#[test]
fn all_who_come_at_once_for_a_key_get_one_area_while_others_come_and_go() {
    const MEMBERS: u32 = 4;
    let region = Arc::new(Region::create().unwrap());
    let gate = std::sync::Barrier::new(MEMBERS as usize);
    let offsets: Vec<Vec<u64>> = thread::scope(|scope| {
        let seat = |_: u32| {
            let (region, gate) = (&region, &gate);
            scope.spawn(move || {
                let mut offsets = Vec::new();
                for round in 0..3000_u64 {
                    gate.wait();
                    let (key, deadline) =
                        (((round + 2) << 20) + round % 2, Instant::now() + PATIENCE);
                    let index = region.find(key, 10_000, deadline).unwrap();
                    offsets.push(region.offset(index));
                    let own = region.take(10_000).unwrap();
                    assert_ne!(region.offset(own), region.offset(index));
                    region.give_back(own);
                    if gate.wait().is_leader() && round % 100 > 0 {
                        region.give_back(index);
                    }
                }
                offsets
            })
        };
        let threads: Vec<_> = (0..MEMBERS).map(seat).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(offsets.iter().all(|of_one| *of_one == offsets[0]));
}
