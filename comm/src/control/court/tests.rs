//! What the root hears, and what it says to whom.

use brigade_schedule::Collective;

use super::*;
use crate::header::Window;
use crate::{Call, Dtype};

fn waiting(seq: u64, signature: u8, past: &[u8]) -> Frame {
    Frame::Waiting(Waiting {
        group: 7,
        seq,
        signature: [signature; 32],
        past: past.iter().map(|&signature| [signature; 32]).collect(),
        description: format!("call {signature}"),
    })
}

fn leave(group: u64) -> Frame {
    Frame::LeaveGroup { group, members: 0, why: String::new() }
}

fn verdict(orders: &[Order]) -> Option<&Verdict> {
    orders.iter().find_map(|(audience, frame)| match frame {
        Frame::Verdict(verdict) if *audience == Audience::All => Some(verdict),
        _ => None,
    })
}

#[test]
fn the_first_loss_stands() {
    let mut court = Court::new(4);
    let first = court.ended(2, "reset");
    assert!(matches!(verdict(&first), Some(Verdict::Lost { rank: 2, .. })));
    let second = court.ended(3, "killed");
    let lost = Frame::Lost { rank: 3, how: "killed".into() };
    assert_eq!(second, [(Audience::All, lost)], "it changes no verdict, but is told");
    assert!(court.ended(3, "killed").is_empty(), "once");
    let abort = Frame::Abort { why: "late".into() };
    assert!(court.hear(0, abort, Instant::now()).is_empty());
}

#[test]
fn a_farewell_within_the_grace_clears_the_accused() {
    let now = Instant::now();
    let mut court = Court::new(3);
    let report = Frame::ReportLost { rank: 2, how: "reset".into() };
    assert!(court.hear(0, report.clone(), now).is_empty());
    assert_eq!(court.hear(2, Frame::Leave, now).len(), 1);
    assert!(court.tick(now + 2 * GRACE).is_empty());
    assert!(court.hear(0, report, now).is_empty(), "nobody is accused after a farewell");
    assert!(court.due().is_none());
}

#[test]
fn an_accused_who_says_nothing_is_lost_for_all() {
    let now = Instant::now();
    let mut court = Court::new(3);
    court.hear(1, Frame::ReportLost { rank: 2, how: "timed out".into() }, now);
    assert!(court.tick(now).is_empty());
    let orders = court.tick(now + GRACE);
    let Some(Verdict::Lost { rank: 2, how }) = verdict(&orders) else {
        panic!("rank 2 is lost: {orders:?}");
    };
    assert_eq!(how, "timed out (seen by rank 1)");
}

#[test]
fn only_equal_numbers_with_other_signatures_are_a_mismatch() {
    let now = Instant::now();
    let mut court = Court::new(3);
    assert!(court.hear(0, waiting(5, 1, &[]), now).is_empty());
    assert!(court.hear(1, waiting(5, 1, &[]), now).is_empty());
    assert!(court.hear(2, waiting(6, 2, &[]), now).is_empty());
    let orders = court.hear(2, waiting(5, 2, &[]), now);
    let Some(Verdict::Mismatch { rank_a: 0, rank_b: 2, seq: 5, group: 7, call_a, call_b }) =
        verdict(&orders)
    else {
        panic!("ranks 0 and 2 disagree: {orders:?}");
    };
    assert_eq!((call_a.as_str(), call_b.as_str()), ("call 1", "call 2"));
}

#[test]
fn a_rank_that_is_ahead_is_judged_by_what_it_called_before() {
    let now = Instant::now();
    let mut court = Court::new(4);
    // Ranks 0 and 1 are two calls ahead of rank 2, and all made the same fifth call.
    assert!(court.hear(0, waiting(7, 9, &[8, 1, 3]), now).is_empty());
    assert!(court.hear(2, waiting(5, 1, &[3]), now).is_empty());
    assert!(court.hear(1, waiting(7, 9, &[8, 1]), now).is_empty());
    // Between its calls a rank has made none that could differ.
    assert!(court.hear(3, waiting(5, 0, &[3, 4]), now).is_empty());
    // Too far ahead to remember: nothing can be said.
    assert!(court.hear(3, waiting(99, 4, &[4, 4]), now).is_empty());
    let orders = court.hear(3, waiting(6, 8, &[2]), now);
    let Some(Verdict::Mismatch { rank_a: 2, rank_b: 3, seq: 5, call_a, call_b, .. }) =
        verdict(&orders)
    else {
        panic!("ranks 2 and 3 disagree about the fifth call: {orders:?}");
    };
    assert_eq!((call_a.as_str(), call_b.as_str()), ("call 1", "#5 another one"));
}

/// The root has both calls, so it need not know more to say in what they differ.
#[test]
fn ranks_whose_settings_differ_hear_which_ones() {
    let call = Call::moving(Collective::AllGather, Dtype::U8, 3);
    let said = |window_bytes| {
        let header = Header::of_call(&call, 0, 7, Window::at_most(window_bytes)).numbered(5);
        let (seq, signature, past) = (5, *header.bytes(), Vec::new());
        Frame::Waiting(Waiting { group: 7, seq, signature, past, description: "#5 it".into() })
    };
    let mut court = Court::new(2);
    assert!(court.hear(0, said(4096), Instant::now()).is_empty());
    let orders = court.hear(1, said(65_536), Instant::now());
    let Some(Verdict::Mismatch { call_a, call_b, .. }) = verdict(&orders) else {
        panic!("ranks 0 and 1 disagree: {orders:?}");
    };
    assert_eq!(call_a, "#5 it");
    assert_eq!(call_b, "#5 it; all ranks need the same BRIGADE_WINDOW_BYTES");
}

/// What it has called it has called all the same.
#[test]
fn who_goes_on_waits_no_more() {
    let now = Instant::now();
    let mut court = Court::new(3);
    court.hear(0, waiting(5, 1, &[]), now);
    court.hear(1, waiting(5, 1, &[]), now);
    court.hear(0, Frame::GoesOn { group: 7 }, now);
    assert!(court.hear(2, Frame::GoesOn { group: 7 }, now).is_empty(), "it waited nowhere");
    let orders = court.hear(2, Frame::Ask { token: 1, group: 7 }, now);
    let [(Audience::One(2), Frame::Answer { reports, .. })] = &orders[..] else {
        panic!("one answer: {orders:?}");
    };
    assert_eq!(reports.iter().map(|report| report.rank).collect::<Vec<_>>(), [1]);
    court.hear(1, Frame::GoesOn { group: 7 }, now);
    let orders = court.hear(2, waiting(5, 2, &[]), now);
    assert!(matches!(verdict(&orders), Some(Verdict::Mismatch { .. })), "{orders:?}");
}

#[test]
fn nonsense_from_a_rank_is_its_own_loss_and_wild_ranks_are_ignored() {
    let now = Instant::now();
    let mut court = Court::new(2);
    let wild = Frame::ReportLost { rank: u32::MAX, how: String::new() };
    assert!(court.hear(0, wild, now).is_empty() && court.due().is_none());
    let orders = court.hear(1, Frame::RootEnds, now);
    assert!(matches!(verdict(&orders), Some(Verdict::Lost { rank: 1, .. })));
}

#[test]
fn who_waits_in_a_group_hears_of_those_who_leave_it() {
    let now = Instant::now();
    let mut court = Court::new(4);
    let left = |rank, group| Frame::LeftGroup { rank, group, why: String::new() };
    assert!(court.hear(1, leave(7), now).is_empty(), "nobody waits");
    let orders = court.hear(0, waiting(5, 1, &[]), now);
    assert_eq!(orders, [(Audience::One(0), left(1, 7))]);
    let orders = court.hear(2, leave(7), now);
    assert_eq!(orders, [(Audience::One(0), left(2, 7))]);
    assert!(court.hear(2, leave(8), now).is_empty(), "another group");
    let orders = court.hear(3, Frame::Ask { token: 1, group: 7 }, now);
    assert_eq!(orders.len(), 3, "both partings, and the answer: {orders:?}");
    let orders = court.hear(3, Frame::Ask { token: 2, group: 7 }, now);
    assert_eq!(orders.len(), 1, "the answer, for it knows of both: {orders:?}");
    // However many others it has left since.
    for group in (8..2 * GROUPS_MAX as u64).rev() {
        court.hear(1, leave(group), now);
    }
    assert_eq!(court.partings.tell(0, 100), [(Audience::One(0), left(1, 100))]);
    court.hear(3, leave(8), now);
    let orders = court.hear(0, Frame::Ask { token: 3, group: 8 }, now);
    assert_eq!(orders.len(), 4, "three partings, and the answer: {orders:?}");
}

#[test]
fn where_the_root_has_forgotten_who_left_the_lost_may_only_have_left() {
    let now = Instant::now();
    let mut court = Court::new(3);
    court.partings = Partings::new(5);
    for group in 0..6 {
        court.hear(1, leave(group), now);
    }
    court.hear(0, Frame::ReportLost { rank: 1, how: "its wire closed".into() }, now);
    let orders = court.tick(now + GRACE);
    let Some(Verdict::Lost { rank: 1, how }) = verdict(&orders) else {
        panic!("rank 1 is lost: {orders:?}");
    };
    assert!(how.contains("unless it has only left that communicator"), "{how}");
}

#[test]
fn of_thousands_who_left_each_is_told_once_to_who_asks_again_and_again() {
    const RANKS: usize = 6000;
    let now = Instant::now();
    let mut court = Court::new(RANKS);
    for rank in 2..RANKS {
        court.hear(rank, leave(7), now);
    }
    let told = |orders: &[Order]| {
        orders.iter().filter(|(_, frame)| matches!(frame, Frame::LeftGroup { .. })).count()
    };
    let asked = |court: &mut Court| told(&court.hear(0, Frame::Ask { token: 1, group: 7 }, now));
    assert_eq!((asked(&mut court), asked(&mut court)), (RANKS - 2, 0));
    assert_eq!(told(&court.hear(0, waiting(5, 1, &[]), now)), 0);
    assert_eq!(told(&court.hear(1, leave(7), now)), 1, "and the new one");
    assert_eq!(asked(&mut court), 0);
    // Who has left forgets what it heard, and may hear it again.
    court.hear(0, leave(7), now);
    assert_eq!(told(&court.hear(0, waiting(0, 0, &[]), now)), RANKS);
}

#[test]
fn why_a_rank_could_not_join_is_told_to_who_waits_there_and_to_who_comes_later() {
    let now = Instant::now();
    let mut court = Court::new(3);
    court.hear(0, waiting(0, 0, &[]), now);
    let orders =
        court.hear(1, Frame::LeaveGroup { group: 7, members: 0, why: "no files".into() }, now);
    let left = |to, rank, why: &str| {
        (Audience::One(to), Frame::LeftGroup { rank, group: 7, why: why.into() })
    };
    assert_eq!(orders, [left(0, 1, "no files")]);
    court.hear(0, leave(7), now);
    let orders = court.hear(2, waiting(0, 0, &[]), now);
    assert_eq!(orders, [left(2, 1, "no files"), left(2, 0, "")], "in their order");
}

#[test]
fn of_groups_that_come_and_go_no_stands_are_kept() {
    let now = Instant::now();
    let mut court = Court::new(3);
    for group in 8..2 * GROUPS_MAX as u64 {
        for rank in 0..2 {
            let Frame::Waiting(said) = waiting(5, 1, &[2, 3]) else { unreachable!() };
            assert!(court.hear(rank, Frame::Waiting(Waiting { group, ..said }), now).is_empty());
        }
        court.hear(0, leave(group), now);
        assert_eq!(court.groups[&group].len(), 1, "rank 1 is still there");
        court.hear(1, leave(group), now);
        assert!(court.groups.is_empty());
    }
    // Who has left and says so, to hear of the others, does hear of them.
    court.hear(0, leave(7), now);
    court.hear(0, waiting(0, 0, &[]), now);
    let left = Frame::LeftGroup { rank: 1, group: 7, why: String::new() };
    let orders = court.hear(1, leave(7), now);
    assert_eq!(orders, [(Audience::One(0), left)]);
}

#[test]
fn who_holds_something_needs_the_root_until_it_lets_go_or_nobody_hears_it() {
    let now = Instant::now();
    let mut court = Court::new(4);
    for (rank, group) in [(1, 7), (2, 7), (2, 8), (3, 9)] {
        assert!(court.hear(rank, Frame::Hold { group }, now).is_empty());
    }
    assert_eq!(court.holders(), [1, 2, 3]);
    // Who has left still wants to hear of others who have.
    court.hear(2, leave(7), now);
    court.hear(2, Frame::LetGo { group: 8 }, now);
    court.hear(3, Frame::Leave, now);
    assert_eq!(court.holders(), [1, 2]);
    court.hear(2, Frame::LetGo { group: 7 }, now);
    assert_eq!(court.holders(), [1]);
    for group in 0..8 * GROUPS_MAX as u64 {
        court.hear(2, Frame::Hold { group }, now);
    }
    assert!(court.holds.len() <= 4 * GROUPS_MAX);
    court.ended(0, "it is killed");
    assert!(court.holders().is_empty(), "all hear of that, and wait for nobody");
}

#[test]
fn remembered_groups_are_bounded() {
    let start = Instant::now();
    let mut court = Court::new(2);
    for group in 0..2 * GROUPS_MAX as u64 {
        let Frame::Waiting(said) = waiting(0, 0, &[]) else { unreachable!() };
        let frame = Frame::Waiting(Waiting { group, ..said });
        court.hear(0, frame, start + Duration::from_millis(group));
    }
    assert_eq!(court.groups.len(), GROUPS_MAX);
    assert!(court.groups.contains_key(&(2 * GROUPS_MAX as u64 - 1)));
}
