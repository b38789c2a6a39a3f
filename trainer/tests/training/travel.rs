//! Gradients and parameters that travel in other ways than as they are: what is sent, and how far
//! losses go from those of plain DDP.

use brigade_trainer::{Args, Outcome};

use crate::world::{Folder, args, bits, train, world};

/// The worst relative distance of any loss from another run's.
fn apart(here: &[f64], there: &[f64]) -> f64 {
    assert_eq!(here.len(), there.len());
    here.iter().zip(there).map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f64::max)
}

/// A run on so many ranks: all have the same losses, and sent what their formulas say.
fn run(ranks: usize, args: &Args, what: &str) -> Vec<Outcome> {
    let ends = world(ranks, args);
    for (rank, end) in ends.iter().enumerate() {
        assert_eq!(end.sent_bytes, end.formula_bytes, "bytes of rank {rank} of {ranks}, {what}");
        assert_eq!(bits(&end.losses), bits(&ends[0].losses), "losses of rank {rank}, {what}");
    }
    ends
}

/// Losses of 40 steps stay within so much of those of one process.
fn check_near(ranks: usize, flags: &str, within: f64) -> u64 {
    let alone = train(&args("--steps 40"), None).unwrap().losses;
    assert!(alone[39] < alone[0] - 1.0, "the model must have learnt: {alone:?}");
    let ends = run(ranks, &args(&format!("--steps 40 {flags}")), flags);
    let off = apart(&ends[0].losses, &alone);
    println!("{flags} on {ranks}: {off:.1e}, last {:.4} and {:.4}", ends[0].losses[39], alone[39]);
    assert!(off < within, "{flags} on {ranks} ranks is {off:.1e} off");
    ends.iter().map(|end| end.sent_bytes).sum()
}

#[test]
fn compressed_gradients_train_nearly_the_same_model() {
    let plain = check_near(3, "--strategy ddp", 1e-5);
    for (flags, within, less) in [
        ("--compress bf16", 1e-3, 0.51),
        ("--compress f16", 1e-4, 0.51),
        ("--compress topk:0.1", 0.25, 0.35),
        ("--compress powersgd:2", 0.25, 0.5),
    ] {
        let sent = check_near(3, flags, within);
        assert!((sent as f64) < less * plain as f64, "{flags} sends {sent} of {plain} bytes");
    }
    check_near(2, "--compress bf16 --accumulate 3", 1e-3);
    check_near(2, "--compress powersgd:2 --accumulate 2", 0.25);
    check_near(4, "--compress topk:0.1 --accumulate 3", 0.25);
}

#[test]
fn gradients_of_16_bits_have_the_same_bits_on_any_number_of_ranks() {
    for reduce in ["bf16", "f16"] {
        let flags = format!("--ordered --steps 6 --reduce {reduce}");
        let all = |stage: &str| args(&format!("{flags} --strategy {stage}"));
        let alone = train(&all("zero1"), None).unwrap().losses;
        let plain = train(&args("--ordered --steps 6"), None).unwrap().losses;
        assert!(bits(&alone) != bits(&plain) && apart(&alone, &plain) < 1e-3, "{reduce}");
        for (ranks, stage) in [(2, "zero1"), (3, "zero2"), (4, "fsdp")] {
            let ends = run(ranks, &all(stage), stage);
            assert_eq!(bits(&ends[0].losses), bits(&alone), "{reduce}, {ranks} ranks, {stage}");
        }
    }
}

#[test]
fn narrow_reductions_train_nearly_the_same_model() {
    let plain = check_near(3, "--strategy fsdp", 1e-5) as f64;
    let fsdp = |flags: &str, within| check_near(3, &format!("--strategy fsdp {flags}"), within);
    // ZeRO-2 sends gradients once and parameters once.
    let gradients = check_near(3, "--strategy zero2", 1e-5) as f64 / 2.0;
    for (reduce, within, saved) in
        [("bf16", 1e-3, 1.0 / 2.0), ("int8", 0.02, 95.0 / 128.0), ("int4", 0.1, 111.0 / 128.0)]
    {
        let sent = fsdp(&format!("--reduce {reduce}"), within) as f64;
        let got = (plain - sent) / gradients;
        assert!((got - saved).abs() < 0.01, "{reduce} saves {got} of what gradients come to");
    }
    check_near(2, "--strategy zero1 --reduce bf16 --accumulate 3", 1e-3);
    check_near(2, "--strategy zero2 --reduce int8 --accumulate 2", 0.02);
    check_near(2, "--strategy fsdp --precision bf16 --reduce bf16", 0.02);
}

#[test]
fn packed_parameters_train_nearly_the_same_model() {
    let plain = check_near(3, "--strategy fsdp", 1e-5) as f64;
    let gather = check_near(3, "--strategy fsdp --gather int8", 0.03) as f64;
    let gradients = check_near(3, "--strategy zero2", 1e-5) as f64 / 2.0;
    let saved = (plain - gather) / (plain - gradients);
    assert!((saved - 95.0 / 128.0).abs() < 0.01, "saves {saved} of what parameters come to");
    check_near(2, "--strategy fsdp --gather int8 --reduce int4 --accumulate 2", 0.1);
}

#[test]
fn what_is_updated_is_not_what_is_packed() {
    let folder = Folder::new();
    let all = args("--steps 4 --strategy fsdp --gather int8");
    let whole = run(2, &all, "all steps").swap_remove(0);
    let first = Args { checkpoint: folder.file("state"), stop_at: Some(2), ..all.clone() };
    run(2, &first, "two steps");
    let rest = run(2, &Args { resume: folder.file("state"), ..all }, "two more");
    assert_eq!(bits(&rest[0].losses), bits(&whole.losses[2..]));
}

#[test]
fn states_that_are_held_twice_have_the_bits_of_one_process() {
    let alone = train(&args("--ordered --steps 6"), None).unwrap().losses;
    for (ranks, mesh) in
        [(4, "replicate=2,shard=2"), (6, "shard=3,dp=2"), (6, "dp=3,shard=2"), (3, "shard=3")]
    {
        for stage in ["zero1", "zero2", "fsdp"] {
            let flags = format!("--ordered --steps 6 --strategy {stage} --mesh {mesh}");
            let ends = run(ranks, &args(&flags), &flags);
            assert_eq!(bits(&ends[0].losses), bits(&alone), "{flags}");
        }
    }
    let flags = "--ordered --steps 6 --strategy fsdp --mesh dp=2,shard=2 --secondary";
    assert_eq!(bits(&run(4, &args(flags), flags)[0].losses), bits(&alone), "{flags}");
}

#[test]
fn states_that_are_held_twice_send_less_where_it_is_far() {
    for more in ["", "--accumulate 3", "--precision bf16", "--optimizer lamb", "--reduce bf16"] {
        for stage in ["zero1", "zero2", "fsdp"] {
            let mesh = format!("--strategy {stage} --mesh dp=2,shard=2 {more}");
            let within = if more.contains("bf16") { 0.02 } else { 1e-4 };
            let lamb = if more.contains("lamb") { more } else { "" };
            let alone = train(&args(&format!("--steps 10 {lamb}")), None).unwrap().losses;
            let ends = run(4, &args(&format!("--steps 10 {mesh}")), &mesh);
            let off = apart(&ends[0].losses, &alone);
            assert!(off < within, "{mesh}: {off:.1e}");
        }
    }
    let near =
        check_near(4, "--strategy fsdp --mesh dp=2,shard=2 --secondary --accumulate 3", 1e-5);
    let far = check_near(4, "--strategy fsdp --accumulate 3", 1e-5);
    assert!(near < far, "a second copy saves: {near} and {far} bytes");
}

#[test]
fn agreeing_on_what_is_ready_trains_the_same_model() {
    for flags in ["", "--cycle 3 --fusion 1K", "--cycle 9 --accumulate 3", "--optimizer lamb"] {
        let lamb = if flags.contains("lamb") { flags } else { "" };
        let alone = train(&args(&format!("--steps 10 {lamb}")), None).unwrap().losses;
        let odd = if flags.contains("accumulate") { 2 } else { 3 };
        for ranks in [2, odd, 4] {
            let ends = run(ranks, &args(&format!("--steps 10 --strategy horovod {flags}")), flags);
            let off = apart(&ends[0].losses, &alone);
            assert!(off < 1e-5, "{flags} on {ranks} ranks is {off:.1e} off");
        }
    }
}

#[test]
fn servers_that_wait_for_all_have_the_bits_of_one_process() {
    let alone = train(&args("--ordered --steps 6"), None).unwrap().losses;
    let fast = train(&args("--steps 6"), None).unwrap().losses;
    for (ranks, servers) in [(2, 1), (3, 1), (3, 2), (5, 3), (6, 2)] {
        let flags = format!("--steps 6 --strategy ps --servers {servers}");
        let ends = run(ranks, &args(&format!("{flags} --ordered")), &flags);
        assert_eq!(bits(&ends[0].losses), bits(&alone), "{flags} of {ranks} ranks");
        assert_eq!(ends[0].held_out.map(f64::to_bits), ends[ranks - 1].held_out.map(f64::to_bits));
        let ends = run(ranks, &args(&format!("{flags} --accumulate 3")), &flags);
        assert!(apart(&ends[0].losses, &fast) < 1e-5, "{flags} of {ranks} ranks");
        // Each of k servers sends what N workers pull, and each worker what it pushes.
        let sent = |rank: usize| ends[rank].sent_bytes as f64;
        let hot = (ranks - servers) as f64 / servers as f64;
        assert!((sent(ranks - 1) / sent(0) / hot - 1.0).abs() < 0.01, "{flags}");
    }
}

#[test]
fn servers_that_wait_for_nobody_train_a_model_too() {
    for (ranks, more) in [(2, ""), (4, "--servers 1"), (5, "--servers 2 --staleness 3")] {
        let all = args(&format!("--steps 60 --strategy ps-async {more}"));
        let ends = world(ranks, &all);
        let (first, last) = (ends[0].losses[0], ends[0].losses[59]);
        println!("{ranks} {more}: {first} to {last}, held out {:?}", ends[0].held_out);
        assert!(last < first - 1.5, "{ranks} {more}: {first} to {last}");
        for (rank, end) in ends.iter().enumerate() {
            assert_eq!(end.sent_bytes, end.formula_bytes, "rank {rank} of {ranks}, {more}");
            let [end, first] = [end, &ends[0]].map(|it| it.held_out.map(f64::to_bits));
            assert_eq!(end, first, "one state");
        }
    }
}
