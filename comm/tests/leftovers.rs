//! Communicators and windows that are dropped leave nothing behind in their process, however many
//! there were.

use std::time::Duration;

use brigade_comm::{Communicator, Op, Settings, WindowSize};

/// What this process holds.
#[derive(Clone, Copy, Debug)]
struct Holdings {
    threads: usize,
    files: usize,
    mappings: usize,
    resident_kb: usize,
}

impl Holdings {
    /// Threads and files exactly; what the allocator keeps varies a little.
    fn no_more_than(self, before: Self) -> bool {
        self.threads <= before.threads
            && self.files <= before.files
            && self.mappings <= before.mappings + 8
            && self.resident_kb <= before.resident_kb + (4 << 10)
    }
}

fn holdings() -> Holdings {
    let entries = |folder: &str| std::fs::read_dir(folder).expect("a folder of the system").count();
    let text = |file: &str| std::fs::read_to_string(file).expect("a file of the system");
    let status = text("/proc/self/status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line of memory");
    let number = line.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok());
    Holdings {
        threads: entries("/proc/self/task"),
        files: entries("/proc/self/fd"),
        mappings: text("/proc/self/maps").lines().count(),
        resident_kb: number.expect("a number"),
    }
}

/// Calls of every kind of work, blocking and in flight.
fn work(member: &Communicator) {
    let mut data = vec![1i64; 20_000];
    member.all_reduce(&mut data, Op::Sum).expect("an all-reduce");
    let started = member.scope(|scope| scope.all_reduce(&mut data, Op::Max).map(|_| ()));
    started.expect("a scope").expect("a start");
    member.barrier().expect("a barrier");
}

fn groups_of_one_world(transport: &str, groups: usize) {
    let settings = Settings { transport: transport.into(), ..Settings::default() };
    let members = Communicator::local_world(4, &settings).expect("a world");
    std::thread::scope(|scope| {
        for member in &members {
            scope.spawn(move || {
                for _ in 0..groups {
                    let group = member.split(Some(0), 0).expect("a split").expect("a group");
                    work(&group);
                }
            });
        }
    });
}

fn windows_of_one_world(transport: &str, windows: usize) {
    const BYTES: usize = 100_000;
    let settings = Settings { transport: transport.into(), ..Settings::default() };
    let members = Communicator::local_world(4, &settings).expect("a world");
    std::thread::scope(|scope| {
        for member in &members {
            scope.spawn(move || {
                for _ in 0..windows {
                    let size = WindowSize { bytes: BYTES, signals: 1 };
                    let window = member.window(size).expect("a window");
                    let to = (member.rank() + 1) % member.size();
                    window.put(to, 0, &[1; BYTES]).expect("a put");
                    window.signal(to, 0, 1).expect("a signal");
                    window.wait(0, 1).expect("a signal");
                    member.barrier().expect("nobody needs the windows any more");
                }
            });
        }
    });
}

fn worlds(transport: &str, worlds: usize) {
    for _ in 0..worlds {
        groups_of_one_world(transport, 1);
    }
}

/// A second round holds no more than the first, which was as long. Threads that have been told to
/// end may need a moment.
fn check(what: &str, round: impl Fn()) {
    round();
    let before = holdings();
    round();
    let mut after = holdings();
    for _ in 0..100 {
        if after.no_more_than(before) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
        after = holdings();
    }
    panic!("{what}: {before:?} became {after:?}");
}

/// One test, because what a process holds is one number for all tests in it.
#[test]
fn communicators_and_windows_leave_nothing_behind() {
    for transport in ["loopback", "shm", "tcp"] {
        check(&format!("groups over {transport}"), || groups_of_one_world(transport, 50));
        check(&format!("windows over {transport}"), || windows_of_one_world(transport, 20));
        check(&format!("worlds over {transport}"), || worlds(transport, 20));
    }
}
