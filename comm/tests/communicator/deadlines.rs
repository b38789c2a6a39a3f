//! Every wait ends: a rank that never comes is a timeout on the others, by every algorithm, in a
//! sentence that names it.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use brigade_comm::{Call, Communicator, Dtype, Error, Op, Settings, WindowSize, interrupt_by};
use brigade_schedule::{Algorithm, Collective};

use crate::world::{TRANSPORTS, each_rank, over};

const RANKS: usize = 4;
/// The rank that does not come.
const ABSENT: usize = 2;

fn impatient(transport: &str, algorithm: Option<Algorithm>) -> Settings {
    Settings { algorithm, timeout: Duration::from_millis(150), ..over(transport) }
}

/// Make a call on all ranks but one, which stays until the others have given up. Some ranks may be
/// done before they miss it: those learn of it by a barrier.
fn check(
    settings: &Settings,
    what: &str,
    call: impl Fn(&Communicator) -> Result<(), Error> + Send + Sync + 'static,
) {
    let given_up = Arc::new(Barrier::new(RANKS));
    let transport = settings.transport.clone();
    let errors = each_rank(RANKS, settings, move |member| {
        let begin = Instant::now();
        let absent = member.rank() == ABSENT;
        let outcome = (!absent).then(|| call(&member).and_then(|()| member.barrier()));
        let took = begin.elapsed();
        given_up.wait();
        assert!(took < Duration::from_secs(20), "{took:?} for 150 ms");
        outcome.map(|outcome| outcome.expect_err("a rank is missing"))
    });
    let errors: Vec<Error> = errors.into_iter().flatten().collect();
    assert_eq!(errors.len(), RANKS - 1);
    let ended = |error: &Error| matches!(error, Error::Timeout { .. } | Error::Aborted { .. });
    assert!(errors.iter().all(ended), "{transport}, {what}: {errors:?}");
    let texts: Vec<String> = errors.iter().map(Error::to_string).collect();
    let blames = |text: &String| text.contains(&format!("rank {ABSENT}"));
    assert!(texts.iter().any(blames), "{transport}, {what}: nobody names the rank: {texts:?}");
}

fn all_reduce(count: usize) -> impl Fn(&Communicator) -> Result<(), Error> + Copy {
    move |member: &Communicator| member.all_reduce(&mut vec![1f32; count], Op::Sum)
}

/// Whoever waits behind a call that was started is asked whether to go on, too.
#[test]
fn a_call_behind_others_hears_that_it_shall_end() {
    for transport in TRANSPORTS {
        let given_up = Arc::new(Barrier::new(2));
        each_rank(2, &over(transport), move |member| {
            if member.rank() == 0 {
                let call = Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, 100);
                let work = member.start_owned_in_place(call, vec![1_f32; 100]).expect("a start");
                let (begin, until) = (Instant::now(), Instant::now() + Duration::from_millis(100));
                interrupt_by(Some(Box::new(move || Instant::now() > until)));
                let ending = member.barrier().expect_err("rank 1 does not come");
                interrupt_by(None);
                assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
                assert!(matches!(ending, Error::Aborted { rank: 0, .. }), "{transport}: {ending}");
                assert!(ending.to_string().contains("interrupted behind calls"), "{ending}");
                drop(work);
            }
            given_up.wait();
        });
    }
}

#[test]
fn a_rank_that_never_comes_is_a_timeout_by_every_algorithm() {
    for algorithm in Algorithm::all_for(Collective::AllReduce, RANKS as u32) {
        let what = algorithm.to_string();
        check(&impatient("loopback", Some(algorithm)), &what, all_reduce(1000));
    }
}

#[test]
fn a_rank_that_never_comes_is_a_timeout_on_every_transport() {
    for transport in TRANSPORTS {
        for algorithm in [Algorithm::Ring, Algorithm::Halving, Algorithm::DoubleTree] {
            let what = algorithm.to_string();
            check(&impatient(transport, Some(algorithm)), &what, all_reduce(300_000));
        }
    }
}

#[test]
fn a_rank_that_never_comes_is_a_timeout_in_every_collective() {
    let collectives = [
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::AllToAll,
        Collective::Broadcast { root: ABSENT as u32 },
        Collective::Reduce { root: 0 },
        Collective::Gather { root: 1 },
        Collective::Scatter { root: ABSENT as u32 },
        Collective::Barrier,
    ];
    for collective in collectives {
        let count = if collective == Collective::Barrier { 0 } else { 1000 };
        let call = Call::new(collective, Dtype::F32, Op::Sum, count);
        check(&impatient("loopback", None), &collective.to_string(), move |member| {
            let (inputs, outputs) = call.buffer_elems(RANKS as u32, member.rank() as u32);
            let (input, mut output) = (vec![0; 4 * inputs], vec![0; 4 * outputs]);
            let (input, output) = (&input[..], &mut output[..]);
            member.run(&call, brigade_comm::Buffers::OutOfPlace { input, output })
        });
    }
}

#[test]
fn work_in_flight_and_messages_end_at_the_deadline_too() {
    for transport in TRANSPORTS {
        check(&impatient(transport, None), "work", |member| {
            let mut data = [1i32; 50];
            member.scope(|scope| scope.all_reduce(&mut data, Op::Sum)?.wait())?
        });
        check(&impatient(transport, None), "messages", |member| {
            member.messages().recv(&mut [0u8; 9], ABSENT).send(&[1u8; 9], ABSENT).run()
        });
    }
}

/// They end with the sentence of whoever came first, which is cut where it is long.
#[test]
fn each_of_many_ranks_hears_which_one_never_comes() {
    const RANKS: usize = 16;
    const ABSENT: usize = RANKS - 1;
    let settings = Settings { timeout: Duration::from_millis(1500), ..over("loopback") };
    let given_up = Arc::new(Barrier::new(RANKS));
    let texts = each_rank(RANKS, &settings, move |member| {
        std::thread::sleep(Duration::from_millis(20 * member.rank() as u64));
        let is_here = member.rank() != ABSENT;
        let text = is_here.then(|| member.barrier().expect_err("one is missing").to_string());
        given_up.wait();
        text
    });
    let texts: Vec<String> = texts.into_iter().flatten().collect();
    assert_eq!(texts.len(), RANKS - 1);
    for text in texts {
        // Who is slow may not have said anything either.
        let (silent, _) = text.split_once(" not known to wait in any call").expect(&text);
        let of_last = silent.rsplit([' ', '-', ',']).nth(1);
        assert_eq!(of_last, Some(ABSENT.to_string().as_str()), "{text}");
        assert!(text.len() < 512, "{} bytes: {text}", text.len());
    }
}

/// Rank 2 has once waited for long, and has made every call but the last one since.
#[test]
fn where_a_rank_once_waited_is_not_where_it_is() {
    const RANKS: usize = 3;
    const ABSENT: usize = 2;
    let settings = Settings { timeout: Duration::from_millis(1500), ..over("loopback") };
    let given_up = Arc::new(Barrier::new(RANKS));
    let texts = each_rank(RANKS, &settings, move |member| {
        // The others say that they wait, in this call and in no other.
        std::thread::sleep(Duration::from_millis(if member.rank() == 0 { 500 } else { 0 }));
        let call = || member.all_reduce(&mut [1_f32; 8], Op::Sum);
        (0..100).for_each(|_| call().expect("all are here"));
        let is_here = member.rank() != ABSENT;
        let text = is_here.then(|| call().expect_err("one is missing").to_string());
        given_up.wait();
        text
    });
    for text in texts.into_iter().flatten() {
        assert!(text.contains("rank 2 is not known to wait in any call; "), "{text}");
        assert!(text.contains(" in #101 all-reduce") && !text.contains("#1 "), "{text}");
    }
}

/// One of the two says so, as the other hears of its deadline.
#[test]
fn ranks_that_wait_for_each_other_with_one_message_each_hear_what_to_do() {
    let hints = |transport, call: fn(&Communicator, usize) -> Result<(), Error>| {
        // Long enough for both to have said what they wait for.
        let settings = Settings { timeout: Duration::from_millis(1500), ..over(transport) };
        let errors = each_rank(2, &settings, move |member| {
            call(&member, 1 - member.rank()).expect_err("nothing comes").to_string()
        });
        errors.into_iter().find(|error| !error.contains(" aborted: ")).expect("one is first")
    };
    for transport in TRANSPORTS {
        let sent = hints(transport, |member, peer| member.send(&vec![1u8; 64 << 20], peer));
        let wanted = ": if both send first, one of them has to receive first, or each puts both";
        assert!(sent.contains(wanted), "{transport}: {sent}");
        let received = hints(transport, |member, peer| member.recv(&mut [0u8; 9], peer));
        let wanted = ": if both receive first, one of them has to send first, or each puts both";
        assert!(received.contains(wanted), "{transport}: {received}");
        // Here both is what they do.
        let grouped = hints(transport, |member, peer| {
            member.messages().recv(&mut [0u8; 9], peer).recv(&mut [0u8; 9], peer).run()
        });
        assert!(!grouped.contains("first"), "{transport}: {grouped}");
    }
}

#[test]
fn a_wire_that_does_not_open_ends_its_call_when_the_call_is_due_and_not_when_joining_is() {
    let settings = impatient("loopback without wires", None);
    assert!(settings.join_timeout > Duration::from_secs(20));
    check(&settings, "wires that do not open", all_reduce(1000));
    check(&settings, "messages", |member| {
        member.messages().recv(&mut [0u8; 9], ABSENT).send(&[1u8; 9], ABSENT).run()
    });
}

#[test]
fn who_would_wait_for_ever_joins_like_everybody() {
    let ever = Duration::MAX;
    for transport in TRANSPORTS {
        let settings = Settings { join_timeout: ever, timeout: ever, ..over(transport) };
        each_rank(2, &settings, |member| member.barrier().expect("both are here"));
    }
}

/// Nor does a group that is made of another one, whose settings are another's.
#[test]
fn who_would_wait_for_ever_goes_on_with_groups_and_windows_like_everybody() {
    let ever = Duration::MAX;
    for transport in ["loopback", "shm", "tcp"] {
        each_rank(2, &over(transport), move |member| {
            let settings = Settings { join_timeout: ever, timeout: ever, ..over(transport) };
            let part = member.shrink_with(&[], settings).expect("both are left");
            part.barrier().expect("both are here");
            let half = part.split(Some(0), 0).expect("a split").expect("all are in it");
            half.barrier().expect("both are here");
            let window = half.window(WindowSize { bytes: 64, signals: 1 }).expect("a window");
            half.barrier().expect("both are here");
            drop(window);
        });
    }
}
