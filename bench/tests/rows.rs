//! What `brigade bench --json` writes, read back.

use brigade_bench::{Args, Verdict, run_threads};
use clap::Parser;
use serde_json::Value;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

/// The rows of a run.
fn rows(flags: &str) -> Vec<Value> {
    let name = format!("brigade-rows-{}-{}.jsonl", std::process::id(), flags.len());
    let file = std::env::temp_dir().join(name);
    let words = ["bench"].into_iter().chain(flags.split_whitespace());
    let mut args = Command::parse_from(words).args;
    args.json = Some(file.clone());
    let verdict = run_threads(&args);
    let text = std::fs::read_to_string(&file);
    // Nothing is left of it, however the run ended.
    let _ = std::fs::remove_file(&file);
    assert_eq!(verdict.unwrap(), Verdict::Passed, "{flags}");
    text.unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_row_tells_of_one_call_however_many_are_in_a_row() {
    let flags = "all-reduce -n 3 --transport loopback -b 4K -e 4K --check --iters 3";
    let (one, many) = (rows(flags), rows(&format!("{flags} --in-a-row 7")));
    assert_eq!(one.len(), 2, "in place and not");
    for (one, many) in one.iter().zip(&many) {
        assert_eq!((&one["in_a_row"], &many["in_a_row"]), (&1.into(), &7.into()));
        for key in ["bytes", "sent_bytes_per_rank", "wrong", "algorithm"] {
            assert_eq!(one[key], many[key], "{key}: {one} and {many}");
        }
    }
}

#[test]
fn a_row_tells_whether_buffers_were_touched() {
    let kinds = "all-reduce,reduce-scatter,all-gather,broadcast,reduce,all-to-all,gather,scatter,\
                 send-recv,all-gather-v,barrier";
    let how = "-n 3 --transport loopback -b 100 -e 100 --dtype u8 --check --iters 3";
    let flags = &format!("{kinds} {how}");
    let (plain, touched) = (rows(flags), rows(&format!("{flags} --touch")));
    assert!(plain.len() > 11 && plain.len() == touched.len());
    for (plain, touched) in plain.iter().zip(&touched) {
        assert_eq!((&plain["touched"], &touched["touched"]), (&false.into(), &true.into()));
        for key in ["op", "bytes", "sent_bytes_per_rank", "wrong", "algorithm"] {
            assert_eq!(plain[key], touched[key], "{key}: {plain} and {touched}");
        }
    }
}
