//! Payload that a call makes this rank send, by the formula of its algorithm, before it has run.
//!
//! Among R ranks an all-reduce of n bytes costs 2 (R − 1) / R · n a rank and an all-gather of n
//! bytes each (R − 1) · n; but pieces that do not divide differ by an element, and small calls
//! trade bytes for fewer steps. So the formula is the schedule: every `Send` in this rank's
//! program, times the length of its chunk. `comm` works through a call in windows and cuts each of
//! them evenly.
//!
//! Not here: what was really sent. `Communicator::stats` counts that, and a step prints both.

use crate::error::Error;
use brigade_comm::{Call, Communicator, Counts};
use brigade_schedule::{Program, program, sent_bytes};

/// Bytes that this rank sends in `call`.
///
/// Errors: those of a call that no algorithm can do.
pub(super) fn call_bytes(comm: &Communicator, call: &Call) -> Result<u64, Error> {
    let (ranks, rank) = (comm.size() as u32, comm.rank() as u32);
    let program = program(call.collective, comm.algorithm_for(call)?, ranks, rank);
    let program = program.expect("comm chooses an algorithm that has a program");
    let elem_bytes = call.dtype.size() as u64;
    let elems = match &call.counts {
        Counts::Even(elems) => {
            let blocks = u64::from(call.collective.blocks(ranks));
            let window = (comm.settings().window() / elem_bytes / blocks).max(64);
            let (elems, window) = (*elems as u64, window.next_multiple_of(64));
            let whole = elems / window * window_elems(&program, window);
            whole + window_elems(&program, elems % window)
        }
        // Blocks of different lengths are not cut any further, and travel alone.
        Counts::PerRank(counts) => {
            let lengths: Vec<u64> = counts.iter().map(|&count| count as u64).collect();
            sent_bytes(&program, &lengths)
        }
        Counts::PerPair { to, .. } => {
            let others = to.iter().enumerate().filter(|(peer, _)| *peer != comm.rank());
            others.map(|(_, &count)| count as u64).sum()
        }
    };
    Ok(elem_bytes * elems)
}

/// Elements sent of a window of `elems` elements of every block, which is cut into pieces.
fn window_elems(program: &Program, elems: u64) -> u64 {
    let pieces = u64::from(program.pieces);
    let edge = |piece: u64| elems * piece / pieces;
    let length = |chunk: u32| {
        let piece = u64::from(chunk) % pieces;
        edge(piece + 1) - edge(piece)
    };
    let lengths: Vec<u64> = (0..program.chunks()).map(length).collect();
    sent_bytes(program, &lengths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use brigade_comm::{Dtype, Op, Settings};
    use brigade_schedule::Collective;
    use std::sync::Arc;

    /// What each rank sends in one call, as `comm` counts it and as the formula says.
    fn sent(
        ranks: usize,
        collective: Collective,
        elems: usize,
        window_bytes: u64,
    ) -> Vec<(u64, u64)> {
        let transport = "loopback".to_string();
        let settings = Settings { transport, window_bytes, ..Settings::default() };
        let comms = Communicator::local_world(ranks, &settings).unwrap();
        let call = |comm: Communicator| {
            let call = Call::new(collective, Dtype::F32, Op::Sum, elems);
            let formula = call_bytes(&comm, &call).unwrap();
            let mut data = vec![1.0f32; elems];
            match collective {
                Collective::AllReduce => comm.all_reduce(&mut data, Op::Sum).unwrap(),
                _ => comm.all_gather(&data, &mut vec![0.0f32; ranks * elems]).unwrap(),
            }
            (comm.stats().sent_bytes, formula)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                comms.into_iter().map(|comm| scope.spawn(move || call(comm))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_rank_sends_what_its_formula_says() {
        // Nothing, fewer elements than ranks, sizes on both sides of the switch from few steps to
        // few bytes, and one that takes several windows and divides by nothing.
        for elems in [0, 1, 3, 1000, 4096, 4097, 600_011] {
            for ranks in [2, 3, 4, 5] {
                for collective in [Collective::AllReduce, Collective::AllGather] {
                    // The second is no window that ranks can tell each other.
                    for window in [1 << 20, 100_000] {
                        let sent = sent(ranks, collective, elems, window);
                        for (rank, (counted, formula)) in sent.iter().enumerate() {
                            let what = format!("{collective} of {elems}, rank {rank} of {ranks}");
                            assert_eq!(counted, formula, "{what}, windows of {window}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_of_different_lengths_are_counted_too() {
        let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
        let counts: Arc<[usize]> = Arc::from([700, 0, 90_001]);
        let run = |comm: Communicator| {
            let me = comm.rank();
            let of = |collective| Call {
                counts: Counts::PerRank(Arc::clone(&counts)),
                ..Call::new(collective, Dtype::F32, Op::Sum, 0)
            };
            let (to, from) = (Arc::clone(&counts), vec![counts[me]; 3].into());
            let pairs = Counts::PerPair { to, from };
            let all =
                Call { counts: pairs, ..Call::new(Collective::AllToAll, Dtype::F32, Op::Sum, 0) };
            for call in [of(Collective::AllGather), of(Collective::ReduceScatter), all] {
                let before = comm.stats().sent_bytes;
                let (input, output) = call.buffer_elems(3, me as u32);
                let owned = comm.start_owned(call.clone(), vec![1.0f32; input], vec![0.0; output]);
                owned.unwrap().wait().unwrap();
                let sent = comm.stats().sent_bytes - before;
                assert_eq!(sent, call_bytes(&comm, &call).unwrap(), "{call}, rank {me}");
            }
        };
        std::thread::scope(|scope| {
            for comm in Communicator::local_world(3, &settings).unwrap() {
                scope.spawn(move || run(comm));
            }
        });
    }

    #[test]
    fn large_calls_send_what_the_textbook_says_over_all_ranks() {
        let elems = 600_011;
        for ranks in [2, 3, 4, 5] {
            let total = |collective| -> u64 {
                sent(ranks, collective, elems, 1 << 20).iter().map(|(_, formula)| formula).sum()
            };
            let all = (4 * elems * (ranks - 1)) as u64;
            assert_eq!(total(Collective::AllReduce), 2 * all, "{ranks} ranks");
            assert_eq!(total(Collective::AllGather), ranks as u64 * all, "{ranks} ranks");
        }
    }
}
