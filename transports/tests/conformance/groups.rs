//! Several communicators over the same ports: apart from each other, in any membership and order.

use std::time::Duration;

use crate::flow::{Flow, Incoming, Message, Outgoing, assert_contents, contents, pump};
use crate::harness::{Make, Member, Ports};

/// Messages for a stream: some hundred bytes to some ten thousand, all granules.
fn messages(key: u64) -> Vec<Message> {
    let mut rng = fastrand::Rng::with_seed(key);
    (0..8)
        .map(|_| {
            let granule = 1 << rng.usize(0..4);
            Message { bytes: rng.usize(0..2000) * granule, granule }
        })
        .collect()
}

/// Send to all other served members and receive from all of them, at once.
fn all_pairs(mut member: Member, group: u64, order: &[Option<usize>]) {
    let me = member.me;
    let others: Vec<usize> =
        (0..order.len()).filter(|&other| other != me && order[other].is_some()).collect();
    let key = |from: usize, to: usize| group * 10_000 + (from * 100 + to) as u64;
    let mut out: Vec<Outgoing> = others
        .iter()
        .map(|&to| Outgoing::new(member.sender(to), key(me, to), &messages(key(me, to))))
        .collect();
    let mut back: Vec<Incoming> = others
        .iter()
        .map(|&from| Incoming::new(member.receiver(from), key(from, me), &messages(key(from, me))))
        .collect();
    let mut flows: Vec<&mut dyn Flow> = Vec::new();
    flows.extend(out.iter_mut().map(|flow| flow as &mut dyn Flow));
    flows.extend(back.iter_mut().map(|flow| flow as &mut dyn Flow));
    pump(&mut member, &mut flows);
}

/// Run all these groups at once over the ports of `ranks` ranks.
fn at_once(make: Make, ranks: usize, orders: &[&[Option<usize>]]) {
    let ports = Ports::open(make, ranks);
    std::thread::scope(|scope| {
        for (group, order) in (1..).zip(orders) {
            let ports = &ports;
            scope.spawn(move || ports.group(group, order, |it| all_pairs(it, group, order)));
        }
    });
}

pub(crate) fn two_groups_do_not_mix(make: Make) {
    at_once(make, 3, &[&[Some(0), Some(1), Some(2)], &[Some(2), Some(0), Some(1)]]);
}

pub(crate) fn members_may_be_missing(make: Make) {
    at_once(make, 3, &[&[None, Some(0), None, Some(2), Some(1), None]]);
}

pub(crate) fn subsets_in_other_orders(make: Make) {
    at_once(
        make,
        4,
        &[
            &[Some(3), Some(1)],
            &[Some(2), Some(0), Some(3)],
            &[Some(3), Some(2), Some(1), Some(0)],
            &[Some(2)],
        ],
    );
}

pub(crate) fn sixteen_members_in_all_pairs(make: Make) {
    let order: Vec<_> = (0..16).map(Some).collect();
    at_once(make, 16, &[&order]);
}

pub(crate) fn groups_come_and_go(make: Make) {
    let ports = Ports::open(make, 2);
    for group in 1..=20 {
        let order = if group % 2 == 0 { [Some(0), Some(1)] } else { [Some(1), Some(0)] };
        ports.group(group, &order, |member| all_pairs(member, group, &order));
    }
}

/// One member joins, connects and sends long before the other, which then asks for the wire long
/// after it joined.
pub(crate) fn a_late_member_misses_nothing(make: Make) {
    let late = Duration::from_millis(100);
    let ports = Ports::open(make, 2);
    let member = |me: usize| {
        let order = [Some(0), Some(1)];
        if me == 1 {
            std::thread::sleep(late);
        }
        ports.member(1, &order, me)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut member = member(0);
            let mut wire = member.sender(1);
            let credit = member.sizes.credit_bytes;
            member.send(&mut *wire, &contents(700, 0, credit));
            let mut back = member.receiver(1);
            member.receive(&mut *back, &mut [0]);
        });
        scope.spawn(|| {
            let mut member = member(1);
            std::thread::sleep(late);
            let mut wire = member.receiver(0);
            let mut target = vec![0; member.sizes.credit_bytes];
            member.receive(&mut *wire, &mut target);
            assert_contents(700, 0, &target);
            let mut back = member.sender(0);
            member.send(&mut *back, &[1]);
        });
    });
}
