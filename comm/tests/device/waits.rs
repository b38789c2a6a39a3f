//! What may wait for the device is done while nobody's kernel waits for the rank that does it.
//!
//! The fake's allocations wait for all kernels and hold up all threads, and what is taken of a pool
//! waits for the stream that gives it back: as a driver may have it.

use std::sync::Arc;
use std::time::Duration;

use brigade_comm::device::Way;
use brigade_comm::{Call, Dtype, Op, Settings};
use brigade_cuda::DeviceMemory;
use brigade_schedule::Collective;

use super::graphs::Exclusive;
use super::world::{Rank, has_device, ranks, turn};

/// Longer than any of these calls takes.
const DEADLINE: Duration = Duration::from_secs(4);

/// So many ranks with a short deadline; kernels that only move are compiled before.
fn hasty(count: usize, body: impl Fn(&Rank) + Sync) {
    if !has_device() {
        return;
    }
    let _turn = turn();
    ranks(count, &Settings::default(), |_| ());
    let settings = Settings { timeout: DEADLINE, ..Settings::default() };
    ranks(count, &settings, |rank| {
        rank.assert_way(Way::Together);
        body(rank);
    });
}

/// Groups are made while each rank comes when it likes, and proved by two calls.
#[test]
fn a_group_is_made_by_kernels_that_wait_for_nobody_who_allocates() {
    hasty(4, |_| ());
}

/// One rank needs room for a copy of its input; the kernel of the other one waits for it by then,
/// and in front of memory that goes back to the pool.
#[test]
fn room_for_a_call_waits_for_no_stream_that_waits_for_the_call() {
    hasty(2, |rank| {
        let (own, elems) = (rank.comm.rank(), 20_000);
        let sent: Vec<u8> = (0..2 * elems).map(|at| (at / elems * 2 + own) as u8).collect();
        let memory = [rank.memory(&sent), rank.memory_of_each(&sent)];
        let at = |which: usize| memory[which].address();
        let call = Call::moving(Collective::AllToAll, Dtype::U8, elems);
        // In place on rank 1.
        let to = at(1 - own);
        // SAFETY: the memory is as long as the call, and outlives its end.
        let enqueue = || unsafe { rank.group.enqueue(&call, at(0), to, &rank.stream) };
        if own == 0 {
            let pooled = DeviceMemory::pooled(&rank.stream, 1 << 20).expect("memory of the pool");
            enqueue().expect("the call");
            drop(pooled);
        }
        rank.comm.barrier().expect("a barrier");
        if own == 1 {
            enqueue().expect("the call");
        }
        rank.group.mark(&rank.stream).unwrap().wait().expect("the call's end");
        let came = rank.bytes(&memory[1 - own]);
        let wanted: Vec<u8> = (0..2 * elems).map(|at| (own * 2 + at / elems) as u8).collect();
        assert!(came == wanted, "rank {own}");
        rank.free(memory.into());
    });
}

/// A rank looks at what comes of a call as soon as it has made it, before the others make theirs.
#[test]
fn who_reads_behind_a_call_holds_up_no_rank_that_it_waits_for() {
    hasty(2, |rank| {
        let own = rank.comm.rank();
        for elems in [100, 20_000] {
            let memory = rank.memory_of_each(&vec![own as u8; elems]);
            let call = Call::moving(Collective::Broadcast { root: 1 }, Dtype::U8, elems);
            if own == 1 {
                std::thread::sleep(Duration::from_millis(300));
            }
            let at = memory.address();
            // SAFETY: the memory is as long as the call, and outlives its end.
            unsafe { rank.group.enqueue(&call, at, at, &rank.stream) }.expect("a call");
            assert!(rank.bytes(&memory) == vec![1; elems], "rank {own}, {elems} bytes");
            rank.free(vec![memory]);
        }
    });
}

/// Who sends its part of a reduction goes on, before the root has pinned room for the result.
#[test]
fn calls_of_the_host_pin_memory_while_no_kernel_waits() {
    hasty(2, |rank| {
        let own = rank.comm.rank();
        let memory = rank.memory_of_each(&[1 + own as u8; 64]);
        let at = memory.address();
        let op = Op::Custom(Arc::new(Exclusive));
        let collective = Collective::Reduce { root: 1 };
        let by_host = Call { collective, op, ..Call::moving(collective, Dtype::U8, 64) };
        let moving = Call::moving(Collective::Broadcast { root: 1 }, Dtype::U8, 64);
        if own == 1 {
            std::thread::sleep(Duration::from_millis(300));
        }
        for call in [&by_host, &moving] {
            // SAFETY: the memory is as long as the calls, and outlives their end.
            unsafe { rank.group.enqueue(call, at, at, &rank.stream) }.expect("a call");
        }
        rank.group.mark(&rank.stream).unwrap().wait().expect("the calls' end");
        assert_eq!(rank.bytes(&memory), [3; 64], "rank {own}");
        rank.free(vec![memory]);
    });
}
