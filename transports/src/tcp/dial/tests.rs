//! Calls that are refused, cut off, dropped, or answered too late.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread;

use super::*;
use crate::tcp::tries::REFUSED;
use crate::tcp::{Settings, Tcp};
use crate::{Group, Port, Transport};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn open() -> Box<dyn Port> {
    Tcp::new(Settings::default()).open([7; 32]).unwrap()
}

/// A socket that has a port, and whether it listens there already.
fn bound(listens: bool) -> (Socket, u16) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.bind(&SockAddr::from(SocketAddr::new(LOOPBACK, 0))).unwrap();
    if listens {
        socket.listen(8).unwrap();
    }
    let port = socket.local_addr().unwrap().as_socket().unwrap().port();
    (socket, port)
}

/// Pass bytes on, both ways, until both ends have hung up.
fn pass_on(caller: TcpStream, port: u16) {
    let listener = TcpStream::connect((LOOPBACK, port)).unwrap();
    let way = |mut from: TcpStream, mut to: TcpStream| {
        thread::spawn(move || {
            // Either end may hang up whenever it likes.
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        })
    };
    way(caller.try_clone().unwrap(), listener.try_clone().unwrap());
    way(listener, caller);
}

/// Dial a rank whose card names the port of `between`, which `serve` does what it likes with,
/// and push something.
fn dial(
    (between, port): (Socket, u16),
    patience: Duration,
    serve: impl FnOnce(Socket, u16) + Send + 'static,
) -> Result<usize, TransportError> {
    let ports = [open(), open()];
    let own = ports[0].card();
    let mut theirs = Card::parse(&ports[1].card()).unwrap();
    let real = std::mem::replace(&mut theirs.port4, port);
    (theirs.port6, theirs.addresses) = (0, vec![LOOPBACK]);
    thread::spawn(move || serve(between, real));
    let theirs = theirs.serialise();
    let cards = [Some(&own[..]), Some(&theirs[..])];
    let deadline = Instant::now() + patience;
    let mut endpoint = ports[0].join(&Group { id: 1, me: 0, cards: &cards, deadline })?;
    endpoint.sender(1, deadline)?.push(&[1; 64])
}

fn check(listens: bool, serve: impl FnOnce(Socket, u16) + Send + 'static) {
    let pushed = dial(bound(listens), Duration::from_secs(20), serve);
    assert!(pushed.expect("what has passed is forgotten") > 0);
}

#[test]
fn where_calls_are_dropped_one_way_the_other_one_makes_the_link() {
    let ports = [open(), open()];
    let cards = [0, 1].map(|at: usize| ports[at].card());
    // Nobody answers who calls the second rank, and the first one, if both dial, is to make it.
    let (listener, port) = bound(false);
    listener.listen(0).unwrap();
    let _takes_the_room = TcpStream::connect((LOOPBACK, port)).unwrap();
    let mut unheard = Card::parse(&cards[1]).unwrap();
    (unheard.port4, unheard.port6, unheard.addresses) = (port, 0, vec![LOOPBACK]);
    let unheard = unheard.serialise();
    thread::scope(|scope| {
        for (me, port) in ports.iter().enumerate() {
            let cards = [Some(&cards[0][..]), Some(if me == 0 { &unheard } else { &cards[1] })];
            scope.spawn(move || {
                let deadline = Instant::now() + Duration::from_secs(20);
                let group = Group { id: 1, me, cards: &cards, deadline };
                let mut endpoint = port.join(&group).unwrap();
                let mut wire = endpoint.sender(1 - me, deadline).expect("one way is open");
                assert!(wire.push(&[1; 64]).unwrap() > 0);
                let mut receiver = endpoint.receiver(1 - me).unwrap();
                while receiver.pull_into(&mut [0; 64]).expect("it stays") == 0 {
                    assert!(Instant::now() < deadline);
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
    });
}

#[test]
fn who_calls_in_vain_says_whom_and_where_and_what_to_look_at() {
    // Nobody accepts here, and where there is no room for one more call the kernel drops it.
    for (fills, words) in [(0, "is it stopped?"), (2, "does a firewall drop the call?")] {
        let (listener, port) = bound(false);
        listener.listen(0).unwrap();
        let address = SocketAddr::new(LOOPBACK, port);
        let patience = Duration::from_millis(300);
        let call = |_| TcpStream::connect_timeout(&address, patience);
        let calls: Vec<_> = (0..fills).map(call).collect();
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let error = dial((listener, port), patience, move |_listener, _| {
            let _until_the_end = held.recv();
        });
        let error = error.expect_err("nobody answers").to_string();
        for part in ["member 1", &address.to_string(), words] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
        drop((calls, hold));
    }
}

#[test]
fn who_is_refused_in_passing_dials_again() {
    check(false, |between, real| {
        thread::sleep(REFUSED / 3);
        between.listen(8).unwrap();
        pass_on(TcpListener::from(between).accept().unwrap().0, real);
    });
}

#[test]
fn who_is_cut_off_in_passing_dials_again() {
    check(true, |between, real| {
        let listener = TcpListener::from(between);
        for _ in 0..5 {
            // In the middle of the proof.
            let (mut caller, _) = listener.accept().unwrap();
            caller.write_all(b"brigade1").unwrap();
        }
        pass_on(listener.accept().unwrap().0, real);
    });
}
