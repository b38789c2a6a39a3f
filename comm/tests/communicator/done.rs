//! Who is told when a call has ended, and what may be done then.

use std::io::Read;
use std::os::fd::AsFd;
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::{Duration, Instant};

use brigade_comm::{Communicator, Error, Op, Settings, Work};

use crate::world::{TRANSPORTS, each_rank, over};

const SOON: Duration = Duration::from_secs(20);

/// Run `body` with an all-reduce in flight that every rank joins.
fn with_work(member: &Communicator, body: impl FnOnce(&Work<'_>)) -> Result<(), Error> {
    let mut data = [member.rank() as u64 + 1; 1000];
    member.scope(|scope| body(&scope.all_reduce(&mut data, Op::Sum).expect("a start")))
}

#[test]
fn a_function_hears_of_an_end_before_and_after_it() {
    for transport in TRANSPORTS {
        each_rank(2, &over(transport), |member| {
            let (told, heard) = mpsc::channel();
            with_work(&member, |work| {
                for late in [false, true] {
                    if late {
                        work.wait().expect("an all-reduce");
                    }
                    let (told, here) = (told.clone(), std::thread::current().id());
                    let tell = move |ending: Result<(), Error>| {
                        let elsewhere = std::thread::current().id() != here;
                        told.send((ending.is_ok(), elsewhere)).expect("the test listens");
                    };
                    work.on_done(tell).expect("a thread");
                }
            })
            .expect("an all-reduce");
            for _ in 0..2 {
                assert_eq!(heard.recv_timeout(SOON), Ok((true, true)));
            }
        });
    }
}

#[test]
fn a_function_may_call_collectives_of_the_same_communicator() {
    for transport in TRANSPORTS {
        each_rank(2, &over(transport), |member| {
            let member = Arc::new(member);
            for number in 0..10 {
                let (told, heard) = mpsc::channel();
                let again = Arc::clone(&member);
                let follow = move |ending: Result<(), Error>| {
                    ending.expect("an all-reduce");
                    let mut sum = [number];
                    again.all_reduce(&mut sum, Op::Sum).expect("an all-reduce of a function");
                    told.send(sum[0]).expect("the test listens");
                };
                with_work(&member, |work| work.on_done(follow).expect("one")).expect("a call");
                assert_eq!(heard.recv_timeout(SOON), Ok(2 * number));
            }
        });
    }
}

/// Every function makes a collective and then waits for the function after it, which no fixed
/// number of threads would survive.
#[test]
fn functions_may_wait_for_each_other() {
    const FUNCTIONS: usize = 20;
    each_rank(2, &over("shm"), |member| {
        // The calls of functions are alike, so their order does not matter.
        let theirs = Arc::new(member.split(Some(0), 0).expect("a split").expect("a part"));
        let ends: Arc<Vec<Barrier>> = Arc::new((0..FUNCTIONS).map(|_| Barrier::new(2)).collect());
        let (told, heard) = mpsc::channel();
        for number in 0..FUNCTIONS {
            let (theirs, ends, told) = (Arc::clone(&theirs), Arc::clone(&ends), told.clone());
            let follow = move |ending: Result<(), Error>| {
                ending.expect("an all-reduce");
                let mut sum = [1u32];
                theirs.all_reduce(&mut sum, Op::Sum).expect("an all-reduce of a function");
                if let Some(after) = ends.get(number + 1) {
                    after.wait();
                }
                if number > 0 {
                    ends[number].wait();
                }
                told.send(sum[0]).expect("the test listens");
            };
            with_work(&member, |work| work.on_done(follow).expect("one")).expect("a call");
        }
        for _ in 0..FUNCTIONS {
            assert_eq!(heard.recv_timeout(SOON), Ok(2));
        }
    });
}

#[test]
fn an_event_can_be_read_from_once_a_call_has_ended() {
    each_rank(2, &over("tcp"), |member| {
        if member.rank() == 1 {
            std::thread::sleep(Duration::from_millis(50));
        }
        with_work(&member, |work| {
            let read = |event: &brigade_comm::Event| {
                let fd = event.as_fd().try_clone_to_owned().expect("a descriptor");
                std::fs::File::from(fd).read(&mut [0; 8])
            };
            let early = work.event().expect("an event");
            if member.rank() == 0 && !work.is_done() {
                let none = read(&early).map_err(|error| error.kind());
                assert!(none == Err(std::io::ErrorKind::WouldBlock) || work.is_done());
            }
            work.wait().expect("an all-reduce");
            let late = work.event().expect("an event");
            assert_eq!(read(&late).expect("it has ended"), 8);
            let begun = Instant::now();
            while read(&early).is_err() && member.rank() == 1 && begun.elapsed() < SOON {}
        })
        .expect("an all-reduce");
    });
}

#[test]
fn an_error_reaches_functions_events_and_the_whole() {
    each_rank(2, &over("shm"), |member| {
        if member.rank() == 1 {
            return member.abort("enough");
        }
        let (told, heard) = mpsc::channel();
        let outcome = with_work(&member, |work| {
            let event = work.event().expect("an event");
            let whole = Work::all([work.clone(), work.clone()]);
            let tell = move |ending| told.send(ending).expect("the test listens");
            whole.on_done(tell).expect("a thread");
            let ending = whole.wait_for(SOON).expect("it ends");
            assert!(matches!(ending, Err(Error::Aborted { rank: 1, .. })), "{ending:?}");
            let fd = event.as_fd().try_clone_to_owned().expect("a descriptor");
            assert_eq!(std::fs::File::from(fd).read(&mut [0; 8]).expect("it has ended"), 8);
        });
        assert!(matches!(outcome, Err(Error::Aborted { .. })), "{outcome:?}");
        let ending = heard.recv_timeout(SOON).expect("it is told");
        assert!(matches!(ending, Err(Error::Aborted { .. })), "{ending:?}");
    });
}

#[test]
fn a_work_of_none_has_ended() {
    let (told, heard) = mpsc::channel();
    let none = Work::all([]);
    assert!(none.is_done() && none.wait().is_ok());
    none.on_done(move |ending| told.send(ending.is_ok()).expect("the test listens")).expect("one");
    assert_eq!(heard.recv_timeout(SOON), Ok(true));
}

/// Whoever has dropped a communicator knows that nothing of it runs any more.
#[test]
fn dropping_a_communicator_waits_for_what_follows_its_calls() {
    each_rank(1, &over("loopback"), |member| {
        let ended = Arc::new(Mutex::new(false));
        let end = Arc::clone(&ended);
        let slow = move |_| {
            std::thread::sleep(Duration::from_millis(100));
            *end.lock().expect("nobody panics") = true;
        };
        with_work(&member, |work| work.on_done(slow).expect("a thread")).expect("a call");
        drop(member);
        assert!(*ended.lock().expect("nobody panics"));
    });
}

#[test]
fn a_function_may_drop_the_communicator() {
    let mut world = Communicator::local_world(1, &Settings::default()).expect("a world of one");
    let member = Arc::new(Mutex::new(world.pop()));
    let (told, heard) = mpsc::channel();
    let held = Arc::clone(&member);
    let guard = member.lock().expect("nobody panics");
    with_work(guard.as_ref().expect("it is there"), |work| {
        let end = move |_| {
            drop(held.lock().expect("nobody panics").take());
            told.send(()).expect("the test listens");
        };
        work.on_done(end).expect("a thread");
    })
    .expect("a call");
    drop(guard);
    assert_eq!(heard.recv_timeout(SOON), Ok(()));
}

#[test]
fn a_part_of_a_split_may_have_settings_of_its_own() {
    each_rank(2, &over("shm"), |member| {
        let timeout = Duration::from_millis(300);
        let impatient = Settings { timeout, ..member.settings().clone() };
        let part = member.split_with(Some(0), 0, impatient).expect("a split").expect("a part");
        assert_eq!((part.settings().timeout, part.size()), (timeout, 2));
        if part.rank() == 0 {
            let error = part.barrier().expect_err("the other one does not come");
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
        } else {
            std::thread::sleep(Duration::from_millis(1000));
        }
    });
}
