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

/// Where a run starts, and how far it goes: ranks, layers, samples of a step.
struct Shape {
    ranks: usize,
    layers: u64,
    batch: usize,
    context: usize,
}

const ON_HOST: Shape = Shape { ranks: 4, layers: 24, batch: 4, context: 2 };
/// A device that is not a real one takes its time over each sample.
const ON_DEVICE: Shape = Shape { ranks: 2, layers: 10, batch: 128, context: 1 };

/// The most that all ranks, which are threads here and share a counter, held until the first step,
/// as the one that saw the most tells it, and the bytes of a whole state.
fn start(shape: &Shape, more: &str) -> (u64, u64) {
    const WIDTH: u64 = 64;
    let Shape { ranks, layers, batch, context } = *shape;
    let base = format!(
        "train --batch {batch} --context {context} --layers {layers} --width {WIDTH} --heads 4 \
         --steps 2 --quiet --sample 0 --held-out 0 --threads 1 {more}"
    );
    let args = Command::parse_from(base.split_whitespace()).args;
    let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
    let comms = Communicator::local_world(ranks, &settings).unwrap();
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let run = |comm| {
            let args = &args;
            let train =
                || brigade_trainer::train(args, Some(comm), &mut std::io::sink(), &mut |_| {});
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
    // nothing but a unit on its way: an eighth of a state each, where all parameters are a third.
    let on_device = "--stop-at 1 --device cuda";
    for (more, bound) in [
        (save.as_str(), 2.2),
        (&resume, 2.2),
        ("--strategy fsdp --offload cpu --stop-at 1", 2.2),
        ("--strategy fsdp --precision bf16 --stop-at 1", 2.2),
        ("--strategy zero1 --stop-at 1", 4.5),
        (&format!("--strategy fsdp {on_device} --checkpoint {path}"), 0.25),
        (&format!("{resume} --device cuda"), 0.25),
        (&format!("--strategy ddp {on_device}"), 0.25),
    ] {
        let has_device = more.contains("cuda");
        if has_device && !brigade_cuda_fake::has_device() {
            println!("{more}: skipped, there is no device");
            continue;
        }
        let shape = if has_device { ON_DEVICE } else { ON_HOST };
        let ((most, state), ranks) = (start(&shape, more), shape.ranks);
        let ratio = most as f64 / state as f64;
        println!("{more}: {ranks} ranks started with {most} bytes, {ratio:.2} states");
        let least = if has_device { 0 } else { state };
        assert!(most > least, "{more}: {most} bytes cannot be all of them, a state has {state}");
        assert!(ratio < bound, "{more}: {ratio:.2} whole states between {ranks} ranks");
    }
}
