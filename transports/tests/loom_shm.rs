//! Every interleaving of a small ring and its bells, by the model checker loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p brigade-transports --test loom_shm`
//!
//! The file under test is the one that the transport is built from. The payload is a relaxed
//! atomic, so that loom shows readers every stale value that the order of the other words allows,
//! and the futex is a lock and a condition: a wake-up that is lost leaves all threads blocked,
//! which loom reports. `membarrier` makes the mover's missing barrier a full one whenever it
//! matters, so here it is one. The last two tests break the order and must fail.
#![cfg(loom)]

/// What `order` finds beside it in the transport.
mod atomic {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

#[path = "../src/shm/order.rs"]
mod order;

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use order::{
    ARMED, ARMED_AT_SOCKET, Arrival, QUIET, Receiving, Sending, arm, disarm, may_sleep, must_wake,
};

const SLOTS: u32 = 2;
const LINES: u32 = 1;

/// A bell and the queue that a kernel keeps for its word.
struct Bell {
    word: AtomicU32,
    queue: Mutex<()>,
    woken: Condvar,
}

impl Bell {
    fn new() -> Self {
        Self { word: AtomicU32::new(QUIET), queue: Mutex::new(()), woken: Condvar::new() }
    }

    /// As `futex(FUTEX_WAIT)`: look and sleep are one step.
    fn wait(&self) {
        let mut queue = self.queue.lock().unwrap();
        while may_sleep(&self.word) {
            queue = self.woken.wait(queue).unwrap();
        }
        drop(queue);
        disarm(&self.word);
    }

    fn ring(&self, barrier: impl FnOnce()) {
        if must_wake(&self.word, barrier) != QUIET {
            let _queue = self.queue.lock().unwrap();
            self.woken.notify_all();
        }
    }
}

fn full() {
    fence(Ordering::SeqCst);
}

fn none() {}

/// One ring: flags, a tail, and a line of payload for each slot.
struct Ring {
    flags: [AtomicU64; SLOTS as usize],
    tail: AtomicU64,
    payload: [AtomicU32; LINES as usize],
    sender_bell: Bell,
    receiver_bell: Bell,
}

impl Ring {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            flags: [AtomicU64::new(0), AtomicU64::new(0)],
            tail: AtomicU64::new(0),
            payload: [AtomicU32::new(0)],
            sender_bell: Bell::new(),
            receiver_bell: Bell::new(),
        })
    }

    /// Write piece number `value` if there is room.
    fn push(&self, book: &mut Sending<SLOTS>, value: u32) -> bool {
        if !book.has_slot() || book.free_lines() == 0 {
            book.look(&self.tail).expect("the receiver is honest");
            if !book.has_slot() || book.free_lines() == 0 {
                return false;
            }
        }
        self.payload[book.line() as usize].store(value, Ordering::Relaxed);
        let flag = &self.flags[book.slot()];
        match book.position() {
            2 => book.publish_timed(flag, 4, 1),
            _ => book.publish(flag, 4, 1),
        }
        true
    }

    /// Read the next piece if it is there.
    fn pull(&self, book: &mut Receiving<SLOTS>) -> Option<u32> {
        match book.peek(&self.flags[book.slot()]) {
            Arrival::Nothing => None,
            arrival @ (Arrival::Piece(4) | Arrival::Timed(4)) => {
                assert_eq!(arrival == Arrival::Timed(4), book.position() == 2);
                let value = self.payload[book.line() as usize].load(Ordering::Relaxed);
                book.release(&self.tail, 1);
                Some(value)
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Move three pieces through a ring with room for one, both sides sleeping when they must.
fn three_pieces(sender_barrier: fn(), receiver_barrier: fn()) {
    let ring = Ring::new();
    let sending = {
        let ring = ring.clone();
        thread::spawn(move || {
            let mut book = Sending::new(LINES);
            for value in 1..=3 {
                while !ring.push(&mut book, value) {
                    arm(&ring.sender_bell.word, ARMED_AT_SOCKET, full);
                    if ring.push(&mut book, value) {
                        disarm(&ring.sender_bell.word);
                        break;
                    }
                    ring.sender_bell.wait();
                }
                ring.receiver_bell.ring(sender_barrier);
            }
        })
    };
    let mut book = Receiving::new(LINES);
    for value in 1..=3 {
        let pulled = loop {
            if let Some(pulled) = ring.pull(&mut book) {
                break pulled;
            }
            arm(&ring.receiver_bell.word, ARMED, full);
            if let Some(pulled) = ring.pull(&mut book) {
                disarm(&ring.receiver_bell.word);
                break pulled;
            }
            ring.receiver_bell.wait();
        };
        assert_eq!(pulled, value);
        ring.sender_bell.ring(receiver_barrier);
    }
    sending.join().unwrap();
}

/// All interleavings with at most `preemptions` forced switches.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

#[test]
fn pieces_arrive_in_order_without_races_and_nobody_oversleeps() {
    check(3, || three_pieces(full, full));
}

#[test]
fn a_sleeper_is_woken_by_one_piece() {
    loom::model(|| one_piece(full));
}

/// One piece, one sleeper: small enough for every interleaving.
fn one_piece(barrier: fn()) {
    let ring = Ring::new();
    let sending = {
        let ring = ring.clone();
        thread::spawn(move || {
            assert!(ring.push(&mut Sending::new(LINES), 7));
            ring.receiver_bell.ring(barrier);
        })
    };
    let mut book = Receiving::new(LINES);
    let mut pulled = ring.pull(&mut book);
    if pulled.is_none() {
        arm(&ring.receiver_bell.word, ARMED, full);
        pulled = ring.pull(&mut book);
    }
    while pulled.is_none() {
        ring.receiver_bell.wait();
        pulled = ring.pull(&mut book);
        assert!(pulled.is_some(), "woken by nothing");
    }
    assert_eq!(pulled, Some(7));
    sending.join().unwrap();
}

#[test]
fn the_last_word_of_a_sender_is_that_it_closed() {
    loom::model(|| {
        let ring = Ring::new();
        let sending = {
            let ring = ring.clone();
            thread::spawn(move || {
                let mut book = Sending::<SLOTS>::new(LINES);
                assert!(ring.push(&mut book, 7));
                book.close(&ring.flags[book.slot()]);
            })
        };
        let mut book = Receiving::new(LINES);
        let early = ring.pull(&mut book);
        assert!(early.is_none_or(|value| value == 7));
        sending.join().unwrap();
        if early.is_none() {
            assert_eq!(ring.pull(&mut book), Some(7));
        }
        assert_eq!(book.peek(&ring.flags[book.slot()]), Arrival::Closed);
    });
}

#[test]
#[should_panic]
fn without_the_movers_barrier_a_wake_up_is_lost() {
    loom::model(|| one_piece(none));
}

#[test]
#[should_panic]
fn a_tail_published_too_early_spoils_a_piece() {
    check(3, || {
        let ring = Ring::new();
        let sending = {
            let ring = ring.clone();
            thread::spawn(move || {
                let mut book = Sending::new(LINES);
                for value in 1..=3 {
                    while !ring.push(&mut book, value) {
                        thread::yield_now();
                    }
                }
            })
        };
        let mut book = Receiving::<SLOTS>::new(LINES);
        for value in 1..=3 {
            while book.peek(&ring.flags[book.slot()]) == Arrival::Nothing {
                thread::yield_now();
            }
            let line = book.line() as usize;
            book.release(&ring.tail, 1);
            assert_eq!(ring.payload[line].load(Ordering::Relaxed), value);
        }
        sending.join().unwrap();
    });
}
