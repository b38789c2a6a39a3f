//! Handles under attack: bits flipped, ended twice, ended while others use them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use super::{CLOSED, MAGIC, Noun, SLOTS, close, find, pin, register, reserve};

/// Counts how often it has ended.
struct Counted(Arc<AtomicUsize>, u64);

impl Noun for Counted {
    const KIND: u8 = 100;
    const NAME: &'static str = "counted thing";
}

struct Other;

impl Noun for Other {
    const KIND: u8 = 101;
    const NAME: &'static str = "other thing";
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn counted(value: u64) -> (u64, Arc<AtomicUsize>) {
    let ends = Arc::new(AtomicUsize::new(0));
    (register(Arc::new(Counted(Arc::clone(&ends), value))).unwrap(), ends)
}

#[test]
fn a_thing_ends_once_with_the_last_use() {
    let (handle, ends) = counted(7);
    let used = pin::<Counted>(handle).unwrap();
    close::<Counted>(handle).unwrap();
    assert!(close::<Counted>(handle).is_err());
    let refusal = pin::<Counted>(handle).err().unwrap().sentence;
    assert!(refusal.contains("destroyed, freed or finalized"), "{refusal}");
    assert_eq!((used.1, ends.load(Ordering::SeqCst)), (7, 0));
    drop(used);
    assert_eq!(ends.load(Ordering::SeqCst), 1);
}

#[test]
fn only_the_right_number_is_a_handle() {
    let (handle, ends) = counted(1);
    for bit in 0..64 {
        assert!(pin::<Counted>(handle ^ 1 << bit).is_err(), "bit {bit}");
        assert!(pin::<Other>(handle ^ 1 << bit).is_err(), "bit {bit}");
    }
    for wrong in [0, 1, u64::MAX, MAGIC << 56, &raw const handle as u64] {
        assert!(pin::<Counted>(wrong).is_err(), "{wrong:#x}");
    }
    assert!(pin::<Other>(handle).is_err());
    assert_eq!(ends.load(Ordering::SeqCst), 0);
    close::<Counted>(handle).unwrap();
    assert_eq!(ends.load(Ordering::SeqCst), 1);
}

#[test]
fn a_place_that_is_never_filled_is_free_again() {
    for _ in 0..2 * SLOTS {
        drop(reserve::<Other>().unwrap());
    }
    let ends = Arc::new(AtomicUsize::new(0));
    let reserved = reserve::<Counted>().unwrap();
    assert!(pin::<Counted>(reserved.handle).is_err(), "nothing is there yet");
    let handle = reserved.fill(Arc::new(Counted(Arc::clone(&ends), 3)));
    assert_eq!(pin::<Counted>(handle).unwrap().1, 3);
    close::<Counted>(handle).unwrap();
    assert_eq!(ends.load(Ordering::SeqCst), 1);
}

/// Whoever saw that a slot is to be emptied, and is held up, may find it let anew.
#[test]
fn a_late_end_leaves_the_next_tenant_alone() {
    let (handle, ends) = counted(1);
    let slot = find::<Counted>(handle).unwrap();
    let closed = slot.word.load(Ordering::SeqCst) | CLOSED;
    close::<Counted>(handle).unwrap();
    assert_eq!(ends.load(Ordering::SeqCst), 1);
    let (next, its_ends) = loop {
        let (next, ends) = counted(2);
        if next as usize % SLOTS == handle as usize % SLOTS {
            break (next, ends);
        }
        close::<Counted>(next).unwrap();
    };
    slot.empty(closed);
    assert_eq!(its_ends.load(Ordering::SeqCst), 0);
    assert_eq!(pin::<Counted>(next).unwrap().1, 2);
    close::<Counted>(next).unwrap();
    assert_eq!(its_ends.load(Ordering::SeqCst), 1);
}

/// Threads look up, share and end the same handles, and guess at others.
#[test]
fn a_race_ends_every_thing_exactly_once() {
    const THREADS: u64 = 4;
    for round in 0..300 {
        let (handle, ends) = counted(round);
        let start = Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    let other = register(Arc::new(Other)).unwrap();
                    for turn in 0..50 {
                        if let Ok(used) = pin::<Counted>(handle) {
                            assert_eq!(used.1, round);
                            assert_eq!(used.share().1, round);
                        }
                        if turn == 10 * thread {
                            // One of the threads is the first; the others are told so.
                            let _ = close::<Counted>(handle);
                        }
                        assert!(pin::<Counted>(other).is_err());
                    }
                    close::<Other>(other).unwrap();
                });
            }
        });
        assert_eq!(ends.load(Ordering::SeqCst), 1, "round {round}");
    }
}
