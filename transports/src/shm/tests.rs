//! Worlds of threads, joined as processes would join.

use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::{RecvWire, SendWire};

const SECRET: [u8; 32] = [7; 32];
const PATIENCE: Duration = Duration::from_secs(20);

fn open(ranks: usize) -> Vec<Box<dyn Port>> {
    (0..ranks).map(|_| Shm::new().open(SECRET).expect("a port opens")).collect()
}

/// Run `rank` on a thread for each of `ranks` members that have joined group 1 of one world.
fn world(ranks: usize, rank: impl Fn(usize, Box<dyn Endpoint>) + Sync) {
    let ports = open(ranks);
    let cards: Vec<_> = ports.iter().map(|port| port.card()).collect();
    let cards: Vec<_> = cards.iter().map(|card| Some(&card[..])).collect();
    thread::scope(|scope| {
        for (me, port) in ports.iter().enumerate() {
            let (cards, rank) = (&cards, &rank);
            scope.spawn(move || {
                let group = Group { id: 1, me, cards, deadline: Instant::now() + PATIENCE };
                rank(me, port.join(&group).expect("the group joins"));
            });
        }
    });
}

fn push_all(wire: &mut dyn SendWire, mut bytes: &[u8]) {
    let end = Instant::now() + PATIENCE;
    while !bytes.is_empty() {
        let taken = wire.push(bytes).expect("the wire works");
        bytes = &bytes[taken..];
        if taken == 0 {
            assert!(Instant::now() < end, "nobody pulls");
            thread::yield_now();
        }
    }
}

fn pull_all(wire: &mut dyn RecvWire, mut target: &mut [u8]) {
    let end = Instant::now() + PATIENCE;
    while !target.is_empty() {
        let filled = wire.pull_into(target).expect("the wire works");
        target = &mut target[filled..];
        if filled == 0 {
            assert!(Instant::now() < end, "nobody pushes");
            thread::yield_now();
        }
    }
}

#[test]
fn everybody_hears_everybody() {
    for ranks in [1, 2, 3, 64] {
        world(ranks, |me, mut endpoint| {
            let others: Vec<_> = (0..ranks).filter(|other| *other != me).collect();
            let deadline = Instant::now() + PATIENCE;
            let mut out: Vec<_> =
                others.iter().map(|to| endpoint.sender(*to, deadline).unwrap()).collect();
            let mut wires: Vec<_> =
                others.iter().map(|from| endpoint.receiver(*from).unwrap()).collect();
            for (wire, to) in out.iter_mut().zip(&others) {
                push_all(&mut **wire, format!("{me:4} greets {to:4}").as_bytes());
            }
            for (wire, from) in wires.iter_mut().zip(&others) {
                let mut heard = [0; 16];
                pull_all(&mut **wire, &mut heard);
                assert_eq!(heard, format!("{from:4} greets {me:4}").as_bytes());
            }
        });
    }
}
