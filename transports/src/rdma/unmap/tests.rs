//! The watch over real memory. Where the kernel does not let us, each test says so and ends.

pub(in crate::rdma) mod sys;

use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};

use self::sys::{Child, Deed, Mapped};
use super::*;

const MIB: usize = 1 << 20;
/// How long anything here may take.
const LIMIT: Duration = Duration::from_secs(30);

/// A watch of the test's own, whatever others do.
fn watch() -> Option<Arc<Watch>> {
    match Watch::start() {
        Ok(watch) => Some(Arc::new(watch)),
        Err(error) => {
            println!("skipped: {}", why_not(&error));
            None
        }
    }
}

/// All changes since `seen` that concern a range: other tests have memory of their own.
fn news_of(watch: &Watch, seen: &mut u64, range: &Range<usize>) -> Vec<Change> {
    let mut batch = [Change::Unmapped { start: 0, end: 0 }; BATCH];
    let mut found = Vec::new();
    let started = Instant::now();
    loop {
        let count = match watch.news(seen, &mut batch) {
            News::Changes(count) => count,
            // On a busy machine, a thread may be stopped for long in the middle of a change.
            News::Unsettled if started.elapsed() < LIMIT => continue,
            other => panic!("{other:?}"),
        };
        found.extend(batch[..count].iter().filter(|change| match **change {
            Change::Unmapped { start, end } | Change::Emptied { start, end } => {
                start < range.end && range.start < end
            }
            Change::Moved { start, .. } => range.contains(&start),
        }));
        if count < BATCH {
            return found;
        }
    }
}

/// Run something on a thread of its own; it ends in time.
fn within_limit<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let outcome = what();
        drop(done);
        outcome
    });
    let answer = is_done.recv_timeout(LIMIT);
    assert_eq!(answer, Err(std::sync::mpsc::RecvTimeoutError::Disconnected), "it hangs");
    thread.join().expect("it does not panic")
}

#[test]
fn what_is_left_of_a_range() {
    let check = |others: &[Range<usize>], left: &[Range<usize>]| {
        assert_eq!(without(&(0..10), others.iter()), left, "{others:?}");
    };
    check(&[], slice::from_ref(&(0..10)));
    check(slice::from_ref(&(3..5)), &[0..3, 5..10]);
    check(&[0..5, 5..10], &[]);
    check(&[0..2, 8..20, 30..40], slice::from_ref(&(2..8)));
    check(&[2..3, 6..7], &[0..2, 3..6, 7..10]);
}

#[test]
fn why_memory_is_not_watched_is_said_with_what_to_do() {
    let why = |errno| why_not(&io::Error::from_raw_os_error(errno));
    assert!(why(libc::EPERM).contains("seccomp") && why(libc::EPERM).contains("sysctl"));
    assert!(why(libc::ENOSYS).contains("kernel") && why(libc::EINVAL).contains("Linux 5.7"));
    assert!(why(libc::EMFILE).contains("limits"));
}

#[test]
fn changes_are_told_by_the_time_that_they_have_returned() {
    let Some(watch) = watch() else { return };
    for deed in [Deed::Unmap, Deed::Empty, Deed::Free, Deed::MapOver] {
        let mut mapped = Mapped::new(MIB);
        mapped.fill(1);
        let (range, mut seen) = (mapped.range(), watch.now());
        watch.watch(&range).expect("memory of our own");
        mapped.act(MIB / 4, MIB / 4, deed);
        let (start, end) = (range.start + MIB / 4, range.start + MIB / 2);
        let told = match deed {
            Deed::Unmap | Deed::MapOver => Change::Unmapped { start, end },
            Deed::Empty | Deed::Free => Change::Emptied { start, end },
        };
        assert_eq!(news_of(&watch, &mut seen, &range), [told], "{deed:?}");
        watch.unwatch(&range, &[]);
        mapped.act(0, MIB / 4, deed);
        assert_eq!(news_of(&watch, &mut seen, &range), [], "{deed:?} of what is not watched");
    }
}

#[test]
fn memory_that_moves_is_told_and_its_new_place_can_be_let_go_of() {
    let Some(watch) = watch() else { return };
    let (mut mapped, mut target) = (Mapped::new(MIB), Mapped::new(2 * MIB));
    mapped.fill(1);
    let (range, mut seen) = (mapped.range(), watch.now());
    watch.watch(&range).expect("memory of our own");
    assert!(mapped.resize(2 * MIB, Some(target.start)));
    target.bytes = 0;
    let to = mapped.start;
    let moved = Change::Moved { start: range.start, to, bytes: MIB };
    assert!(news_of(&watch, &mut seen, &range).contains(&moved));
    watch.unwatch(&(to..to + MIB), &[]);
    watch.unwatch(&range, slice::from_ref(&range));
    assert!(mapped.resize(MIB, None));
    mapped.act(0, MIB, Deed::Empty);
    assert_eq!(news_of(&watch, &mut seen, &(to..to + MIB)), []);
}

#[test]
fn two_watchers_of_one_range_let_go_of_it_one_by_one() {
    let Some(watch) = watch() else { return };
    let mapped = Mapped::new(MIB);
    let (range, mut seen) = (mapped.range(), watch.now());
    let half = range.start..range.start + MIB / 2;
    watch.watch(&range).expect("memory of our own");
    watch.watch(&half).expect("memory of our own");
    watch.unwatch(&range, &[]);
    mapped.act(0, MIB, Deed::Empty);
    let told = Change::Emptied { start: half.start, end: half.end };
    assert_eq!(news_of(&watch, &mut seen, &range), [told]);
    watch.unwatch(&half, &[]);
}

#[test]
fn a_vector_that_comes_to_lie_where_another_one_was_is_seen() {
    let Some(watch) = watch() else { return };
    let mut came_back = 0;
    for _ in 0..12 {
        // So large that the allocator maps each one, and unmaps it.
        let first = vec![1_u8; 33 * MIB];
        let start = first.as_ptr().addr();
        let range = start.next_multiple_of(4096)..(start + first.len()) / 4096 * 4096;
        let mut seen = watch.now();
        watch.watch(&range).expect("memory of our own");
        drop(first);
        let second = vec![2_u8; 33 * MIB];
        came_back += u32::from(second.as_ptr().addr() == start);
        assert!(!news_of(&watch, &mut seen, &range).is_empty(), "a vector was freed");
        watch.unwatch(&range, slice::from_ref(&range));
    }
    println!("{came_back} of 12 came to lie at the same address");
}

#[test]
fn a_change_that_nobody_has_read_is_noticed() {
    let Ok(userfault) = Userfault::new() else { return println!("skipped: no userfaultfd") };
    let userfault = Arc::new(userfault);
    for _ in 0..20 {
        let mapped = Mapped::new(MIB);
        userfault.watch(mapped.start, MIB).expect("memory of our own");
        assert!(!userfault.is_changing());
        let thread = std::thread::spawn(move || drop(mapped));
        let started = Instant::now();
        while !userfault.is_changing() {
            assert!(started.elapsed() < LIMIT, "a change under way is not noticed");
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(1));
        assert!(userfault.is_changing() && !thread.is_finished(), "it waits until it was read");
        let mut told = 0;
        while told == 0 {
            assert!(started.elapsed() < LIMIT, "nothing is told");
            userfault.read(|_| told += 1);
        }
        thread.join().expect("it does not panic");
        assert!(!userfault.is_changing() && told == 1);
    }
}

#[test]
fn who_asks_is_told_of_changes_that_are_not_over() {
    let Ok(watch) = Watch::unattended() else { return println!("skipped: no userfaultfd") };
    let mut seen = 0;
    for _ in 0..20 {
        let mapped = Mapped::new(MIB);
        let range = mapped.range();
        watch.watch(&range).expect("memory of our own");
        let thread = std::thread::spawn(move || drop(mapped));
        let started = Instant::now();
        while !watch.shared().userfault.is_changing() {
            assert!(started.elapsed() < LIMIT, "a change under way is not noticed");
        }
        // The addresses may be somebody else's already.
        let told = [Change::Unmapped { start: range.start, end: range.end }];
        assert_eq!(news_of(&watch, &mut seen, &range), told);
        thread.join().expect("it does not panic");
        watch.unwatch(&range, slice::from_ref(&range));
    }
}

/// This test again in a process of its own, where no other test holds the watch. Returns whether
/// this is that process.
fn is_alone(test: &str) -> bool {
    const ALONE: &str = "BRIGADE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let program = std::env::current_exe().expect("a program");
    let arguments = ["--exact", test, "--nocapture"];
    let outcome = std::process::Command::new(program).args(arguments).env(ALONE, "1").output();
    let outcome = outcome.expect("it starts");
    let said = String::from_utf8_lossy(&outcome.stdout);
    print!("{said}");
    assert!(outcome.status.success() && said.contains("1 passed"), "{outcome:?}");
    false
}

#[test]
fn a_child_is_not_watched_and_keeps_nobody_waiting() {
    let Ok(watch) = Watch::of_this_process() else { return println!("skipped: no userfaultfd") };
    let name = "rdma::unmap::tests::a_child_is_not_watched_and_keeps_nobody_waiting";
    if !is_alone(name) {
        return;
    }
    let mut mapped = Mapped::new(MIB);
    mapped.fill(1);
    let (range, mut seen) = (mapped.range(), watch.now());
    watch.watch(&range).expect("memory of our own");
    let child = Child::that_unmaps(&mapped);
    assert!(child.is_done_within(10_000), "the child hangs");
    assert_eq!(news_of(&watch, &mut seen, &range), [], "what a child does is its own affair");
    // The watch ends while the child lives. What nobody has let go of can be unmapped.
    let again = Watch::of_this_process().expect("there is one");
    assert!(Arc::ptr_eq(&watch, &again));
    drop(again);
    drop(watch);
    within_limit(move || drop(mapped));
}

#[test]
fn many_threads_free_memory_while_others_look() {
    let Some(watch) = watch() else { return };
    let is_over = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..6_u64)
        .map(|index| {
            let (watch, is_over) = (Arc::clone(&watch), Arc::clone(&is_over));
            std::thread::spawn(move || {
                let mut rng = fastrand::Rng::with_seed(index);
                let (mut seen, mut count) = (watch.now(), 0_u64);
                let mut batch = [Change::Unmapped { start: 0, end: 0 }; BATCH];
                while !is_over.load(Ordering::Relaxed) {
                    let vector = vec![index as u8; rng.usize(MIB / 8..4 * MIB)];
                    let start = vector.as_ptr().addr();
                    let range = start & !4095..(start + vector.len()).next_multiple_of(4096);
                    let is_watched = watch.watch(&range).is_ok();
                    if rng.bool() {
                        let _any = watch.news(&mut seen, &mut batch);
                    }
                    drop(vector);
                    if is_watched {
                        watch.unwatch(&range, &[]);
                    }
                    count += 1;
                }
                count
            })
        })
        .collect();
    std::thread::sleep(Duration::from_secs(2));
    is_over.store(true, Ordering::Relaxed);
    let counts = within_limit(move || {
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
    });
    println!("vectors freed by each thread: {counts:?}");
    within_limit(move || drop(watch));
}
