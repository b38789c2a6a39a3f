//! What ranks that have joined tell each other.

use std::time::{Duration, Instant};

use brigade_comm::bootstrap::{UniqueId, rendezvous};
use brigade_comm::control::Verdict;
use brigade_comm::launch::RootSpec;

use super::{best, by_address, check, launch};

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !done() {
        assert!(Instant::now() < deadline, "{what}: not within 5 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn leaving_is_not_dying_and_the_root_may_go_first() {
    let (id, root) = UniqueId::create(None).unwrap();
    let mut joined = check(4, &RootSpec::Id(id));
    drop(joined.remove(2));
    until("rank 2 is seen to leave", || {
        joined.iter().all(|world| world.control.left_ranks() == [2])
    });
    joined[0].control.report_lost(2, "its wire closed");
    drop(joined.remove(0));
    until("rank 0 is seen to leave", || {
        joined.iter().all(|world| world.control.left_ranks() == [2, 0])
    });
    drop(root);
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

/// The root is rank 0's, but it serves ranks beside that one for as long as they are there.
#[test]
fn rank_0_may_leave_before_others_of_its_process() {
    let root = RootSpec::Address(by_address("127.0.0.1"));
    let mut joined = check(4, &root);
    for gone in 0..2 {
        drop(joined.remove(0));
        until("a rank is seen to leave", || {
            joined.iter().all(|world| world.control.left_ranks().len() == gone + 1)
        });
    }
    joined[0].control.abort("the loss is not a number");
    until("an abort arrives", || joined[1].control.verdict().is_some());
    let said = joined[1].control.verdict().unwrap().to_string();
    assert_eq!(said, "rank 2 aborted: the loss is not a number");
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
    best("word of a loss", Duration::from_millis(500), || {
        let (id, _root) = UniqueId::create(None).unwrap();
        let joined = check(3, &RootSpec::Id(id));
        let start = Instant::now();
        joined[1].control.report_lost(2, "connection reset");
        until("a loss arrives", || joined.iter().all(|world| world.control.verdict().is_some()));
        let took = start.elapsed();
        let said = joined[0].control.verdict().unwrap().to_string();
        assert_eq!(said, "rank 2 is gone: connection reset (seen by rank 1)");
        took
    });
}

#[test]
fn waiting_ranks_are_compared_and_summarised() {
    let (id, _root) = UniqueId::create(None).unwrap();
    let mut joined = check(5, &RootSpec::Id(id));
    let report = |rank: usize, seq, signature, call: &str| {
        joined[rank].control.report_waiting(9, seq, [signature; 32], Vec::new(), call);
    };
    report(0, 17, 1, "all-reduce of 8 f32");
    report(1, 17, 1, "all-reduce of 8 f32");
    report(2, 16, 3, "barrier");
    let summary = || joined[1].control.waiting_summary(9, &[0, 2, 3]);
    until("the summary", || {
        let text = summary();
        text.starts_with("rank 3 is not known to wait in any call; rank 2 waits in barrier, since ")
            && text.contains(" ms; rank 0 waits in all-reduce of 8 f32, since ")
    });
    assert!(joined.iter().all(|world| world.control.verdict().is_none()));
    drop(joined.pop());
    let report = |rank: usize, seq, signature, call: &str| {
        joined[rank].control.report_waiting(9, seq, [signature; 32], Vec::new(), call);
    };
    report(3, 17, 2, "broadcast of 4 f64 from rank 1");
    until("a mismatch", || joined.iter().all(|world| world.control.verdict().is_some()));
    let said = joined[2].control.verdict().unwrap().to_string();
    assert_eq!(
        said,
        "the ranks disagree in communicator 9: rank 0 calls all-reduce of 8 f32, \
         rank 3 calls broadcast of 4 f64 from rank 1"
    );
}

#[test]
fn a_world_of_one_decides_alone() {
    let joined =
        rendezvous(&launch(0, 1, &RootSpec::Alone), Vec::new(), Instant::now(), false).unwrap();
    joined.control.report_waiting(0, 0, [0; 32], Vec::new(), "nothing");
    assert_eq!(joined.control.waiting_reports(0), None);
    joined.control.abort("enough");
    assert!(matches!(joined.control.verdict(), Some(Verdict::Aborted { rank: 0, .. })));
}
