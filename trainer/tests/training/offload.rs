//! Whatever is kept in cheaper memory, the digits are those of the run in memory, and files are
//! read and written as the formulas say.

use brigade_trainer::Args;

use crate::world::{Folder, bits, ends, train, world};

fn args(more: &str) -> Args {
    crate::world::args(&format!("--ordered --steps 4 {more}"))
}

const STAGES: [&str; 4] = ["ddp", "zero1", "zero2", "fsdp"];

/// Same digits, bytes as predicted, and no file left.
#[test]
fn moments_and_parameters_in_files_change_no_bit() {
    let alone = train(&args(""), None).unwrap();
    for stage in STAGES {
        for ranks in [1, 2, 3] {
            let folder = Folder::new();
            let args = args(&format!("--strategy {stage} {}", folder.nvme()));
            for (rank, outcome) in world(ranks, &args).iter().enumerate() {
                let what = format!("{stage}, rank {rank} of {ranks}");
                assert_eq!(bits(&outcome.losses), bits(&alone.losses), "{what}");
                assert_eq!(
                    outcome.held_out.map(f64::to_bits),
                    alone.held_out.map(f64::to_bits),
                    "{what}"
                );
                assert_eq!(outcome.sent_bytes, outcome.formula_bytes, "{what}");
                let (used, formula) = (outcome.disk, outcome.disk_formula);
                assert!(formula.read_bytes > 0 && formula.written_bytes > 0, "{what}");
                assert_eq!(used.read_bytes, formula.read_bytes, "{what}");
                assert_eq!(used.written_bytes, formula.written_bytes, "{what}");
            }
            assert!(folder.is_empty(), "{stage}: files stayed");
        }
    }
}

/// The formula itself, in numbers: two moments of every parameter both ways, in whole blocks.
#[test]
fn one_process_moves_two_moments_a_step_and_infinity_also_parameters() {
    let folder = Folder::new();
    let units = [256 * 20 + 24 * 20, 12 * 400 + 13 * 20, 12 * 400 + 13 * 20, 256 * 20 + 40];
    let blocks: usize = units.iter().map(|unit: &usize| unit.div_ceil(1024)).sum();
    let update = 4 * 2 * 4096 * blocks as u64;
    let outcome = train(&args(&folder.nvme()), None).unwrap();
    assert_eq!([outcome.disk.read_bytes, outcome.disk.written_bytes], [update; 2]);
    // Each unit in both passes, but the last and, after the first of twelve lanes, the first once.
    let fetched = [13, 24, 24, 12].iter().zip(units).map(|(n, unit)| n * unit.div_ceil(1024));
    let fetched = 4 * 4096 * fetched.sum::<usize>() as u64;
    let args = args(&format!("--strategy fsdp {}", folder.nvme()));
    let outcome = train(&args, None).unwrap();
    assert_eq!(outcome.disk.read_bytes, update / 2 * 3 + fetched);
    assert_eq!(outcome.disk.written_bytes, update / 2 * 3);
}

#[test]
fn an_arena_of_the_host_changes_no_bit() {
    let alone = train(&args(""), None).unwrap();
    for stage in STAGES {
        for ranks in [1, 2] {
            let args = args(&format!("--strategy {stage} --offload cpu"));
            for outcome in world(ranks, &args) {
                assert_eq!(bits(&outcome.losses), bits(&alone.losses), "{stage}, {ranks} ranks");
            }
        }
    }
}

#[test]
fn a_budget_is_hard_and_says_what_it_should_be() {
    let folder = Folder::new();
    for tier in ["--offload cpu".to_string(), folder.nvme()] {
        let args = args(&format!("--strategy zero2 {tier} --host-budget 40K"));
        for end in ends(2, &args) {
            let problem = end.unwrap_err().to_string();
            let is_said = problem.contains("--host-budget: ");
            assert!(is_said && problem.contains("is the least that it works"), "{problem}");
        }
    }
    let args = args(&format!("--strategy fsdp {} --host-budget 300K", folder.nvme()));
    let alone = train(&self::args(""), None).unwrap();
    assert_eq!(bits(&train(&args, None).unwrap().losses), bits(&alone.losses));
}

/// An ordinary checkpoint, from one tier to another, with another number of ranks.
#[test]
fn a_run_goes_on_from_a_checkpoint_in_another_tier() {
    let folder = Folder::new();
    let whole = train(&args(""), None).unwrap();
    let tiers = [String::new(), "--offload cpu".to_string(), folder.nvme()];
    for (before, after) in [(0, 2), (2, 1), (2, 2), (2, 0)] {
        let file = folder.file("state");
        let first = args(&format!("--strategy fsdp {}", tiers[before]));
        let first = Args { checkpoint: file.clone(), stop_at: Some(2), ..first };
        let first = Args { checkpoint_every: Some(1), ..first };
        for outcome in world(2, &first) {
            assert_eq!(outcome.disk.read_bytes, outcome.disk_formula.read_bytes);
            assert_eq!(bits(&outcome.losses), bits(&whole.losses[..2]));
        }
        let second = args(&format!("--strategy fsdp {}", tiers[after]));
        for outcome in world(3, &Args { resume: file, ..second }) {
            assert_eq!(bits(&outcome.losses), bits(&whole.losses[2..]), "{before}, {after}");
        }
    }
}
