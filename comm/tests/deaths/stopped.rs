//! A rank that waits for a process that is stopped hears what every other wait hears.
//!
//! The kernel of a stopped process takes the call for a wire, and nobody answers it. So it takes
//! what the root is told, and if that process has the root nobody passes it on: there a rank hears
//! what it says or finds itself. Ranks do what their standard input says.

use std::io::BufRead;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use brigade_comm::bootstrap::UniqueId;
use brigade_comm::{Call, Communicator, Dtype, Op, interrupt_by};
use brigade_schedule::Collective;

use super::PATIENCE;
use super::process::{Process, Said};

const RANKS: usize = 3;
/// How long a rank may take to hear that it waits in vain.
const HEARD_WITHIN: Duration = Duration::from_secs(2);
/// How long a rank may take to be sure of what it has found, where the root does not say so.
const FOUND_WITHIN: Duration = Duration::from_secs(4);
/// How long the wire may take to stand: long beyond that.
const WIRE_MS: u64 = 15_000;

#[test]
#[ignore = "one process of the worlds in this file"]
fn one_rank() {
    static INTERRUPTED: AtomicBool = AtomicBool::new(false);
    if std::env::var("BRIGADE_RANK").is_err() {
        return;
    }
    let (sender, orders) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if line == "interrupt" {
                INTERRUPTED.store(true, Ordering::Relaxed);
            }
            let _for_nobody = sender.send(line);
        }
    });
    let comm = Communicator::from_env().expect("a world");
    interrupt_by(Some(Box::new(|| INTERRUPTED.load(Ordering::Relaxed))));
    println!("\nrank: joined");
    while let Ok(order) = orders.recv() {
        match &order[..] {
            "send" => {
                let outcome = comm.messages().send(&[7u8; 8], 1).run();
                println!("\nrank: {outcome:?}");
            }
            "abort" => comm.abort("somebody has had enough"),
            _ => {}
        }
    }
}

/// Have rank 0 wait for a wire to rank 1, which is stopped, and then do something to the world: it
/// says so soon, in a sentence with these words.
fn check(happens: impl FnOnce(&mut [Process]), words: &str) {
    let (id, _root) = UniqueId::create(None).expect("a root");
    let mut world: Vec<Process> = (0..RANKS).map(|rank| start(rank, &id)).collect();
    for process in &world {
        assert_eq!(process.said(PATIENCE), Said::Joined);
    }
    world[1].stop();
    world[0].order("send");
    let waiting = Duration::from_millis(400);
    assert_eq!(world[0].said(waiting), Said::Nothing, "it waits for the wire");
    let begin = Instant::now();
    happens(&mut world);
    let said = world[0].line(PATIENCE).expect("every wait ends");
    let after = begin.elapsed();
    println!("after {after:?}: {said}");
    assert!(said.contains(words), "{said}");
    assert!(after < HEARD_WITHIN, "only after {after:?}: {said}");
}

fn start(rank: usize, id: &UniqueId) -> Process {
    Process::rank("stopped::one_rank", (rank, RANKS), id, ("tcp", WIRE_MS), &[])
}

#[test]
fn who_waits_for_a_wire_hears_of_a_rank_that_dies() {
    check(|world| world[2].kill(), "rank 2 is lost");
}

#[test]
fn who_waits_for_a_wire_hears_that_another_rank_gives_up() {
    check(|world| world[2].order("abort"), "somebody has had enough");
}

#[test]
fn who_waits_for_a_wire_can_be_interrupted() {
    check(|world| world[0].order("interrupt"), "interrupted during send");
}

#[test]
#[ignore = "one process of the worlds in this file"]
fn one_watched_rank() {
    static INTERRUPTED: AtomicBool = AtomicBool::new(false);
    if std::env::var("BRIGADE_RANK").is_err() {
        return;
    }
    let comm = Arc::new(Communicator::from_env().expect("a world"));
    let (sender, orders) = channel();
    let watchdog = Arc::clone(&comm);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match &line[..] {
                "interrupt" => INTERRUPTED.store(true, Ordering::Relaxed),
                "abort" => watchdog.abort("the watchdog has had enough"),
                _ => {}
            }
            let _for_nobody = sender.send(line);
        }
    });
    interrupt_by(Some(Box::new(|| INTERRUPTED.load(Ordering::Relaxed))));
    println!("\nrank: joined");
    while let Ok(order) = orders.recv() {
        let _behind = (order == "barrier behind a call").then(|| {
            let call = Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, 100);
            comm.start_owned_in_place(call, vec![1_f32; 100]).expect("a start")
        });
        let outcome = match &order[..] {
            "receive" => comm.recv(&mut [0_f32; 2], 1),
            "send bytes" => comm.send(&[1_u8; 8], 2),
            _ if order.starts_with("barrier") => comm.barrier(),
            _ => continue,
        };
        println!("\nrank: {outcome:?}, then {:?}", comm.ended());
    }
}

/// Processes of which that of rank 0, which is stopped, has the root.
struct Headless {
    world: Vec<Process>,
    folder: PathBuf,
}

impl Headless {
    /// So many ranks, which have met once.
    fn of(ranks: usize, mark: &str) -> Self {
        let mark = format!("brigade-stopped-{}-{mark}", std::process::id());
        let folder = std::env::temp_dir().join(mark);
        std::fs::create_dir(&folder).expect("a folder of our own");
        let mut this = Self { world: Vec::new(), folder };
        let id_file = this.folder.join("id").to_str().expect("a path in UTF-8").to_owned();
        this.world.extend((0..ranks).map(|rank| {
            let variables = vec![
                ("BRIGADE_RANK", rank.to_string()),
                ("BRIGADE_WORLD_SIZE", ranks.to_string()),
                ("BRIGADE_ID_FILE", id_file.clone()),
                ("BRIGADE_TRANSPORT", "tcp".to_owned()),
            ];
            Process::start("stopped::one_watched_rank", variables)
        }));
        for process in &this.world {
            assert_eq!(process.said(PATIENCE), Said::Joined);
        }
        // Between neighbours all wires are there then.
        this.world.iter_mut().for_each(|process| process.order("barrier"));
        for process in &this.world {
            let said = process.line(PATIENCE).expect("a barrier ends");
            assert!(said.contains("Ok(()), then None"), "{said}");
        }
        this.world[0].stop();
        this
    }

    /// The last rank waits by this `order`, and then something happens: its call ends within this
    /// time, in a sentence with these words, and the world with it.
    fn check(
        mut self,
        order: &str,
        happens: impl FnOnce(&mut [Process]),
        (words, within): (&str, Duration),
    ) {
        let last = self.world.len() - 1;
        self.world[last].order(order);
        let waiting = self.world[last].said(Duration::from_millis(400));
        assert_eq!(waiting, Said::Nothing, "it waits");
        let begin = Instant::now();
        happens(&mut self.world);
        let said = self.world[last].line(PATIENCE).expect("every wait ends");
        let after = begin.elapsed();
        println!("after {after:?}: {said}");
        assert!(said.contains(words) && said.contains("then Some("), "{said}");
        assert!(after < within, "only after {after:?}: {said}");
    }
}

impl Drop for Headless {
    fn drop(&mut self) {
        self.world.clear();
        // What it holds is ours, and a test that has failed has said so.
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

/// Have rank 1 wait for rank 0 by this `order`, and give it another one.
fn check_without_root(order: &str, happens: &str, words: &str) {
    let world = Headless::of(2, &format!("{happens}-{}", order.len()));
    world.check(order, |world| world[1].order(happens), (words, HEARD_WITHIN));
}

#[test]
fn who_waits_for_the_stopped_root_hears_what_its_own_watchdog_says() {
    check_without_root("barrier", "abort", "the watchdog has had enough");
}

#[test]
fn who_waits_for_the_stopped_root_can_be_interrupted() {
    check_without_root("barrier", "interrupt", "interrupted during barrier");
}

#[test]
fn who_waits_for_the_stopped_root_behind_a_call_can_be_interrupted() {
    check_without_root("barrier behind a call", "interrupt", "interrupted behind calls");
}

#[test]
fn who_finds_another_dead_without_the_root_says_so() {
    let world = Headless::of(3, "dead");
    let words = ("it has ended or given up, and the root says nothing", FOUND_WITHIN);
    world.check("receive", |world| world[1].kill(), words);
}

#[test]
fn who_finds_another_call_without_the_root_says_so() {
    let world = Headless::of(3, "mismatch");
    let words = ("rank 2 called receive from 1 of f32, but rank 1 called send", FOUND_WITHIN);
    world.check("receive", |world| world[1].order("send bytes"), words);
}
