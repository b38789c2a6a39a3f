//! One sleep at the bells of two transports.

use std::thread;
use std::time::{Duration, Instant};

use brigade_transports::shm::Shm;
use brigade_transports::tcp::{self, Tcp};
use brigade_transports::{Bells, Endpoint, Group, RecvWire, SendWire, Transport};

/// A sleep that only a ring ends in time.
const LONG: Duration = Duration::from_secs(10);
/// What a sleep that a ring ended cannot have taken, even on a busy machine.
const TOO_LONG: Duration = Duration::from_secs(4);
const LIMIT: Duration = Duration::from_secs(20);

/// One member's two endpoints, shared memory's first.
struct Member {
    endpoints: Vec<Box<dyn Endpoint>>,
    to: Vec<Box<dyn SendWire>>,
    from: Vec<Box<dyn RecvWire>>,
}

/// Two members that are joined by both transports.
fn members() -> [Member; 2] {
    let both: [Box<dyn Transport>; 2] =
        [Box::new(Shm::new()), Box::new(Tcp::new(tcp::Settings::default()))];
    let deadline = Instant::now() + LIMIT;
    let ports = [0, 1].map(|_| both.each_ref().map(|transport| transport.open([9; 32]).unwrap()));
    let cards = ports.each_ref().map(|ports| ports.each_ref().map(|port| port.card()));
    let members = [0, 1].map(|me| {
        let join = |at: usize| {
            let cards = [0, 1].map(|member: usize| Some(&cards[member][at][..]));
            ports[me][at].join(&Group { id: 1, me, cards: &cards, deadline }).unwrap()
        };
        let mut endpoints = vec![join(0), join(1)];
        let from = endpoints.iter_mut().map(|end| end.receiver(1 - me).unwrap()).collect();
        Member { endpoints, to: Vec::new(), from }
    });
    // Dropping the ports before the wires stand would take their listeners away.
    let mut members = members;
    for (me, member) in members.iter_mut().enumerate() {
        let ends = member.endpoints.iter_mut();
        member.to = ends.map(|end| end.sender(1 - me, deadline).unwrap()).collect();
    }
    members
}

/// Bytes come by either wire in an order drawn by `seed`; every sleep in between is rung out of.
/// The bells are joined, or each wire is slept for at its own.
fn check(seed: u64, joined: Option<Bells>, mut sleeper: Member, mut ringer: Member) {
    println!("seed {seed}, {joined:?}");
    let mut random = fastrand::Rng::with_seed(seed);
    let wires: Vec<usize> = (0..400).map(|_| random.usize(..2)).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            for &wire in &wires {
                // Around the time that arming takes, so that rings hit every moment of it.
                let pause = random.u64(..60);
                let until = Instant::now() + Duration::from_micros(pause);
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                assert_eq!(ringer.to[wire].push(&[wire as u8]).unwrap(), 1);
                // The answer says that it has been heard.
                let (mut answer, end) = ([9], Instant::now() + LIMIT);
                while ringer.from[0].pull_into(&mut answer).unwrap() == 0 {
                    assert!(Instant::now() < end, "no answer");
                    thread::yield_now();
                }
            }
        });
        for &wire in &wires {
            let ends = &mut sleeper.endpoints;
            loop {
                match &joined {
                    Some(bells) => bells.arm(ends),
                    None => ends[wire].doorbell().arm(),
                }
                let mut got = [9];
                let found = sleeper.from[wire].pull_into(&mut got).unwrap() == 1;
                let start = Instant::now();
                match &joined {
                    Some(bells) if found => bells.disarm(ends),
                    Some(bells) => bells.wait(ends, LONG).unwrap(),
                    None if found => ends[wire].doorbell().disarm(),
                    None => ends[wire].doorbell().wait(LONG).unwrap(),
                }
                assert!(start.elapsed() < TOO_LONG, "a ring of wire {wire} was lost");
                if found {
                    assert_eq!(usize::from(got[0]), wire);
                    break;
                }
            }
            assert_eq!(sleeper.to[0].push(&[1]).unwrap(), 1);
        }
    });
}

#[test]
fn one_sleep_hears_the_rings_of_two_transports() {
    for seed in 1..=20 {
        let [mut sleeper, ringer] = members();
        let bells = Bells::join(&mut sleeper.endpoints);
        assert!(bells.is_one_sleep());
        check(seed, Some(bells), sleeper, ringer);
    }
}

#[test]
fn a_bell_that_others_hear_still_rings_at_home() {
    for seed in 21..=25 {
        let [mut sleeper, ringer] = members();
        assert!(Bells::join(&mut sleeper.endpoints).is_one_sleep());
        check(seed, None, sleeper, ringer);
    }
}

#[test]
fn without_an_endpoint_a_sleep_is_as_long_as_asked() {
    let (bells, start) = (Bells::join(&mut []), Instant::now());
    bells.arm(&mut []);
    bells.wait(&mut [], Duration::from_millis(20)).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(20));
}
