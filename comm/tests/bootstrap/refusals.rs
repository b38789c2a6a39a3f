//! Worlds that cannot come together, and what everybody is told.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use brigade_comm::bootstrap::{JoinError, Joined, UniqueId, rendezvous};
use brigade_comm::control::{CARD_BYTES_MAX, Refusal};
use brigade_comm::launch::{JobSecret, RootAddress, RootSpec};

use super::{PATIENCE, best, by_address, check, join, join_sealed, launch, scratch_file};

fn refusals(results: Vec<Result<Joined, JoinError>>) -> Vec<(Refusal, String)> {
    let refusal = |result: Result<Joined, JoinError>| match result {
        Err(JoinError::Refused { kind, why }) => (kind, why),
        other => panic!("must be refused: {other:?}"),
    };
    results.into_iter().map(refusal).collect()
}

#[test]
fn missing_ranks_are_named_to_all_who_came() {
    // A try that takes longer was held up, and so may have been the root's word.
    let limit = Duration::from_millis(900);
    best("ranks without the others", limit, || {
        let (id, _root) = UniqueId::create(None).unwrap();
        let root = RootSpec::Id(id);
        let who: Vec<_> = [0, 1, 4].map(|rank| launch(rank, 6, &root)).into();
        let start = Instant::now();
        let results = join(&who, Duration::from_millis(400));
        let took = start.elapsed();
        for (kind, why) in if took < limit { refusals(results) } else { Vec::new() } {
            assert_eq!(kind, Refusal::RanksMissing);
            assert!(why.starts_with("waited 0.4 s; ranks 2, 3, 5 of 6 never came"), "{why}");
        }
        took
    });
}

#[test]
fn where_some_encrypt_and_others_do_not_all_hear_who() {
    for odd in 0..3 {
        let (id, _root) = UniqueId::create(None).unwrap();
        let root = RootSpec::Id(id);
        let who: Vec<_> = (0..3).map(|rank| launch(rank, 3, &root)).collect();
        for (kind, why) in refusals(join_sealed(&who, PATIENCE, |rank| rank == odd)) {
            assert_eq!(kind, Refusal::EncryptionDiffers);
            assert!(why.starts_with(&format!("rank {odd} (process ")), "{why}");
            assert!(why.contains(" encrypts what it sends and rank "), "{why}");
        }
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

/// By whatever leads to the root. A third rank, which is right, hears it as well.
#[test]
fn two_threads_of_the_same_rank_are_told_at_once_and_so_are_the_others() {
    let (id, _root) = UniqueId::create(None).unwrap();
    let file = scratch_file("claimed-twice");
    for (root, rank, who) in [
        (RootSpec::Id(id), 1, &[0, 1, 1][..]),
        (RootSpec::Address(by_address("127.0.0.1")), 1, &[0, 1, 1]),
        // The root, or its file, goes with rank 0, and whoever comes later would wait for another.
        (RootSpec::Address(by_address("127.0.0.1")), 0, &[0, 0]),
        (RootSpec::IdFile(file.clone()), 0, &[0, 0]),
    ] {
        let start = Instant::now();
        let who: Vec<_> = who.iter().map(|&rank| launch(rank, 3, &root)).collect();
        for (kind, why) in refusals(join(&who, PATIENCE)) {
            assert_eq!(kind, Refusal::DuplicateRank);
            let wanted = format!(
                "two threads of process {} on {} say that they are rank {rank} of 3",
                std::process::id(),
                host(),
            );
            assert_eq!(why, wanted);
        }
        assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
    }
    // Who tries again may.
    let (id, _root) = UniqueId::create(None).unwrap();
    check(3, &RootSpec::Id(id));
    let _removed = std::fs::remove_file(file);
}

fn host() -> String {
    let (id, _root) = UniqueId::create(None).unwrap();
    check(2, &RootSpec::Id(id))[0].members[0].host.clone()
}

#[test]
fn two_processes_of_the_same_rank_are_both_told() {
    let (id, _root) = UniqueId::create(None).unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "refusals::a_rank_one_of_three", "--ignored", "--nocapture"])
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
fn a_rank_of_the_roots_process_that_cannot_come_ends_the_wait_of_all_at_once() {
    let (id, _root) = UniqueId::create(None).unwrap();
    let root = RootSpec::Id(id);
    let start = Instant::now();
    let refused = std::thread::scope(|scope| {
        let others = scope.spawn(|| join(&[0, 2, 3].map(|rank| launch(rank, 4, &root)), PATIENCE));
        let card = vec![0; CARD_BYTES_MAX + 1];
        let unable = rendezvous(&launch(1, 4, &root), card, start + PATIENCE, false);
        assert!(matches!(unable, Err(JoinError::CardTooLong { .. })), "{unable:?}");
        refusals(others.join().unwrap())
    });
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
    for (kind, why) in refused {
        assert_eq!(kind, Refusal::RankUnable);
        assert!(why.starts_with("rank 1 on ") && why.contains(" cannot come: a card of "), "{why}");
    }
}

#[test]
fn the_wrong_secret_opens_nothing_and_is_named() {
    let limit = Duration::from_millis(4500);
    best("another secret", limit, || {
        let address = by_address("127.0.0.1");
        let wrong = RootAddress { secret: JobSecret::from_text("other"), ..address.clone() };
        let roots = [RootSpec::Address(address), RootSpec::Address(wrong)];
        let start = Instant::now();
        let who = [launch(0, 2, &roots[0]), launch(1, 2, &roots[1])];
        let results = join(&who, Duration::from_secs(4));
        let took = start.elapsed();
        if took < limit {
            let refused = refusals(results);
            assert_eq!(refused[0].0, Refusal::RanksMissing);
            assert!(refused[0].1.contains("rank 1 of 2 never came"), "{}", refused[0].1);
            assert!(refused[0].1.contains("could not prove the job's secret"), "{}", refused[0].1);
            assert_eq!(refused[1].0, Refusal::Secret);
        }
        took
    });
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
