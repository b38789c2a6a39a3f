//! However many ranks there are, they train the same model as one process.

use brigade_comm::{Communicator, Settings};
use brigade_trainer::{Args, Outcome, train};
use clap::Parser;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

/// A model small enough for seconds, with a parameter count that no rank count divides.
fn args(more: &str) -> Args {
    let base = "train --batch 12 --lanes 12 --context 24 --layers 2 --width 20 --heads 2 --quiet \
                --sample 0 --threads 1 --bucket-mb 0.02";
    Command::parse_from(base.split_whitespace().chain(more.split_whitespace())).args
}

/// The outcome of every rank of a world of threads.
fn world(ranks: usize, args: &Args) -> Vec<Outcome> {
    let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
    let comms = Communicator::local_world(ranks, &settings).unwrap();
    std::thread::scope(|scope| {
        let run = |comm| scope.spawn(move || train(args, Some(comm)).unwrap());
        let threads: Vec<_> = comms.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

#[test]
fn ordered_losses_have_the_same_bits_at_every_number_of_ranks() {
    let args = args("--ordered --steps 6");
    let alone = train(&args, None).unwrap();
    for ranks in [2, 3, 4] {
        for (rank, outcome) in world(ranks, &args).iter().enumerate() {
            assert_eq!(bits(&outcome.losses), bits(&alone.losses), "rank {rank} of {ranks}");
            assert_eq!(outcome.sent_bytes, outcome.formula_bytes, "rank {rank} of {ranks}");
        }
    }
}

#[test]
fn fast_losses_agree_after_fifty_steps() {
    let args = args("--steps 50");
    let alone = train(&args, None).unwrap().losses;
    assert!(
        alone[49] < alone[0] - 1.0,
        "the model must have learnt: {} to {}",
        alone[0],
        alone[49]
    );
    for ranks in [2, 3, 4] {
        let outcomes = world(ranks, &args);
        let (got, want) = (outcomes[0].losses[49], alone[49]);
        assert!((got - want).abs() / want < 1e-5, "{ranks} ranks: {got}, alone {want}");
        assert!(outcomes.iter().all(|one| bits(&one.losses) == bits(&outcomes[0].losses)));
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let one = train(&args("--steps 4"), None).unwrap();
    let three = train(&Args { threads: Some(3), ..args("--steps 4") }, None).unwrap();
    assert_eq!(bits(&one.losses), bits(&three.losses));
}

#[test]
fn a_resumed_run_goes_on_with_the_same_bits() {
    let file = std::env::temp_dir().join(format!("brigade-resume-{}", std::process::id()));
    let saving = Args { checkpoint: Some(file.clone()), ..args("--steps 5") };
    let first = train(&saving, None).map(|_| std::fs::read(&file).unwrap());
    // Twice from the same file: alone and in a world, where rank 0 reads it for all.
    let resuming = Args { resume: Some(file.clone()), ..args("--steps 9 --ordered") };
    let alone = train(&resuming, None);
    let shared = world(3, &resuming);
    std::fs::remove_file(&file).unwrap();
    assert!(!first.unwrap().is_empty());
    let alone = alone.unwrap().losses;
    assert_eq!(alone.len(), 4, "five of nine steps were done before");
    assert!(shared.iter().all(|one| bits(&one.losses) == bits(&alone)));
}
