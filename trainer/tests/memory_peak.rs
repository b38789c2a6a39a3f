//! What a process holds at most in a step is what its strategy says it holds, within 2 %.

use brigade_comm::{Communicator, Settings};
use brigade_trainer::{Args, Counting};
use clap::Parser;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

/// The counter of one process belongs to one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One rank: several would share the counter. `brigade compare` looks at worlds of processes.
#[test]
fn peaks_are_what_formulas_say() {
    let _turn = alone();
    let base = "train --batch 32 --context 64 --layers 6 --width 64 --heads 4 --quiet --sample 0 \
                --held-out 0 --threads 1 --steps 3";
    let folder = std::env::temp_dir().join(format!("brigade-peak-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let nvme = format!("--offload nvme:{}", folder.display());
    let mut totals = Vec::new();
    for more in [
        "".to_string(),
        "--recompute".to_string(),
        "--precision bf16".to_string(),
        "--optimizer lion".to_string(),
        "--offload cpu".to_string(),
        nvme.clone(),
        format!("--recompute --strategy fsdp {nvme}"),
        format!("--offload-activations nvme:{} --strategy fsdp {nvme}", folder.display()),
        format!("--recompute --precision bf16 --strategy fsdp {nvme}"),
    ] {
        let flags = base.split_whitespace().chain(more.split_whitespace());
        let args = Command::parse_from(flags).args;
        let outcome =
            brigade_trainer::train(&args, None, &mut std::io::sink(), &mut |_| {}).unwrap();
        let rank = outcome.ranks[0];
        let (peak, formula) = (rank.peak_bytes as f64, rank.memory_bytes as f64);
        println!("{more}: {peak} of {formula}, {:+.2} %", 100.0 * (peak / formula - 1.0));
        assert!((peak / formula - 1.0).abs() < 0.02, "{more}: {peak} bytes, formula {formula}");
        totals.push(rank.memory_bytes);
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(totals[1] < totals[0] / 2, "blocks that are not kept: {totals:?}");
    assert!(totals[6] < totals[1], "state that is not kept: {totals:?}");
    assert!(totals[7] < totals[6], "inputs that are not kept: {totals:?}");
}

/// Workers pack matrices, in each of their threads; servers multiply none.
#[test]
fn only_who_multiplies_packs_matrices() {
    let _turn = alone();
    let formulas = |threads: usize| -> Vec<u64> {
        let flags = format!(
            "train --batch 8 --context 16 --layers 1 --width 64 --heads 4 --quiet --sample 0 \
             --held-out 0 --steps 1 --strategy ps --servers 1 --threads {threads}"
        );
        let args = &Command::parse_from(flags.split_whitespace()).args;
        let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
        let comms = Communicator::local_world(2, &settings).unwrap();
        std::thread::scope(|scope| {
            let train = |comm| {
                let mut out = std::io::sink();
                let outcome = brigade_trainer::train(args, Some(comm), &mut out, &mut |_| {});
                outcome.unwrap().ranks.iter().map(|rank| rank.memory_bytes).collect()
            };
            let ranks: Vec<_> =
                comms.into_iter().map(|comm| scope.spawn(move || train(comm))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).next_back().unwrap()
        })
    };
    let [worker, server] = formulas(1).try_into().unwrap();
    let [of_two, of_a_server] = formulas(2).try_into().unwrap();
    assert!(of_two > worker, "{of_two} bytes of two threads, {worker} of one");
    assert_eq!(server, of_a_server);
}
