//! `brigade schedule simulate`: the fastest algorithm, and where another one takes its place.

use brigade_tests::command::{bounded, brigade, text, words};

fn told(line: &str) -> String {
    let output = bounded(brigade())
        .args(["schedule", "simulate"])
        .args(line.split_whitespace())
        .output()
        .unwrap();
    assert!(output.status.success(), "{line}: {}", words(&output));
    println!("{}", text(&output.stdout));
    text(&output.stdout)
}

/// The fastest for each size: whose times end with a star.
fn fastest(told: &str) -> Vec<Vec<String>> {
    let columns = told.lines().nth(1).unwrap().split_whitespace().count() - 1;
    let mut fastest = vec![Vec::new(); columns];
    for line in told.lines().skip(2) {
        let (name, times) = line.split_at(16);
        for (at, fastest) in fastest.iter_mut().enumerate() {
            // The last star or blank of a line may be cut off.
            if times.as_bytes().get(at * 12 + 11) == Some(&b'*') {
                fastest.push(name.trim().to_owned());
            }
        }
    }
    fastest
}

#[test]
fn few_steps_win_where_bytes_are_few_and_few_bytes_where_they_are_many() {
    // Simulated, and by formula.
    for ranks in [16, 256] {
        let told = told(&format!("all-reduce -n {ranks} -b 8 -e 128M -f 4096"));
        let fastest = fastest(&told);
        assert!(fastest.iter().all(|names| !names.is_empty()), "{told}");
        assert!(!fastest[0].iter().any(|name| name.contains("ring")), "{told}");
        let sends_least = ["ring", "bi-ring", "halving", "ordered"];
        let last = fastest.last().unwrap();
        assert!(last.iter().any(|name| sends_least.contains(&name.as_str())), "{told}");
    }
}

#[test]
fn what_goes_by_nodes_wins_where_nodes_are_far_apart() {
    for ranks in [24, 240] {
        let flags = "--node-ranks 6 --inside 1,100 --across 50,1";
        let told = |sizes| told(&format!("all-reduce -n {ranks} {flags} {sizes}"));
        let short = told("-b 8 -e 128K -f 128");
        assert!(fastest(&short).iter().all(|names| names == &["node-doubling:6"]), "{short}");
        let told = told("-b 16M -e 256M -f 4");
        let by_nodes = |name: &String| name.ends_with(":6");
        assert!(fastest(&told).iter().flatten().all(by_nodes), "{told}");
        assert!(told.contains("6 on a node: 1 us and 100 GB/s inside, 50 us and 1 GB/s across"));
    }
}

#[test]
fn a_ring_takes_what_its_formula_says() {
    // 2(P-1)(alpha + beta n/P) + (P-1) gamma n/P, of messages that are no longer than a slot.
    let told = told("all-reduce -n 8 --inside 3,2 -b 64K -e 64K");
    let row = told.lines().find(|line| line.starts_with("ring ")).unwrap();
    let part = 65_536.0 / 8.0;
    let us = 14.0 * (3.0 + part / 2e3) + 7.0 * 0.025e-3 * part;
    assert!(row.contains(&format!("{us:.1} us")), "{us}: {told}");
}

#[test]
fn what_has_no_size_has_one_column() {
    let told = told("barrier -n 64 --node-ranks 8");
    assert_eq!(told.lines().nth(1).unwrap().split_whitespace().count(), 2, "{told}");
}
