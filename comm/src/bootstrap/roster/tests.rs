//! Who is seated, who is refused, and what is told of those who are not there.

use super::*;

fn join(rank: u32, ranks: u32, pid: u32) -> Join {
    let member = Member { host: "h".into(), pid };
    let mut process = [0; 16];
    process[..4].copy_from_slice(&pid.to_le_bytes());
    Join {
        rank,
        ranks,
        patience_ms: 30_000,
        report_ms: NEVER,
        silence_ms: 10_000,
        process,
        member,
        card: vec![rank as u8],
    }
}

fn refused(roster: &mut Roster, join: Join) -> Failure {
    roster.seat(join, false, Instant::now()).expect_err("must be refused")
}

#[test]
fn a_table_needs_everybody_to_be_present() {
    let mut roster = Roster::default();
    for rank in 0..3 {
        assert!(roster.complete(&[0; 16], [9; 32]).is_none());
        roster.seat(join(rank, 3, 10 + rank), false, Instant::now()).unwrap();
    }
    roster.vacate(1, Instant::now());
    assert!(roster.complete(&[0; 16], [9; 32]).is_none());
    roster.seat(join(1, 3, 11), false, Instant::now()).unwrap();
    let table = roster.complete(&join(2, 3, 12).process, [9; 32]).unwrap();
    assert_eq!(table.hub_rank, Some(2));
    assert_eq!(roster.ranks_of(&join(2, 3, 12).process), [2]);
    assert_eq!(table.seats.iter().map(|s| s.1[0]).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn mistakes_name_both_processes() {
    let mut roster = Roster::default();
    roster.seat(join(1, 4, 10), false, Instant::now()).unwrap();
    let failure = refused(&mut roster, join(1, 4, 20));
    assert_eq!(failure.kind, Refusal::DuplicateRank);
    assert!(failure.why.contains("process 10 on h and process 20 on h"), "{}", failure.why);
    let failure = refused(&mut roster, join(2, 8, 30));
    assert_eq!(failure.kind, Refusal::RanksDiffer);
    assert!(failure.why.contains("4 ranks") && failure.why.contains("says 8"));
    assert_eq!(refused(&mut roster, join(4, 4, 40)).kind, Refusal::RankOutOfRange);
    assert_eq!(refused(&mut roster, join(0, u32::MAX, 50)).kind, Refusal::RankOutOfRange);
}

#[test]
fn all_who_are_there_encrypt_or_none_does() {
    for encrypts in [false, true] {
        let mut roster = Roster::default();
        let now = Instant::now();
        roster.seat(join(0, 3, 10), encrypts, now).unwrap();
        roster.seat(join(1, 3, 11), encrypts, now).unwrap();
        let Failure { kind, why } = roster.seat(join(2, 3, 12), !encrypts, now).unwrap_err();
        assert_eq!(kind, Refusal::EncryptionDiffers);
        let [does, does_not] = if encrypts { [0, 2] } else { [2, 0] };
        let who = |rank| format!("rank {rank} (process {} on h)", 10 + rank);
        let told = format!("{} encrypts what it sends and {} does not", who(does), who(does_not));
        assert_eq!(why, told);
        // Others may come in the place of both.
        roster.vacate(0, now);
        roster.vacate(1, now);
        for rank in 0..3 {
            roster.seat(join(rank, 3, 20 + rank), !encrypts, now).unwrap();
        }
    }
}

#[test]
fn who_is_late_is_told_to_those_who_want_it_while_somebody_waits() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let mut roster = Roster::default();
    roster.seat(join(0, 4, 10), false, start).unwrap();
    assert_eq!((roster.due(), roster.report(at(29_000))), (Some(at(30_000)), None));
    let curious = Join { report_ms: 1000, ..join(2, 4, 12) };
    roster.seat(curious.clone(), false, at(100)).unwrap();
    assert_eq!((roster.due(), roster.report(at(1099))), (Some(at(1100)), None));
    assert_eq!(
        roster.report(at(1100)).unwrap(),
        "has waited 1.0 s: ranks 1, 3 of 4 have not come; it gives up in 29 s"
    );
    assert_eq!((roster.due(), roster.report(at(3000))), (Some(at(3100)), None));
    // A rank that goes is told as soon as others that go with it have, once.
    roster.vacate(2, at(2000));
    assert_eq!((roster.due(), roster.report(at(2100))), (Some(at(2200)), None));
    let said = roster.report(at(2200)).unwrap();
    assert!(said.contains("have not come; rank 2 (process 12 on h) came and went"), "{said}");
    roster.seat(curious, false, at(2300)).unwrap();
    roster.vacate(2, at(2400));
    assert_eq!(roster.due(), Some(at(9100)));
    // One that has come back at once is no news; and when nobody waits there is none.
    roster.seat(join(3, 4, 13), false, at(4000)).unwrap();
    roster.vacate(3, at(4100));
    roster.seat(join(3, 4, 13), false, at(4150)).unwrap();
    roster.vacate(0, at(4200));
    roster.seat(join(0, 4, 10), false, at(4250)).unwrap();
    assert_eq!((roster.report(at(4400)), roster.due()), (None, Some(at(9100))));
}

#[test]
fn when_nobody_waits_any_more_nothing_is_told() {
    let start = Instant::now();
    let mut roster = Roster::default();
    roster.seat(Join { report_ms: 500, ..join(1, 2, 10) }, false, start).unwrap();
    roster.vacate(1, start);
    assert_eq!(roster.report(start + Duration::from_secs(1)), None);
}

#[test]
fn the_shortest_patience_counts_and_the_missing_are_named() {
    let start = Instant::now();
    let deaf = Some("Too many open files".to_owned());
    let other_version = Some(3);
    let doubt = Some("this may be the wrong host".to_owned());
    let mut roster = Roster { strangers: 2, other_version, deaf, doubt, ..Roster::default() };
    for rank in [0, 1, 2, 4, 6] {
        roster.seat(join(rank, 12, rank), false, start).unwrap();
    }
    let hasty = Join { patience_ms: 500, ..join(7, 12, 7) };
    roster.seat(hasty, false, start).unwrap();
    roster.vacate(4, start);
    assert!(roster.expired(start + Duration::from_millis(499)).is_none());
    let failure = roster.expired(start + Duration::from_millis(500)).unwrap();
    let want = format!(
        "waited 0.5 s; ranks 3, 5, 8-11 of 12 never came; \
         rank 4 (process 4 on h) came and went; \
         2 connections could not prove the job's secret; \
         a connection that spoke version 3 was turned away, the root's is {VERSION}: \
         have all ranks use one release; \
         the root could not take a connection: Too many open files; \
         this may be the wrong host"
    );
    assert_eq!(failure.why, want);
    let mut roster = Roster { strangers: 1, ..Roster::default() };
    roster.seat(Join { patience_ms: 0, ..join(0, 2, 0) }, false, start).unwrap();
    let want = "rank 1 of 2 never came; 1 connection could not prove the job's secret";
    assert_eq!(roster.expired(start).unwrap().why, want, "a root that came late waits for nobody");
}

#[test]
fn who_cannot_come_is_told_soon_with_the_reason_until_another_takes_the_seat() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let unable = |rank, host: &str, why: &str| Unable {
        rank,
        ranks: 5,
        process: [9; 16],
        member: Member { host: host.into(), pid: 20 + rank },
        why: why.into(),
    };
    let mut roster = Roster::default();
    // Nobody waits yet who would want to know.
    let why = roster.excuse(unable(3, "h", "no card"), start).unwrap();
    assert_eq!((why.as_str(), roster.due()), ("rank 3 on h cannot come: no card", None));
    roster.seat(Join { report_ms: 5000, ..join(0, 5, 10) }, false, at(300)).unwrap();
    assert_eq!(roster.due(), Some(at(200)));
    let said = roster.report(at(300)).unwrap();
    let missing = "ranks 1-4 of 5 have not come; rank 3 on h cannot come: no card; it gives up";
    assert!(said.contains(missing), "{said}");
    // What has been told is no news, from a process that was started again either.
    roster.excuse(unable(3, "h", "no card"), at(400)).unwrap();
    assert_eq!(roster.due(), Some(at(15_300)));
    for (rank, host, why) in [(2, "h", "no card"), (1, "h", "too cold"), (4, "g", "no card")] {
        roster.excuse(unable(rank, host, why), at(500)).unwrap();
    }
    assert_eq!((roster.report(at(650)), roster.due()), (None, Some(at(700))));
    let said = roster.report(at(700)).unwrap();
    let all = "ranks 1-4 of 5 have not come; rank 4 on g cannot come: no card; \
               ranks 2, 3 on h cannot come: no card; rank 1 on h cannot come: too cold; it";
    assert!(said.contains(all), "{said}");
    for rank in [1, 2, 4] {
        roster.seat(join(rank, 5, 30 + rank), false, at(800)).unwrap();
    }
    let failure = roster.expired(at(40_000)).unwrap();
    let left = "rank 3 of 5 never came; rank 3 on h cannot come: no card";
    assert!(failure.why.ends_with(left), "{}", failure.why);
    let mistake = roster.excuse(Unable { ranks: 4, ..unable(3, "h", "no card") }, at(900));
    assert_eq!(mistake.unwrap_err().kind, Refusal::RanksDiffer);
}
