//! What goes into blocks comes back from files with the same bits, in the bytes of the formula.

use brigade_trainer::Args;

use crate::world::{Folder, bits, train, world};

fn args(layers: usize, more: &str) -> Args {
    Args { lanes: 6, layers, ..crate::world::args(&format!("--ordered --steps 3 {more}")) }
}

#[test]
fn inputs_in_files_change_no_bit_and_cost_what_the_formula_says() {
    let folder = Folder::new();
    let nvme = format!("--offload-activations nvme:{}", folder.0.display());
    for layers in [1, 2, 5] {
        let want = bits(&train(&args(layers, ""), None).unwrap().losses);
        let alone = train(&args(layers, &nvme), None).unwrap();
        assert_eq!(bits(&alone.losses), want, "{layers} layers");
        // 3 steps of 6 lanes of 2 samples of 24 tokens of 20 numbers: a page.
        let bytes = 3 * 6 * (layers as u64 - 1) * (4 * 2 * 24 * 20_u64).next_multiple_of(4096);
        assert_eq!([alone.disk.read_bytes, alone.disk.written_bytes], [bytes; 2]);
        let also = format!("--strategy fsdp {nvme} {}", folder.nvme());
        for outcome in world(2, &args(layers, &also)) {
            assert_eq!(bits(&outcome.losses), want, "{layers} layers, 2 ranks");
            assert_eq!(outcome.disk.read_bytes, outcome.disk_formula.read_bytes);
            assert_eq!(outcome.disk.written_bytes, outcome.disk_formula.written_bytes);
        }
    }
    assert!(folder.is_empty(), "files stayed");
}

#[test]
fn the_host_is_where_they_are_already() {
    let refused = train(&args(2, "--offload-activations cpu"), None).unwrap_err();
    assert!(refused.to_string().starts_with("--offload-activations: "), "{refused}");
}
