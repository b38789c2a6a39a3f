//! What goes into blocks comes back from files with the same bits, in the bytes of the formula.

use brigade_comm::{Communicator, Settings};
use brigade_trainer::{Args, Error, Outcome};
use clap::Parser;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn args(layers: usize, more: &str) -> Args {
    let base = "train --batch 12 --lanes 6 --context 24 --width 20 --heads 2 --quiet --sample 0 \
                --threads 1 --ordered --steps 3";
    let flags = base.split_whitespace().chain(more.split_whitespace());
    Args { layers, ..Command::parse_from(flags).args }
}

fn train(args: &Args, world: Option<Communicator>) -> Result<Outcome, Error> {
    brigade_trainer::train(args, world, &mut std::io::sink())
}

fn world(ranks: usize, args: &Args) -> Vec<Outcome> {
    let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
    let comms = Communicator::local_world(ranks, &settings).unwrap();
    std::thread::scope(|scope| {
        let run = |comm| scope.spawn(move || train(args, Some(comm)).unwrap());
        let threads: Vec<_> = comms.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn inputs_in_files_change_no_bit_and_cost_what_the_formula_says() {
    let folder = std::env::temp_dir().join(format!("brigade-inputs-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let nvme = format!("--offload-activations nvme:{}", folder.display());
    for layers in [1, 2, 5] {
        let bits = |outcome: &Outcome| -> Vec<u64> {
            outcome.losses.iter().map(|loss| loss.to_bits()).collect()
        };
        let want = bits(&train(&args(layers, ""), None).unwrap());
        let alone = train(&args(layers, &nvme), None).unwrap();
        assert_eq!(bits(&alone), want, "{layers} layers");
        // 3 steps of 6 lanes of 2 samples of 24 tokens of 20 numbers: a page.
        let bytes = 3 * 6 * (layers as u64 - 1) * (4 * 2 * 24 * 20_u64).next_multiple_of(4096);
        assert_eq!([alone.disk.read_bytes, alone.disk.written_bytes], [bytes; 2]);
        let also = format!("--strategy fsdp {nvme} --offload nvme:{}", folder.display());
        for outcome in world(2, &args(layers, &also)) {
            assert_eq!(bits(&outcome), want, "{layers} layers, 2 ranks");
            assert_eq!(outcome.disk.read_bytes, outcome.disk_formula.read_bytes);
            assert_eq!(outcome.disk.written_bytes, outcome.disk_formula.written_bytes);
        }
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "files stayed");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_host_is_where_they_are_already() {
    let refused = train(&args(2, "--offload-activations cpu"), None).unwrap_err();
    assert!(refused.to_string().starts_with("--offload-activations: "), "{refused}");
}
