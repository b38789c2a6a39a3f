//! Members that finish early: what they sent arrives, and then they are gone.

use std::time::{Duration, Instant};

use crate::flow::{Incoming, Outgoing, assert_contents, contents, plain, pump};
use crate::harness::{Make, Member, assert_gone, members};

/// Let all members know that all others are there: a byte over each wire.
fn meet(member: &mut Member, others: &[usize]) {
    for &other in others {
        let mut wire = member.sender(other);
        member.send(&mut *wire, &[1]);
        let mut wire = member.receiver(other);
        member.receive(&mut *wire, &mut [0]);
    }
}

pub(crate) fn what_was_pushed_before_leaving_arrives(make: Make) {
    members(make, 2, |mut member| {
        let bytes = member.sizes.credit_bytes;
        if member.me == 0 {
            let mut wire = member.sender(1);
            member.send(&mut *wire, &contents(400, 0, bytes));
            return;
        }
        let mut wire = member.receiver(0);
        std::thread::sleep(Duration::from_millis(100));
        let mut target = vec![0; bytes];
        member.receive(&mut *wire, &mut target);
        assert_contents(400, 0, &target);
        let error = member.until_error(|| wire.pull_into(&mut target));
        assert_gone(&error, 0);
        for _ in 0..3 {
            let again = wire.pull(64, 1, &mut |_| panic!("nothing comes after the end"));
            assert_eq!(again.expect_err("it stays gone"), error);
        }
    });
}

pub(crate) fn a_long_message_survives_its_senders_leaving(make: Make) {
    members(make, 2, |mut member| {
        let messages = plain([5 * member.sizes.credit_bytes + 17]);
        if member.me == 0 {
            let mut flow = Outgoing::new(member.sender(1), 401, &messages);
            pump(&mut member, &mut [&mut flow]);
            return;
        }
        let mut flow = Incoming::new(member.receiver(0), 401, &messages);
        pump(&mut member, &mut [&mut flow]);
        let mut wire = flow.into_wire();
        let error = member.until_error(|| wire.pull_into(&mut [0; 8]));
        assert_gone(&error, 0);
    });
}

pub(crate) fn pushing_to_one_who_left_fails(make: Make) {
    members(make, 2, |mut member| {
        let other = 1 - member.me;
        let (mut sender, mut receiver) = (member.sender(other), member.receiver(other));
        member.send(&mut *sender, &[1; 8]);
        member.receive(&mut *receiver, &mut [0; 8]);
        if member.me == 1 {
            return;
        }
        let start = Instant::now();
        let block = [0; 64];
        let error = member.until_error(|| sender.push(&block));
        assert_gone(&error, 1);
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert_eq!(sender.push(&block).expect_err("it stays gone"), error);
    });
}

pub(crate) fn others_go_on_when_one_leaves(make: Make) {
    members(make, 3, |mut member| {
        let me = member.me;
        if me == 0 {
            return meet(&mut member, &[1, 2]);
        }
        let other = 3 - me;
        meet(&mut member, &[0]);
        let (mut sender, mut receiver) = (member.sender(other), member.receiver(other));
        let start = Instant::now();
        // The first of the two says when it is over.
        let mut go_on = 1;
        while go_on == 1 {
            if me == 1 {
                go_on = u8::from(start.elapsed() < Duration::from_millis(200));
                member.send(&mut *sender, &[go_on]);
                member.receive(&mut *receiver, &mut [0]);
            } else {
                let mut told = [0];
                member.receive(&mut *receiver, &mut told);
                member.send(&mut *sender, &told);
                go_on = told[0];
            }
            member.endpoint.check().expect("leaving in good order is no death");
        }
    });
}
