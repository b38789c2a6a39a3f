//! Survivors of a world whose root went with the first loss: nobody is left to tell them of a
//! second one, so whoever is left finds it out by itself, and names it.

use std::time::{Duration, Instant};

use brigade_comm::Communicator;
use brigade_comm::bootstrap::UniqueId;

use super::PATIENCE;
use super::process::{Process, Said};

const RANKS: usize = 6;
/// The one whose death nobody was told of.
const SECOND: usize = 4;
/// How long a rank may take to find out.
const NAMED_WITHIN: Duration = Duration::from_secs(5);
/// How long it would wait for others: long beyond that.
const JOIN_MS: u64 = 60_000;

#[test]
#[ignore = "one process of the worlds in this file"]
fn one_rank() {
    if std::env::var("BRIGADE_RANK").is_err() {
        return;
    }
    let comm = Communicator::from_env().expect("a world");
    println!("\nrank: joined");
    let _ended = std::io::stdin().read_line(&mut String::new());
    let outcome = comm.shrink(&[0]).map(drop);
    println!("\nrank: {outcome:?}");
    // Whoever ends now would be taken for lost, too.
    let _ended = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn a_second_loss_is_named_where_no_root_is_left() {
    for transport in ["shm", "tcp"] {
        let (id, root) = UniqueId::create(None).expect("a root");
        let how = (transport, JOIN_MS);
        let start = |rank| Process::rank("shrinking::one_rank", (rank, RANKS), &id, how, &[]);
        let mut world: Vec<Process> = (0..RANKS).map(start).collect();
        for process in &world {
            assert_eq!(process.said(PATIENCE), Said::Joined);
        }
        drop(root);
        world[0].kill();
        world[SECOND].kill();
        let begin = Instant::now();
        let left = (1..RANKS).filter(|rank| *rank != SECOND);
        left.clone().for_each(|rank| world[rank].order("shrink"));
        for rank in left {
            let said = world[rank].line(PATIENCE).expect("every wait ends");
            let after = begin.elapsed();
            println!("{transport}, rank {rank} after {after:?}: {said}");
            assert!(said.contains(&format!("rank {SECOND} is lost")), "{transport}: {said}");
            assert!(after < NAMED_WITHIN, "{transport}: only after {after:?}: {said}");
        }
    }
}
