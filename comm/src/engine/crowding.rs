//! Calls so many and so long that their plans cannot all be kept: what is let go of is made anew
//! and nobody notices, and what fits is found again.

use super::recent::{LEAST, Recent};
use super::{Engine, MESSAGE_PLAN_BYTES, PLAN_BYTES};
use crate::{Communicator, Settings};

/// How many long calls there are, each of a shape of its own.
const LONG: usize = 320;
/// How many short ones a cycle has that fits.
const SHORT: usize = 150;
/// How often that cycle is gone through.
const ROUNDS: usize = 8;

/// One kind of calls.
#[derive(Clone, Copy)]
struct Kind {
    /// Carry out the one of this length, and check what it came to.
    call: fn(&Communicator, usize),
    /// How many plans are kept of them, how long these are, and how many were ever made.
    plans: fn(&Engine) -> [usize; 3],
    /// How long those may be that are kept.
    most_bytes: usize,
    /// The length of a call of which so many do not fit.
    long: usize,
}

fn state<T>(plans: &Recent<T>) -> [usize; 3] {
    let (count, bytes) = plans.kept();
    [count, bytes, plans.made()]
}

/// What `rank` brings into a call of this length.
fn input(length: usize, rank: usize) -> impl Iterator<Item = u8> {
    (0..length).map(move |at| (at * 7 + length * 3 + rank * 11) as u8)
}

/// By which no rank waits for another one, which many short windows would make long.
fn broadcast(member: &Communicator, length: usize) {
    let root = length % 2;
    let mut data: Vec<u8> = input(length, member.rank()).collect();
    member.broadcast(&mut data, root).expect("a broadcast");
    assert_eq!(data, input(length, root).collect::<Vec<_>>(), "of {length}");
}

/// Both ways, a message for each byte.
fn exchange(member: &Communicator, length: usize) {
    let (own, other) = (member.rank(), 1 - member.rank());
    let data: Vec<u8> = input(length, own).collect();
    let mut came = vec![0; length];
    let mut messages = member.messages();
    for byte in data.chunks(1) {
        messages = messages.send(byte, other);
    }
    for byte in came.chunks_mut(1) {
        messages = messages.recv(byte, other);
    }
    messages.run().expect("messages");
    assert_eq!(came, input(length, other).collect::<Vec<_>>(), "of {length}");
}

/// Be one of two ranks.
fn crowd(member: &Communicator, kind: Kind) {
    let calls = |lengths: &mut dyn Iterator<Item = usize>| {
        let plans = || (kind.plans)(&member.shared().lock().expect("no call is on its way"));
        let [.., before] = plans();
        for length in lengths {
            (kind.call)(member, length);
            let [count, bytes, _] = plans();
            assert!(bytes <= kind.most_bytes || count <= LEAST, "{count} plans of {bytes} bytes");
        }
        let [count, _, made] = plans();
        (count, made - before)
    };
    let long = || kind.long..kind.long + LONG;
    let (kept, made) = calls(&mut long());
    assert!(LEAST < kept && kept < LONG && made == LONG, "{kept} of {made} are kept");
    let (_, made) = calls(&mut long());
    assert!(0 < made && made < LONG, "{made} of {LONG} were made again");
    // Each takes little, so that soon long ones have made room for all.
    let made: Vec<usize> = (0..ROUNDS).map(|_| calls(&mut (1..=SHORT)).1).collect();
    assert_eq!(made.last(), Some(&0), "a cycle that fits is found: {made:?}");
}

fn check(kind: Kind) {
    let transport = "loopback".into();
    let settings = Settings { transport, window_bytes: 4, ..Settings::default() };
    let world = Communicator::local_world(2, &settings).expect("a world");
    std::thread::scope(|scope| {
        for member in world {
            scope.spawn(move || crowd(&member, kind));
        }
    });
}

#[test]
fn plans_of_collectives_make_room_for_each_other() {
    let plans = |engine: &Engine| state(&engine.plans);
    check(Kind { call: broadcast, plans, most_bytes: PLAN_BYTES, long: 200_000 });
}

#[test]
fn plans_of_messages_make_room_for_each_other() {
    let plans = |engine: &Engine| state(&engine.message_plans);
    check(Kind { call: exchange, plans, most_bytes: MESSAGE_PLAN_BYTES, long: 700 });
}
