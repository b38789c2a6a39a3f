//! Clients that are too many, have too much, or say nothing.

use std::net::Ipv4Addr;

use super::super::{MAGIC, StoreClient, number};
use super::*;

/// The beginning of a value of 8 MiB for a key of one byte.
fn long_value(bytes: usize) -> Vec<u8> {
    let mut said = vec![number::SET];
    said.extend(1_u64.to_le_bytes());
    said.push(b'k');
    said.extend((8_u64 << 20).to_le_bytes());
    said.resize(said.len() + bytes, 7);
    said
}

fn call(port: u16) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE / 2)).unwrap();
    stream
}

/// One who has introduced himself.
fn known(port: u16) -> TcpStream {
    let mut stream = call(port);
    stream.write_all(&[&[number::VALIDATE][..], &MAGIC.to_le_bytes()].concat()).unwrap();
    stream
}

/// Whether it is hung up on, whatever else it wants to say.
fn is_sent_away(mut stream: TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => !is_later(&error),
    }
}

#[test]
fn who_has_not_introduced_itself_and_who_has_most_where_it_is_too_much_are_sent_away() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let bounds = Bounds { boxes_bytes: 1 << 20, ..BOUNDS };
    let server = StoreServer::start_within(listener, bounds).unwrap();
    let port = server.address().port();
    let later = Instant::now() + 6 * PATIENCE;
    let mut honest = StoreClient::connect("127.0.0.1", port, later).unwrap();
    let mut stranger = call(port);
    stranger.write_all(&long_value(100)).unwrap();
    assert!(is_sent_away(stranger));
    let (mut small, mut large) = (known(port), known(port));
    small.write_all(&long_value(100 << 10)).unwrap();
    // It may be hung up on before it has said all.
    let _ = large.write_all(&long_value(4 << 20));
    assert!(is_sent_away(large));
    honest.set("key", b"value", later).unwrap();
    assert_eq!(honest.get("key", later).unwrap(), b"value");
    small.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(!is_sent_away(small), "it has not too much");
}

#[test]
fn who_never_asks_for_anything_makes_room_and_who_has_asked_stays() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let patience = Duration::from_millis(500);
    let bounds = Bounds { clients: 6, patience, ..BOUNDS };
    let server = StoreServer::start_within(listener, bounds).unwrap();
    let port = server.address().port();
    let later = Instant::now() + 6 * PATIENCE;
    let join = || StoreClient::connect("127.0.0.1", port, later).unwrap();
    let mut first = join();
    first.set("key", b"value", later).unwrap();
    let idle: Vec<TcpStream> = (0..5).map(|_| known(port)).collect();
    let mut others: Vec<StoreClient> = (0..4)
        .map(|_| {
            let mut other = join();
            assert_eq!(other.get("key", later).unwrap(), b"value");
            other
        })
        .collect();
    let gone = idle.iter().map(|stream| {
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        is_sent_away(stream.try_clone().unwrap())
    });
    assert_eq!(gone.filter(|gone| *gone).count(), 4, "no more than need be");
    for client in others.iter_mut().chain([&mut first]) {
        assert_eq!(client.get("key", later).unwrap(), b"value");
    }
    // Where all have asked, who comes waits for one to go.
    others.push(join());
    others[4].get("key", later).unwrap();
    let waiting = std::thread::spawn(move || {
        let mut last = StoreClient::connect("127.0.0.1", port, later).unwrap();
        last.get("key", later).unwrap()
    });
    std::thread::sleep(2 * patience);
    assert!(!waiting.is_finished());
    drop(others.pop());
    assert_eq!(waiting.join().unwrap(), b"value");
}
