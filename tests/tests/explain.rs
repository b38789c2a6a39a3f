//! `brigade explain`: the algorithms there are, which one is chosen, and why.

use brigade_schedule::{Algorithm, Collective};
use brigade_tests::command::{Folder, bounded, brigade, text, words};

/// What it prints, with these variables set.
fn told(line: &str, variables: &[(&str, &str)]) -> String {
    let mut command = bounded(brigade());
    command.args(line.split_whitespace()).envs(variables.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{line}: {}", words(&output));
    println!("{}", text(&output.stdout));
    text(&output.stdout)
}

/// The cells of each algorithm's line.
fn rows(told: &str) -> Vec<Vec<&str>> {
    let rows = told.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| line.split_whitespace().collect()).collect()
}

/// The one that is chosen, and why.
fn chosen(told: &str) -> (&str, &str) {
    let line = told.lines().find_map(|line| line.strip_prefix("# ")?.split_once(" is chosen: it "));
    let (algorithm, why) = line.expect("a line that says so");
    let starred = rows(told).into_iter().filter(|row| row[1] == "*").map(|row| row[0]);
    assert!(starred.eq([algorithm]), "{told}");
    (algorithm, why)
}

#[test]
fn every_algorithm_is_priced_and_timed() {
    for (line, collective, ranks) in [
        ("all-reduce --bytes 64K -n 3 --transport loopback", Collective::AllReduce, 3),
        ("all-gather --bytes 6K -n 2 --transport shm", Collective::AllGather, 2),
        ("broadcast --root 1 -n 2 --transport tcp", Collective::Broadcast { root: 1 }, 2),
        ("barrier -n 4 --transport loopback", Collective::Barrier, 4),
    ] {
        let told = told(&format!("explain {line} --rounds 2"), &[]);
        let rows = rows(&told);
        let mut names: Vec<&str> = rows.iter().map(|row| row[0]).collect();
        let wanted = Algorithm::all_for(collective, ranks).into_iter().map(Algorithm::name);
        let mut wanted: Vec<String> = wanted.collect();
        names.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(names, wanted, "{line}");
        for row in &rows {
            let cells: Vec<&str> = row.iter().copied().filter(|cell| *cell != "*").collect();
            assert_eq!(cells.len(), 7, "{row:?}");
            for time in &cells[4..6] {
                assert!(time.parse::<f64>().unwrap() > 0.0, "{row:?}");
            }
        }
        let measured = rows.iter().map(|row| row[row.len() - 2].parse::<f64>().unwrap());
        assert!(measured.is_sorted(), "the fastest comes first: {told}");
        assert_eq!(told.matches("\n# links: ").count(), 1, "{told}");
    }
}

#[test]
fn what_decided_is_told() {
    let folder = Folder::new("explained");
    let rules = folder.0.join("rules");
    std::fs::write(&rules, "all-reduce 2 * server:1\n").unwrap();
    let rules = rules.to_str().unwrap();
    for (size, variables, algorithm, why) in [
        ("64", &[][..], "doubling", "few steps"),
        ("1M", &[], "halving", "few bytes"),
        ("1M", &[("BRIGADE_ALGORITHM", "ring")], "ring", "BRIGADE_ALGORITHM"),
        // One that cannot do the call decides nothing, which is told below.
        ("64", &[("BRIGADE_ALGORITHM", "pairwise")], "doubling", "few steps"),
        ("1M", &[("BRIGADE_TUNING", rules)], "server:1", "BRIGADE_TUNING"),
        (
            "1M",
            &[("BRIGADE_ORDERED", "1"), ("BRIGADE_TUNING", rules)],
            "ordered",
            "BRIGADE_ORDERED",
        ),
    ] {
        let line =
            format!("explain all-reduce -n 2 --transport loopback --rounds 0 --bytes {size}");
        let told = told(&line, variables);
        let (chosen, because) = chosen(&told);
        assert_eq!(chosen, algorithm, "{variables:?}: {told}");
        assert!(because.contains(why), "{variables:?}: {told}");
        assert!(rows(&told).iter().all(|row| row.ends_with(&["-", "-"])), "{told}");
        let is_idle = variables.contains(&("BRIGADE_ALGORITHM", "pairwise"));
        assert_eq!(
            told.contains("# pairwise, which BRIGADE_ALGORITHM asks for"),
            is_idle,
            "{told}"
        );
    }
}

#[test]
fn what_makes_predictions_wrong_is_told_and_no_link_is_beyond_belief() {
    let line = "explain all-reduce -n 5 --bytes 3 --transport loopback --rounds 0";
    let mut command = bounded("taskset");
    command.args(["-c", "0"]).arg(brigade()).args(line.split_whitespace());
    let output = command.output().unwrap();
    let told = text(&output.stdout);
    assert!(output.status.success(), "{}", words(&output));
    assert!(told.contains("\n# 5 ranks of a host share 1 of its cores"), "{told}");
    assert!(told.contains("\n# of 3 B only 0 B are whole blocks of f32 for 5 ranks"), "{told}");
    assert!(!told.contains("1000000.0 GB/s"), "{told}");
}

#[test]
fn what_is_no_collective_is_told_by_what_can_be_explained() {
    let output = bounded(brigade()).args(["explain", "all-reduc"]).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("what can be explained is all-reduce, "), "{said}");
    assert!(said.contains("barrier") && !said.contains("send-recv"), "{said}");
}

/// Who is started by a launcher hears from it how many ranks there are.
#[test]
fn a_launcher_says_how_many_ranks_there_are() {
    let command = brigade().display().to_string();
    let line = "explain broadcast --root 2 --bytes 1K --rounds 1 --transport shm";
    let output = bounded(brigade())
        .args(["run", "-n", "3", "--", command.as_str()])
        .args(line.split_whitespace())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", words(&output));
    assert!(text(&output.stdout).contains("root 2) of 1 KiB, on 3 ranks over shm"), "{output:?}");
}

#[test]
fn a_rank_alone_has_no_links() {
    let alone = [("BRIGADE_RANK", "0"), ("BRIGADE_WORLD_SIZE", "1")];
    let told = told("explain all-reduce --rounds 1", &alone);
    assert!(told.contains("# links: none, of one rank") && !rows(&told).is_empty(), "{told}");
}
