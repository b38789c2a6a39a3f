//! What is pushed is pulled: all of it, in order, in any sizes.

use std::time::{Duration, Instant};

use crate::flow::{Flow, Incoming, Message, Outgoing, assert_contents, contents, plain, pump};
use crate::harness::{Make, Member, members};

/// Member 0 sends messages to member 1.
fn one_way(make: Make, seed: u64, messages: impl Fn(&Member) -> Vec<Message> + Sync) {
    two_views(make, seed, |member| (messages(member), messages(member)));
}

/// Member 0 sends the first list of messages, and member 1 takes the same bytes for the second.
fn two_views(
    make: Make,
    seed: u64,
    messages: impl Fn(&Member) -> (Vec<Message>, Vec<Message>) + Sync,
) {
    members(make, 2, |mut member| {
        let (sent, taken) = messages(&member);
        if member.me == 0 {
            let mut flow = Outgoing::new(member.sender(1), seed, &sent);
            pump(&mut member, &mut [&mut flow]);
            // Stay until the other has it all.
            let mut answer = [0];
            let mut back = member.receiver(1);
            member.receive(&mut *back, &mut answer);
            assert_eq!(answer, [1]);
        } else {
            let mut flow = Incoming::new(member.receiver(0), seed, &taken);
            pump(&mut member, &mut [&mut flow]);
            let mut wire = flow.into_wire();
            assert_eq!(wire.pull_into(&mut [0; 64]).expect("pull"), 0, "seed {seed}: no more");
            let mut back = member.sender(0);
            member.send(&mut *back, &[1]);
        }
    });
}

pub(crate) fn every_small_size_arrives(make: Make) {
    one_way(make, 1, |_| plain((0..=200).chain((0..=200).rev())));
}

pub(crate) fn sizes_around_the_edges_arrive(make: Make) {
    one_way(make, 2, |member| {
        let (bulk, credit) = (member.sizes.bulk_bytes, member.sizes.credit_bytes);
        let edges = [bulk, 2 * bulk, credit, credit + bulk, 3 * credit];
        plain(edges.into_iter().flat_map(|edge| {
            [edge - 64, edge - 1, edge, edge + 1, edge + 63, edge + 64, edge + 65]
        }))
    });
}

pub(crate) fn random_sizes_and_granules_arrive(make: Make) {
    for seed in 100..106 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let messages: Vec<Message> = (0..200)
            .map(|_| {
                let (granule, most) = (1 << rng.usize(0..4), 1 << rng.u32(0..14));
                Message { bytes: rng.usize(0..most) * granule, granule }
            })
            .collect();
        one_way(make, seed, |_| messages.clone());
    }
}

/// What one side calls three bytes and five, the other may call one element.
pub(crate) fn elements_pushed_in_parts_arrive_whole(make: Make) {
    for seed in 250..253 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut parts, mut wholes) = (Vec::new(), Vec::new());
        for _ in 0..300 {
            let granule = 1 << rng.usize(1..4);
            let bytes = rng.usize(1..40) * granule;
            let cut = rng.usize(0..=bytes);
            wholes.push(Message { bytes, granule });
            parts.extend(plain([cut, bytes - cut]));
        }
        two_views(make, seed, |_| (parts.clone(), wholes.clone()));
    }
}

pub(crate) fn both_directions_flow_at_once(make: Make) {
    members(make, 2, |mut member| {
        let credit = member.sizes.credit_bytes;
        let messages = [
            Message { bytes: 4 * credit + 8, granule: 8 },
            Message { bytes: 3, granule: 1 },
            Message { bytes: 2 * credit, granule: 4 },
        ];
        let (me, other) = (member.me as u64, 1 - member.me);
        let mut out = Outgoing::new(member.sender(other), 200 + me, &messages);
        let mut back = Incoming::new(member.receiver(other), 200 + other as u64, &messages);
        pump(&mut member, &mut [&mut out, &mut back]);
    });
}

/// The ends of wires may live on other threads than their endpoint, and each on its own.
pub(crate) fn wires_work_on_other_threads(make: Make) {
    members(make, 2, |mut member| {
        let (me, other, deadline) = (member.me as u64, 1 - member.me, member.deadline);
        let messages = plain([2 * member.sizes.credit_bytes, 5, 70_000]);
        let mut out = Outgoing::new(member.sender(other), 220 + me, &messages);
        let mut back = Incoming::new(member.receiver(other), 220 + other as u64, &messages);
        let spin = |flow: &mut (dyn Flow + Send)| {
            while !flow.is_done() {
                if !flow.step().expect("no wire fails") {
                    std::thread::yield_now();
                }
                assert!(Instant::now() < deadline, "flows stand still");
            }
        };
        std::thread::scope(|scope| {
            let threads = [scope.spawn(|| spin(&mut out)), scope.spawn(|| spin(&mut back))];
            // Where time is virtual, sleepers are what moves it.
            while threads.iter().any(|thread| !thread.is_finished()) {
                member.endpoint.doorbell().arm();
                member.endpoint.doorbell().wait(Duration::from_millis(1)).expect("wait");
            }
        });
    });
}

/// A wire takes what its credit says without any pull, and stops somewhere. How much it took goes
/// round by member 2.
pub(crate) fn a_full_wire_holds_back_and_loses_nothing(make: Make) {
    const KEY: u64 = 300;
    members(make, 3, |mut member| {
        if member.me == 0 {
            let (mut wire, mut back) = (member.sender(1), member.receiver(1));
            let taken = fill(&mut *wire, member.sizes.credit_bytes, KEY);
            let credit = member.sizes.credit_bytes;
            assert!(taken >= credit, "took {taken} bytes, promised {credit}");
            let mut control = member.sender(2);
            member.send(&mut *control, &(taken as u64).to_le_bytes());
            member.receive(&mut *back, &mut [0]);
            // There is room again.
            member.send(&mut *wire, &contents(KEY, taken as u64, 1000));
            member.receive(&mut *back, &mut [0]);
        } else if member.me == 2 {
            let (mut from, mut to) = (member.receiver(0), member.sender(1));
            let mut taken = [0; 8];
            member.receive(&mut *from, &mut taken);
            member.send(&mut *to, &taken);
        } else {
            let (mut wire, mut back) = (member.receiver(0), member.sender(0));
            let mut control = member.receiver(2);
            let mut taken = [0; 8];
            member.receive(&mut *control, &mut taken);
            let mut target = vec![0; u64::from_le_bytes(taken) as usize];
            member.receive(&mut *wire, &mut target);
            assert_contents(KEY, 0, &target);
            member.send(&mut *back, &[1]);
            let mut more = [0; 1000];
            member.receive(&mut *wire, &mut more);
            assert_contents(KEY, target.len() as u64, &more);
            member.send(&mut *back, &[1]);
        }
    });
}

/// Push until the wire takes no more for a while; returns how much that was.
fn fill(wire: &mut dyn brigade_transports::SendWire, credit: usize, key: u64) -> usize {
    // Buffers of an operating system come on top of the credit, but not without bound.
    let bound = 2 * credit + (64 << 20);
    let mut taken = 0;
    let mut full: Option<Instant> = None;
    while full.is_none_or(|since| since.elapsed() < Duration::from_millis(150)) {
        let took = wire.push(&contents(key, taken as u64, 64 << 10)).expect("push");
        taken += took;
        assert!(taken < bound, "took {taken} bytes that nobody pulled; the credit is {credit}");
        if took > 0 {
            full = None;
        } else {
            full.get_or_insert_with(Instant::now);
            std::thread::yield_now();
        }
    }
    taken
}

pub(crate) fn nothing_is_pushed_and_pulled(make: Make) {
    members(make, 2, |mut member| {
        let other = 1 - member.me;
        let (mut sender, mut receiver) = (member.sender(other), member.receiver(other));
        assert_eq!(sender.push(&[]).expect("push nothing"), 0);
        assert_eq!(receiver.pull(0, 8, &mut |_| panic!("nothing")).expect("pull nothing"), 0);
        assert_eq!(receiver.pull_into(&mut []).expect("pull nothing"), 0);
        member.send(&mut *sender, &[9; 8]);
        assert_eq!(receiver.pull(0, 8, &mut |_| panic!("nothing")).expect("pull nothing"), 0);
        let mut target = [0; 8];
        member.receive(&mut *receiver, &mut target);
        assert_eq!(target, [9; 8]);
        let flow = Outgoing::new(sender, 0, &[]);
        assert!(flow.is_done(), "no messages, no bytes");
    });
}
