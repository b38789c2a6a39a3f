//! What one wire of each transport does on this machine, below any collective: the time from a push
//! to its pull, spinning and sleeping, and the bytes a second of a long message. Every byte that
//! arrives is added up and checked against what was sent.
//!
//! ```text
//! cargo run --release -p brigade-transports --example wires [loopback|shm|rdma|tcp ...] [quick]
//! ```
//!
//! `quick` does a hundredth of it: enough for devices that are programs, and for a first look. Of
//! rdma only what was named is measured, since few machines have it.

use std::time::{Duration, Instant};

use brigade_transports::loopback::World;
use brigade_transports::rdma::Rdma;
use brigade_transports::shm::Shm;
use brigade_transports::tcp::{Settings, Tcp};
use brigade_transports::{Endpoint, Group, Port, RecvWire, SendWire, Transport, TransportError};

const LIMIT: Duration = Duration::from_secs(60);
const ROUNDS: usize = 10_000;
const STREAM_BYTES: usize = 256 << 20;

/// Sizes of the messages that go to and fro, in bytes.
const SIZES: [usize; 4] = [8, 1 << 10, 64 << 10, 1 << 20];

fn main() -> Result<(), TransportError> {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    let is_quick = names.iter().any(|name| name == "quick");
    names.retain(|name| name != "quick");
    let share = if is_quick { 100 } else { 1 };
    println!(
        "{:>10} {:>9} {:>11} {:>11} {:>8}",
        "transport", "bytes", "spin us", "sleep us", "GB/s"
    );
    for name in ["loopback", "shm", "rdma", "tcp"] {
        if names.is_empty() && name != "rdma" || names.iter().any(|chosen| chosen == name) {
            measure(name, share)?;
        }
    }
    Ok(())
}

fn transport(name: &str) -> Box<dyn Transport> {
    match name {
        "loopback" => Box::new(World::new(2).transport()),
        "shm" => Box::new(Shm::new()),
        "rdma" => Box::new(Rdma::default()),
        "tcp" => Box::new(Tcp::new(Settings::default())),
        other => unreachable!("{other} is not in the list"),
    }
}

/// One side of a pair of wires.
struct Side {
    me: usize,
    endpoint: Box<dyn Endpoint>,
    sender: Box<dyn SendWire>,
    receiver: Box<dyn RecvWire>,
}

fn measure(name: &str, share: usize) -> Result<(), TransportError> {
    let transport = transport(name);
    let ports = [transport.open([7; 32])?, transport.open([7; 32])?];
    let cards = ports.each_ref().map(|port| port.card());
    let join = |me: usize| join(&*ports[me], &cards, me);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| join(1)?.run(share, |_, _, _, _| ()));
        let mine = join(0)?.run(share, |bytes, spin, sleep, rate| {
            println!("{name:>10} {bytes:>9} {spin:>11.2} {sleep:>11.2} {rate:>8.4}");
        });
        other.join().expect("the other side does not panic")?;
        mine
    })
}

fn join(port: &dyn Port, cards: &[Vec<u8>; 2], me: usize) -> Result<Side, TransportError> {
    let cards = [Some(&cards[0][..]), Some(&cards[1][..])];
    let deadline = Instant::now() + LIMIT;
    let mut endpoint = port.join(&Group { id: 1, me, cards: &cards, deadline })?;
    let sender = endpoint.sender(1 - me, deadline)?;
    let receiver = endpoint.receiver(1 - me)?;
    Ok(Side { me, endpoint, sender, receiver })
}

impl Side {
    /// Run a share of all sizes and hand (bytes, microseconds spinning, microseconds sleeping,
    /// GB/s) on.
    fn run(
        mut self,
        share: usize,
        mut row: impl FnMut(usize, f64, f64, f64),
    ) -> Result<(), TransportError> {
        for bytes in SIZES {
            let rounds = (ROUNDS / share / (1 + bytes / 4096)).max(8);
            let spin = self.ping_pong(bytes, rounds, false)?;
            let sleep = self.ping_pong(bytes, rounds / 4, true)?;
            let count = (STREAM_BYTES / bytes).min(1 << 20) / share;
            // A device that is a program needs the processor that a spinning rank would take.
            let rate = self.stream(bytes, count, share > 1)?;
            row(bytes, spin, sleep, rate);
        }
        Ok(())
    }

    /// Microseconds for one way.
    fn ping_pong(
        &mut self,
        bytes: usize,
        rounds: usize,
        sleeps: bool,
    ) -> Result<f64, TransportError> {
        let message = vec![self.me as u8 + 1; bytes];
        let start = Instant::now();
        for _ in 0..rounds {
            if self.me == 0 {
                self.send(&message, sleeps)?;
                self.receive(bytes, sleeps)?;
            } else {
                self.receive(bytes, sleeps)?;
                self.send(&message, sleeps)?;
            }
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / (2 * rounds) as f64)
    }

    /// GB/s of `count` messages of so many bytes, one after the other, from 0 to 1.
    fn stream(&mut self, bytes: usize, count: usize, sleeps: bool) -> Result<f64, TransportError> {
        let count = count.max(8);
        let message = vec![1; bytes];
        let start = Instant::now();
        if self.me == 0 {
            for _ in 0..count {
                self.send(&message, sleeps)?;
            }
            self.receive(8, sleeps)?;
        } else {
            self.receive(count * bytes, sleeps)?;
            self.send(&[2; 8], sleeps)?;
        }
        Ok((count * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9)
    }

    fn send(&mut self, message: &[u8], sleeps: bool) -> Result<(), TransportError> {
        let Self { endpoint, sender, .. } = self;
        let mut at = 0;
        until(&mut **endpoint, sleeps, || {
            at += sender.push(&message[at..])?;
            Ok(at == message.len())
        })
    }

    /// Pull so many bytes, all of which are what the other side sends.
    fn receive(&mut self, bytes: usize, sleeps: bool) -> Result<(), TransportError> {
        let expected = 2 - self.me as u64;
        let Self { endpoint, receiver, .. } = self;
        let (mut at, mut sum) = (0, 0);
        until(&mut **endpoint, sleeps, || {
            at += receiver.pull(bytes - at, 1, &mut |slice| {
                sum += slice.iter().map(|&byte| u64::from(byte)).sum::<u64>();
            })?;
            Ok(at == bytes)
        })?;
        assert_eq!(sum, expected * bytes as u64, "what arrived is what was sent");
        Ok(())
    }
}

/// Repeat `step` until it is done, spinning or sleeping in between.
fn until(
    endpoint: &mut dyn Endpoint,
    sleeps: bool,
    mut step: impl FnMut() -> Result<bool, TransportError>,
) -> Result<(), TransportError> {
    let mut spins = 0_u32;
    while !step()? {
        if sleeps {
            endpoint.doorbell().arm();
            if step()? {
                endpoint.doorbell().disarm();
                return Ok(());
            }
            endpoint.doorbell().wait(Duration::from_secs(1))?;
            continue;
        }
        spins += 1;
        std::hint::spin_loop();
        if spins.is_multiple_of(1 << 8) {
            std::thread::yield_now();
            endpoint.check()?;
        }
    }
    Ok(())
}
