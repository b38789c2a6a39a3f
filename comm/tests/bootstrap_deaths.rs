//! Worlds of processes, some of which are killed or stopped at a random moment.
//!
//! The processes are this test binary again, at [`one_rank`]: it joins, prints one line when it
//! has, one line when there is a verdict, and ends when its standard input does.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use brigade_comm::bootstrap::{Root, UniqueId, rendezvous};
use brigade_comm::launch::{Launch, RootSpec};
use brigade_comm::{Communicator, Error};

/// How long survivors may take to name the dead.
const NOTICED_WITHIN: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(20);

struct Process {
    child: Child,
    lines: Receiver<String>,
    /// The process ends when this is dropped.
    stdin: Option<ChildStdin>,
}

impl Process {
    fn rank(rank: usize, ranks: usize, root: (&str, &str), hasty: bool) -> Self {
        let mut command = Self::command(rank, ranks, root);
        if hasty {
            command.env("BRIGADE_TEST_HASTY", "1");
        }
        Self::start("one_rank", command)
    }

    /// This binary as a rank.
    fn command(rank: usize, ranks: usize, root: (&str, &str)) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .env("BRIGADE_RANK", rank.to_string())
            .env("BRIGADE_WORLD_SIZE", ranks.to_string())
            .env(root.0, root.1);
        command
    }

    fn start(test: &str, mut command: Command) -> Self {
        let mut child = command
            .args(["--exact", test, "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            let ours = |line: &String| line.starts_with("rank: ");
            for line in stdout.lines().map_while(Result::ok).filter(ours) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        Self { child, lines, stdin }
    }

    fn line(&self, timeout: Duration) -> Result<String, RecvTimeoutError> {
        self.lines.recv_timeout(timeout)
    }

    /// Send `signal` by the shell's own `kill`, which is everywhere.
    fn signal(&self, signal: &str) {
        let kill = format!("kill -{signal} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Let it end by itself.
    fn end(mut self) {
        self.stdin = None;
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "process {} does not end", self.child.id());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has mostly ended already; a failed test must not leave it behind.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

#[test]
#[ignore = "one process of the worlds in this file"]
fn one_rank() {
    if std::env::var("BRIGADE_RANK").is_err() {
        return;
    }
    let me = Launch::discover().unwrap();
    let joined = rendezvous(&me, Vec::new(), Instant::now() + PATIENCE, false).unwrap();
    println!("rank: joined");
    std::thread::spawn(|| {
        wait_for_the_end();
        ENDING.store(true, Ordering::Release);
    });
    let hasty = std::env::var("BRIGADE_TEST_HASTY").is_ok();
    let mut told = false;
    while !ENDING.load(Ordering::Acquire) {
        if let Some(verdict) = joined.control.verdict().filter(|_| !told) {
            println!("rank: {verdict}");
            told = true;
            if hasty {
                std::process::exit(1);
            }
        }
        if !hasty {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
#[ignore = "one process of a world that makes calls"]
fn one_caller() {
    if std::env::var("BRIGADE_RANK").is_err() {
        return;
    }
    let member = Communicator::from_env().unwrap();
    println!("rank: joined");
    let error = (0..).find_map(|_| member.barrier().err()).unwrap();
    let again = member.barrier().unwrap_err();
    assert!(matches!(again, Error::RootLost { .. }), "{again}");
    println!("rank: {error}");
    wait_for_the_end();
}

#[test]
#[ignore = "a process with the root and two ranks, of which rank 0 leaves"]
fn two_ranks() {
    let Ok(file) = std::env::var("BRIGADE_TEST_FILE") else { return };
    let at = |rank: usize| {
        let root = RootSpec::IdFile(file.clone().into());
        let me = Launch { rank, ranks: 3, local_rank: None, root };
        std::thread::spawn(move || {
            rendezvous(&me, Vec::new(), Instant::now() + PATIENCE, false).unwrap()
        })
    };
    let [first, second] = [0, 1].map(at).map(|thread| thread.join().unwrap());
    drop(first);
    println!("rank: joined");
    wait_for_the_end();
    drop(second);
}

#[test]
#[ignore = "a root without ranks for the worlds in this file"]
fn one_root() {
    if std::env::var("BRIGADE_TEST_ROOT").is_err() {
        return;
    }
    let (id, _root) = UniqueId::create(None).unwrap();
    println!("rank: {id}");
    wait_for_the_end();
}

fn wait_for_the_end() {
    let mut nothing = Vec::new();
    std::io::stdin().read_to_end(&mut nothing).unwrap();
}

/// Set when standard input ends.
static ENDING: AtomicBool = AtomicBool::new(false);

struct World {
    processes: Vec<Option<Process>>,
    /// Where a root outside the world is needed.
    root: Option<Root>,
    file: Option<std::path::PathBuf>,
}

impl World {
    /// A world whose root is in rank 0's process (by file), or else in ours.
    fn start(ranks: usize, own_root: bool, hasty: bool, trial: u64) -> Self {
        let (variable, value, root, file) = if own_root {
            let name = format!("brigade-deaths-{}-{trial}", std::process::id());
            let path = std::env::temp_dir().join(name);
            ("BRIGADE_ID_FILE", path.to_str().unwrap().to_owned(), None, Some(path))
        } else {
            let (id, root) = UniqueId::create(None).unwrap();
            ("BRIGADE_ID", id.to_string(), Some(root), None)
        };
        let start = |rank| Some(Process::rank(rank, ranks, (variable, &value), hasty));
        let world = Self { processes: (0..ranks).map(start).collect(), root, file };
        for process in world.processes.iter().flatten() {
            assert_eq!(process.line(PATIENCE).unwrap(), "rank: joined");
        }
        world
    }

    fn end(self) {
        for process in self.processes.into_iter().flatten() {
            process.end();
        }
        if let Some(path) = self.file {
            assert!(!path.exists(), "{} is left behind", path.display());
        }
    }
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Kill a random rank of a random small world at a random moment; all survivors name it in time.
fn check_kill(seed: u64) {
    let mut state = seed;
    let ranks = 2 + random(&mut state) as usize % 4;
    let own_root = !random(&mut state).is_multiple_of(4);
    // Rank 0 is the interesting one: with the root in its process, who tells the others?
    let dead =
        if random(&mut state).is_multiple_of(3) { 0 } else { random(&mut state) as usize % ranks };
    let pause = Duration::from_micros(random(&mut state) % 20_000);
    // Hasty ones end at the first verdict, and their end must not become another one's verdict.
    let hasty = random(&mut state).is_multiple_of(2);
    println!(
        "seed {seed}: rank {dead} of {ranks}, root in rank 0: {own_root}, hasty: {hasty}, \
         after {pause:?}"
    );
    let mut world = World::start(ranks, own_root, hasty, seed);
    std::thread::sleep(pause);
    let mut victim = world.processes[dead].take().unwrap();
    victim.kill();
    let start = Instant::now();
    for (rank, process) in world.processes.iter().enumerate() {
        let Some(process) = process else { continue };
        let left = NOTICED_WITHIN.saturating_sub(start.elapsed());
        let line = process.line(left).unwrap_or_else(|_| panic!("rank {rank} notices nothing"));
        assert!(line.starts_with(&format!("rank: rank {dead} is gone: ")), "rank {rank}: {line}");
    }
    println!("noticed by all within {:?}", start.elapsed());
    drop(victim);
    world.end();
}

#[test]
fn survivors_name_the_killed_rank() {
    for seed in 1..=24 {
        check_kill(seed);
    }
}

#[test]
fn when_several_die_all_survivors_name_the_same_one() {
    for seed in 100..106 {
        println!("seed {seed}");
        let mut state = seed;
        let mut world = World::start(6, true, seed % 2 == 0, seed);
        let first = 1 + random(&mut state) as usize % 5;
        let second = 1 + (first + random(&mut state) as usize % 4) % 5;
        assert_ne!(first, second);
        let mut dead: Vec<_> =
            [first, second].map(|rank| world.processes[rank].take().unwrap()).into();
        dead.iter_mut().for_each(Process::kill);
        let survivors = world.processes.iter().flatten();
        let lines: Vec<_> = survivors.map(|process| process.line(NOTICED_WITHIN)).collect();
        println!("{lines:?}");
        let named = [first, second].map(|rank| format!("rank: rank {rank} is gone: "));
        assert!(named.iter().any(|name| lines[0].as_ref().unwrap().starts_with(name)));
        assert!(lines.iter().all(|line| *line == lines[0]), "{lines:?}");
        drop(dead);
        world.end();
    }
}

#[test]
fn a_rank_beside_the_root_is_named_though_rank_0_has_left() {
    let path = std::env::temp_dir().join(format!("brigade-beside-{}", std::process::id()));
    let file = path.to_str().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("BRIGADE_TEST_FILE", file);
    let mut pair = Process::start("two_ranks", command);
    let third = Process::rank(2, 3, ("BRIGADE_ID_FILE", file), false);
    for process in [&pair, &third] {
        assert_eq!(process.line(PATIENCE).unwrap(), "rank: joined");
    }
    // The third has heard by then that rank 0 has left.
    assert_eq!(third.line(Duration::from_millis(100)), Err(RecvTimeoutError::Timeout));
    pair.kill();
    let line = third.line(NOTICED_WITHIN).unwrap();
    assert!(line.starts_with("rank: rank 1 is gone: "), "{line}");
    third.end();
}

#[test]
fn a_stopped_process_is_not_lost() {
    let world = World::start(3, true, false, 200);
    let stopped = world.processes[2].as_ref().unwrap();
    stopped.signal("STOP");
    for process in world.processes.iter().flatten() {
        assert_eq!(process.line(Duration::from_millis(400)), Err(RecvTimeoutError::Timeout));
    }
    stopped.signal("CONT");
    world.end();
}

#[test]
fn processes_that_end_one_by_one_leave_no_verdict() {
    let mut world = World::start(4, true, false, 300);
    for rank in [3, 0, 1] {
        world.processes[rank].take().unwrap().end();
        std::thread::sleep(Duration::from_millis(20));
    }
    let last = world.processes[2].as_ref().unwrap();
    assert_eq!(last.line(Duration::from_millis(100)), Err(RecvTimeoutError::Timeout));
    world.end();
}

#[test]
fn a_root_outside_the_world_may_end_as_it_should() {
    let mut world = World::start(2, false, false, 400);
    // Ends as it should: nobody is lost, and nobody watches any more.
    drop(world.root.take());
    for process in world.processes.iter().flatten() {
        assert_eq!(process.line(Duration::from_millis(100)), Err(RecvTimeoutError::Timeout));
    }
    world.end();
}

/// Kill the root of a world of two, each of which runs `test`; how they name it, and how soon.
fn check_root_killed(test: &str, said: &str, within: Duration) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("BRIGADE_TEST_ROOT", "1");
    let mut root = Process::start("one_root", command);
    let line = root.line(PATIENCE).unwrap();
    let id = line.strip_prefix("rank: ").unwrap();
    let start = |rank| Process::start(test, Process::command(rank, 2, ("BRIGADE_ID", id)));
    let ranks = [start(0), start(1)];
    for process in &ranks {
        assert_eq!(process.line(PATIENCE).unwrap(), "rank: joined");
    }
    root.kill();
    for process in ranks {
        let line = process.line(within).unwrap();
        let said = format!("rank: the process that brought the ranks together is {said}");
        assert!(line.starts_with(&said), "{line}");
        process.end();
    }
}

#[test]
fn a_root_outside_the_world_that_is_killed_is_named_for_what_it_is() {
    check_root_killed("one_rank", "gone: ", NOTICED_WITHIN);
    // They keep both cores busy, and whoever is told late by whom does not matter here.
    check_root_killed("one_caller", "lost (", PATIENCE);
}
