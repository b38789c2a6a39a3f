//! What the programs of perftest measure, over wires of RDMA: the time of a short message that goes
//! to and fro, polled for, and the bytes a second of long ones that follow each other one way.
//! `tests/rdma-vm/perftest.sh` runs both in turn.
//!
//! ```text
//! perftest latency BYTES ROUNDS        microseconds of one way, the median
//! perftest bandwidth BYTES MESSAGES    GB/s
//! ```
//!
//! It is not a measurement of a communicator: nothing here knows of calls or plans.

use std::time::{Duration, Instant};

use brigade_transports::rdma::{Rdma, Settings};
use brigade_transports::{Endpoint, Group, Port, RecvWire, SendWire, Transport, TransportError};

const LIMIT: Duration = Duration::from_secs(60);
const USAGE: &str = "usage: perftest latency|bandwidth BYTES COUNT";

fn main() -> Result<(), TransportError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, bytes, count] = &arguments[..] else { panic!("{USAGE}") };
    let [bytes, count] = [bytes, count].map(|number| number.parse::<usize>().expect(USAGE));
    assert!(bytes > 0 && count > 0, "{USAGE}");
    let measure = match &what[..] {
        "latency" => Side::latency_us,
        "bandwidth" => Side::gb_per_s,
        _ => panic!("{USAGE}"),
    };
    // One queue pair each way, as perftest has.
    let transport = Rdma::new(Settings { queue_pairs: 1, ..Settings::default() });
    let ports = [transport.open([7; 32])?, transport.open([7; 32])?];
    let cards = ports.each_ref().map(|port| port.card());
    let run = |me: usize| measure(&mut Side::join(&*ports[me], &cards, me)?, bytes, count);
    let found = std::thread::scope(|scope| {
        let other = scope.spawn(|| run(1));
        let mine = run(0);
        other.join().expect("the other side does not panic").and(mine)
    });
    println!("{:.4}", found?);
    Ok(())
}

/// One side of a pair of wires.
struct Side {
    me: usize,
    // Wires go before their endpoint.
    sender: Box<dyn SendWire>,
    receiver: Box<dyn RecvWire>,
    endpoint: Box<dyn Endpoint>,
}

impl Side {
    fn join(port: &dyn Port, cards: &[Vec<u8>; 2], me: usize) -> Result<Side, TransportError> {
        let cards = [Some(&cards[0][..]), Some(&cards[1][..])];
        let deadline = Instant::now() + LIMIT;
        let mut endpoint = port.join(&Group { id: 1, me, cards: &cards, deadline })?;
        let sender = endpoint.sender(1 - me, deadline)?;
        let receiver = endpoint.receiver(1 - me)?;
        Ok(Side { me, sender, receiver, endpoint })
    }

    /// Half of a round trip.
    fn latency_us(&mut self, bytes: usize, rounds: usize) -> Result<f64, TransportError> {
        let (message, mut target) = (vec![self.me as u8; bytes], vec![0; bytes]);
        let mut times = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let start = Instant::now();
            if self.me == 0 {
                self.send(&message)?;
            }
            let mut at = 0;
            while at < bytes {
                at += self.receiver.pull_into(&mut target[at..])?;
                std::hint::spin_loop();
            }
            if self.me == 1 {
                self.send(&message)?;
            }
            times.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
        }
        assert!(target.iter().all(|&byte| byte == 1 - self.me as u8), "what the other one sends");
        times.sort_by(f64::total_cmp);
        Ok(times[rounds / 2])
    }

    /// From 0 to 1, until the last byte has been answered.
    fn gb_per_s(&mut self, bytes: usize, messages: usize) -> Result<f64, TransportError> {
        let message = vec![1; bytes];
        let start = Instant::now();
        if self.me == 0 {
            for _ in 0..messages {
                self.send(&message)?;
            }
            self.receive(1)?;
        } else {
            self.receive(messages * bytes)?;
            self.send(&[1])?;
        }
        Ok((messages * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9)
    }

    fn send(&mut self, message: &[u8]) -> Result<(), TransportError> {
        let mut at = self.sender.push(message)?;
        while at < message.len() {
            // The words of the receiver ring.
            self.endpoint.doorbell().arm();
            let count = self.sender.push(&message[at..])?;
            at += count;
            if count == 0 {
                self.endpoint.doorbell().wait(LIMIT)?;
            }
        }
        Ok(())
    }

    fn receive(&mut self, bytes: usize) -> Result<(), TransportError> {
        let mut at = 0;
        while at < bytes {
            self.endpoint.doorbell().arm();
            let count = self.receiver.pull(bytes - at, 1, &mut |_| ())?;
            at += count;
            if count == 0 {
                self.endpoint.doorbell().wait(LIMIT)?;
            }
        }
        Ok(())
    }
}
