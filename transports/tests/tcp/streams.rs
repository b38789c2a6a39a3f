//! One process, two ranks: addresses, ports and sockets as the settings say.

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use brigade_transports::tcp::{Reach, Settings, Tcp};
use brigade_transports::{Endpoint, Group, Port, RecvWire, SendWire, Transport, TransportError};

/// Two ranks of a world and the wires between them. Fields are dropped in this order.
pub(crate) struct Two {
    pub(crate) wires: Vec<(Box<dyn SendWire>, Box<dyn RecvWire>)>,
    _endpoints: Vec<Box<dyn Endpoint>>,
    _ports: Vec<Box<dyn Port>>,
    pub(crate) transports: [Tcp; 2],
}

/// Rank 0 dials, rank 1 accepts.
pub(crate) fn two(settings: [Settings; 2]) -> Two {
    let transports = settings.map(Tcp::new);
    let ports: Vec<_> = transports.iter().map(|tcp| tcp.open([7; 32]).unwrap()).collect();
    let cards: Vec<Vec<u8>> = ports.iter().map(|port| port.card()).collect();
    let cards: Vec<Option<&[u8]>> = cards.iter().map(|card| Some(&card[..])).collect();
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut endpoints: Vec<_> = ports
        .iter()
        .enumerate()
        .map(|(me, port)| port.join(&Group { id: 1, me, cards: &cards, deadline }).unwrap())
        .collect();
    let wires = (0..2)
        .map(|me| {
            let sender = endpoints[me].sender(1 - me, deadline).unwrap();
            (sender, endpoints[me].receiver(1 - me).unwrap())
        })
        .collect();
    Two { wires, _endpoints: endpoints, _ports: ports, transports }
}

impl Two {
    /// Send `total` bytes in random pieces from rank `from` and check them at the other.
    pub(crate) fn stream(&mut self, from: usize, total: usize, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let bytes: Vec<u8> = (0..total).map(|_| random.u8(..)).collect();
        let mut got = Vec::with_capacity(total);
        let mut sent = 0;
        let deadline = Instant::now() + Duration::from_secs(60);
        let [(first, back), (second, forth)] = &mut self.wires[..] else { unreachable!() };
        let (sender, receiver) = if from == 0 { (first, forth) } else { (second, back) };
        while got.len() < total {
            assert!(Instant::now() < deadline, "seed {seed}: {sent} sent, {} got", got.len());
            let most = 1 << random.u32(0..21);
            let some = random.usize(1..=most).min(total - sent);
            sent += sender.push(&bytes[sent..sent + some]).unwrap();
            if random.bool() {
                let start = got.len();
                got.resize(total.min(start + random.usize(1..=most)), 0);
                let count = receiver.pull_into(&mut got[start..]).unwrap();
                got.truncate(start + count);
            } else {
                let limit = random.usize(1..=most).min(total - got.len());
                receiver.pull(limit, 1, &mut |slice| got.extend_from_slice(slice)).unwrap();
            }
            assert!(got[..] == bytes[..got.len()], "seed {seed}: other bytes before {}", got.len());
        }
    }
}

#[test]
fn any_number_of_sockets_carries_the_exact_stream() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for sockets in [1, 2, 4, 7] {
        let segment_bytes = 20_000;
        let settings = Settings { sockets_per_peer: sockets, segment_bytes, ..Settings::default() };
        let mut two = two([settings.clone(), settings]);
        two.stream(0, 3 << 20, seed);
        two.stream(1, 3 << 20, !seed);
        assert_eq!(two.transports[0].routes()[0].sockets, sockets);
    }
}

#[test]
fn the_dialling_rank_decides_how_many_sockets() {
    let four = Settings { sockets_per_peer: 4, ..Settings::default() };
    let mut two = two([four, Settings::default()]);
    two.stream(0, 1 << 20, 1);
    two.stream(1, 1 << 20, 2);
}

#[test]
fn small_buffers_lose_nothing() {
    let settings = Settings { buffer_bytes: Some(4096), ..Settings::default() };
    two([settings.clone(), settings]).stream(0, 30_000, 3);
}

#[test]
fn ipv6_loopback_alone_is_enough() {
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        println!("skipped: this machine has no IPv6 loopback address");
        return;
    }
    let settings = Settings { interface: Some("::1".into()), ..Settings::default() };
    let mut two = two([settings.clone(), settings]);
    two.stream(0, 100_000, 4);
    let route = &two.transports[0].routes()[0];
    assert_eq!((route.address.ip(), route.reach), (Ipv6Addr::LOCALHOST.into(), Reach::Loopback));
    assert!(two.transports[0].describe().contains("::1"), "{}", two.transports[0].describe());
}

/// Ports that nobody listens on now.
pub(crate) fn free_ports(count: u16) -> RangeInclusive<u16> {
    for _ in 0..1000 {
        let first = fastrand::u16(20_000..30_000);
        let is_free = |port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok();
        if (first..first + count).all(is_free) {
            return first..=first + count - 1;
        }
    }
    panic!("no {count} free ports in a row");
}

#[test]
fn the_port_range_is_obeyed_and_an_exhausted_one_says_so() {
    let range = free_ports(2);
    let settings = Settings { ports: Some(range.clone()), ..Settings::default() };
    let mut two = two([settings.clone(), settings.clone()]);
    two.stream(0, 1000, 5);
    for port in range.clone() {
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok(), "port {port}");
    }
    match Tcp::new(settings.clone()).open([7; 32]).err() {
        Some(TransportError::Unavailable(error)) => {
            let text = error.to_string();
            assert!(text.contains(&range.start().to_string()), "{text}");
            assert!(text.contains("taken"), "{text}");
        }
        other => panic!("both ports are taken, but: {other:?}"),
    }
    drop(two);
    Tcp::new(settings).open([7; 32]).expect("the ports are free again");
}

#[test]
fn an_interface_that_does_not_exist_is_named() {
    let tcp = Tcp::new(Settings { interface: Some("nosuch0".into()), ..Settings::default() });
    let text = tcp.probe().unwrap_err().to_string();
    assert!(text.contains("nosuch0") && text.contains("lo"), "{text}");
    assert!(tcp.open([7; 32]).is_err());
    let tcp = Tcp::new(Settings { interface: Some("10.0.0.0/99".into()), ..Settings::default() });
    assert!(tcp.probe().unwrap_err().to_string().contains("/99"));
}
