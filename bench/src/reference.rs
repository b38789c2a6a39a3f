//! What a case must give: inputs whose result does not depend on the order of folding, and the
//! result by the plain sequential judge of `brigade_comm::naive`.

use std::ops::Range;

use brigade_comm::naive::{NaiveCall, expected, fill};

use crate::kind::Case;

/// The seed of all inputs: the same data in every run.
pub(crate) const SEED: u64 = 1;

/// One rank's side of a case, with the right answer.
pub(crate) struct Reference {
    /// What this rank brings.
    pub(crate) input: Vec<u8>,
    /// What this rank must hold at the end.
    pub(crate) output: Vec<u8>,
    elem_bytes: usize,
}

impl Reference {
    /// What `rank` brings to the case and takes out of it. Costs as much as all ranks' inputs.
    pub(crate) fn new(case: &Case, ranks: usize, rank: usize) -> Self {
        let input = |rank: usize| {
            let (elems, _) = lengths(case, ranks, rank);
            fill(case.dtype, &case.op, rank as u32, ranks as u32, SEED, elems)
        };
        let Some(collective) = case.kind.collective(case.root) else {
            let left = (rank + ranks - 1) % ranks;
            return Self { input: input(rank), output: input(left), elem_bytes: case.dtype.size() };
        };
        let judged = NaiveCall {
            collective,
            dtype: case.dtype,
            op: case.op.clone(),
            counts: case.block_counts(ranks),
        };
        let mut inputs: Vec<Vec<u8>> = (0..ranks).map(input).collect();
        let output = expected(&judged, &inputs).swap_remove(rank).unwrap_or_default();
        Self { input: inputs.swap_remove(rank), output, elem_bytes: case.dtype.size() }
    }

    /// How many elements of `found` are not what they must be.
    pub(crate) fn wrong_in(&self, found: &[u8]) -> u64 {
        differing(found, &self.output, self.elem_bytes)
    }

    /// How many elements of the input are not what was brought: a call must leave it alone.
    pub(crate) fn changed_in(&self, input: &[u8]) -> u64 {
        differing(input, &self.input, self.elem_bytes)
    }
}

/// Elements that `rank` brings, and elements that it takes.
pub(crate) fn lengths(case: &Case, ranks: usize, rank: usize) -> (usize, usize) {
    match case.call(ranks, rank) {
        Some(call) => call.buffer_elems(ranks as u32, rank as u32),
        None => (case.block_elems, case.block_elems),
    }
}

/// Where input and output of `rank` lie in one buffer, in elements: the larger from the start, the
/// smaller at the rank's own block, as NCCL lays them out.
pub(crate) fn in_place(case: &Case, ranks: usize, rank: usize) -> (Range<usize>, Range<usize>) {
    let (input, output) = lengths(case, ranks, rank);
    let before = match input == 0 || output == 0 || input == output {
        true => 0,
        false => case.block_counts(ranks)[..rank].iter().sum(),
    };
    match input > output {
        true => (0..input, before..before + output),
        false => (before..before + input, 0..output),
    }
}

fn differing(found: &[u8], wanted: &[u8], elem_bytes: usize) -> u64 {
    assert_eq!(found.len(), wanted.len());
    if found == wanted {
        return 0;
    }
    let pairs = found.chunks_exact(elem_bytes).zip(wanted.chunks_exact(elem_bytes));
    pairs.filter(|(found, wanted)| found != wanted).count() as u64
}

#[cfg(test)]
mod tests {
    use brigade_comm::{Dtype, Op};

    use super::*;
    use crate::Kind;

    fn case(kind: Kind) -> Case {
        Case { kind, dtype: Dtype::U8, op: Op::Sum, root: 1, block_elems: 3 }
    }

    #[test]
    fn the_smaller_part_lies_at_its_own_block() {
        assert_eq!(in_place(&case(Kind::AllGather), 4, 2), (6..9, 0..12));
        assert_eq!(in_place(&case(Kind::ReduceScatter), 4, 2), (0..12, 6..9));
        assert_eq!(in_place(&case(Kind::Gather), 4, 1), (3..6, 0..12));
        assert_eq!(in_place(&case(Kind::Gather), 4, 2), (0..3, 0..0));
        assert_eq!(in_place(&case(Kind::Scatter), 4, 2), (0..0, 0..3));
        assert_eq!(in_place(&case(Kind::AllReduce), 4, 2), (0..3, 0..3));
        assert_eq!(in_place(&case(Kind::AllGatherV), 3, 2), (4..8, 0..8));
    }

    #[test]
    fn wrong_elements_are_counted_not_bytes() {
        let reference = Reference { input: vec![], output: vec![0; 8], elem_bytes: 4 };
        assert_eq!(reference.wrong_in(&[0, 0, 0, 0, 1, 1, 1, 1]), 1);
        assert_eq!(reference.wrong_in(&[0; 8]), 0);
    }

    #[test]
    fn every_rank_of_a_ring_takes_what_its_left_neighbour_brings() {
        let all: Vec<_> =
            (0..3).map(|rank| Reference::new(&case(Kind::SendRecv), 3, rank)).collect();
        for rank in 0..3 {
            assert_eq!(all[(rank + 1) % 3].output, all[rank].input);
        }
    }
}
