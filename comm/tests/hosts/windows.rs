//! Windows across hosts: inside one a rank reaches the memory by itself, across it asks.

use std::time::Instant;

use brigade_comm::{Communicator, Window, WindowSize};

use crate::job::say;

const BYTES: usize = 300_000;

/// What `rank` writes in round `round`.
fn block(rank: usize, round: u64) -> Vec<u8> {
    (0..BYTES).map(|at| (at * 7 + rank * 31 + round as usize * 13) as u8).collect()
}

/// Each rank writes to all others, who look once all have signalled; and reads what it wrote.
pub(crate) fn ring() {
    const ROUNDS: u64 = 20;
    let world = Communicator::from_env().unwrap();
    let (rank, ranks) = (world.rank(), world.size());
    let size = WindowSize { bytes: ranks * BYTES, signals: 2 };
    let window = world.window(size).unwrap();
    for round in 1..=ROUNDS {
        for to in 0..ranks {
            window.put(to, rank * BYTES, &block(rank, round)).unwrap();
            window.signal(to, 0, 1).unwrap();
        }
        window.wait(0, round * ranks as u64).unwrap();
        let mut got = vec![0; BYTES];
        for from in 0..ranks {
            window.get(rank, from * BYTES, &mut got).unwrap();
            assert!(got == block(from, round), "rank {rank}, from {from}, round {round}");
            window.get(from, rank * BYTES, &mut got).unwrap();
            assert!(got == block(rank, round), "rank {rank}, at {from}, round {round}");
        }
        for to in 0..ranks {
            window.signal(to, 1, 1).unwrap();
        }
        window.wait(1, round * ranks as u64).unwrap();
    }
    world.barrier().unwrap();
}

/// Writes and reads without end; tells the error that ends them, and how long leaving took.
pub(crate) fn flow() {
    let world = Communicator::from_env().unwrap();
    let window = world.window(WindowSize { bytes: world.size() * BYTES, signals: 1 }).unwrap();
    world.barrier().unwrap();
    say("flowing");
    let error = loop {
        if let Err(error) = one_round(&world, &window) {
            break error;
        }
    };
    say(&format!("error {error}"));
    let start = Instant::now();
    drop((window, world));
    say(&format!("left {}", start.elapsed().as_millis()));
}

fn one_round(world: &Communicator, window: &Window) -> Result<(), brigade_comm::Error> {
    let (rank, mut got) = (world.rank(), vec![0; BYTES]);
    for other in (0..world.size()).filter(|&other| other != rank) {
        window.put(other, rank * BYTES, &block(rank, 1))?;
        window.get(other, rank * BYTES, &mut got)?;
        assert!(got == block(rank, 1), "rank {rank} at {other}");
    }
    Ok(())
}
