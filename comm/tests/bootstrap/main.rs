//! Worlds of threads that find each other, or are told why they do not.

#[path = "../best/mod.rs"]
mod best;
mod control;
mod refusals;
mod strangers;

use std::io::Write;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use best::best;
use brigade_comm::bootstrap::{JoinError, Joined, UniqueId, rendezvous};
use brigade_comm::launch::{JobSecret, Launch, RootAddress, RootSpec};

const PATIENCE: Duration = Duration::from_secs(20);

fn launch(rank: usize, ranks: usize, root: &RootSpec) -> Launch {
    Launch { rank, ranks, local_rank: None, root: root.clone() }
}

fn card(rank: usize) -> Vec<u8> {
    vec![rank as u8; 10 + rank]
}

/// Join as each of `who`, at once, a thread each, and in the open.
fn join(who: &[Launch], patience: Duration) -> Vec<Result<Joined, JoinError>> {
    join_sealed(who, patience, |_| false)
}

/// The same, where some encrypt what they say.
fn join_sealed(
    who: &[Launch],
    patience: Duration,
    encrypts: impl Fn(usize) -> bool,
) -> Vec<Result<Joined, JoinError>> {
    let deadline = Instant::now() + patience;
    std::thread::scope(|scope| {
        let join = |me: &'_ Launch| {
            let (me, encrypt) = (me.clone(), encrypts(me.rank));
            scope.spawn(move || rendezvous(&me, card(me.rank), deadline, encrypt))
        };
        let threads: Vec<_> = who.iter().map(join).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

/// All of a world of `ranks` join by `root`, and see the same.
fn check(ranks: usize, root: &RootSpec) -> Vec<Joined> {
    check_sealed(ranks, root, false)
}

fn check_sealed(ranks: usize, root: &RootSpec, encrypt: bool) -> Vec<Joined> {
    let who: Vec<_> = (0..ranks).map(|rank| launch(rank, ranks, root)).collect();
    let joined = join_sealed(&who, PATIENCE, |_| encrypt);
    let joined: Vec<_> = joined.into_iter().map(|joined| joined.expect("joins")).collect();
    for (rank, world) in joined.iter().enumerate() {
        assert_eq!(world.cards, (0..ranks).map(card).collect::<Vec<_>>());
        assert_eq!(world.secret, joined[0].secret);
        assert_eq!((world.control.rank(), world.control.ranks()), (rank, ranks));
        assert!(world.members.iter().all(|member| member.pid == std::process::id()));
        assert_eq!(world.control.verdict(), None);
    }
    joined
}

fn by_address(host: &str) -> RootAddress {
    static PORT: AtomicU16 = AtomicU16::new(0);
    // Below the ephemeral range, different for each test process and each call, with two more.
    let port = 10_000 + (std::process::id() % 100) as u16 * 40;
    let port = port + PORT.fetch_add(3, Ordering::Relaxed);
    RootAddress { host: host.into(), port, port_count: 1, secret: JobSecret::from_text("test") }
}

fn scratch_file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("brigade-{name}-{}", std::process::id()))
}

#[test]
fn worlds_of_all_small_sizes_join_by_id() {
    for ranks in 1..=9 {
        let (id, _root) = UniqueId::create(None).unwrap();
        let id: UniqueId = id.to_string().parse().unwrap();
        check(ranks, &RootSpec::Id(id));
        let (id, _root) = UniqueId::create(None).unwrap();
        check_sealed(ranks, &RootSpec::Id(id), true);
    }
}

#[test]
fn sixty_four_ranks_join_and_leave_within_the_budget() {
    let join = || {
        let (id, root) = UniqueId::create(None).unwrap();
        let start = Instant::now();
        let joined = check(64, &RootSpec::Id(id));
        (start.elapsed(), joined, root)
    };
    best("64 ranks join", Duration::from_millis(300), || join().0);
    best("64 ranks leave", Duration::from_secs(1), || {
        let (_, joined, _root) = join();
        let start = Instant::now();
        drop(joined);
        start.elapsed()
    });
}

#[test]
fn worlds_join_by_address_over_both_internet_protocols() {
    for host in ["127.0.0.1", "::1", "localhost"] {
        if host == "::1" && TcpListener::bind("[::1]:0").is_err() {
            println!("skipped {host}: this machine has no IPv6");
            continue;
        }
        let root = RootSpec::Address(by_address(host));
        // Twice at the same port: a complete world does not keep it.
        let first = check(3, &root);
        check(3, &root);
        drop(first);
    }
}

#[test]
fn a_port_that_belongs_to_someone_else_is_passed_over() {
    let address = RootAddress { port_count: 3, ..by_address("127.0.0.1") };
    let taken = TcpListener::bind(("127.0.0.1", address.port)).unwrap();
    let stranger = std::thread::spawn(move || {
        // Like another job's service: it answers with words of its own.
        for stream in taken.incoming().take(2) {
            let _unread = stream.and_then(|mut stream| stream.write_all(b"220 not yours\r\n"));
        }
    });
    check(3, &RootSpec::Address(address));
    stranger.join().unwrap();
}

#[test]
fn worlds_join_by_file_even_over_a_stale_one_and_remove_it() {
    let path = scratch_file("by-file");
    let (stale, root) = UniqueId::create(None).unwrap();
    drop(root);
    stale.write_file(&path).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    check(4, &RootSpec::IdFile(path.clone()));
    assert!(!path.exists(), "rank 0 removes the file");
    let drafts = std::fs::read_dir(path.parent().unwrap()).unwrap().flatten();
    let name = path.file_name().unwrap().to_str().unwrap();
    let drafts = drafts.filter(|entry| entry.file_name().to_string_lossy().contains(name));
    assert_eq!(drafts.count(), 0);
}

#[test]
fn a_complete_world_no_longer_listens() {
    let (id, _root) = UniqueId::create(Some(IpAddr::from([127, 0, 0, 1]))).unwrap();
    let joined = check(2, &RootSpec::Id(id.clone()));
    assert!(TcpStream::connect(id.addresses()[0]).is_err());
    let late = join(&[launch(2, 3, &RootSpec::Id(id.clone()))], Duration::from_millis(200));
    assert!(matches!(late[0], Err(JoinError::Unreachable { .. })), "{late:?}");
    // Who was there knows so without looking.
    let again = join(&[launch(1, 2, &RootSpec::Id(id))], Duration::from_secs(3600));
    assert!(matches!(again[0], Err(JoinError::Spent { rank: 1 })), "{again:?}");
    assert!(joined.iter().all(|world| world.control.verdict().is_none()));
}
