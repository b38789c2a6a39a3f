//! The examples that the helps of `brigade` give are run as they stand there, as far as they take
//! neither long nor a device. That all of them are understood, the command's own tests say.

use brigade_tests::command::{Folder, bounded, brigade, text, words};

/// The examples of a command's help.
fn examples(command: &str) -> Vec<String> {
    let mut help = bounded(brigade());
    let help = help.args(command.split_whitespace()).arg("--help").output().unwrap();
    let help = text(&help.stdout);
    let (_, examples) = help.split_once("Examples:\n").unwrap_or_else(|| panic!("{help}"));
    examples.replace(" \\\n      ", " ").lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn what_helps_show_of_plans_and_schedules_runs() {
    let folder = Folder::new("examples");
    let mut count = 0;
    for command in ["offload", "offload plan", "schedule", "schedule show", "schedule check"] {
        for example in examples(command) {
            if example.starts_with("brigade offload bench ") {
                continue;
            }
            // A drive that nobody gives the rates of is measured.
            let line = example.replace("/mnt/nvme", &folder.0.display().to_string());
            let line = line.strip_prefix("brigade ").unwrap_or_else(|| panic!("{example}"));
            let mut command = bounded(brigade());
            command.args(line.split_whitespace()).current_dir(&folder.0);
            let output = command.output().unwrap();
            // What does not fit is a plan, too.
            let is_answer = output.status.code().is_some_and(|code| code < 2);
            assert!(is_answer, "{example}: {}", words(&output));
            let text = text(&output.stdout);
            assert!(text.lines().all(|line| line == line.trim_end()), "{example}: {text:?}");
            count += 1;
        }
    }
    assert!(count > 10, "{count}");
    let names: Vec<_> = std::fs::read_dir(&folder.0).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(names.iter().all(|path| path.extension().is_some_and(|at| at == "svg")), "{names:?}");
}

#[test]
fn a_barrier_is_shown_without_a_size() {
    for flags in ["", "--algorithm doubling"] {
        let mut show = bounded(brigade());
        show.args("schedule show barrier -n 4".split(' ')).args(flags.split_whitespace());
        let output = show.output().unwrap();
        assert!(output.status.success() && !text(&output.stdout).contains("1M"), "{flags}");
    }
}
