//! Before the first byte: capabilities, cards, absent members and wrong secrets.

use std::time::{Duration, Instant};

use brigade_transports::{CARD_BYTES_MAX, TransportError};

use crate::harness::{Make, Ports, SECRET};

pub(crate) fn caps_are_sane(make: Make) {
    let probed = make.transports(1)[0].probe().expect("usable, or it would not be listed");
    assert!(probed.latency_s > 0.0 && probed.latency_s < 1.0);
    assert!(probed.byte_s > 0.0 && probed.byte_s < 1e-3);
}

pub(crate) fn cards_are_judged_alike(make: Make) {
    let ports = Ports::open(make, 3);
    for (port, card) in ports.ports.iter().zip(&ports.cards) {
        assert!(card.len() <= CARD_BYTES_MAX, "{} bytes", card.len());
        assert_eq!(port.card(), *card, "a card does not change");
        for other in &ports.cards {
            assert!(port.reaches(other), "ranks of one machine reach each other");
        }
    }
}

pub(crate) fn garbage_is_no_card(make: Make) {
    let ports = Ports::open(make, 2);
    let port = &ports.ports[0];
    assert!(!port.reaches(&[]));
    let mut rng = fastrand::Rng::with_seed(500);
    for length in (1..200).chain([CARD_BYTES_MAX, 5 * CARD_BYTES_MAX]) {
        let noise: Vec<u8> = (0..length).map(|_| rng.u8(..)).collect();
        assert!(!port.reaches(&noise), "seed 500, {length} bytes");
    }
    let good = &ports.cards[1];
    for length in 0..good.len() {
        assert!(!port.reaches(&good[..length]), "the first {length} bytes of a card");
    }
    for at in 0..good.len() {
        // What it says may still make sense; it must only be read with care.
        let mut damaged = good.clone();
        damaged[at] ^= 1 << rng.u32(0..8);
        port.reaches(&damaged);
    }
}

pub(crate) fn a_missing_member_is_named_in_time(make: Make) {
    let ports = Ports::open(make, 2);
    let patience = Duration::from_millis(400);
    let start = Instant::now();
    let wires = ports.join(7, &[Some(0), Some(1)], 0, patience).and_then(|mut endpoint| {
        let sender = endpoint.sender(1, start + patience)?;
        let receiver = endpoint.receiver(1)?;
        Ok((endpoint, sender, receiver))
    });
    match wires {
        Err(TransportError::Timeout { what, waited_ms }) => {
            assert!(what.contains("member 1"), "it says whom it waited for: {what}");
            assert!((200..5000).contains(&waited_ms), "{waited_ms} ms");
        }
        Err(other) => panic!("a member is late, but the error is: {other}"),
        Ok((_endpoint, mut sender, mut receiver)) => {
            sender.push(&[0; 64]).expect("it may still come");
            assert_eq!(receiver.pull_into(&mut [0; 64]).expect("it may still come"), 0);
        }
    }
    assert!(start.elapsed() < patience + Duration::from_secs(4), "{:?}", start.elapsed());
}

pub(crate) fn a_wrong_secret_moves_no_bytes(make: Make) {
    let ports = Ports::open_with(make, &[SECRET, [0xa5; 32]]);
    let start = Instant::now();
    let ports = &ports;
    let errors: Vec<Option<TransportError>> = std::thread::scope(|scope| {
        let tries = [0, 1].map(|me| scope.spawn(move || stranger(ports, me)));
        tries.into_iter().map(|it| it.join().expect("no panic")).collect()
    });
    assert!(errors.iter().any(Option::is_some), "somebody notices");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

/// Try to exchange bytes with a member whose secret is another; returns what came in between.
fn stranger(ports: &Ports, me: usize) -> Option<TransportError> {
    let patience = Duration::from_millis(700);
    let deadline = Instant::now() + patience;
    let exchange = || {
        let mut endpoint = ports.join(8, &[Some(0), Some(1)], me, patience)?;
        let mut sender = endpoint.sender(1 - me, deadline)?;
        let mut receiver = endpoint.receiver(1 - me)?;
        sender.push(&[me as u8; 64])?;
        while Instant::now() < deadline {
            let got = receiver.pull_into(&mut [0; 64])?;
            assert_eq!(got, 0, "bytes of somebody who does not know the secret");
            endpoint.doorbell().arm();
            endpoint.doorbell().wait(Duration::from_millis(10))?;
        }
        Ok(())
    };
    exchange().err()
}
