//! The child that runs within the group, which is this very program, and what it reports.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use brigade_offload::memory::{Arena, Budget};
use brigade_offload::storage::{Settings, Storage};

use crate::group::{Group, OwnGroup};
use crate::measured::{device_bytes, forget_peak, resident, resident_peak};
use crate::problem::STEPS;
use crate::run::Run;

/// A block of the state file, and what the passes see at once.
pub(crate) const BLOCK_ELEMENTS: usize = 1 << 15;

/// What the kernel keeps for the child beside its own memory: tables of pages, rings, inodes, and
/// whatever a core has taken ahead of use.
const KERNEL_BYTES: u64 = 2 << 20;

const GROUP: &str = "BRIGADE_BUDGET_GROUP";
const FOLDER: &str = "BRIGADE_BUDGET_FOLDER";
const ARENA: &str = "BRIGADE_BUDGET_ARENA";
/// Begins what is meant for the parent.
const MARK: &str = "budget: ";
const SKIP: &str = "skip";
const END: &str = "end";
/// Far more than the kernel takes to free memory.
const SETTLING: Duration = Duration::from_secs(10);
/// Far more than a run takes.
const DEADLINE: Duration = Duration::from_secs(120);

/// How large a run is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) elements: usize,
    /// Chunks in flight.
    slots: usize,
}

/// What a child has said.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) is_finished: bool,
    numbers: Vec<(String, u64)>,
    facts: String,
    pub(crate) ended: String,
}

/// Killed and waited for when it is dropped.
struct Guarded(Child);

/// Removed when it is dropped.
struct Folder(PathBuf);

impl Size {
    /// 96 MiB of state. The ring has as many bytes as the planner's, in smaller chunks.
    pub(crate) fn full() -> Self {
        Self { elements: 1 << 23, slots: 20 }
    }

    /// A small run, so that all code has been run once before memory is measured.
    fn warm_up() -> Self {
        Self { elements: 8 * BLOCK_ELEMENTS, slots: 3 }
    }

    /// Weights and two moments in f32.
    pub(crate) fn state_bytes(self) -> u64 {
        12 * self.elements as u64
    }

    pub(crate) fn budget_bytes(self) -> u64 {
        self.state_bytes() / 4
    }
}

impl Report {
    pub(crate) fn has(&self, name: &str) -> bool {
        self.numbers.iter().any(|(known, _)| known == name)
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        let found = self.numbers.iter().find(|(known, _)| known == name);
        found.unwrap_or_else(|| panic!("the child said no {name}: {self:?}")).1
    }

    /// Before each step, and after the last.
    pub(crate) fn losses(&self) -> Vec<f64> {
        (0..=STEPS).map(|step| f64::from_bits(self.number(&format!("loss {step}")))).collect()
    }

    /// All of it for people, in MiB.
    pub(crate) fn line(&self, size: Size) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let number = |name| mib(self.number(name));
        format!(
            "state {:.1} MiB, budget {:.1}: ledger's peak {:.2}, resident {:.2} + {:.2}, group's \
             peak {:.2} + {:.2}; {} steps: read {:.2} (kernel {:.2}), written {:.2} + {:.2} of \
             commits (kernel {:.2}); loss {:.6?}; {}",
            mib(size.state_bytes()),
            mib(size.budget_bytes()),
            number("ledger peak"),
            number("resident before"),
            mib(self.number("resident peak").saturating_sub(self.number("resident before"))),
            number("group before"),
            mib(self.number("group peak").saturating_sub(self.number("group before"))),
            STEPS,
            number("moved read"),
            number("kernel read"),
            number("moved written"),
            number("committed"),
            number("kernel written"),
            self.losses(),
            self.facts,
        )
    }
}

/// Run this program's child within the group: a run of full size that takes `arena_bytes`, while
/// its group has what the size allows. An error says why there can be no such child here.
pub(crate) fn run_child(group: &OwnGroup, arena_bytes: u64) -> Result<Report, String> {
    let folder = Folder::new(group.0.folder());
    let child = Command::new(std::env::current_exe().expect("this program has a path"))
        .args(["--exact", "child::the_child_runs_within_its_group", "--nocapture"])
        .env(GROUP, group.0.folder())
        .env(FOLDER, &folder.0)
        .env(ARENA, arena_bytes.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program can be started");
    let mut child = Guarded(child);
    let deadline = Instant::now() + DEADLINE;
    let status = loop {
        if let Some(status) = child.0.try_wait().expect("a child can be waited for") {
            break status;
        }
        assert!(Instant::now() < deadline, "the child hangs: {DEADLINE:?} have passed");
        std::thread::sleep(Duration::from_millis(10));
    };
    // It says less than a pipe holds.
    let mut said = String::new();
    child.0.stdout.take().expect("a pipe").read_to_string(&mut said).expect("text");
    let mut report = Report {
        is_finished: false,
        numbers: Vec::new(),
        facts: String::new(),
        ended: status.to_string(),
    };
    for line in said.lines().filter_map(|line| Some(line.split_once(MARK)?.1)) {
        match line.rsplit_once(" = ") {
            Some((SKIP, why)) => return Err(why.into()),
            Some((END, facts)) => (report.is_finished, report.facts) = (true, facts.into()),
            Some((name, number)) => {
                report.numbers.push((name.into(), number.parse().expect("a number")));
            }
            None => panic!("the child said {line:?}"),
        }
    }
    Ok(report)
}

fn say(name: &str, what: impl std::fmt::Display) {
    println!("\n{MARK}{name} = {what}");
}

/// The child's part: nothing, unless it is started as one.
#[test]
fn the_child_runs_within_its_group() {
    let Ok(folder) = std::env::var(GROUP) else { return };
    let group = Group::existing(Path::new(&folder));
    if let Err(error) = group.enter() {
        return say(SKIP, format!("{folder} cannot be entered: {error}"));
    }
    let folder = PathBuf::from(std::env::var(FOLDER).expect("the parent says it"));
    let arena_bytes = std::env::var(ARENA).expect("the parent says it").parse().expect("a number");
    if let Err(why) = warm_up(&folder) {
        return say(SKIP, why);
    }
    let size = Size::full();
    forget_peak();
    let before = resident();
    let group_before = settled(&group);
    let most =
        group_before + size.budget_bytes() * (100 + crate::OVER_PERCENT) / 100 + KERNEL_BYTES;
    group.limit(most).expect("a group of our own has limits");
    say("resident before", before);
    say("group before", group_before);
    let mut run = Run::new(&folder, size.elements, arena_bytes, size.slots);
    let io_before = device_bytes();
    for step in 1..=STEPS {
        say(&format!("loss {}", step - 1), run.step(step).to_bits());
    }
    let io = device_bytes();
    let [moved_read, moved_written] = run.moved();
    say("kernel read", io[0] - io_before[0]);
    say("kernel written", io[1] - io_before[1]);
    say("moved read", moved_read);
    say("moved written", moved_written);
    say("committed", STEPS * run.commit_bytes());
    say(&format!("loss {STEPS}"), run.loss().to_bits());
    say("ledger peak", run.ledger_peak());
    say("resident peak", resident_peak());
    say("group peak", group.peak().unwrap_or(0));
    say(END, run.facts());
}

/// What the group has taken, once it has got back the memory of the small run: the kernel frees it
/// a moment after its ring was closed.
fn settled(group: &Group) -> u64 {
    let begin = Instant::now();
    loop {
        let usage = group.usage().expect("a group counts");
        if usage < KERNEL_BYTES || begin.elapsed() > SETTLING {
            return usage;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A small run. Errors: files in this folder are memory, or not read from a device.
fn warm_up(folder: &Path) -> Result<(), String> {
    let arena = Arena::new(Budget::new(1 << 20)).expect("an arena");
    let storage = Storage::new(&arena, Settings::default()).expect("an engine");
    let probe = storage.create(&folder.join("probe"), 1 << 20).expect("there is room");
    let [before, _] = device_bytes();
    let size = Size::warm_up();
    let mut run = Run::new(folder, size.elements, 8 << 20, size.slots);
    run.step(1);
    let [after, _] = device_bytes();
    if !probe.is_direct() || after - before < size.state_bytes() {
        return Err(format!("files in {} are not read past memory", folder.display()));
    }
    Ok(())
}

impl Folder {
    fn new(group: &Path) -> Self {
        let name = group.file_name().expect("groups have names");
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder for temporary files");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is the system's to clean up.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // Both fail only for a child that was waited for already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
