//! What the `brigade` command says beside its answers: what is assumed, what is not there, and what
//! a sign means.

use std::process::Output;

use brigade_tests::command::{bounded, brigade, text, words};

/// `brigade` told this, with these variables.
fn told(line: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = bounded(brigade());
    command.args(line.split_whitespace()).envs(variables.iter().copied());
    command.output().unwrap()
}

#[test]
fn a_plan_says_what_it_assumes_of_a_folder_that_is_not_there() {
    let plan = "offload plan --params 1B --device 0 --host 64G --path /nonexistent";
    let assumed = told(plan, &[]);
    assert!(assumed.status.success(), "{}", words(&assumed));
    let said = text(&assumed.stderr);
    assert!(said.contains("no folder /nonexistent here: its room and rates are assumed"), "{said}");
    // Who gives them plans for another machine.
    let given = told(&format!("{plan}=6.5/4.5"), &[]);
    assert_eq!(text(&given.stderr), "", "{}", words(&given));
}

#[test]
fn a_plan_of_no_whole_passes_says_for_how_many_tokens_it_is() {
    for (tokens, wanted) in [("3000", "4096 are planned for"), ("4096", "")] {
        let line = format!("offload plan --params 1B --device 0 --host 64G --tokens {tokens}");
        let output = told(&line, &[]);
        let said = text(&output.stderr);
        assert!(said.contains(wanted) && said.is_empty() == wanted.is_empty(), "{line}: {said}");
    }
}

#[test]
fn the_doctor_marks_what_works_and_ends_with_what_is_wrong() {
    let output = told("doctor", &[("BRIGADE_INTERFACE", "eth77"), ("BRIGADE_TRANSPORT", "tcp")]);
    let told = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    assert!(told.contains("\n    tcp          no "), "no mark: {told}");
    let (_, last) = told.rsplit_once("\n\n").unwrap();
    let wanted = "error: ranks of different processes cannot reach each other over what";
    assert!(last.starts_with(wanted) && last.trim_end().lines().count() == 1, "{told}");
    let unread = text(&self::told("doctor", &[("BRIGADE_TIMEOUT_MS", "soon")]).stdout);
    for told in [told, unread] {
        assert!(told.contains("\nverdict: no job can run here before what stands below"), "{told}");
        assert!(!told.contains("ranks on one machine"), "{told}");
    }
}

/// Who looks for the first time sees what is there and what that comes to, and no table of what
/// nobody has set.
#[test]
fn the_doctor_ends_with_a_verdict_and_tells_of_settings_that_are_set() {
    let set = [("BRIGADE_TIMEOUT_MS", "77"), ("RANK", "0"), ("WORLD_SIZE", "1")];
    let output = told("doctor", &set);
    assert!(output.status.success(), "{}", words(&output));
    let said = text(&output.stdout);
    let (facts, verdict) = said.split_once("\nverdict: jobs can run here\n").expect("a verdict");
    assert!(verdict.starts_with("  works          ranks on one machine, over shm"), "{verdict}");
    assert!(verdict.lines().all(|line| line.starts_with("  ")), "nothing behind it: {verdict}");
    let told_of = |name: &str| facts.contains(&format!("\n  {name} "));
    assert!(told_of("BRIGADE_TIMEOUT_MS") && facts.contains("RANK=0 WORLD_SIZE=1"), "{facts}");
    assert!(!told_of("BRIGADE_PORTS") && !facts.contains("OMPI_COMM_WORLD_RANK"), "{facts}");
    let all = text(&told("doctor --all", &set).stdout);
    for name in ["  BRIGADE_PORTS ", "  BRIGADE_CACHE ", "OMPI_COMM_WORLD_RANK", "also read: "] {
        assert!(all.contains(name), "{name}: {all}");
    }
    let inside = text(&told("doctor", &[("BRIGADE_INTERFACE", "lo")]).stdout);
    assert!(inside.contains("  ranks on several machines: let an interface"), "{inside}");
    let plain = text(&told("doctor", &[]).stdout);
    assert!(plain.contains("\nsettings: all 22 have their defaults"), "{plain}");
    // Tables are more than half of what there is, and a host has as many interfaces in both.
    assert!(plain.lines().count() + 40 < all.lines().count(), "{plain}");
}

#[test]
fn the_doctor_reads_the_file_of_the_secret() {
    let file = ("BRIGADE_SECRET_FILE", "/nonexistent");
    for rank in [&[][..], &[("BRIGADE_RANK", "0"), ("BRIGADE_WORLD_SIZE", "1")]] {
        let output = told("doctor --settings", &[&[file], rank].concat());
        let told = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{}", words(&output));
        assert_eq!(told.matches("error: BRIGADE_SECRET_FILE=/nonexistent: ").count(), 1, "{told}");
        assert!(told.contains("or a file with it (now: /nonexistent)"), "{told}");
    }
}

#[test]
fn a_name_that_no_setting_has_is_told_once_by_whatever_trains() {
    let set = [("BRIGADE_TRANSPROT", "tcp"), ("BRIGADE_TRANSPORT", "shm")];
    for (line, code) in [
        ("train --steps 1", 0),
        ("train --steps 1 --ranks 2", 0),
        ("train --plan", 0),
        ("train --ranks 3 --batch 4", 2),
        ("compare --steps 1", 2),
    ] {
        let output = told(line, &set);
        assert_eq!(output.status.code(), Some(code), "{line}: {}", words(&output));
        let said = text(&output.stderr);
        let wanted = "brigade: BRIGADE_TRANSPROT is not a setting of Brigade; ";
        assert_eq!(said.matches(wanted).count(), 1, "{line}: {said}");
        assert_eq!(said.matches("is not a setting").count(), 1, "{line}: {said}");
        assert!(said.contains(" lists them; did you mean BRIGADE_TRANSPORT?\n"), "{line}: {said}");
    }
}

#[test]
fn what_a_gpu_lacks_here_is_told_in_the_name_of_the_command() {
    let nowhere = [
        ("BRIGADE_CUDA_LIBRARY", "/nonexistent/libcuda.so.1"),
        ("BRIGADE_NVRTC", "/nonexistent/libnvrtc.so"),
    ];
    for line in ["gpu limits", "gpu compile"] {
        let output = told(line, &nowhere);
        assert_eq!(output.status.code(), Some(69), "{line}: {}", words(&output));
        let said = text(&output.stderr);
        assert!(said.starts_with("brigade gpu: BRIGADE_"), "{line}: {said}");
        assert_eq!(said.matches("/nonexistent/").count(), 2, "once as set, once as tried: {said}");
    }
    assert!(text(&told("gpu --help", &[]).stdout).contains("The exit code is 69"));
}

#[test]
fn moves_have_a_legend_and_a_picture_its_size() {
    let output = told("schedule show all-reduce -n 2 --algorithm ring --svg /dev/null", &[]);
    let shown = text(&output.stdout);
    assert!(shown.contains("\nmoves  2→1: chunk 2 goes to rank 1; 2⊕1: adds "), "{shown}");
    assert!(shown.contains("\ndrawn  /dev/null, ") && shown.ends_with(" KiB\n"), "{shown}");
    let one = text(&told("schedule check all-reduce -n 2 --algorithm ring", &[]).stdout);
    assert!(one.contains("\n1 schedule checked in "), "{one}");
}
