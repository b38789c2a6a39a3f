//! Loopback worlds in virtual time: one thread drives all ranks, and a seed is a run.

use std::time::{Duration, Instant};

use brigade_transports::loopback::{Clock, Cut, World};
use brigade_transports::{Endpoint, Group, Port, RecvWire, SendWire, TransportError};

/// Endpoints of all ranks of `world`, in one group.
fn endpoints(world: &World, ranks: usize) -> Vec<Box<dyn Endpoint>> {
    let ports: Vec<Box<dyn Port>> = (0..ranks).map(|rank| world.port(rank)).collect();
    let cards: Vec<Vec<u8>> = ports.iter().map(|port| port.card()).collect();
    let cards: Vec<Option<&[u8]>> = cards.iter().map(|card| Some(&card[..])).collect();
    let deadline = Instant::now() + Duration::from_secs(5);
    let group = |me| Group { id: 1, me, cards: &cards, deadline };
    ports.iter().enumerate().map(|(me, port)| port.join(&group(me)).unwrap()).collect()
}

type Wires = (Vec<Box<dyn Endpoint>>, Box<dyn SendWire>, Box<dyn RecvWire>);

/// A group of two and the wire from 0 to 1.
fn wire(world: &World) -> Wires {
    let mut ends = endpoints(world, 2);
    let sender = ends[0].sender(1, Instant::now()).unwrap();
    let receiver = ends[1].receiver(0).unwrap();
    (ends, sender, receiver)
}

fn gone(result: Result<usize, TransportError>) -> Option<usize> {
    match result {
        Err(TransportError::PeerGone { peer, .. }) => Some(peer),
        _ => None,
    }
}

const US: Duration = Duration::from_micros(1);

/// Move 10 000 bytes over each ordered pair of four ranks and write down every step.
fn run(seed: u64) -> Vec<(Duration, usize, usize, usize)> {
    const RANKS: usize = 4;
    const BYTES: usize = 10_000;
    let world = World::new(RANKS)
        .clock(Clock::Virtual)
        .seed(seed)
        .credit_bytes(1024)
        .bulk_bytes(256)
        .delay(US..50 * US)
        .short_pushes()
        .short_pulls();
    let mut ends = endpoints(&world, RANKS);
    let pairs: Vec<(usize, usize)> = (0..RANKS * RANKS)
        .map(|pair| (pair / RANKS, pair % RANKS))
        .filter(|(from, to)| from != to)
        .collect();
    let mut wires: Vec<_> = pairs
        .iter()
        .map(|&(from, to)| {
            let sender = ends[from].sender(to, Instant::now()).unwrap();
            (sender, ends[to].receiver(from).unwrap(), 0, 0)
        })
        .collect();
    let byte = |pair: usize, at: usize| (at * 7 + pair * 31 + at / 251) as u8;
    let messages: Vec<Vec<u8>> =
        (0..pairs.len()).map(|pair| (0..BYTES).map(|at| byte(pair, at)).collect()).collect();
    let mut log = Vec::new();
    loop {
        let mut moved = false;
        for (pair, (sender, receiver, pushed, pulled)) in wires.iter_mut().enumerate() {
            let rest = &messages[pair][*pushed..];
            let took = sender.push(rest).unwrap();
            assert!(took == rest.len() || took % 64 == 0);
            *pushed += took;
            let mut at = *pulled;
            let got = receiver
                .pull(BYTES - *pulled, 8, &mut |slice| {
                    assert_eq!(slice.len() % 8, 0, "seed {seed}");
                    let expected = &messages[pair][at..at + slice.len()];
                    assert_eq!(slice, expected, "seed {seed}, pair {pair}, byte {at}");
                    at += slice.len();
                })
                .unwrap();
            *pulled += got;
            assert_eq!(*pulled, at);
            moved |= took + got > 0;
            log.push((world.now(), pair, took, got));
        }
        if !moved && !world.advance() {
            break;
        }
    }
    assert!(wires.iter().all(|wire| wire.2 == BYTES && wire.3 == BYTES), "seed {seed}");
    log
}

#[test]
fn one_seed_is_one_run_and_another_seed_is_another() {
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
        assert_ne!(run(seed), run(seed + 1), "seed {seed}");
    }
}

#[test]
fn nothing_arrives_before_its_delay_and_everything_after_it() {
    let world = World::new(2).clock(Clock::Virtual).delay(10 * US..11 * US);
    let (_ends, mut sender, mut receiver) = wire(&world);
    assert_eq!(sender.push(&[1; 100]).unwrap(), 100);
    assert_eq!(receiver.pull_into(&mut [0; 100]).unwrap(), 0);
    assert!(world.advance());
    assert!((10 * US..11 * US).contains(&world.now()));
    assert_eq!(receiver.pull_into(&mut [0; 100]).unwrap(), 100);
}

#[test]
fn across_wires_any_order_arises() {
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let world = World::new(3).clock(Clock::Virtual).seed(seed).delay(US..100 * US);
        let mut ends = endpoints(&world, 3);
        for from in [1, 2] {
            ends[from].sender(0, Instant::now()).unwrap().push(&[1; 8]).unwrap();
        }
        let mut receivers = [1, 2].map(|from| ends[0].receiver(from).unwrap());
        assert!(world.advance(), "seed {seed}");
        orders.insert(receivers.each_mut().map(|wire| wire.pull_into(&mut [0; 8]).unwrap()));
    }
    assert!(orders.contains(&[8, 0]) && orders.contains(&[0, 8]), "{orders:?}");
}

#[test]
fn without_a_receiver_time_runs_out_of_events() {
    let world = World::new(2).clock(Clock::Virtual).delay(US..2 * US).credit_bytes(128);
    let (_ends, mut sender, _receiver) = wire(&world);
    assert_eq!(sender.push(&[0; 1000]).unwrap(), 128);
    let mut advances = 0;
    while world.advance() {
        advances += 1;
        assert!(advances < 10, "one piece is one event");
    }
    assert_eq!(sender.push(&[0; 1000]).unwrap(), 0);
}

#[test]
fn a_rank_cut_off_by_bytes_is_gone_for_both_sides() {
    let world = World::new(2).clock(Clock::Virtual).drop_peer(0, Cut::AfterBytes(1000));
    let (mut ends, mut sender, mut receiver) = wire(&world);
    let mut back = ends[1].sender(0, Instant::now()).unwrap();
    assert!(ends[1].check().is_ok());
    assert_eq!(sender.push(&[7; 4096]).unwrap(), 1024, "the blocks that hold the last byte");
    assert_eq!(gone(sender.push(&[7; 64])), Some(1));
    let mut target = [0; 4096];
    assert_eq!(receiver.pull_into(&mut target).unwrap(), 1024, "what arrived can be pulled");
    for _ in 0..3 {
        assert_eq!(gone(receiver.pull_into(&mut target)), Some(0));
        assert_eq!(gone(back.push(&[1; 64])), Some(0));
    }
    let gone_for_1 = ends[1].check().unwrap_err();
    assert_eq!(gone(Err(gone_for_1)), Some(0));
    assert_eq!(gone(ends[0].check().map(|()| 0)), Some(1));
}

#[test]
fn what_was_on_its_way_at_the_cut_is_lost() {
    let cut = Cut::At(100 * US);
    let world = World::new(2).drop_peer(0, cut).clock(Clock::Virtual).delay(60 * US..61 * US);
    let (_ends, mut sender, mut receiver) = wire(&world);
    sender.push(&[1; 64]).unwrap();
    assert!(world.advance());
    sender.push(&[2; 64]).unwrap();
    while world.advance() {}
    let mut target = [0; 128];
    assert_eq!(receiver.pull_into(&mut target).unwrap(), 64);
    assert_eq!(gone(receiver.pull_into(&mut target)), Some(0));
}

#[test]
fn remote_writes_land_in_order_after_a_while() {
    for seed in 0..20 {
        let world = World::new(2).clock(Clock::Virtual).seed(seed).delay(US..30 * US);
        let mut ends = endpoints(&world, 2);
        let local = ends[1].windows().unwrap().expose(64, 2).unwrap();
        let imported = ends[0].windows().unwrap().import(1, &local.descriptor).unwrap();
        let mut remote = imported.expect("at once");
        for round in 1..=20_u64 {
            remote.put(8, &round.to_le_bytes()).unwrap();
            remote.signal(1, 1).unwrap();
            assert_eq!(local.memory.signal(1), round - 1, "seed {seed}");
            while local.memory.signal(1) < round {
                assert!(world.advance(), "seed {seed}");
            }
            let mut seen = [0; 8];
            local.memory.read(8, &mut seen);
            assert_eq!(u64::from_le_bytes(seen), round, "seed {seed}");
        }
    }
}

#[test]
fn a_sleeper_moves_virtual_time() {
    let hour = Duration::from_secs(3600);
    let world = World::new(2).clock(Clock::Virtual).delay(hour..2 * hour);
    let (mut ends, mut sender, mut receiver) = wire(&world);
    sender.push(&[1; 64]).unwrap();
    let start = Instant::now();
    ends[1].doorbell().arm();
    assert_eq!(receiver.pull_into(&mut [0; 64]).unwrap(), 0);
    ends[1].doorbell().wait(hour).unwrap();
    assert_eq!(receiver.pull_into(&mut [0; 64]).unwrap(), 64);
    assert!(world.now() >= hour && start.elapsed() < Duration::from_secs(5));
}
