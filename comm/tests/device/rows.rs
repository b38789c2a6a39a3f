//! Calls one behind the other over the same memory, waited for at the end only: what one of them
//! leaves another finds, and what one still reads no other writes.

use brigade_comm::naive::{NaiveCall, expected};
use brigade_comm::{Call, Dtype, Op, Settings};
use brigade_cuda::DeviceMemory;
use brigade_schedule::{Algorithm, Collective};

use super::world::{Rank, call, even, has_device, ranks, turn};

/// Elements of 4 bytes in each of two halves of a rank's memory.
const HALF: usize = 40_000;
/// The first time the calls of a row meet on the host, as each is the first of its kind.
const ROUNDS: usize = 3;

/// A call, and the elements at which its input and its output begin.
struct Step {
    case: NaiveCall,
    input: usize,
    output: usize,
}

/// So many calls: short ones go in packets, long ones directly, odd places element by element.
fn row(steps: usize, ranks: usize, random: &mut fastrand::Rng) -> Vec<Step> {
    let kinds = [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::AllToAll,
        Collective::Broadcast { root: 0 },
        Collective::Reduce { root: ranks as u32 - 1 },
    ];
    let step = |_| {
        let collective = kinds[random.usize(..kinds.len())];
        let count = [1, 7, 1000, 6000, 9001][random.usize(..5)];
        let case = even(collective, Dtype::I32, Op::Sum, count, ranks);
        let most = count * ranks;
        let [input, output] = [0, 0].map(|_| match random.u8(..4) {
            0 => random.usize(..HALF - most),
            _ => 0,
        });
        let same = collective == Collective::AllReduce && random.bool();
        let first = random.usize(..2) * HALF;
        Step {
            case,
            input: first + input,
            output: if same { first + input } else { HALF - first + output },
        }
    };
    (0..steps).map(step).collect()
}

/// What all ranks have after a call, by the judge.
fn judge(step: &Step, memory: &mut [Vec<u8>]) {
    let ranks = memory.len();
    let bytes_of =
        |rank: usize| call(&step.case, ranks, rank).buffer_elems(ranks as u32, rank as u32).0 * 4;
    let input =
        |(rank, memory): (usize, &Vec<u8>)| memory[4 * step.input..][..bytes_of(rank)].to_vec();
    let inputs: Vec<Vec<u8>> = memory.iter().enumerate().map(input).collect();
    for (output, memory) in expected(&step.case, &inputs).into_iter().zip(memory) {
        let output = output.unwrap_or_default();
        memory[4 * step.output..][..output.len()].copy_from_slice(&output);
    }
}

fn enqueue(rank: &Rank, step: &Step, memory: &DeviceMemory) {
    let call: Call = call(&step.case, rank.comm.size(), rank.comm.rank());
    let [input, output] = [step.input, step.output].map(|at| memory.address() + 4 * at as u64);
    // SAFETY: both lie in the memory, which outlives the wait for the last call.
    unsafe { rank.group.enqueue(&call, input, output, &rank.stream) }.expect("a call");
}

fn check(count: usize, settings: &Settings, seed: u64) {
    if !has_device() {
        return;
    }
    let _turn = turn();
    println!("seed {seed}");
    let row = row(16, count, &mut fastrand::Rng::with_seed(seed));
    let first =
        |rank: usize| (0..2 * HALF).flat_map(move |at| ((at * 31 + rank) as i32).to_le_bytes());
    let mut wanted: Vec<Vec<u8>> = (0..count).map(|rank| first(rank).collect()).collect();
    for step in (0..ROUNDS).flat_map(|_| &row) {
        judge(step, &mut wanted);
    }
    ranks(count, settings, |rank| {
        let own = rank.comm.rank();
        let memory = rank.memory_of_each(&first(own).collect::<Vec<u8>>());
        for step in (0..ROUNDS).flat_map(|_| &row) {
            enqueue(rank, step, &memory);
        }
        rank.group.mark(&rank.stream).expect("a work").wait().expect("their end");
        assert!(rank.bytes(&memory) == wanted[own], "rank {own} of {count}, seed {seed}");
        rank.free(vec![memory]);
    });
}

#[test]
fn rows_of_two_ranks() {
    check(2, &Settings::default(), 1);
}

#[test]
fn rows_of_three_ranks() {
    check(3, &Settings::default(), 2);
}

fn check_slots(count: usize, algorithm: Algorithm) {
    check(count, &Settings { algorithm: Some(algorithm), ..Settings::default() }, 3);
}

#[test]
fn rows_through_slots() {
    // Of these two one folds what comes at once, the other what it has kept.
    check_slots(3, Algorithm::Ring);
    check_slots(3, Algorithm::Ordered);
}

#[test]
fn rows_by_every_algorithm() {
    for algorithm in Algorithm::all_for(Collective::AllReduce, 4) {
        check_slots(4, algorithm);
    }
}
