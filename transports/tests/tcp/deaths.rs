//! A process that is killed shows to its peer at once.

use std::time::{Duration, Instant};

use crate::rank::{Rank, introduce};

fn check(part: &str, me: usize, pause: Duration) {
    let mut ranks = [Rank::start(&["env"], 0, part, ""), Rank::start(&["env"], 1, part, "")];
    introduce(&mut ranks);
    ranks[0].hear("pouring");
    ranks[1].hear("pouring");
    std::thread::sleep(pause);
    let killed = Instant::now();
    ranks[1 - me].kill();
    let gone = ranks[me].hear("gone");
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    assert!(gone.starts_with(&(1 - me).to_string()), "{gone}");
}

#[test]
fn a_killed_process_shows_at_once_in_full_flow_and_when_idle() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..3 {
        for part in ["pour", "idle"] {
            check(part, random.usize(..2), Duration::from_micros(random.u64(..20_000)));
        }
    }
}
