//! The small-message path: an all-reduce of 8 bytes between two threads, call by call.
//!
//! `cargo bench -p brigade-bench --bench small_message`

use std::hint::black_box;

use brigade_comm::{Communicator, Op, Settings};
use criterion::{Criterion, criterion_group, criterion_main};

/// What the measuring rank says to the other one: another call follows, or not.
const MORE: u64 = 1;
const ENOUGH: u64 = 0;

fn small_all_reduce(c: &mut Criterion) {
    for transport in ["shm", "tcp", "loopback"] {
        let settings = Settings { transport: transport.to_owned(), ..Settings::default() };
        let world = match Communicator::local_world(2, &settings) {
            Ok(world) => world,
            Err(error) => {
                println!("{transport}: skipped, {error}");
                continue;
            }
        };
        let [here, there] = <[_; 2]>::try_from(world).expect("a world of two has two ranks");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut word = [MORE];
                // Each call is the sum of both ranks' words: this rank's zero, and the other's.
                while word[0] == MORE {
                    word[0] = 0;
                    there.all_reduce(&mut word, Op::Sum).expect("both ranks make the same calls");
                }
            });
            c.bench_function(&format!("all-reduce of 8 B, 2 threads, {transport}"), |bench| {
                bench.iter(|| {
                    let mut word = [MORE];
                    here.all_reduce(black_box(&mut word), Op::Sum).expect("as above");
                    word
                });
            });
            here.all_reduce(&mut [ENOUGH], Op::Sum).expect("as above");
        });
    }
}

criterion_group!(benches, small_all_reduce);
criterion_main!(benches);
