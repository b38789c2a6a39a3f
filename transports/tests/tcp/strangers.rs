//! Callers that are none of ours.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use brigade_transports::tcp::{Settings, Tcp};
use brigade_transports::{Group, Transport, TransportError};

use crate::streams::{free_ports, two};

/// Settings that listen on a port that strangers know.
fn known_port() -> (Settings, u16) {
    let port = *free_ports(1).start();
    (Settings { ports: Some(port..=port), ..Settings::default() }, port)
}

fn call(port: u16) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// All that the listener says before it hangs up.
fn answer(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => bytes,
        Err(error) => panic!("the listener neither answers nor hangs up: {error}"),
    }
}

#[test]
fn garbage_gets_no_answer_and_disturbs_nobody() {
    let (settings, port) = known_port();
    let mut two = two([Settings::default(), settings]);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..20 {
        let mut stream = call(port);
        let bytes: Vec<u8> = (0..random.usize(52..4000)).map(|_| random.u8(..)).collect();
        // It may hang up while we are still talking.
        let _ = stream.write_all(&bytes);
        assert_eq!(answer(stream), [], "round {round}");
        two.stream(round % 2, 10_000, seed);
    }
    let mut stream = call(port);
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: nobody in particular\r\n\r\n")
        .unwrap();
    assert_eq!(answer(stream), []);
}

/// The card is no secret: somebody who has read it, and knows the protocol, but not the secret.
#[test]
fn who_knows_all_but_the_secret_learns_one_nonce() {
    let (settings, port) = known_port();
    let tcp = Tcp::new(settings);
    let listening = tcp.open([7; 32]).unwrap();
    let card = listening.card();
    let mut hello = b"brgtcp 1".to_vec();
    hello.extend(&card[4..20]);
    hello.extend([0; 16]);
    hello.extend(1u32.to_le_bytes());
    hello.extend(0u32.to_le_bytes());
    hello.extend([0, 0, 1, 0]);
    let mut stream = call(port);
    stream.write_all(&hello).unwrap();
    stream.write_all(b"brigade1").unwrap();
    stream.write_all(&[1; 32 + 32]).unwrap();
    let said = answer(stream);
    assert_eq!(said.len(), 40, "{said:?}");
    assert!(said.starts_with(b"brigade1"));
}

#[test]
fn a_flood_of_silent_callers_holds_up_an_honest_one_only_a_little() {
    let (settings, port) = known_port();
    let silent: Vec<TcpStream>;
    let started;
    {
        let tcp = Tcp::new(settings);
        let ports =
            [Tcp::new(Settings::default()).open([7; 32]).unwrap(), tcp.open([7; 32]).unwrap()];
        silent = (0..150)
            .map(|index| {
                let mut stream = call(port);
                // Some stop in the middle of a hello.
                stream.write_all(&b"brgtcp 1 and then nothing"[..index % 25]).unwrap();
                stream
            })
            .collect();
        started = Instant::now();
        let cards = ports.each_ref().map(|port| port.card());
        let cards = [Some(&cards[0][..]), Some(&cards[1][..])];
        let deadline = started + Duration::from_secs(9);
        let mut endpoint = ports[0].join(&Group { id: 1, me: 0, cards: &cards, deadline }).unwrap();
        let mut wire = endpoint.sender(1, deadline).expect("the honest caller gets through");
        assert!(wire.push(&[1; 64]).unwrap() > 0);
        // The listener stops at once, whoever is still calling.
    }
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    for stream in silent {
        assert_eq!(answer(stream), []);
    }
}

#[test]
fn another_secret_is_refused_with_a_hint() {
    let ports =
        [[1; 32], [2; 32]].map(|secret| Tcp::new(Settings::default()).open(secret).unwrap());
    let cards = ports.each_ref().map(|port| port.card());
    let cards = [Some(&cards[0][..]), Some(&cards[1][..])];
    let started = Instant::now();
    let deadline = started + Duration::from_secs(5);
    let mut endpoint = ports[0].join(&Group { id: 1, me: 0, cards: &cards, deadline }).unwrap();
    match endpoint.sender(1, deadline).err() {
        Some(TransportError::Refused { why }) => assert!(why.contains("secret"), "{why}"),
        other => panic!("another secret, but: {other:?}"),
    }
    // That stands, so it is tried no longer.
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

#[test]
fn a_rank_that_is_gone_is_said_to_be_gone() {
    let open = || Tcp::new(Settings::default()).open([7; 32]).unwrap();
    let (own, other) = (open(), open());
    let cards = [own.card(), other.card()];
    drop(other);
    let cards = [Some(&cards[0][..]), Some(&cards[1][..])];
    let started = Instant::now();
    let deadline = started + Duration::from_secs(5);
    let mut endpoint = own.join(&Group { id: 1, me: 0, cards: &cards, deadline }).unwrap();
    match endpoint.sender(1, deadline).err() {
        Some(TransportError::PeerGone { peer: 1, how }) => assert!(how.contains("nobody"), "{how}"),
        other => panic!("rank 1 is gone, but: {other:?}"),
    }
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

#[test]
fn a_hostile_card_is_corrupt_and_names_its_member() {
    let own = Tcp::new(Settings::default()).open([7; 32]).unwrap();
    let card = own.card();
    let cards = [Some(&card[..]), None, Some(&card[..20])];
    let deadline = Instant::now();
    match own.join(&Group { id: 1, me: 0, cards: &cards, deadline }).err() {
        Some(TransportError::Corrupt { peer: 2, .. }) => {}
        other => panic!("card 2 is cut, but: {other:?}"),
    }
}
