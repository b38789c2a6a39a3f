//! What ranks hold until their first step: their parts, and never the whole state.

use brigade_comm::{Communicator, Settings};
use brigade_trainer::{Args, Counting, Outcome};
use clap::Parser;
use std::path::PathBuf;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

const RANKS: usize = 4;

/// The most that all ranks, which are threads here and share a counter, held until the first step,
/// as the one that saw the most tells it, and the bytes of a whole state.
fn start(layers: u64, batch: [usize; 2], more: &str) -> (u64, u64) {
    const WIDTH: u64 = 64;
    let [samples, context] = batch;
    let base = format!(
        "train --batch {samples} --context {context} --layers {layers} --width {WIDTH} --heads 4 \
         --steps 2 --quiet --sample 0 --threads 1 {more}"
    );
    let args = Command::parse_from(base.split_whitespace()).args;
    let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
    let comms = Communicator::local_world(RANKS, &settings).unwrap();
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let run = |comm| {
            let args = &args;
            let train = || brigade_trainer::train(args, Some(comm), &mut std::io::sink());
            scope.spawn(move || train().unwrap())
        };
        let threads: Vec<_> = comms.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let most = outcomes[0].ranks.iter().map(|rank| rank.start_bytes).max().unwrap();
    (most, 3 * 4 * layers * 12 * WIDTH * WIDTH)
}

/// A file that is gone when the test ends, well or not.
struct Gone(PathBuf);

impl Drop for Gone {
    fn drop(&mut self) {
        // Nothing is left to do about a file that cannot be removed.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// One test, because several would share the counter.
#[test]
fn ranks_with_parts_of_a_state_start_from_their_parts() {
    let file = std::env::temp_dir().join(format!("brigade-start-{}", std::process::id()));
    let file = Gone(file);
    let path = file.0.display();
    let save = format!("--strategy fsdp --stop-at 1 --checkpoint {path}");
    let resume = format!("--strategy fsdp --resume {path}");
    // All ranks of fsdp hold one state in parts, the sum of its gradients, and rooms for a few
    // units each; those of zero1 hold all parameters and gradients each. Those with a device hold
    // nothing but a unit on its way; where it is not a real one, short samples are many times
    // faster, and the held-out text is cut like them.
    let on_device = "--stop-at 1 --device cuda";
    for (layers, more, bound) in [
        (24, save.as_str(), 2.5),
        (24, &resume, 2.5),
        (24, "--strategy fsdp --offload cpu --stop-at 1", 2.5),
        (24, "--strategy fsdp --precision bf16 --stop-at 1", 2.5),
        (24, "--strategy zero1 --stop-at 1", 5.0),
        (12, &format!("--strategy fsdp {on_device} --checkpoint {path}"), 0.5),
        (12, &format!("{resume} --device cuda"), 0.5),
        (12, &format!("--strategy ddp {on_device}"), 0.5),
    ] {
        let has_device = more.contains("cuda");
        if has_device && !brigade_cuda_fake::has_device() {
            println!("{more}: skipped, there is no device");
            continue;
        }
        let batch = if has_device { [256, 2] } else { [4, 16] };
        let (most, state) = start(layers, batch, more);
        let ratio = most as f64 / state as f64;
        println!("{more}: {RANKS} ranks started with {most} bytes, {ratio:.2} states");
        let least = if has_device { 0 } else { state };
        assert!(most > least, "{more}: {most} bytes cannot be all of them, a state has {state}");
        assert!(ratio < bound, "{more}: {ratio:.2} whole states between {RANKS} ranks");
    }
}
