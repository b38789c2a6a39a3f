//! A member that leaves while another one computes: what it sent lies in rings, slots and kernels
//! until it is read, or until somebody loses patience.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::flow::{assert_contents, contents};
use crate::harness::{Make, assert_gone, is_usable, members};

/// Longer than anybody who leaves stays for what is on its way, and than kernels go on by
/// themselves whose pauses are short.
const COMPUTES: Duration = Duration::from_secs(7);

#[test]
fn what_was_taken_arrives_over_tcp() {
    check(crate::TCP_V4);
}

#[test]
fn what_was_taken_arrives_over_shared_memory() {
    check(crate::SHM);
}

#[test]
fn what_was_taken_arrives_over_rdma() {
    check(crate::RDMA);
}

#[test]
fn what_was_taken_arrives_over_a_plugin() {
    check(crate::PLUGIN);
}

/// However much the wire has taken, and however long the receiver computes meanwhile.
fn check(make: Make) {
    if !is_usable(make) {
        return;
    }
    let taken = AtomicUsize::new(0);
    members(make, 2, |mut member| {
        if member.me == 0 {
            let mut wire = member.sender(1);
            let mut last = Instant::now();
            let mut count = 0;
            while count < member.sizes.credit_bytes || last.elapsed() < Duration::from_millis(300) {
                let took = wire
                    .push(&contents(402, count as u64, member.sizes.credit_bytes))
                    .expect("nobody has left");
                if took > 0 {
                    (count, last) = (count + took, Instant::now());
                }
            }
            taken.store(count, Ordering::Relaxed);
            return;
        }
        let mut wire = member.receiver(0);
        while taken.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(COMPUTES);
        let mut target = vec![0; taken.load(Ordering::Relaxed)];
        assert!(target.len() >= member.sizes.credit_bytes);
        member.receive(&mut *wire, &mut target);
        assert_contents(402, 0, &target);
        let error = member.until_error(|| wire.pull_into(&mut target));
        assert_gone(&error, 0);
    });
}
