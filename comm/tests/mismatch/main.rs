//! Worlds of threads in which some ranks call something else than the others.
//!
//! All must be told by [`Error::Mismatch`] within a second, naming two ranks that disagree and the
//! calls of both. `BRIGADE_TEST_SEED` repeats one trial.

mod trial;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use brigade_comm::bootstrap::UniqueId;
use brigade_comm::{Buffers, Call, Communicator, Dtype, Error, Op, Settings, Tuning, WindowSize};
use brigade_schedule::{Algorithm, Collective};

use trial::Trial;

/// How long it may take until the last rank knows.
const TOLD_WITHIN: Duration = Duration::from_secs(1);
/// A mismatch that nobody notices ends with this deadline, and the test with it.
const TIMEOUT: Duration = Duration::from_secs(4);
const TRANSPORTS: [&str; 3] = ["loopback", "shm", "tcp"];

/// What a rank saw.
struct Seen {
    outcomes: Vec<Result<(), Error>>,
    told_after: Duration,
    again: Result<(), Error>,
}

#[test]
fn ranks_that_disagree_are_all_told_both_calls() {
    let one = std::env::var("BRIGADE_TEST_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seeds = one.map_or(0..50, |seed: u64| seed..seed + 1);
    for seed in seeds {
        let trial = Trial::of(seed);
        println!("seed {seed}: {trial}");
        check(&trial);
    }
}

fn check(trial: &Trial) {
    let seen = run(trial);
    for (rank, seen) in seen.iter().enumerate() {
        let last = seen.outcomes.last().expect("every rank calls something");
        let Err(Error::Mismatch { rank: one, call, peer: other, peer_call }) = last else {
            panic!("rank {rank} is not told: {:?}", seen.outcomes);
        };
        assert!(seen.told_after <= TOLD_WITHIN, "rank {rank} is told after {:?}", seen.told_after);
        let again = seen.again.as_ref().expect_err("a later call").to_string();
        assert_eq!(again, last.as_ref().unwrap_err().to_string());
        let (one, other) = (*one as usize, *other as usize);
        assert!(trial.faulty[one] != trial.faulty[other], "ranks {one}, {other} agree: {again}");
        for (who, text) in [(one, call), (other, peer_call)] {
            assert!(trial.is_named(who, text), "rank {who} did not call {text}");
        }
    }
    let slowest = seen.iter().map(|seen| seen.told_after).max();
    println!("  all told after {slowest:?}: {:?}", seen[0].again.as_ref().unwrap_err().to_string());
}

/// Make the calls of a trial, then barriers until there is an error.
fn run(trial: &Trial) -> Vec<Seen> {
    let settings = Settings {
        transport: trial.transport.into(),
        algorithm: trial.algorithm,
        timeout: TIMEOUT,
        ..Settings::default()
    };
    let members = Communicator::local_world(trial.calls.len(), &settings).expect("a world");
    let start_line = Barrier::new(members.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = members
            .into_iter()
            .zip(&trial.calls)
            .map(|(member, calls)| {
                let start_line = &start_line;
                scope.spawn(move || {
                    let rule = trial.rule_of(member.rank());
                    let own = rule.map(|rule| by_rules(&member, &rule));
                    run_rank(own.as_ref().unwrap_or(&member), calls, trial.good_calls, start_line)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

/// The same group as `member`'s, with rules that only this rank need have. Collective.
fn by_rules(member: &Communicator, rules: &str) -> Communicator {
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let name = format!("brigade-mismatch-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, rules).expect("a file of rules");
    let tuning = Tuning::read(&path).expect("rules");
    std::fs::remove_file(&path).expect("the file of rules");
    let settings = Settings { tuning: Some(Arc::new(tuning)), ..member.settings().clone() };
    member.split_with(Some(0), 0, settings).expect("a split").expect("a member")
}

fn run_rank(member: &Communicator, calls: &[Call], good: usize, start_line: &Barrier) -> Seen {
    for _ in 0..good {
        member.all_reduce(&mut [1.0_f32; 5], Op::Sum).expect("a call that all make");
    }
    start_line.wait();
    let start = Instant::now();
    let mut outcomes = Vec::new();
    let barrier = Call::moving(Collective::Barrier, Dtype::U8, 0);
    for call in calls.iter().chain(std::iter::repeat_n(&barrier, 3)) {
        outcomes.push(make(member, call));
        if outcomes.last().is_some_and(Result::is_err) {
            break;
        }
    }
    let told_after = start.elapsed();
    Seen { outcomes, told_after, again: member.barrier() }
}

fn make(member: &Communicator, call: &Call) -> Result<(), Error> {
    let (input, output) = call.buffer_elems(member.size() as u32, member.rank() as u32);
    let (input, mut output) =
        (vec![1; input * call.dtype.size()], vec![0; output * call.dtype.size()]);
    member.run(call, Buffers::OutOfPlace { input: &input, output: &mut output })
}

/// Run `body` on every rank of a world of threads.
fn world<R: Send>(
    ranks: usize,
    settings: &Settings,
    body: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let members = Communicator::local_world(ranks, settings).expect("a world");
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> =
            members.into_iter().map(|member| scope.spawn(move || body(member))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

fn settings(transport: &str, algorithm: Option<Algorithm>) -> Settings {
    let transport = transport.into();
    Settings { transport, algorithm, timeout: TIMEOUT, ..Settings::default() }
}

/// The error that `call` ends with as soon as the news has come.
fn first_error(mut call: impl FnMut() -> Result<(), Error>) -> Error {
    let deadline = Instant::now() + TOLD_WITHIN;
    while Instant::now() < deadline {
        if let Err(error) = call() {
            return error;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("no call has failed for {TOLD_WITHIN:?}");
}

fn assert_names(error: &Error, parts: [&str; 2]) {
    let Error::Mismatch { call, peer_call, .. } = error else { panic!("{error}") };
    let named = |a: &str, b: &str| a.contains(parts[0]) && b.contains(parts[1]);
    assert!(named(call, peer_call) || named(peer_call, call), "{error} does not name {parts:?}");
}

#[test]
fn two_roots_of_a_broadcast_learn_it_in_their_next_call() {
    for transport in TRANSPORTS {
        let told = world(2, &settings(transport, None), |member| {
            // Both are done with it: each believes that it had only to send.
            member.broadcast(&mut [1_u32; 4], member.rank()).expect("it only sends");
            let start = Instant::now();
            let error = member.barrier().expect_err("they disagree");
            (error, start.elapsed())
        });
        for (error, after) in told {
            assert!(after <= TOLD_WITHIN, "{after:?}");
            assert_names(
                &error,
                ["#1 broadcast(u32 x 4, root 0)", "#1 broadcast(u32 x 4, root 1)"],
            );
        }
    }
}

#[test]
fn a_rank_that_was_done_is_told_by_any_next_call() {
    for transport in TRANSPORTS {
        let noticed = Barrier::new(3);
        world(3, &settings(transport, Some(Algorithm::Direct)), |member| {
            if member.rank() == 0 {
                member.broadcast(&mut [1_u32; 4], 0).expect("it only sends");
                noticed.wait();
                // Again it would only have to send, but the news is on its way.
                let error = first_error(|| member.broadcast(&mut [1_u32; 4], 0));
                assert_names(&error, ["#1 broadcast(u32 x 4, root 0)", "#1 all-reduce(u32 x 4"]);
            } else {
                let error = member.all_reduce(&mut [1_u32; 4], Op::Sum).expect_err("they disagree");
                assert_names(&error, ["#1 broadcast(u32 x 4, root 0)", "#1 all-reduce(u32 x 4"]);
                noticed.wait();
            }
        });
    }
}

#[test]
fn ranks_that_wait_in_a_circle_of_two_calls_are_told() {
    for transport in TRANSPORTS {
        let start = Instant::now();
        world(3, &settings(transport, None), |member| {
            // Rank 1 sends to rank 0, which looks elsewhere; rank 2 waits for rank 1. The other two
            // go on to wait for rank 2, and no wire carries a header that somebody would read.
            let first = match member.rank() {
                1 => member.reduce(&mut [1_u32; 4], Op::Sum, 0),
                _ => member.gather(&[1_u32; 4], &mut [0_u32; 12], 2),
            };
            let second = first.and_then(|()| member.broadcast(&mut [1_u32; 4], 2));
            let error = second.expect_err("they wait in a circle");
            assert_names(&error, ["#1 reduce(u32 x 4, sum, root 0)", "#1 gather(u32 x 4, root 2)"]);
        });
        assert!(start.elapsed() <= TOLD_WITHIN, "{:?}", start.elapsed());
    }
}

#[test]
fn one_call_more_than_the_others_make_ends_when_they_leave() {
    for transport in TRANSPORTS {
        let start = Instant::now();
        let seen = world(3, &settings(transport, None), |member| {
            member.all_reduce(&mut [1_u32; 4], Op::Sum).expect("all make it");
            (member.rank() == 1).then(|| member.barrier().expect_err("nobody else comes"))
        });
        let error = seen[1].as_ref().expect("rank 1 has made the call");
        assert!(matches!(error, Error::PeerLeft { rank: 0 | 2, .. }), "{error}");
        assert!(error.to_string().contains("do all ranks make the same calls?"), "{error}");
        assert!(start.elapsed() <= TOLD_WITHIN, "{:?}", start.elapsed());
    }
}

#[test]
fn one_call_more_than_the_others_make_ends_at_the_deadline_when_they_stay() {
    let settings = Settings { timeout: Duration::from_secs(1), ..settings("shm", None) };
    let done = Barrier::new(2);
    world(2, &settings, |member| {
        member.all_reduce(&mut [1_u32; 4], Op::Sum).expect("all make it");
        if member.rank() == 1 {
            let error = member.barrier().expect_err("nobody else comes");
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("barrier") && text.contains("from rank 0 (its first"), "{text}");
            assert!(text.contains("; rank 0 is not known to wait in any call; "), "{text}");
        }
        done.wait();
        if member.rank() == 0 {
            // The first barrier may still meet the one that rank 1 has given up.
            let error = first_error(|| member.barrier());
            assert!(matches!(error, Error::Aborted { rank: 1, .. }), "{error}");
        }
    });
}

/// Two ranks of settings that do not go together, and what both must be told in even calls and in
/// uneven ones: their own parts, and which settings to look at.
fn check_settings(each: [Settings; 2], parts: [&str; 2], hint: &str) {
    let even: fn(&Communicator) -> Result<(), Error> =
        |member| member.all_reduce(&mut vec![1_f32; 300_000], Op::Sum);
    check_settings_in(even, &each, parts, hint);
    check_settings_in(all_gather_v, &each, parts, hint);
}

/// Blocks of unequal lengths that all ranks know.
fn all_gather_v(member: &Communicator) -> Result<(), Error> {
    let lengths = [300_000, 200_000];
    let input = vec![1_f32; lengths[member.rank()]];
    member.all_gather_v(&input, &mut vec![0_f32; lengths.iter().sum()], &lengths)
}

fn check_settings_in(
    call: fn(&Communicator) -> Result<(), Error>,
    each: &[Settings; 2],
    parts: [&str; 2],
    hint: &str,
) {
    let (id, _root) = UniqueId::create(None).expect("a root");
    let start = Instant::now();
    std::thread::scope(|scope| {
        for (rank, settings) in each.iter().cloned().enumerate() {
            let id = &id;
            scope.spawn(move || {
                let member = Communicator::from_id(id, rank, 2, settings).expect("a world");
                let error = call(&member).expect_err("they differ");
                assert_names(&error, parts);
                assert!(error.to_string().ends_with(hint), "{error}");
            });
        }
    });
    assert!(start.elapsed() <= TOLD_WITHIN, "{:?}", start.elapsed());
}

#[test]
fn ranks_with_other_algorithms_are_told_which() {
    let each = [Algorithm::Ring, Algorithm::Direct].map(|it| settings("shm", Some(it)));
    let hint = "; all ranks need the same BRIGADE_ALGORITHM, BRIGADE_ORDERED and BRIGADE_TUNING";
    check_settings(each, ["by ring", "by direct"], hint);
}

#[test]
fn ranks_with_other_windows_are_told_which() {
    let with = |window_bytes| Settings { window_bytes, ..settings("shm", Some(Algorithm::Ring)) };
    let parts = ["windows of 65536", "windows of 1048576"];
    check_settings(
        [with(64 << 10), with(1 << 20)],
        parts,
        "; all ranks need the same BRIGADE_WINDOW_BYTES",
    );
}

#[test]
fn a_new_world_in_the_same_process_is_not_disturbed() {
    for transport in TRANSPORTS {
        world(3, &settings(transport, None), |member| {
            let outcome = match member.rank() {
                0 => member.barrier(),
                _ => member.all_reduce(&mut [1_u32; 4], Op::Sum),
            };
            assert!(matches!(outcome, Err(Error::Mismatch { .. })), "{outcome:?}");
        });
        world(3, &settings(transport, None), |member| {
            let mut data = [1_u32; 4];
            member.all_reduce(&mut data, Op::Sum).expect("they agree");
            assert_eq!(data, [3; 4]);
        });
    }
}

/// Even where the other rank's call is the very one that is made inside.
#[test]
fn calls_that_are_made_of_others_are_named_as_they_were_made() {
    type Make = fn(&Communicator) -> Result<(), Error>;
    let made: [(&str, Make); 3] = [
        ("split: all-gather", |member| member.split(Some(0), 0).map(drop)),
        ("grow: all-gather", |member| member.grow(3, None).map(drop)),
        ("making a window: all-gather", |member| {
            member.window(WindowSize { bytes: 8, signals: 0 }).map(drop)
        }),
    ];
    let other: Make = |member| member.all_gather(&[0u8; 16], &mut [0u8; 32]);
    for (name, make) in made {
        let settings = Settings { timeout: TIMEOUT, ..Settings::default() };
        let world = Communicator::local_world(2, &settings).expect("a world");
        std::thread::scope(|scope| {
            for member in &world {
                scope.spawn(move || {
                    let call = if member.rank() == 0 { make } else { other };
                    let error = call(member).and_then(|()| member.barrier());
                    let error = error.expect_err("they differ");
                    assert!(matches!(error, Error::Mismatch { .. }), "{name}: {error}");
                    let text = error.to_string();
                    assert!(text.contains(name) && text.contains(" all-gather(u8 x 16)"), "{text}");
                });
            }
        });
    }
}
