//! `brigade train` under every launcher, and after the death of a rank: the same digits.
//!
//! Launchers that are not there (mpirun, torchrun) are skipped with a sentence; Slurm is played by
//! its variables.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

use brigade_tests::command::{Folder, bounded, brigade, text, words};

/// A model for seconds, whose digits do not depend on the number of ranks.
const MODEL: &str = "train --ordered --lanes 6 --batch 12 --layers 1 --width 64 --heads 2 \
                     --context 32 --threads 1 --sample 0 --held-out 0 --quiet";

#[test]
fn every_launcher_trains_to_the_digits_of_one_process() {
    let alone = losses(&run(&mut train("--steps 4")));
    assert_eq!(alone.len(), 4, "{alone:?}");
    assert_eq!(losses(&run(&mut train("--steps 4 --ranks 3"))), alone, "our own launcher");
    let launchers: [(&str, &[&str]); 2] = [
        ("mpirun", &["--oversubscribe", "-n", "2"]),
        ("torchrun", &["--standalone", "--no-python", "--nproc-per-node", "2"]),
    ];
    for (launcher, flags) in launchers {
        let as_root = [("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")];
        if Command::new(launcher).arg("--version").output().is_err() {
            println!("skipped: there is no {launcher} here");
            continue;
        }
        let mut launch = bounded(launcher);
        launch.envs(as_root).args(flags).arg(brigade()).args(MODEL.split_whitespace());
        launch.args(["--steps", "4"]);
        assert_eq!(losses(&run(&mut launch)), alone, "{launcher}");
    }
}

#[test]
fn ranks_find_each_other_by_the_variables_of_torchrun_and_of_slurm() {
    let alone = losses(&run(&mut train("--steps 3")));
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let port = port.to_string();
    let torchrun: [(&str, &str); 3] =
        [("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)];
    let job = std::process::id().to_string();
    let slurm: [(&str, &str); 5] = [
        ("SLURM_NTASKS", "2"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_JOB_ID", &job),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NODELIST", "localhost"),
    ];
    for (rank_variable, others) in [("RANK", &torchrun[..]), ("SLURM_PROCID", &slurm[..])] {
        let start = |rank: usize| {
            let mut command = train("--steps 3");
            command.envs(others.iter().copied()).env(rank_variable, rank.to_string());
            Ended(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        };
        let ranks: Vec<Ended> = (0..2).map(start).collect();
        let outputs: Vec<Output> = ranks.into_iter().map(Ended::output).collect();
        for (rank, output) in outputs.iter().enumerate() {
            assert!(output.status.success(), "{rank_variable}, rank {rank}: {}", words(output));
        }
        assert_eq!(losses(&text(&outputs[0].stdout)), alone, "{rank_variable}");
        assert_eq!(text(&outputs[1].stdout), "", "only rank 0 prints");
    }
}

#[test]
fn a_plan_is_printed_once_for_as_many_ranks_as_a_launcher_has_started() {
    let flags = "--plan --rate 1 --strategy fsdp";
    let alone = run(&mut train(&format!("{flags} --ranks 2")));
    assert!(alone.contains("sent a step") && alone.contains("2, 12 samples"), "{alone}");
    // Nobody listens there: who plans meets nobody.
    let world = [("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")];
    for (rank, want) in [("0", alone.as_str()), ("1", "")] {
        assert_eq!(run(train(flags).envs(world).env("RANK", rank)), want, "rank {rank}");
    }
}

#[test]
fn a_killed_rank_is_named_and_its_run_goes_on_from_the_checkpoint_with_the_same_digits() {
    const STEPS: &str = "--steps 90";
    let alone = losses(&run(&mut train(STEPS)));
    let folder = Folder::new("killed");
    let checkpoint = folder.0.join("state.gpt");
    let keep = format!("--checkpoint {} --checkpoint-every 5", checkpoint.display());
    let mut command = train(&format!("{STEPS} --ranks 3 --strategy fsdp {keep}"));
    let mut world = Ended(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(world.0.stdout.take().unwrap()).lines();
    let seen = lines.by_ref().find(|line| line.as_ref().is_ok_and(|l| l.starts_with("step 12/")));
    assert!(seen.is_some(), "step 12 must come");
    let victim = rank_process(world.0.id(), 1);
    let killed = Command::new("kill").args(["-KILL", &victim.to_string()]).status().unwrap();
    assert!(killed.success());
    assert!(lines.count() < 70, "the others must not go on to the end");
    let mut errors = String::new();
    world.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(world.0.wait().unwrap().code(), Some(137), "{errors}");
    assert!(errors.contains(&format!("rank 1 (pid {victim}) was killed by signal 9")), "{errors}");
    let survivor = |rank: usize| format!("brigade train: rank {rank}: ");
    let told = errors
        .lines()
        .filter(|line| line.starts_with(&survivor(0)) || line.starts_with(&survivor(2)));
    assert!(told.clone().count() >= 1, "survivors must say why they end: {errors}");
    assert!(told.clone().all(|line| line.contains("rank 1")), "{errors}");

    let resume = format!("{STEPS} --ranks 2 --strategy zero1 --resume {}", checkpoint.display());
    let resumed = losses(&run(&mut train(&resume)));
    assert!(resumed.len() <= 80, "a checkpoint of step 10 was there: {}", resumed.len());
    assert_eq!(resumed[..], alone[alone.len() - resumed.len()..]);
}

#[test]
fn what_ends_a_run_is_told_by_one_rank_whether_one_finds_it_or_all() {
    // The last stage is longer: it has what comes behind the blocks. Rank 0 has room.
    let one = "--strategy gpipe --offload cpu --host-budget 300K";
    let all = "--strategy zero2 --offload cpu --host-budget 40K";
    let lr = "--lr 1e30";
    for (flags, words) in [(one, "--host-budget: "), (all, "--host-budget: "), (lr, "loss is ")] {
        let output = train(&format!("--steps 8 --ranks 2 {flags}")).output().unwrap();
        assert!(!output.status.success(), "{flags}");
        let errors = text(&output.stderr);
        let told = errors.lines().filter(|line| line.starts_with("brigade train: rank "));
        let told: Vec<&str> = told.collect();
        assert!(matches!(told[..], [line] if line.contains(words)), "{flags}: {errors}");
        assert!(flags != one || told[0].starts_with("brigade train: rank 1: "), "{errors}");
    }
}

/// Both ranks of a world that none of our launchers has started, each with its flags.
fn two_apart(flags: [&str; 2]) -> Vec<Output> {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let port = port.to_string();
    let start = |(rank, flags): (usize, &str)| {
        let mut command = train(flags);
        let world = [("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)];
        command.envs(world).env("RANK", rank.to_string());
        Ended(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    let ranks: Vec<Ended> = flags.into_iter().enumerate().map(start).collect();
    ranks.into_iter().map(Ended::output).collect()
}

#[test]
fn who_has_no_launcher_of_ours_hears_what_another_rank_found_and_exits_as_it_does() {
    let folder = Folder::new("apart");
    let log = folder.0.join("none/log").display().to_string();
    let found = ["there is no folder", "--lr: rank 1 was told 0.5, but rank 0 0.25"];
    for (at, flags) in [
        [format!("--steps 2 --log {log}"), "--steps 2".to_string()],
        ["--steps 2 --lr 0.25".to_string(), "--steps 2 --lr 0.5".to_string()],
    ]
    .iter()
    .enumerate()
    {
        for (rank, output) in two_apart(flags.each_ref().map(String::as_str)).iter().enumerate() {
            let said = text(&output.stderr);
            let told = said.lines().filter(|line| line.starts_with("brigade train: rank "));
            let told: Vec<&str> = told.collect();
            let wanted = match rank == at {
                true => format!("brigade train: rank {rank}: "),
                false => format!("brigade train: rank {rank}: rank {at} aborted: refused: "),
            };
            assert!(matches!(told[..], [line] if line.starts_with(&wanted)), "{at}: {said}");
            assert!(said.contains(found[at]), "{at}: {said}");
            assert_eq!(output.status.code(), Some(2), "{at}, rank {rank}: {said}");
        }
    }
}

#[test]
fn a_sample_may_take_longer_than_ranks_wait_for_each_other() {
    let mut command = bounded(brigade());
    let flags = "train --steps 1 --ranks 2 --layers 1 --width 64 --context 256 --batch 2 \
                 --threads 1 --sample 1200";
    run(command.args(flags.split_whitespace()).env("BRIGADE_TIMEOUT_MS", "2000"));
}

/// The process of a rank below the launcher.
fn rank_process(launcher: u32, rank: usize) -> u32 {
    // `timeout` stands between us and the launcher.
    let children = |pid: u32| -> Vec<u32> {
        let path = format!("/proc/{pid}/task/{pid}/children");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    };
    let wanted = format!("BRIGADE_RANK={rank}");
    let is_wanted = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
    };
    let ranks = children(launcher).into_iter().flat_map(children);
    ranks.into_iter().find(is_wanted).expect("the launcher has this rank")
}

/// A child that does not outlive its test.
struct Ended(Child);

impl Ended {
    fn output(mut self) -> Output {
        let mut output = Output { status: Default::default(), stdout: vec![], stderr: vec![] };
        self.0.stdout.take().unwrap().read_to_end(&mut output.stdout).unwrap();
        self.0.stderr.take().unwrap().read_to_end(&mut output.stderr).unwrap();
        output.status = self.0.wait().unwrap();
        output
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        // It is `timeout`, which passes this on, or has ended already.
        let _ = Command::new("kill").arg(self.0.id().to_string()).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

/// The loss of each step line, digit by digit.
fn losses(text: &str) -> Vec<String> {
    let steps = text.lines().filter(|line| line.starts_with("step "));
    steps.map(|line| line.split_whitespace().nth(3).unwrap_or(line).to_string()).collect()
}

fn train(flags: &str) -> Command {
    let mut command = bounded(brigade());
    command.args(MODEL.split_whitespace()).args(flags.split_whitespace());
    command
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", words(&output));
    text(&output.stdout)
}
