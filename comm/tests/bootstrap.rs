//! Worlds of threads that find each other, or are told why they do not.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use brigade_comm::bootstrap::{JoinError, Joined, UniqueId, rendezvous};
use brigade_comm::control::{Refusal, Verdict};
use brigade_comm::launch::{JobSecret, Launch, RootAddress, RootSpec};

const PATIENCE: Duration = Duration::from_secs(20);

fn launch(rank: usize, ranks: usize, root: &RootSpec) -> Launch {
    Launch { rank, ranks, local_rank: None, root: root.clone() }
}

fn card(rank: usize) -> Vec<u8> {
    vec![rank as u8; 10 + rank]
}

/// Join as each of `who`, at once, a thread each.
fn join(who: &[Launch], patience: Duration) -> Vec<Result<Joined, JoinError>> {
    let deadline = Instant::now() + patience;
    std::thread::scope(|scope| {
        let join = |me| scope.spawn(move || rendezvous(me, card(me.rank), deadline));
        let threads: Vec<_> = who.iter().map(join).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

/// All of a world of `ranks` join by `root`, and see the same.
fn check(ranks: usize, root: &RootSpec) -> Vec<Joined> {
    let who: Vec<_> = (0..ranks).map(|rank| launch(rank, ranks, root)).collect();
    let joined: Vec<_> =
        join(&who, PATIENCE).into_iter().map(|joined| joined.expect("joins")).collect();
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
    // Below the ephemeral range, different for each test process and each call.
    let port = 10_000 + (std::process::id() % 400) as u16 * 10;
    let port = port + PORT.fetch_add(1, Ordering::Relaxed);
    RootAddress { host: host.into(), port, port_count: 1, secret: JobSecret::from_text("test") }
}

fn scratch_file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("brigade-{name}-{}", std::process::id()))
}

fn refusals(results: Vec<Result<Joined, JoinError>>) -> Vec<(Refusal, String)> {
    let refusal = |result: Result<Joined, JoinError>| match result {
        Err(JoinError::Refused { kind, why }) => (kind, why),
        other => panic!("must be refused: {other:?}"),
    };
    results.into_iter().map(refusal).collect()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !done() {
        assert!(Instant::now() < deadline, "{what}: not within 5 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn worlds_of_all_small_sizes_join_by_id() {
    for ranks in 1..=9 {
        let (id, _root) = UniqueId::create(None).unwrap();
        let id: UniqueId = id.to_string().parse().unwrap();
        check(ranks, &RootSpec::Id(id));
    }
}

#[test]
fn sixty_four_ranks_join_and_leave_within_the_budget() {
    let (id, _root) = UniqueId::create(None).unwrap();
    let start = Instant::now();
    let joined = check(64, &RootSpec::Id(id));
    let took = start.elapsed();
    println!("64 ranks joined in {took:?}");
    assert!(took < Duration::from_millis(300), "{took:?}");
    let start = Instant::now();
    drop(joined);
    println!("and left in {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
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
fn missing_ranks_are_named_to_all_who_came() {
    let (id, _root) = UniqueId::create(None).unwrap();
    let root = RootSpec::Id(id);
    let who: Vec<_> = [0, 1, 4].map(|rank| launch(rank, 6, &root)).into();
    let start = Instant::now();
    let refused = refusals(join(&who, Duration::from_millis(400)));
    assert!(start.elapsed() < Duration::from_millis(900), "{:?}", start.elapsed());
    for (kind, why) in refused {
        assert_eq!(kind, Refusal::RanksMissing);
        assert!(why.starts_with("waited 0.4 s; ranks 2, 3, 5 of 6 never came"), "{why}");
    }
}

#[test]
fn a_missing_root_is_an_error_that_says_where_it_was_looked_for() {
    let address = by_address("127.0.0.1");
    let root = RootSpec::Address(address.clone());
    let results = join(&[launch(1, 2, &root)], Duration::from_millis(300));
    let Err(error @ JoinError::Unreachable { rank: 1, .. }) = &results[0] else {
        panic!("must not be reachable: {results:?}");
    };
    assert!(error.to_string().contains(&format!("127.0.0.1:{}", address.port)), "{error}");
}

#[test]
fn two_processes_of_the_same_rank_are_both_told() {
    // Two threads of one process would be taken for one that reconnects: a second process.
    let (id, _root) = UniqueId::create(None).unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_rank_one_of_three", "--ignored", "--nocapture"])
        .env("BRIGADE_TEST_ID", id.to_string())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let root = RootSpec::Id(id);
    let refused = refusals(join(&[launch(1, 3, &root)], PATIENCE));
    let output = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
    assert!(child.wait().unwrap().success(), "{output}");
    let (kind, why) = &refused[0];
    assert_eq!(*kind, Refusal::DuplicateRank);
    assert!(output.contains(why), "both hear {why:?}: {output}");
    for pid in [std::process::id(), child.id()] {
        assert!(why.contains(&format!("process {pid} on ")), "{why}");
    }
}

#[test]
#[ignore = "a process of two_processes_of_the_same_rank_are_both_told"]
fn a_rank_one_of_three() {
    let Ok(id) = std::env::var("BRIGADE_TEST_ID") else { return };
    let root = RootSpec::Id(id.parse().unwrap());
    println!("{:?}", refusals(join(&[launch(1, 3, &root)], PATIENCE)));
}

#[test]
fn ranks_that_disagree_about_their_number_are_both_told() {
    let (id, _root) = UniqueId::create(None).unwrap();
    let root = RootSpec::Id(id);
    let refused = refusals(join(&[launch(0, 3, &root), launch(1, 4, &root)], PATIENCE));
    for (kind, why) in refused {
        assert_eq!(kind, Refusal::RanksDiffer);
        assert!(why.contains("3") && why.contains("4") && why.contains("rank 0"), "{why}");
    }
}

#[test]
fn the_wrong_secret_opens_nothing_and_is_named() {
    let address = by_address("127.0.0.1");
    let wrong = RootAddress { secret: JobSecret::from_text("other"), ..address.clone() };
    let who = [launch(0, 2, &RootSpec::Address(address)), launch(1, 2, &RootSpec::Address(wrong))];
    let start = Instant::now();
    let refused = refusals(join(&who, Duration::from_secs(4)));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(refused[0].0, Refusal::RanksMissing);
    assert!(refused[0].1.contains("rank 1 of 2 never came"), "{}", refused[0].1);
    assert!(refused[0].1.contains("could not prove the job's secret"), "{}", refused[0].1);
    assert_eq!(refused[1].0, Refusal::Secret);
}

#[test]
fn a_root_that_closes_tells_those_who_wait() {
    let (id, root) = UniqueId::create(Some(IpAddr::from([127, 0, 0, 1]))).unwrap();
    let spec = RootSpec::Id(id);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| join(&[launch(0, 2, &spec)], PATIENCE));
        std::thread::sleep(Duration::from_millis(100));
        drop(root);
        let refused = refusals(waiting.join().unwrap());
        assert_eq!(refused[0].0, Refusal::RootClosed);
        assert!(refused[0].1.contains("rank 1 of 2 never came"), "{}", refused[0].1);
    });
}

#[test]
fn strangers_do_not_keep_a_world_from_joining() {
    let seed = 0x5eed_0001_u64;
    println!("seed {seed:#x}");
    let mut random = seed;
    let (id, _root) = UniqueId::create(Some(IpAddr::from([127, 0, 0, 1]))).unwrap();
    let address = id.addresses()[0];
    // Silent, talkative and hasty ones, more than the root keeps.
    let mut strangers: Vec<TcpStream> = Vec::new();
    for index in 0..1500_u64 {
        let Ok(mut stream) = TcpStream::connect(address) else { break };
        let mut bytes = vec![0; (index % 97) as usize];
        for byte in &mut bytes {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(index | 1);
            *byte = (random >> 56) as u8;
        }
        if index % 5 == 0 {
            // A length that would be honest about a flood.
            bytes.splice(..0, [0xff, 0xff, 0xff, 0x7f]);
        }
        // The root may have hung up on this one already, which is its right.
        let _sent = stream.write_all(&bytes);
        if index % 3 != 0 {
            strangers.push(stream);
        }
        if strangers.len() > 700 {
            strangers.drain(..100);
        }
    }
    let start = Instant::now();
    check(4, &RootSpec::Id(id));
    println!("joined in {:?} beside {} strangers", start.elapsed(), strangers.len());
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[test]
fn hostile_ids_are_refused() {
    let (id, _root) = UniqueId::create(None).unwrap();
    let good = id.to_bytes();
    assert_eq!(UniqueId::from_bytes(good).unwrap(), id);
    assert!(!format!("{id:?}").contains(&id.to_string()[18..82]), "the secret is not printed");
    for (at, byte) in [(0, b'b'), (7, 2), (8, 0), (8, 13), (8, 255), (41, 5), (127, 1)] {
        let mut bad = good;
        bad[at] = byte;
        assert!(UniqueId::from_bytes(bad).is_err(), "byte {at} = {byte}");
    }
    for text in ["", "00", &id.to_string()[1..], &id.to_string().replace('4', "g")] {
        assert!(text.parse::<UniqueId>().is_err(), "{text:?}");
    }
    let addresses = id.addresses();
    assert!(addresses.contains(&SocketAddr::from(([127, 0, 0, 1], addresses[0].port()))));
}

#[test]
fn leaving_is_not_dying_and_the_root_may_go_first() {
    let root = RootSpec::Address(by_address("127.0.0.1"));
    let mut joined = check(4, &root);
    drop(joined.remove(2));
    until("rank 2 is seen to leave", || {
        joined.iter().all(|world| world.control.left_ranks() == [2])
    });
    joined[0].control.report_lost(2, "its wire closed");
    drop(joined.remove(0));
    until("the root is seen to leave", || {
        joined.iter().all(|world| world.control.left_ranks() == [2, 0])
    });
    std::thread::sleep(Duration::from_millis(100));
    for world in &joined {
        assert_eq!(world.control.verdict(), None);
    }
    // Without a root each rank decides alone.
    until("a report without a root", || {
        joined[0].control.report_lost(3, "its wire closed");
        matches!(joined[0].control.verdict(), Some(Verdict::Lost { rank: 3, .. }))
    });
}

#[test]
fn verdicts_reach_everybody_and_the_first_one_stands() {
    let (id, _root) = UniqueId::create(None).unwrap();
    let joined = check(5, &RootSpec::Id(id));
    joined[3].control.abort("the loss is not a number");
    until("an abort arrives", || joined.iter().all(|world| world.control.verdict().is_some()));
    joined[1].control.abort("me too");
    for world in &joined {
        let verdict = world.control.verdict().unwrap();
        assert_eq!(verdict.to_string(), "rank 3 aborted: the loss is not a number");
    }
}

#[test]
fn a_rank_out_of_reach_is_lost_for_all_within_the_grace() {
    let (id, _root) = UniqueId::create(None).unwrap();
    let joined = check(3, &RootSpec::Id(id));
    joined[1].control.report_lost(2, "connection reset");
    let start = Instant::now();
    until("a loss arrives", || joined.iter().all(|world| world.control.verdict().is_some()));
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    let said = joined[0].control.verdict().unwrap().to_string();
    assert_eq!(said, "rank 2 is gone: connection reset (seen by rank 1)");
}

#[test]
fn waiting_ranks_are_compared_and_summarised() {
    let (id, _root) = UniqueId::create(None).unwrap();
    let mut joined = check(5, &RootSpec::Id(id));
    let report = |rank: usize, seq, signature, call: &str| {
        joined[rank].control.report_waiting(9, seq, [signature; 32], call);
    };
    report(0, 17, 1, "all-reduce of 8 f32");
    report(1, 17, 1, "all-reduce of 8 f32");
    report(2, 16, 3, "barrier");
    let summary = || joined[1].control.waiting_summary(9, &[0, 2, 3]);
    until("the summary", || {
        let text = summary();
        text.starts_with("rank 0 last reported all-reduce of 8 f32 #17, ")
            && text.contains("rank 2 last reported barrier #16, ")
            && text.ends_with("rank 3 reported nothing")
    });
    assert!(joined.iter().all(|world| world.control.verdict().is_none()));
    drop(joined.pop());
    let report = |rank: usize, seq, signature, call: &str| {
        joined[rank].control.report_waiting(9, seq, [signature; 32], call);
    };
    report(3, 17, 2, "broadcast of 4 f64 from rank 1");
    until("a mismatch", || joined.iter().all(|world| world.control.verdict().is_some()));
    let said = joined[2].control.verdict().unwrap().to_string();
    assert_eq!(
        said,
        "the ranks disagree about call #17 of communicator 9: rank 0 calls all-reduce of 8 f32, \
         rank 3 calls broadcast of 4 f64 from rank 1"
    );
}

#[test]
fn a_world_of_one_decides_alone() {
    let joined = rendezvous(&launch(0, 1, &RootSpec::Alone), Vec::new(), Instant::now()).unwrap();
    joined.control.report_waiting(0, 0, [0; 32], "nothing");
    assert_eq!(joined.control.waiting_reports(0), None);
    joined.control.abort("enough");
    assert!(matches!(joined.control.verdict(), Some(Verdict::Aborted { rank: 0, .. })));
}
