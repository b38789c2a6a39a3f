//! The house rules hold, and the project is formatted. All offences are told at once.

use std::process::Command;

use brigade_tests::tidy::Tree;

#[test]
fn the_house_is_tidy() {
    let offences = Tree::read().offences();
    let list: Vec<String> = offences.iter().map(ToString::to_string).collect();
    assert!(list.is_empty(), "{} offences:\n{}", list.len(), list.join("\n"));
}

#[test]
fn the_tree_has_been_read() {
    let tree = Tree::read();
    for path in ["Cargo.toml", "README.md", "src/main.rs", "comm/schedule/src/lib.rs"] {
        assert!(tree.files.iter().any(|file| file.path == path), "{path} was not found");
    }
}

#[test]
fn the_project_is_formatted() {
    let root = Tree::read().root;
    let run =
        Command::new(env!("CARGO")).args(["fmt", "--check", "--", "-l"]).current_dir(root).output();
    let run = run.expect("cargo runs: it runs this test");
    let errors = String::from_utf8_lossy(&run.stderr);
    if errors.contains("no such command") || errors.contains("is not installed") {
        println!("skipped: this toolchain has no rustfmt (rustup component add rustfmt)");
        return;
    }
    let files = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "cargo fmt would change:\n{files}{errors}");
}
