//! What the way through C adds to a call: a benchmark, for `cargo test --release -- --ignored`.

use std::time::Instant;

use brigade_comm::{Communicator, Op, Settings};

use crate::library::{Installed, bounded, has, run};
use crate::programs::link;

const ROUNDS: usize = 9;
/// As in `latency.c`: so short that many stretches meet nobody else on the core.
const STRETCHES: usize = 500;
const CALLS: u32 = 2000;
/// Below a tenth of what 8 bytes take between two ranks over shared memory.
const ADDED_NS_MAX: f64 = 20.0;

#[test]
#[ignore = "a benchmark: it wants an optimised build and a quiet machine"]
fn a_call_through_c_adds_at_most_twenty_nanoseconds() {
    if !has("gcc") {
        return;
    }
    let library = Installed::get();
    let binary = link(&library, "gcc", "latency.c", "cost", &[]);
    let world = Communicator::local_world(1, &Settings::default()).expect("a world of one");
    let (mut rust, mut c) = (f64::INFINITY, f64::INFINITY);
    for round in 0..ROUNDS {
        let here = rust_ns(&world[0]);
        let there: f64 = run(&mut bounded(&binary)).trim().parse().expect("a number");
        println!("round {round}: Rust {here:.1} ns, C {there:.1} ns");
        (rust, c) = (rust.min(here), c.min(there));
    }
    println!("8 bytes, 1 rank, least of {ROUNDS}: Rust {rust:.1} ns, C {c:.1} ns");
    assert!(c - rust <= ADDED_NS_MAX, "C adds {:.1} ns", c - rust);
}

fn rust_ns(comm: &Communicator) -> f64 {
    let mut data = [1.0_f64];
    let mut stretch_ns = || {
        let begun = Instant::now();
        for _ in 0..CALLS {
            comm.all_reduce(std::hint::black_box(&mut data), Op::Max).expect("a call of one rank");
        }
        begun.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..STRETCHES).map(|_| stretch_ns()).fold(f64::INFINITY, f64::min)
}
