//! The one harness of these tests: a world of threads that makes a list of calls, and the judge.

use std::sync::Arc;

use brigade_comm::naive::{NaiveCall, expected, fill};
use brigade_comm::{Buffers, Call, Communicator, Counts, Dtype, Op, Settings};
use brigade_schedule::{Algorithm, Collective};

/// One call, as all ranks make it. `counts` has one entry for equal blocks, else one a block.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) dtype: Dtype,
    pub(crate) op: Op,
    pub(crate) counts: Vec<usize>,
    pub(crate) in_place: bool,
}

/// Run every case on one world and compare every rank's bytes with the judge's.
pub(crate) fn check(transport: &str, ranks: u32, algorithm: Option<Algorithm>, cases: &[Case]) {
    let settings = Settings { transport: transport.into(), algorithm, ..Settings::default() };
    let members = Communicator::local_world(ranks as usize, &settings).expect("a world");
    let inputs: Vec<Vec<Vec<u8>>> = cases.iter().map(|case| inputs(case, ranks)).collect();
    let wanted: Vec<_> = cases
        .iter()
        .zip(&inputs)
        .map(|(case, inputs)| expected(&case.naive(ranks), inputs))
        .collect();
    std::thread::scope(|scope| {
        for member in members {
            let (inputs, wanted) = (&inputs, &wanted);
            scope.spawn(move || {
                let rank = member.rank();
                for (at, case) in cases.iter().enumerate() {
                    let got = run(&member, case, &inputs[at][rank]);
                    if let Some(want) = &wanted[at][rank] {
                        assert!(
                            got == *want,
                            "rank {rank} of {ranks}, {transport}, {algorithm:?}, {case:?}: wrong \
                             from byte {:?}",
                            got.iter().zip(want).position(|(got, want)| got != want)
                        );
                    }
                }
            });
        }
    });
}

impl Case {
    fn naive(&self, ranks: u32) -> NaiveCall {
        let blocks = self.collective.blocks(ranks) as usize;
        let counts =
            if self.counts.len() == 1 { vec![self.counts[0]; blocks] } else { self.counts.clone() };
        NaiveCall { collective: self.collective, dtype: self.dtype, op: self.op.clone(), counts }
    }

    fn call(&self, ranks: usize, rank: usize) -> Call {
        let counts = match (self.counts.len(), self.collective) {
            (1, _) => Counts::Even(self.counts[0]),
            (_, Collective::AllToAll) => Counts::PerPair {
                to: self.counts[rank * ranks..][..ranks].into(),
                from: (0..ranks).map(|source| self.counts[source * ranks + rank]).collect(),
            },
            _ => Counts::PerRank(Arc::from(&self.counts[..])),
        };
        Call { collective: self.collective, dtype: self.dtype, op: self.op.clone(), counts }
    }
}

fn inputs(case: &Case, ranks: u32) -> Vec<Vec<u8>> {
    let naive = case.naive(ranks);
    let blocks = 0..case.collective.blocks(ranks);
    (0..ranks)
        .map(|rank| {
            let brings = |block: &u32| case.collective.has_input(ranks, rank, *block);
            let count = blocks.clone().filter(brings).map(|b| naive.counts[b as usize]).sum();
            fill(case.dtype, &case.op, rank, ranks, 7, count)
        })
        .collect()
}

/// Make one call and return this rank's output bytes.
fn run(member: &Communicator, case: &Case, input: &[u8]) -> Vec<u8> {
    let (ranks, rank) = (member.size(), member.rank());
    let call = case.call(ranks, rank);
    let (ins, outs) = call.buffer_elems(ranks as u32, rank as u32);
    let size = case.dtype.size();
    if !case.in_place {
        let (before, mut output) = (input.to_vec(), vec![0xEE; outs * size]);
        member.run(&call, Buffers::OutOfPlace { input, output: &mut output }).expect("a call");
        assert_eq!(input, before, "{case:?}: the input of rank {rank} was changed");
        return output;
    }
    let own: usize = match &call.counts {
        Counts::Even(count) => rank * count,
        Counts::PerRank(counts) => counts[..rank].iter().sum(),
        Counts::PerPair { .. } => 0,
    };
    let mut buffer = vec![0xEE; ins.max(outs) * size];
    let at = |smaller: bool| if smaller { own * size } else { 0 };
    let from = at(ins < outs && ins > 0);
    buffer[from..from + ins * size].copy_from_slice(input);
    member.run(&call, Buffers::InPlace(&mut buffer)).expect("a call");
    let from = at(outs < ins && outs > 0);
    if outs == 0 {
        assert_eq!(buffer, input, "{case:?}: rank {rank} gets nothing, but its buffer changed");
    }
    buffer[from..from + outs * size].to_vec()
}
