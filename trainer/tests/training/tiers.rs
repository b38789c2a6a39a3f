//! Stages of pipelines whose state, and what goes into their blocks, is kept in cheaper memory: the
//! digits of one process, and every byte as predicted.

use brigade_trainer::{Args, Error, Outcome};

use crate::world::{Folder, bits, ends, train, world};

/// Samples for eight micro-batches, through enough blocks for eight stages.
fn args(more: &str) -> Args {
    let more = format!("--ordered --steps 3 {more}");
    Args { batch: 16, lanes: 8, context: 12, layers: 6, ..crate::world::args(&more) }
}

/// Every rank has the bits of one process, and sends, reads and writes what its formula says.
fn check(alone: &Outcome, ranks: usize, flags: &str) -> Vec<Outcome> {
    let outcomes = world(ranks, &args(flags));
    for (rank, outcome) in outcomes.iter().enumerate() {
        assert_eq!(bits(&outcome.losses), bits(&alone.losses), "{flags}, rank {rank}");
        assert_eq!(
            outcome.held_out.map(f64::to_bits),
            alone.held_out.map(f64::to_bits),
            "{flags}, rank {rank}"
        );
        assert_eq!(outcome.sent_bytes, outcome.formula_bytes, "{flags}, rank {rank}");
        let (used, formula) = (outcome.disk, outcome.disk_formula);
        assert_eq!(used.read_bytes, formula.read_bytes, "{flags}, rank {rank}");
        assert_eq!(used.written_bytes, formula.written_bytes, "{flags}, rank {rank}");
    }
    outcomes
}

#[test]
fn state_of_stages_in_any_tier_changes_no_bit() {
    let alone = train(&args(""), None).unwrap();
    for (ranks, flags) in [
        (2, "--strategy 1f1b"),
        (2, "--strategy zbv"),
        (2, "--strategy fsdp,interleaved"),
        (4, "--strategy zero1,gpipe --mesh dp=2,pp=2"),
        (4, "--strategy fsdp,1f1b --mesh dp=2,pp=2"),
        (4, "--strategy fsdp,dualpipev --mesh dp=2,pp=2"),
    ] {
        check(&alone, ranks, &format!("{flags} --offload cpu"));
        let folder = Folder::new();
        for outcome in check(&alone, ranks, &format!("{flags} {}", folder.nvme())) {
            assert!(outcome.disk.read_bytes > 0 && outcome.disk.written_bytes > 0, "{flags}");
        }
        assert!(folder.is_empty(), "{flags}: files stayed");
    }
}

/// All blocks of a stage but the last, each micro-batch, both ways.
#[test]
fn inputs_of_stages_in_files_change_no_bit() {
    let alone = train(&args(""), None).unwrap();
    let page = (4 * 2 * 12 * 20_u64).next_multiple_of(4096);
    // Blocks of a pipeline that are not the last of their stage.
    for (ranks, flags, blocks) in [
        (2, "--strategy gpipe", 4),
        (2, "--strategy 1f1b", 4),
        (2, "--strategy interleaved", 2),
        (4, "--strategy fsdp,1f1b --mesh dp=2,pp=2", 4),
    ] {
        let folder = Folder::new();
        let nvme = folder.0.display();
        let ends = check(&alone, ranks, &format!("{flags} --offload-activations nvme:{nvme}"));
        let disk = ends.iter().map(|end| [end.disk.read_bytes, end.disk.written_bytes]);
        let disk = disk.fold([0; 2], |sum, end| [sum[0] + end[0], sum[1] + end[1]]);
        assert_eq!(disk, [3 * 8 * blocks * page; 2], "{flags}");
        let both = format!("{flags} --offload-activations nvme:{nvme} {}", folder.nvme());
        check(&alone, ranks, &both);
        assert!(folder.is_empty(), "{flags}: files stayed");
    }
}

/// Forward of most blocks is computed twice, and so are its sums over the ranks that divide them.
#[test]
fn divided_blocks_whose_inputs_are_in_files_send_what_the_formula_says() {
    let folder = Folder::new();
    let again = args("--strategy tp --recompute");
    let again = world(2, &again);
    let flags = format!("--strategy tp --offload-activations nvme:{}", folder.0.display());
    for (outcome, again) in world(2, &args(&flags)).iter().zip(&again) {
        assert_eq!(bits(&outcome.losses), bits(&again.losses));
        assert_eq!(outcome.sent_bytes, outcome.formula_bytes);
        assert_eq!(outcome.sent_bytes, again.sent_bytes);
        assert_eq!(outcome.disk.read_bytes, outcome.disk_formula.read_bytes);
        assert!(outcome.disk.written_bytes > 0);
    }
}

/// Whoever asks where the time went sees files beside computation.
#[test]
fn waits_for_files_are_in_the_trace() {
    let folder = Folder::new();
    let flags = format!("--strategy fsdp --offload-activations nvme:{}", folder.0.display());
    let trace = folder.file("trace");
    train(&Args { trace, ..args(&format!("{flags} {}", folder.nvme())) }, None).unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&folder.bytes("trace")).unwrap();
    let of = |lane: &str| -> Vec<(&str, f64, f64)> {
        let events = trace["traceEvents"].as_array().unwrap().iter();
        let events = events.filter(|event| event["ph"] == "X" && event["cat"] == lane);
        let number = |value: &serde_json::Value| value.as_f64().unwrap();
        let span = |event: &'_ serde_json::Value| {
            (number(&event["ts"]), number(&event["ts"]) + number(&event["dur"]))
        };
        events
            .map(|event| (event["name"].as_str().unwrap(), span(event).0, span(event).1))
            .collect()
    };
    let waits = of("waiting for files");
    for what in ["for parameters of unit", "for what goes into unit", "for state of unit"] {
        assert!(waits.iter().any(|(name, _, _)| name.starts_with(what)), "{what}: {waits:?}");
    }
    let steps: Vec<_> = of("compute").into_iter().filter(|it| it.0.starts_with("step ")).collect();
    assert_eq!(steps.len(), 3);
    let inside = |wait: &(&str, f64, f64)| {
        steps.iter().any(|step| step.1 <= wait.1 && wait.2 <= step.2 + 0.002)
    };
    assert!(waits.iter().filter(|wait| inside(wait)).count() > 3 * 8, "{waits:?}");
}

/// Of a rank with several stages each has a part of the budget.
#[test]
fn the_least_budget_that_is_told_is_enough_for_all_stages_of_a_rank() {
    let folder = Folder::new();
    for (ranks, flags) in [
        (1, "--strategy interleaved --offload cpu".to_string()),
        (2, "--strategy interleaved --offload cpu".to_string()),
        (2, format!("--strategy zbv {}", folder.nvme())),
    ] {
        let mut budget = String::from("4K");
        // Each rank says what it needs, and one is heard.
        for _ in 0..ranks {
            let ends = ends(ranks, &args(&format!("{flags} --host-budget {budget}")));
            let told = |end: &Result<Outcome, Error>| {
                let problem = end.as_ref().err()?.to_string();
                let (_, least) = problem.split_once("--host-budget: ")?;
                least.split_once(" is the least").map(|(bytes, _)| bytes.to_string())
            };
            budget = ends.iter().find_map(told).unwrap_or(budget);
        }
        for end in ends(ranks, &args(&format!("{flags} --host-budget {budget}"))) {
            end.unwrap_or_else(|error| panic!("{flags} --host-budget {budget}: {error}"));
        }
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    let folder = Folder::new();
    let nvme = folder.0.display();
    for (flags, problem) in [
        (format!("--strategy zb1p --offload-activations nvme:{nvme}"), "backward is split"),
        (format!("--strategy zbv {} --host-budget 40K", folder.nvme()), "--host-budget: "),
    ] {
        for end in ends(2, &args(&flags)) {
            let refused = end.unwrap_err().to_string();
            assert!(refused.contains(problem), "{flags}: {refused}");
        }
    }
}
