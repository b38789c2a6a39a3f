//! Pipelines of real ranks: they train the same model as one process, and send what their formula
//! says.

use std::path::PathBuf;

use brigade_trainer::{Args, Outcome};

use crate::world::{Folder, bits, train, world};

/// Samples for sixteen micro-batches.
fn args(more: &str) -> Args {
    Args { batch: 16, lanes: 16, context: 12, ..crate::world::args(more) }
}

/// Every rank has the losses of one process, bit for bit, and sends what its formula says.
fn check(alone: &Outcome, ranks: usize, args: &Args, what: &str) {
    for (rank, outcome) in world(ranks, args).iter().enumerate() {
        assert_eq!(bits(&outcome.losses), bits(&alone.losses), "{what}, rank {rank} of {ranks}");
        assert_eq!(
            outcome.held_out.map(f64::to_bits),
            alone.held_out.map(f64::to_bits),
            "{what}, rank {rank}"
        );
        assert_eq!(outcome.sent_bytes, outcome.formula_bytes, "{what}, rank {rank} of {ranks}");
    }
}

#[test]
fn every_order_has_the_bits_of_one_process() {
    let alone = train(&args("--ordered --steps 3"), None).unwrap();
    for order in ["gpipe", "1f1b", "interleaved", "zb1p", "zbv", "dualpipev"] {
        for ranks in [1, 2, 4] {
            // Four units make no eight stages.
            if ranks == 4 && ["interleaved", "zbv", "dualpipev"].contains(&order) {
                continue;
            }
            let args = args(&format!("--ordered --steps 3 --strategy {order}"));
            check(&alone, ranks, &args, order);
        }
    }
}

#[test]
fn eight_stages_have_the_bits_of_one_process() {
    let deep = |more: &str| Args { layers: 8, ..args(&format!("--ordered --steps 2 {more}")) };
    let alone = train(&deep(""), None).unwrap();
    for (order, ranks) in
        [("1f1b", 8), ("zb1p", 8), ("interleaved", 4), ("zbv", 4), ("dualpipev", 4)]
    {
        check(&alone, ranks, &deep(&format!("--strategy {order}")), order);
    }
}

#[test]
fn pipelines_side_by_side_have_the_bits_of_one_process() {
    let alone = train(&args("--ordered --steps 3"), None).unwrap();
    for (data, order, mesh) in [
        ("ddp", "1f1b", "dp=2,pp=2"),
        ("zero1", "1f1b", "pp=2,dp=2"),
        ("zero2", "zb1p", "dp=2,pp=2"),
        ("fsdp", "1f1b", "dp=2,pp=2"),
        ("fsdp", "zbv", "dp=2,pp=2"),
        ("zero1", "interleaved", "dp=2,pp=2"),
        ("fsdp", "gpipe", "dp=4,pp=2"),
    ] {
        let flags = format!("--ordered --steps 3 --strategy {data},{order} --mesh {mesh}");
        let ranks = if mesh.contains('4') { 8 } else { 4 };
        check(&alone, ranks, &args(&flags), &flags);
    }
}

#[test]
fn without_order_losses_agree_and_bytes_are_as_predicted() {
    let alone = train(&args("--steps 8"), None).unwrap();
    for data in ["ddp", "zero1", "zero2", "fsdp"] {
        for order in ["1f1b", "zbv"] {
            let flags = format!("--steps 8 --strategy {data},{order} --mesh dp=2,pp=2");
            for outcome in world(4, &args(&flags)) {
                let (got, want) = (outcome.losses[7], alone.losses[7]);
                assert!((got - want).abs() / want < 1e-5, "{flags}: {got}, alone {want}");
                assert_eq!(outcome.sent_bytes, outcome.formula_bytes, "{flags}");
                assert!(outcome.formula_bytes > 0);
            }
        }
    }
}

#[test]
fn a_run_goes_on_in_another_shape_with_the_same_bits() {
    let folder = Folder::new();
    let file = folder.file("state");
    let whole = train(&args("--ordered --steps 6"), None).unwrap().losses;
    let first = args("--ordered --steps 6 --strategy fsdp,1f1b --mesh dp=2,pp=2");
    world(4, &Args { checkpoint: file.clone(), stop_at: Some(3), ..first });
    for (ranks, flags) in [(2, "--strategy zbv"), (4, "--strategy gpipe"), (2, "--strategy zero1")]
    {
        let args = args(&format!("--ordered --steps 6 {flags}"));
        for outcome in world(ranks, &Args { resume: file.clone(), ..args }) {
            assert_eq!(bits(&outcome.losses), bits(&whole[3..]), "{flags}");
        }
    }
}

#[test]
fn a_schedule_from_a_file_is_carried_out_and_drawn() {
    let folder = Folder::new();
    let alone = train(&Args { lanes: 4, ..args("--ordered --steps 3") }, None).unwrap();
    for name in ["pipeline.csv", "pipeline_comms.csv"] {
        let schedule = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
        let (schedule, draw) = (Some(schedule), folder.file("picture"));
        let args = Args { schedule, draw, lanes: 4, ..args("--ordered --steps 3") };
        check(&alone, 2, &args, name);
        let picture = std::fs::read_to_string(folder.0.join("picture")).unwrap();
        // The ground, two ranks with four micro-batches forward and backward and an update each,
        // twice, and the colours of five kinds.
        assert_eq!(picture.matches("<rect").count(), 1 + 2 * (2 * 4 * 2 + 2) + 5, "{picture}");
    }
}

/// Wherever it lets go of what is whole, and asks for it again.
#[test]
fn a_schedule_may_let_go_of_stages_where_it_likes() {
    let folder = Folder::new();
    let flags = "--steps 4 --strategy fsdp --mesh dp=2,pp=1 --micro-batches 1";
    let mut first = Vec::new();
    for (at, text) in [
        "0UNSHARD,0F0,0B0,0RESHARD",
        "0UNSHARD,0F0,0B0,0RESHARD,0RESHARD",
        "0RESHARD,0F0,0RESHARD,0B0,0RESHARD,0UNSHARD",
    ]
    .into_iter()
    .enumerate()
    {
        let file = folder.file(&format!("schedule-{at}"));
        std::fs::write(file.as_ref().unwrap(), text).unwrap();
        for outcome in world(2, &Args { schedule: file, ..args(flags) }) {
            if first.is_empty() {
                first = bits(&outcome.losses);
            }
            assert_eq!(bits(&outcome.losses), first, "{text}");
            assert_eq!(outcome.sent_bytes, outcome.formula_bytes, "{text}");
        }
    }
}

/// DeepSpeed's picture of 3D parallelism: two pipelines of two stages with eight micro-batches, and
/// sums over the ranks that share a stage at the end.
#[test]
fn two_pipelines_of_two_stages_are_drawn_as_they_must_be() {
    let folder = Folder::new();
    let draw = folder.file("picture");
    let flags = "--steps 2 --strategy 1f1b --mesh dp=2,pp=2 --micro-batches 8";
    world(4, &Args { draw, ..args(flags) });
    let picture = std::fs::read_to_string(folder.0.join("picture")).unwrap();
    // Four ranks as they were, and two as one of the pipelines should have been.
    assert_eq!(picture.matches("<rect").count(), 1 + (4 + 2) * (8 + 8 + 1) + 5);
    assert!(picture.contains("measured: ") && picture.contains("pipe 1, rank 1</text>"));
    let rows = rows(&picture);
    let last = |what: char, row: usize| format!("{row}{what}7");
    for (at, row) in rows[..4].iter().enumerate() {
        let (rank, names) = (at % 2, row.iter().map(|span| span.0.as_str()));
        // One forward more than backwards until they are through; then, and only then, the sums.
        let mut want: Vec<String> = (0..8).map(|micro| format!("{rank}B{micro}")).collect();
        for micro in 0..8 {
            let place = if rank == 0 { (2 * micro).max(1) - 1 } else { 2 * micro };
            want.insert(place.min(want.len()), format!("{rank}F{micro}"));
        }
        want.push(format!("{rank}REDUCE_GRAD"));
        assert!(names.eq(want.iter()), "{at}: {row:?}");
    }
    let span = |row: usize, name: &str| {
        let found = rows[row].iter().find(|span| span.0 == name);
        found.map(|(_, begin, end)| (*begin, *end)).unwrap()
    };
    // Clocks of ranks agree to less than that. [ms]
    let slack = 0.5;
    for pipe in [0, 2] {
        for micro in 0..8 {
            let there =
                |what: char, rank: usize| span(pipe + rank, &format!("{rank}{what}{micro}"));
            assert!(there('F', 1).0 > there('F', 0).1 - slack, "forward of {micro}");
            assert!(there('B', 0).0 > there('B', 1).1 - slack, "backward of {micro}");
        }
    }
    for rank in 0..2 {
        let begun = [span(rank, &last('B', rank)), span(2 + rank, &last('B', rank))];
        for row in [rank, 2 + rank] {
            let summed = span(row, &format!("{rank}REDUCE_GRAD")).1;
            assert!(begun.iter().all(|(_, end)| summed > end - slack), "sums of stage {rank}");
        }
    }
}

/// What was done, from when to when. \[ms\]
type Span = (String, f64, f64);

/// The spans of each row of a picture, from the left.
fn rows(picture: &str) -> Vec<Vec<Span>> {
    let mut rows: Vec<(String, Vec<Span>)> = Vec::new();
    for line in picture.lines().filter(|line| line.contains("<title>")) {
        let between = |from: &str, to: &str| {
            line.split_once(from).unwrap().1.split_once(to).unwrap().0.to_string()
        };
        let (y, name) = (between(" y=\"", "\""), between("<title>", ": "));
        let (begin, end) = (between(": ", " to "), between(" to ", " ms"));
        let span = (name, begin.parse().unwrap(), end.parse().unwrap());
        match rows.last_mut().filter(|row| row.0 == y) {
            Some(row) => row.1.push(span),
            None => rows.push((y, vec![span])),
        }
    }
    rows.into_iter().map(|row| row.1).collect()
}

#[test]
fn what_cannot_work_is_refused_with_what_would() {
    for (flags, ranks, problem) in [
        ("--strategy gpipe,1f1b", 2, "--strategy: gpipe and 1f1b exclude each other"),
        ("--mesh pp=2", 2, "--mesh: pp is for pipelines"),
        ("--strategy 1f1b", 6, "--layers: 2 blocks make no 6 stages; --layers 4 do"),
        ("--strategy interleaved --micro-batches 5", 2, "such as 6"),
        ("--strategy 1f1b --micro-batches 5", 2, "--batch 20"),
        ("--strategy 1f1b --schedule /nowhere/file", 2, "/nowhere/file"),
        ("--strategy 1f1b --chunks 0", 2, "--chunks"),
    ] {
        let args = Args { batch: if flags.contains("inter") { 10 } else { 16 }, ..args(flags) };
        let refused = args.validate(ranks).unwrap_err().to_string();
        assert!(refused.contains(problem), "{flags}: {refused}");
    }
}
