//! What shared memory costs beside what the processor asks: small messages against one cache line
//! that changes hands, streams against `memcpy`.
//!
//! `cargo bench -p brigade-transports --bench shm_pingpong`. Two threads are two ranks. The least
//! of many batches is printed, because other work on the machine only adds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use brigade_transports::shm::Shm;
use brigade_transports::{Endpoint, Group, Port, RecvWire, SendWire, Transport};

const BATCHES: usize = 400;
const ROUNDS: u64 = 500;
const SMALL: [usize; 5] = [8, 24, 56, 64, 1024];
const LARGE: [usize; 3] = [64 << 10, 1 << 20, 16 << 20];

/// One rank's end of a pair.
struct Rank {
    me: usize,
    sender: Box<dyn SendWire>,
    receiver: Box<dyn RecvWire>,
    _endpoint: Box<dyn Endpoint>,
}

/// Run both ranks and give back what the first returned.
fn pair<T: Send>(rank: impl Fn(Rank) -> T + Sync) -> T {
    let open = || Shm::new().open([1; 32]).expect("this machine shares memory");
    let ports: [Box<dyn Port>; 2] = [open(), open()];
    let cards = [ports[0].card(), ports[1].card()];
    let cards = [Some(&cards[0][..]), Some(&cards[1][..])];
    let join = |me: usize| {
        let deadline = Instant::now() + Duration::from_secs(10);
        let group = Group { id: 1, me, cards: &cards, deadline };
        let mut endpoint = ports[me].join(&group).expect("both are here");
        let sender = endpoint.sender(1 - me, deadline).expect("a wire");
        let receiver = endpoint.receiver(1 - me).expect("a wire");
        rank(Rank { me, sender, receiver, _endpoint: endpoint })
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| join(1));
        let first = join(0);
        other.join().expect("no panic");
        first
    })
}

fn push_all(wire: &mut dyn SendWire, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match wire.push(bytes).expect("the wire works") {
            0 => std::hint::spin_loop(),
            taken => bytes = &bytes[taken..],
        }
    }
}

fn pull_all(wire: &mut dyn RecvWire, mut target: &mut [u8]) {
    while !target.is_empty() {
        match wire.pull_into(target).expect("the wire works") {
            0 => std::hint::spin_loop(),
            filled => target = &mut target[filled..],
        }
    }
}

/// The least seconds that a batch took.
fn least(mut batch: impl FnMut()) -> f64 {
    let batches = (0..BATCHES).map(|_| {
        let start = Instant::now();
        batch();
        start.elapsed().as_secs_f64()
    });
    batches.fold(f64::INFINITY, f64::min)
}

/// Seconds that a message takes one way.
fn ping(bytes: usize) -> f64 {
    pair(|mut rank| {
        let (out, mut back) = (vec![7; bytes], vec![0; bytes]);
        least(|| {
            for _ in 0..ROUNDS {
                if rank.me == 0 {
                    push_all(&mut *rank.sender, &out);
                }
                pull_all(&mut *rank.receiver, &mut back);
                if rank.me == 1 {
                    push_all(&mut *rank.sender, &out);
                }
            }
        })
    }) / (2 * ROUNDS) as f64
}

/// Seconds that a bare cache line takes one way.
fn line_ping() -> f64 {
    #[repr(align(128))]
    struct Line(AtomicU64);
    let ball = Line(AtomicU64::new(0));
    let rank = |me: u64| {
        let mut turn = me;
        least(|| {
            for _ in 0..ROUNDS {
                while ball.0.load(Ordering::Acquire) != turn {}
                ball.0.store(turn + 1, Ordering::Release);
                turn += 2;
            }
        })
    };
    let both = thread::scope(|scope| {
        let other = scope.spawn(|| rank(1));
        let first = rank(0);
        other.join().expect("no panic");
        first
    });
    both / (2 * ROUNDS) as f64
}

/// Bytes a second, of messages that go one way and are copied out.
fn stream(bytes: usize) -> f64 {
    let messages = ((8 << 20) / bytes).max(1);
    let seconds = pair(|mut rank| {
        let (out, mut back) = (vec![7; bytes], vec![0; bytes]);
        let batches = (0..40).map(|_| {
            let start = Instant::now();
            for _ in 0..messages {
                match rank.me {
                    0 => push_all(&mut *rank.sender, &out),
                    _ => pull_all(&mut *rank.receiver, &mut back),
                }
            }
            match rank.me {
                0 => pull_all(&mut *rank.receiver, &mut [0; 8]),
                _ => push_all(&mut *rank.sender, &[0; 8]),
            }
            start.elapsed().as_secs_f64()
        });
        batches.fold(f64::INFINITY, f64::min)
    });
    (messages * bytes) as f64 / seconds
}

/// Bytes a second that one core copies.
fn copy(bytes: usize) -> f64 {
    let (source, mut target) = (vec![7_u8; bytes], vec![0_u8; bytes]);
    let seconds = (0..40).map(|_| {
        let start = Instant::now();
        target.copy_from_slice(std::hint::black_box(&source));
        std::hint::black_box(&mut target);
        start.elapsed().as_secs_f64()
    });
    bytes as f64 / seconds.fold(f64::INFINITY, f64::min)
}

fn main() {
    let line = line_ping();
    println!("{:>10} {:>12} {:>14}", "bytes", "one way ns", "over a line ns");
    println!("{:>10} {:>12.1} {:>14.1}", "a line", line * 1e9, 0.0);
    for bytes in SMALL {
        let line = line.min(line_ping());
        let seconds = ping(bytes);
        println!("{bytes:>10} {:>12.1} {:>14.1}", seconds * 1e9, (seconds - line) * 1e9);
    }
    println!("{:>10} {:>12} {:>14}", "bytes", "GB/s", "memcpy GB/s");
    for bytes in LARGE {
        println!("{bytes:>10} {:>12.2} {:>14.2}", stream(bytes) / 1e9, copy(bytes) / 1e9);
    }
}
