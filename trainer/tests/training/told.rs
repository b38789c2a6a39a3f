//! What is told of a run before its first step.

use brigade_trainer::{Args, plan};

use crate::world::{Folder, args, spread, train};

/// What rank 0 of so many prints.
fn printed(ranks: usize, flags: &str) -> String {
    let args = Args { quiet: false, ..args(&format!("--steps 1 {flags}")) };
    let told = spread(ranks, |comm| {
        let mut out = Vec::new();
        brigade_trainer::train(&args, Some(comm), &mut out, &mut |_| {}).unwrap();
        out
    });
    String::from_utf8(told.into_iter().next().unwrap()).unwrap()
}

#[test]
fn the_table_has_what_makes_less_travel_and_not_what_is_usual() {
    for (flags, row) in [
        ("--compress powersgd:2", "ddp --compress powersgd:2 over loopback"),
        ("--strategy zero2 --reduce bf16", "zero2 --reduce bf16 over loopback"),
        ("--strategy fsdp --reduce int4 --gather int8", "fsdp --reduce int4 --gather int8 over"),
        ("--strategy fsdp", "fsdp over loopback"),
    ] {
        let table = printed(2, flags);
        let is_told = |line: &str| line.starts_with("strategy") && line.contains(row);
        assert!(table.lines().any(is_told), "{flags}: {table}");
    }
}

#[test]
fn the_loss_on_unseen_text_is_told_where_it_is_asked_for() {
    for (windows, ranks) in [(0, 1), (0, 2), (1, 2), (9, 1), (9, 3)] {
        let args = Args { quiet: false, held_out: windows, ..args("--steps 1 --strategy fsdp") };
        let ends = spread(ranks, |comm| {
            let mut out = Vec::new();
            let end = brigade_trainer::train(&args, Some(comm), &mut out, &mut |_| {}).unwrap();
            (end.held_out, String::from_utf8(out).unwrap())
        });
        assert!(ends[0].1.contains("loss on unseen text") == (windows > 0), "{}", ends[0].1);
        for (loss, _) in &ends {
            assert_eq!((*loss, loss.is_some()), (ends[0].0, windows > 0), "{windows}, {ranks}");
        }
    }
}

#[test]
fn a_plan_says_where_it_goes_on_from_or_is_refused_as_the_run_would_be() {
    let folder = Folder::new();
    let checkpoint = folder.0.join("state.gpt");
    train(&args(&format!("--steps 3 --checkpoint {}", checkpoint.display())), None).unwrap();
    let resume = |flags: &str, path: &std::path::Path| {
        let (args, mut out) = (args(&format!("{flags} --resume {}", path.display())), Vec::new());
        let ended = plan(&Args { rate: Some(1.0), ..args }, 2, &mut out);
        let told = String::from_utf8(out).unwrap();
        ended.map(|()| told).map_err(|error| error.to_string())
    };
    let told = resume("--steps 9 --strategy fsdp", &checkpoint).unwrap();
    let row = "after step 3; unlike before, --steps 9 (was 3)";
    assert!(told.lines().any(|line| line.starts_with("resumed ") && line.ends_with(row)), "{told}");
    let [other, empty, text] = ["other", "empty", "text"].map(|name| folder.0.join(name));
    std::fs::write(&other, "no checkpoint").unwrap();
    std::fs::write(&empty, "").unwrap();
    std::fs::write(&text, "call me ".repeat(500)).unwrap();
    let flags = format!("--steps 9 --accumulate 2 --text {}", text.display());
    let told = resume(&flags, &checkpoint).unwrap();
    let row = told.lines().find(|line| line.starts_with("resumed ")).unwrap();
    assert!(row.contains("--accumulate 2 (was none), --steps 9 (was 3), --text 4,001 "), "{row}");
    assert!(row.contains(" (was 1,204,997 bytes with checksum "), "{row}");
    for (flags, path, why) in [
        ("--steps 3", &checkpoint, "--steps: the checkpoint has 3 behind it"),
        ("--steps 9 --optimizer sgd", &checkpoint, "--optimizer: the checkpoint has the moments"),
        ("--steps 9 --experts 2", &checkpoint, " is of "),
        ("--steps 9", &folder.0.join("nothing"), "(os error 2), for --resume"),
        ("--steps 9", &empty, "no safetensors file: it has 0 bytes"),
        ("--steps 9", &folder.0, "no file of a checkpoint"),
        ("--steps 9", &other, "damaged"),
    ] {
        let refused = resume(flags, path).unwrap_err();
        let run = train(&args(&format!("{flags} --resume {}", path.display())), None);
        assert_eq!(refused, run.unwrap_err().to_string(), "{flags}");
        assert!(refused.contains(why), "{flags} {path:?}: {refused}");
    }
}

#[test]
fn no_more_windows_are_computed_than_the_unseen_text_has() {
    let folder = Folder::new();
    let text = folder.0.join("text");
    // 31 of its bytes are unseen, from 7 of which on there is a window of 25.
    std::fs::write(&text, "0123456789".repeat(62)).unwrap();
    let told = |windows: usize| {
        let (flags, mut out) = (format!("--steps 1 --text {}", text.display()), Vec::new());
        let args = Args { quiet: false, held_out: windows, ..args(&flags) };
        brigade_trainer::train(&args, None, &mut out, &mut |_| {}).unwrap();
        String::from_utf8(out).unwrap()
    };
    let (all, more) = (told(7), told(16_000_000));
    assert!(!all.contains("windows") && more.contains("per byte, in all 7 windows"), "{more}");
    assert!(all.contains("620 bytes"), "{all}");
}
