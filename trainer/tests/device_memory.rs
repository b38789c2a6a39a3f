//! What ranks take of a device that they share is what their stage of ZeRO leaves each of them.
//! Alone in its process, since other tests would take of the same device.

use brigade_comm::{Communicator, Settings};
use brigade_cuda::{Context, Cuda};
use brigade_cuda_fake::{has_device, is_off};
use brigade_trainer::Args;
use clap::Parser;
use std::io::Write;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

const RANKS: u64 = 4;
/// Numbers of a block, of the embedding and of the head, with a width of 32 and 256 tokens.
const BLOCK: u64 = 12 * 32 * 32 + 13 * 32;
const EMBEDDING: u64 = (256 + 2) * 32;
const HEAD: u64 = (256 + 2) * 32;
const BLOCKS: u64 = 4;

/// Looks at the device each time a line is printed, when all ranks have what they take.
struct Lookout {
    context: Context,
    most: u64,
}

impl Write for Lookout {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let (free, total) = self.context.memory().map_err(std::io::Error::other)?;
        self.most = self.most.max((total - free) as u64);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Bytes of the device that all ranks take.
fn taken(context: &Context, strategy: &str) -> u64 {
    let line = format!(
        "train --batch 256 --context 2 --layers {BLOCKS} --width 32 --heads 2 --quiet --sample 0 \
         --held-out 0 --threads 1 --steps 1 --device cuda --strategy {strategy}"
    );
    let args = &Command::parse_from(line.split_whitespace()).args;
    let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
    let comms = Communicator::local_world(RANKS as usize, &settings).unwrap();
    let run = |comm: Communicator| {
        let mut lookout = Lookout { context: context.clone(), most: 0 };
        brigade_trainer::train(args, Some(comm), &mut lookout, &mut |_| {}).unwrap();
        lookout.most
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            comms.into_iter().map(|comm| scope.spawn(move || run(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
    })
}

#[test]
fn a_rank_takes_its_part_of_what_its_stage_divides() {
    // A device of the machine is not ours alone.
    if !has_device() || is_off() {
        return;
    }
    let context = Context::new(&Cuda::load().unwrap().device(0).unwrap()).unwrap();
    let all = BLOCKS * BLOCK + EMBEDDING + HEAD;
    // Passes, and what groups are made of, are the same in all of them.
    let beside = taken(&context, "ddp") - RANKS * 4 * 4 * all;
    let parts = |arrays: u64| arrays * all / RANKS;
    for (strategy, numbers) in [
        // Parameters and gradients of all lanes whole, then gradients' sum and moments in parts.
        ("zero1", 2 * all + parts(3)),
        ("zero2", all + 2 * BLOCK + parts(3)),
        ("fsdp", 4 * BLOCK + parts(4)),
    ] {
        let (got, want) = (taken(&context, strategy), beside + RANKS * 4 * numbers);
        println!("{strategy}: {got} bytes, {want} by formula");
        // Views begin at round addresses, and parts are equally long.
        assert!(got.abs_diff(want) < RANKS * 24_000, "{strategy}: {got} bytes, {want} by formula");
    }
}
