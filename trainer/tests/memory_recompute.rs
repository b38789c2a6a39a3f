//! A block's forward computed again gives the bits that were not kept, and what is kept is what the
//! formula says.

use brigade_trainer::Args;
use brigade_trainer::kernels::Cpu;
use brigade_trainer::layout::Config;
use brigade_trainer::model::Gpt;
use brigade_trainer::tape::Keep;
use clap::Parser;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn losses(more: &str) -> Vec<u64> {
    let base = "train --batch 12 --lanes 6 --context 24 --layers 3 --width 20 --heads 2 --quiet \
                --sample 0 --threads 1 --ordered --steps 4";
    let args = Command::parse_from(base.split_whitespace().chain(more.split_whitespace())).args;
    let outcome = brigade_trainer::train(&args, None, &mut std::io::sink()).unwrap();
    outcome.losses.iter().map(|loss| loss.to_bits()).collect()
}

#[test]
fn blocks_computed_twice_change_no_bit() {
    let kept = losses("");
    assert_eq!(losses("--recompute"), kept);
    let folder = std::env::temp_dir();
    let both = format!("--recompute --strategy fsdp --offload nvme:{}", folder.display());
    assert_eq!(losses(&both), kept);
}

#[test]
fn one_block_is_held_and_the_inputs_of_all() {
    let (batch, time) = (3, 7);
    for layers in [1, 2, 5] {
        let config =
            Config { vocab: 11, context: 8, layers, heads: 2, width: 6, experts: 0, top: 0 };
        let model = Gpt::new(config, Cpu).unwrap();
        let bytes = |keep| model.tape_that_keeps(keep, 0..layers + 2, batch, time).bytes();
        let n = batch * time;
        let block = n * 15 * 6 + 2 * 2 * n + batch * 2 * time * time;
        let around = n * (layers + 1) * 6 + n * (6 + 2 + 11 + 1);
        assert_eq!(bytes(Keep::All), 4 * (around + layers * block) as u64);
        assert_eq!(bytes(Keep::Inputs), 4 * (around + block) as u64);
    }
}
