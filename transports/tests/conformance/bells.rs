//! Sleeping: no ring is lost, and no sleep is longer than asked for.

use std::time::{Duration, Instant};

use brigade_transports::{RecvWire, SendWire};

use crate::harness::{Make, Member, members};

/// A sleep that only a ring ends in time.
const LONG: Duration = Duration::from_secs(10);

/// What a sleep that a ring ended cannot have taken, even on a busy machine.
const TOO_LONG: Duration = Duration::from_secs(4);

/// Do `attempt` until it gives something, sleeping in between, where each sleep must be rung out
/// of.
fn rung<T>(member: &mut Member, mut attempt: impl FnMut() -> Option<T>) -> T {
    loop {
        member.endpoint.doorbell().arm();
        if let Some(done) = attempt() {
            member.endpoint.doorbell().disarm();
            return done;
        }
        let start = Instant::now();
        member.endpoint.doorbell().wait(LONG).expect("wait");
        assert!(start.elapsed() < TOO_LONG, "a ring was lost");
        assert!(Instant::now() < member.deadline, "member {} never gets there", member.me);
    }
}

/// Pull all of `target`, rung for each part of it.
fn pull_rung(member: &mut Member, wire: &mut dyn RecvWire, target: &mut [u8]) {
    let mut at = 0;
    while at < target.len() {
        at += rung(member, || {
            Some(wire.pull_into(&mut target[at..]).expect("pull")).filter(|&got| got > 0)
        });
    }
}

fn push_rung(member: &mut Member, wire: &mut dyn SendWire, bytes: &[u8]) {
    let mut at = 0;
    while at < bytes.len() {
        at +=
            rung(member, || Some(wire.push(&bytes[at..]).expect("push")).filter(|&took| took > 0));
    }
}

/// Return early it may, but not so often that waiting is spinning.
pub(crate) fn a_wait_ends_in_time(make: Make) {
    const ASKED: Duration = Duration::from_millis(50);
    members(make, 2, |mut member| {
        let other = 1 - member.me;
        let (mut sender, mut receiver) = (member.sender(other), member.receiver(other));
        let start = Instant::now();
        let mut waits = 0;
        while start.elapsed() < 4 * ASKED {
            waits += 1;
            member.endpoint.doorbell().arm();
            let asked_at = Instant::now();
            member.endpoint.doorbell().wait(ASKED).expect("wait");
            assert!(asked_at.elapsed() < ASKED + TOO_LONG, "slept {:?}", asked_at.elapsed());
        }
        assert!(waits < 4000, "{waits} waits in {:?}", start.elapsed());
        member.send(&mut *sender, &[1]);
        member.receive(&mut *receiver, &mut [0]);
    });
}

/// Ping-pong with pauses of all lengths, so that the ring meets every point of falling asleep. A
/// ring that is lost shows in the sleep that it does not end: how many rounds there are is no
/// promise, and where each takes long, fewer are enough.
pub(crate) fn no_ring_is_lost(make: Make) {
    const ROUNDS: u64 = 3000;
    const LEAST: u64 = 100;
    /// Half of what a member has in all.
    const ENOUGH: Duration = Duration::from_secs(10);
    /// What the first member adds to the last round's number.
    const LAST: u64 = 1 << 63;
    members(make, 2, |mut member| {
        let (me, other) = (member.me, 1 - member.me);
        let (mut sender, mut receiver) = (member.sender(other), member.receiver(other));
        let mut rng = fastrand::Rng::with_seed(me as u64);
        let start = Instant::now();
        for round in 0..ROUNDS {
            let is_last = round + 1 == ROUNDS || round >= LEAST && start.elapsed() > ENOUGH;
            let mut target = if is_last { round | LAST } else { round }.to_le_bytes();
            let told = target;
            if me == 1 {
                pull_rung(&mut member, &mut *receiver, &mut target);
            }
            let pause_most = 1 << rng.u32(1..12);
            for _ in 0..rng.u32(0..pause_most) {
                std::hint::spin_loop();
            }
            push_rung(&mut member, &mut *sender, &target);
            if me == 0 {
                pull_rung(&mut member, &mut *receiver, &mut target);
                assert_eq!(target, told, "round {round}");
            }
            let got = u64::from_le_bytes(target);
            assert_eq!(got & !LAST, round, "seed {me}");
            if got & LAST != 0 {
                break;
            }
        }
    });
}

pub(crate) fn credit_rings_a_sleeping_sender(make: Make) {
    members(make, 2, |mut member| {
        let credit = member.sizes.credit_bytes;
        let bytes = (40 * credit).min(2 * credit + (32 << 20));
        if member.me == 0 {
            let mut wire = member.sender(1);
            push_rung(&mut member, &mut *wire, &vec![3; bytes]);
            // The last byte is answered, so that nobody leaves a sleeper behind.
            let mut back = member.receiver(1);
            pull_rung(&mut member, &mut *back, &mut [0]);
            return;
        }
        let (mut wire, mut back) = (member.receiver(0), member.sender(0));
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut got, mut naps) = (0, 0);
        while got < bytes {
            if naps < 300 && rng.u8(..) < 64 {
                // Long enough for the sender to fill the wire and fall asleep.
                naps += 1;
                std::thread::sleep(Duration::from_micros(rng.u64(10..2000)));
            }
            let limit = rng.usize(1..=credit).min(bytes - got);
            got += wire.pull(limit, 1, &mut |slice| assert_eq!(slice[0], 3)).expect("pull");
            assert!(Instant::now() < member.deadline, "got {got} bytes of {bytes}");
        }
        push_rung(&mut member, &mut *back, &[1]);
    });
}

pub(crate) fn a_ring_ends_a_long_sleep(make: Make) {
    members(make, 2, |mut member| {
        if member.me == 0 {
            let mut wire = member.sender(1);
            for _ in 0..5 {
                std::thread::sleep(Duration::from_millis(40));
                member.send(&mut *wire, &[1; 64]);
            }
            let mut back = member.receiver(1);
            member.receive(&mut *back, &mut [0]);
            return;
        }
        let (mut wire, mut back) = (member.receiver(0), member.sender(0));
        pull_rung(&mut member, &mut *wire, &mut [0; 5 * 64]);
        member.send(&mut *back, &[1]);
    });
}

pub(crate) fn a_disarmed_bell_can_be_armed_again(make: Make) {
    members(make, 2, |mut member| {
        let other = 1 - member.me;
        let (mut sender, mut receiver) = (member.sender(other), member.receiver(other));
        for round in 0..200_u8 {
            member.endpoint.doorbell().arm();
            member.endpoint.doorbell().disarm();
            push_rung(&mut member, &mut *sender, &[round; 8]);
            member.endpoint.doorbell().arm();
            member.endpoint.doorbell().disarm();
            let mut target = [0; 8];
            pull_rung(&mut member, &mut *receiver, &mut target);
            assert_eq!(target, [round; 8]);
        }
    });
}
