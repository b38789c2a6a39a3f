//! Weights of 16 bits: the same digits however they are held, half the bytes, and an overflow on
//! one rank ends the step on all.

use brigade_comm::Communicator;
use brigade_trainer::Args;
use brigade_trainer::kernels::Cpu;
use brigade_trainer::layout::{Config, Layout};
use brigade_trainer::model::Gpt;
use brigade_trainer::optim::{Hyper, Optimizer};
use brigade_trainer::parallel::{Shards, Sharing, Stage};
use brigade_trainer::precision::Precision;
use brigade_trainer::state::State;

use crate::unchecked::unchecked;
use crate::world::{Folder, args, bits, ends, spread, train, world};

#[test]
fn ordered_losses_have_the_same_bits_at_every_stage_and_tier() {
    let folder = Folder::new();
    let nvme = folder.nvme();
    for precision in ["bf16", "f16"] {
        let flags = format!("--ordered --steps 4 --precision {precision}");
        let alone = train(&args(&flags), None).unwrap();
        let full = train(&args("--ordered --steps 4"), None).unwrap();
        assert_ne!(bits(&alone.losses), bits(&full.losses), "{precision} rounds");
        for stage in ["ddp", "zero1", "zero2", "fsdp"] {
            for tier in ["", &nvme] {
                let args = args(&format!("{flags} --strategy {stage} {tier}"));
                for ranks in [1, 2, 3] {
                    for outcome in world(ranks, &args) {
                        let what = format!("{precision}, {stage} {tier}, {ranks} ranks");
                        assert_eq!(bits(&outcome.losses), bits(&alone.losses), "{what}");
                        assert_eq!(
                            outcome.held_out.map(f64::to_bits),
                            alone.held_out.map(f64::to_bits),
                            "{what}"
                        );
                        assert_eq!(outcome.sent_bytes, outcome.formula_bytes, "{what}");
                        let (used, formula) = (outcome.disk, outcome.disk_formula);
                        assert_eq!(used.read_bytes, formula.read_bytes, "{what}");
                        assert_eq!(used.written_bytes, formula.written_bytes, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn weights_of_16_bits_are_half_the_bytes_and_learn_as_well() {
    let sent = |precision: &str| {
        world(2, &args(&format!("--steps 1 --strategy zero2 --precision {precision}")))[0]
            .sent_bytes
    };
    let units = [256 * 20 + 24 * 20, 12 * 400 + 13 * 20, 12 * 400 + 13 * 20, 256 * 20 + 40];
    let mine: u64 = units.iter().map(|unit: &u64| unit / 2).sum();
    assert_eq!(sent("f32") - sent("bf16"), 2 * mine);
    let last = |precision: &str| {
        let flags = format!("--steps 60 --precision {precision}");
        *train(&args(&flags), None).unwrap().losses.last().unwrap()
    };
    let full = last("f32");
    for precision in ["bf16", "f16"] {
        let got = last(precision);
        assert!((got / full - 1.0).abs() < 0.01, "{precision}: {got}, f32 has {full}");
    }
}

#[test]
fn a_resumed_run_goes_on_from_the_masters() {
    let folder = Folder::new();
    let all = args("--ordered --steps 4 --precision bf16 --strategy fsdp");
    let whole = train(&all, None).unwrap();
    world(2, &Args { checkpoint: folder.file("state"), stop_at: Some(2), ..all.clone() });
    let second = world(3, &Args { resume: folder.file("state"), ..all }).swap_remove(1);
    assert_eq!(bits(&second.losses), bits(&whole.losses[2..]));
}

/// Its count goes on, and so does a scale that is not that of a first step.
#[test]
fn a_resumed_run_goes_on_with_the_loss_scale() {
    let folder = Folder::new();
    let all = args("--ordered --steps 8 --precision f16 --strategy zero2");
    let whole = world(2, &Args { checkpoint: folder.file("whole"), ..all.clone() }).swap_remove(0);
    let first = Args { checkpoint: folder.file("first"), stop_at: Some(5), ..all.clone() };
    world(2, &first);
    let (resume, checkpoint) = (folder.file("first"), folder.file("second"));
    let second = world(3, &Args { resume, checkpoint, ..all.clone() }).swap_remove(1);
    assert_eq!(bits(&second.losses), bits(&whole.losses[5..]));
    assert!(folder.bytes("second") == folder.bytes("whole"), "final state, scale included");

    let mut halved = unchecked(&folder.bytes("first"));
    let place = halved.windows(7).position(|bytes| bytes == b"65536.0").unwrap();
    halved[place..place + 7].copy_from_slice(b"32768.0");
    std::fs::write(folder.0.join("halved"), halved).unwrap();
    let (resume, checkpoint) = (folder.file("halved"), folder.file("third"));
    world(2, &Args { resume, checkpoint, ..all });
    let third = folder.bytes("third");
    let says = |text: &str| third.windows(text.len()).any(|bytes| bytes == text.as_bytes());
    assert!(says(r#"\"scale\":32768.0,\"steps\":8"#), "the scale that it went on with");
}

/// What is near is gathered anew after a step that was skipped, as formulas have it.
#[test]
fn steps_that_are_skipped_send_what_their_formula_says() {
    let folder = Folder::new();
    let all = args("--steps 8 --precision f16 --strategy fsdp --mesh dp=2,shard=2 --secondary");
    world(4, &Args { checkpoint: folder.file("first"), stop_at: Some(1), ..all.clone() });
    let mut large = unchecked(&folder.bytes("first"));
    let place = large.windows(7).position(|bytes| bytes == b"65536.0").unwrap();
    large[place..place + 7].copy_from_slice(b"8388608");
    std::fs::write(folder.0.join("large"), large).unwrap();
    let (resume, checkpoint) = (folder.file("large"), folder.file("after"));
    for outcome in world(4, &Args { resume, checkpoint, ..all }) {
        assert_eq!(outcome.sent_bytes, outcome.formula_bytes);
    }
    let after = folder.bytes("after");
    assert!(!after.windows(7).any(|bytes| bytes == b"8388608"), "no step was skipped");
}

/// Numbers of a checkpoint, all of which are as many times what they were.
fn multiplied(bytes: &[u8], by: f32) -> Vec<u8> {
    let bytes = unchecked(bytes);
    let head = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let numbers = bytes[head..].as_chunks().0.iter().map(|four| f32::from_le_bytes(*four) * by);
    bytes[..head].iter().copied().chain(numbers.flat_map(f32::to_le_bytes)).collect()
}

#[test]
fn what_overflows_at_every_scale_ends_the_run_and_is_counted_until_then() {
    let folder = Folder::new();
    let all = args("--steps 40 --precision f16");
    train(&Args { checkpoint: folder.file("small"), stop_at: Some(1), ..all.clone() }, None)
        .unwrap();
    let large = multiplied(&folder.bytes("small"), 60_000.0);
    std::fs::write(folder.0.join("large"), large).unwrap();
    let from = Args { resume: folder.file("large"), ..all.clone() };
    train(&Args { checkpoint: folder.file("some"), stop_at: Some(4), ..from.clone() }, None)
        .unwrap();
    let some = folder.bytes("some");
    let text = br#"\"scale\":8192.0,\"steps\":0,\"skipped\":3"#;
    assert!(some.windows(text.len()).any(|bytes| bytes == text), "three steps, none made");
    check_count_in_f32(&folder, &some);
    let on = Args { resume: folder.file("some"), ..all };
    let problem = train(&on, None).unwrap_err().to_string();
    assert!(problem.starts_with("a gradient overflows f16 at step "), "{problem}");
    for end in ends(2, &on) {
        let problem = end.map(drop).unwrap_err();
        assert!(problem.to_string().contains("a gradient overflows f16 at step "), "{problem}");
    }
}

/// Going on in f32, three of the four steps are no updates either, nor in what that run writes.
fn check_count_in_f32(folder: &Folder, some: &[u8]) {
    let [known, lost] = [br#"\"skipped\":3"#, br#"\"skipped\":0"#];
    let at = some.windows(known.len()).position(|bytes| bytes == known).unwrap();
    let small = multiplied(some, 1.0 / 60_000.0);
    let lost = [&small[..at], lost, &small[at + lost.len()..]].concat();
    let [known, lost] = [("known", small), ("lost", lost)].map(|(name, bytes)| {
        std::fs::write(folder.0.join(name), bytes).unwrap();
        let from = Args { resume: folder.file(name), ..args("--steps 40 --precision f32") };
        let to = folder.file("on");
        train(&Args { checkpoint: to, stop_at: Some(5), ..from }, None).unwrap();
        folder.bytes("on")
    });
    let text = br#"\"skipped\":3"#;
    assert!(known.windows(text.len()).any(|bytes| bytes == text), "it is kept");
    assert!(known[known.len() - 4000..] != lost[lost.len() - 4000..], "it counts");
}

/// One update in a world of threads: whether it was made, and the parameters after it. On rank 1
/// one element of the gradient of unit 1 is `wrong`.
fn update(comm: &Communicator, stage: Stage, wrong: f32) -> (bool, Vec<f32>) {
    let config = Config { vocab: 7, context: 5, layers: 1, heads: 1, width: 4, experts: 0, top: 0 };
    let (model, layout) = (Gpt::new(config, Cpu).unwrap(), Layout::new(config));
    let state = State::new(model.initial(1));
    let sharing = Sharing { stage, is_ordered: false, slots: 1, ..Sharing::default() };
    let mut optimizer = Optimizer::new(Hyper::default(), 1, 0).unwrap();
    let units = 0..layout.units();
    let kernels = model.kernels();
    let mut shards = Shards::new(kernels, Some(comm), sharing, &layout, units.clone(), &state);
    shards.narrow(Precision::F16);
    for unit in units.rev() {
        let (_, grads) = shards.open(unit, 0).unwrap();
        grads.fill(0.01);
        if unit == 1 && comm.rank() == 1 {
            // In the part of the last rank.
            *grads.last_mut().unwrap() = wrong;
        }
        shards.close(unit, 0).unwrap();
        shards.release(unit);
    }
    let is_made = shards.update(&mut optimizer, 0.1).unwrap();
    let mut after = State::room(&layout);
    shards.gather(&mut after).unwrap();
    (is_made, after.params)
}

#[test]
fn an_overflow_on_one_rank_skips_the_step_on_all() {
    let config = Config { vocab: 7, context: 5, layers: 1, heads: 1, width: 4, experts: 0, top: 0 };
    let before = Gpt::new(config, Cpu).unwrap().initial(1);
    for stage in [Stage::Ddp, Stage::Zero1, Stage::Zero2, Stage::Fsdp] {
        for wrong in [f32::INFINITY, f32::NAN] {
            for (is_made, after) in spread(3, |comm| update(&comm, stage, wrong)) {
                assert!(!is_made && after == before, "{stage:?}, {wrong}");
            }
        }
        for (is_made, after) in spread(3, |comm| update(&comm, stage, 0.02)) {
            assert!(is_made && after.iter().zip(&before).all(|(a, b)| a != b), "{stage:?}");
        }
    }
}
