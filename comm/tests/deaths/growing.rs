//! A rank of the old group that dies while newcomers are waited for is not waited for with them.

use std::time::{Duration, Instant};

use brigade_comm::Communicator;
use brigade_comm::bootstrap::UniqueId;

use super::PATIENCE;
use super::process::{Process, Said};

const RANKS: usize = 3;
/// How long a rank may take to hear that it waits in vain.
const HEARD_WITHIN: Duration = Duration::from_secs(2);
/// How long it would wait for newcomers: long beyond that.
const JOIN_MS: u64 = 60_000;
const NEW_ID: &str = "BRIGADE_TEST_NEW_ID";

#[test]
#[ignore = "one process of the worlds in this file"]
fn one_rank() {
    let Ok(id) = std::env::var(NEW_ID) else { return };
    let id: UniqueId = id.parse().expect("an id");
    let comm = Communicator::from_env().expect("a world");
    println!("\nrank: joined");
    if comm.rank() == 2 {
        comm.agree_to_grow(RANKS as i64 + 1, None).expect("all agree");
        println!("\nrank: agreed");
        // Until it is killed, or nobody is there any more who would.
        let _ = std::io::stdin().read_line(&mut String::new());
        return;
    }
    let outcome = comm.grow(RANKS + 1, Some(&id)).map(drop);
    println!("\nrank: {outcome:?}");
}

#[test]
fn who_waits_for_newcomers_hears_of_a_rank_that_dies() {
    for transport in ["shm", "tcp"] {
        let (id, _root) = UniqueId::create(None).expect("a root");
        let (new_id, _new_root) = UniqueId::create(None).expect("a root");
        let (how, new_id) = ((transport, JOIN_MS), [(NEW_ID, new_id.to_string())]);
        let start = |rank| Process::rank("growing::one_rank", (rank, RANKS), &id, how, &new_id);
        let mut world: Vec<Process> = (0..RANKS).map(start).collect();
        for process in &world {
            assert_eq!(process.said(PATIENCE), Said::Joined);
        }
        assert_eq!(world[2].line(PATIENCE).as_deref(), Some("rank: agreed"));
        assert_eq!(world[0].said(Duration::from_millis(400)), Said::Nothing, "it waits");
        let begin = Instant::now();
        world[2].kill();
        for process in &world[..2] {
            let said = process.line(PATIENCE).expect("every wait ends");
            let after = begin.elapsed();
            println!("after {after:?}: {said}");
            assert!(said.contains("rank 2 is lost"), "{said}");
            assert!(said.contains("grow: joining"), "{said}");
            assert!(after < HEARD_WITHIN, "only after {after:?}: {said}");
        }
    }
}
