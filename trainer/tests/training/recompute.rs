//! A block's forward computed again gives the bits that were not kept, and what is kept is what the
//! formula says.

use brigade_trainer::Args;
use brigade_trainer::kernels::Cpu;
use brigade_trainer::layout::Config;
use brigade_trainer::model::Gpt;
use brigade_trainer::tape::Keep;

use crate::world::{Folder, args, bits, train};

fn losses(more: &str) -> Vec<u64> {
    let args = args(&format!("--ordered --steps 4 {more}"));
    bits(&train(&Args { lanes: 6, layers: 3, ..args }, None).unwrap().losses)
}

#[test]
fn blocks_computed_twice_change_no_bit() {
    let kept = losses("");
    assert_eq!(losses("--recompute"), kept);
    let folder = Folder::new();
    let both = format!("--recompute --strategy fsdp {}", folder.nvme());
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
        let around = n * (layers + 1) * 6 + n * (6 + 2 + 11 + 1 + 2);
        assert_eq!(bytes(Keep::All), 4 * (around + layers * block) as u64);
        assert_eq!(bytes(Keep::Inputs), 4 * (around + block) as u64);
    }
}
