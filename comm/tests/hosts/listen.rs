//! Somebody who listens on a cable, and what there is for him to hear.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::UdpSocket;
use std::time::Duration;

use brigade_comm::{Communicator, WindowSize};
use socket2::{Domain, Protocol, Socket, Type};

use crate::job::{Job, say};
use crate::net::{Family, Hosts};

/// What is broadcast, put into a window, named by a rank that waits, and said in the open at last.
const WORDS: [&str; 4] = ["a gradient;", "a window's;", "barrier", "that is all"];
/// So few that a listener's buffer, as large as the kernel lets it be, has room for all.
const BYTES: usize = 8_000;
/// All protocols, in the order of the network.
const ALL_PROTOCOLS: i32 = (libc::ETH_P_ALL as u16).to_be() as i32;

#[test]
fn who_listens_on_the_network_hears_nothing_where_ranks_encrypt() {
    let Some(hosts) = Hosts::new("e", 2, Family::Both) else { return };
    let open: BTreeSet<_> = WORDS[..3].iter().map(|word| word.to_string()).collect();
    let sockets = ("BRIGADE_SOCKETS", "1");
    assert_eq!(heard_beside(&hosts, &[("BRIGADE_ENCRYPT", "0")]), open);
    assert_eq!(heard_beside(&hosts, &[("BRIGADE_ENCRYPT", "1")]), BTreeSet::new());
    assert_eq!(heard_beside(&hosts, &[("BRIGADE_ENCRYPT", "1"), sockets]), BTreeSet::new());
}

/// The words that are heard on the cable of host 1 while three ranks speak.
fn heard_beside(hosts: &Hosts, settings: &[(&str, &str)]) -> BTreeSet<String> {
    let listener = Job::start(hosts, &[1], "listening", &[]);
    listener.hear(0, "listening");
    let job = Job::start(hosts, &[0, 1, 1], "speaking", settings);
    job.hear_all("done");
    let heard = std::iter::from_fn(|| Some(listener.hear(0, "heard")));
    heard.take_while(|word| word != WORDS[3]).collect()
}

/// Tell of each of the words once, when it is first heard; until we are ended.
pub(crate) fn listen() {
    let protocol = Some(Protocol::from(ALL_PROTOCOLS));
    let mut cable = Socket::new(Domain::PACKET, Type::RAW, protocol).unwrap();
    cable.set_recv_buffer_size(64 << 20).unwrap();
    say("listening");
    let mut left: Vec<&str> = WORDS.to_vec();
    let mut packet = vec![0; 128 << 10];
    while !left.is_empty() {
        let bytes = cable.read(&mut packet).unwrap();
        left.retain(|word| {
            let is_heard = packet[..bytes].windows(word.len()).any(|some| some == word.as_bytes());
            if is_heard {
                say(&format!("heard {word}"));
            }
            !is_heard
        });
    }
}

/// Say them all, in ways that ranks have.
pub(crate) fn speak() {
    let world = Communicator::from_env().unwrap();
    let rank = world.rank();
    let spoken = |word: &str| -> Vec<u8> { word.bytes().cycle().take(BYTES).collect() };
    let mut data = if rank == 0 { spoken(WORDS[0]) } else { vec![0; BYTES] };
    world.broadcast(&mut data, 0).unwrap();
    assert!(data == spoken(WORDS[0]), "rank {rank}");
    let window = world.window(WindowSize { bytes: BYTES, signals: 1 }).unwrap();
    let next = (rank + 1) % world.size();
    window.put(next, 0, &spoken(WORDS[1])).unwrap();
    window.signal(next, 0, 1).unwrap();
    window.wait(0, 1).unwrap();
    let mut got = vec![0; BYTES];
    window.get(next, 0, &mut got).unwrap();
    assert!(got == spoken(WORDS[1]), "rank {rank}");
    world.barrier().unwrap();
    if rank == 0 {
        // The others tell the root, which is in this process, in which call they stand.
        std::thread::sleep(Duration::from_millis(400));
    }
    world.barrier().unwrap();
    drop((window, world));
    if rank == 1 {
        let open = UdpSocket::bind("10.78.0.2:0").unwrap();
        open.send_to(WORDS[3].as_bytes(), "10.78.0.1:9").unwrap();
    }
}
