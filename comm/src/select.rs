//! Which algorithm a call is carried out by.
//!
//! Every rank must choose alike, so the choice looks only at what all ranks know: the call, the
//! number of ranks, the settings, and how many ranks share a host.

use brigade_schedule::{Algorithm, Collective};

use crate::call::{Call, Counts};
use crate::{Error, Settings};

/// The facts of a communicator that a choice may depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selector {
    /// Up to this many bytes a step more costs more than the bytes it saves.
    pub(crate) small_bytes: usize,
}

impl Selector {
    /// The algorithm for `call` among `ranks`.
    pub(crate) fn choose(
        &self,
        call: &Call,
        ranks: u32,
        settings: &Settings,
    ) -> Result<Algorithm, Error> {
        let collective = call.collective;
        if settings.ordered && collective.folds() {
            return Ok(Algorithm::Ordered);
        }
        let fits = |algorithm: Algorithm| {
            algorithm.can_do(collective, ranks)
                && (!call.is_uneven() || algorithm.suits_uneven(collective))
        };
        if let Some(wish) = settings.algorithm
            && fits(wish)
        {
            return Ok(wish);
        }
        let bytes = self.bytes(call, ranks);
        let wishes = self.wishes(collective, bytes, ranks);
        let all = Algorithm::all_for(collective, ranks);
        let choice = wishes.iter().copied().chain(all).find(|&algorithm| fits(algorithm));
        choice.ok_or_else(|| Error::invalid(format!("no algorithm does {call} with {ranks} ranks")))
    }

    /// Algorithms by preference for so many bytes.
    fn wishes(&self, collective: Collective, bytes: usize, ranks: u32) -> &'static [Algorithm] {
        use Algorithm::*;
        let small = bytes <= self.small_bytes;
        match (collective, small) {
            (Collective::AllReduce, true) => &[Doubling],
            (Collective::AllReduce, false) if ranks.is_power_of_two() => &[Halving, Ring],
            (Collective::AllReduce, false) => &[Ring],
            (Collective::ReduceScatter, true) => &[Halving, Pairwise],
            (Collective::ReduceScatter, false) => &[Pairwise, Ring],
            (Collective::AllGather, true) => &[Bruck, Doubling],
            (Collective::AllGather, false) => &[Ring],
            (Collective::Broadcast { .. } | Collective::Reduce { .. }, true) => &[Binomial],
            (Collective::Broadcast { .. } | Collective::Reduce { .. }, false) => &[Ring, Binomial],
            (Collective::AllToAll, true) if ranks > 8 => &[Bruck, Pairwise],
            (Collective::AllToAll, _) => &[Pairwise],
            (Collective::Gather { .. } | Collective::Scatter { .. }, true) if ranks > 4 => {
                &[Binomial, Direct]
            }
            (Collective::Gather { .. } | Collective::Scatter { .. }, _) => &[Direct],
            (Collective::Barrier, _) => &[Doubling],
        }
    }

    /// The size of a call, as far as every rank knows it.
    fn bytes(&self, call: &Call, ranks: u32) -> usize {
        let elems = match &call.counts {
            Counts::Even(count) => count * call.collective.blocks(ranks).min(ranks) as usize,
            Counts::PerRank(counts)
                if matches!(call.collective, Collective::AllGather | Collective::ReduceScatter) =>
            {
                counts.iter().sum()
            }
            // Not all ranks know all lengths; what suits uneven blocks does not depend on them.
            _ => 0,
        };
        elems * call.dtype.size()
    }
}

/// The algorithm in a header, so that ranks that chose apart notice it.
pub(crate) fn code(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::Ring => 0,
        Algorithm::BiRing => 1,
        Algorithm::DoubleTree => 2,
        Algorithm::Halving => 3,
        Algorithm::Doubling => 4,
        Algorithm::Binomial => 5,
        Algorithm::Bruck => 6,
        Algorithm::Pairwise => 7,
        Algorithm::Direct => 8,
        Algorithm::Ordered => 9,
        Algorithm::Hierarchical { node_ranks } => 64 | (node_ranks % 64) as u8,
        Algorithm::ParameterServer { servers } => 128 | (servers % 64) as u8,
    }
}

/// The name of the algorithm with a code; `None` if there is none.
pub(crate) fn code_name(code: u8) -> Option<String> {
    const PLAIN: [Algorithm; 10] = [
        Algorithm::Ring,
        Algorithm::BiRing,
        Algorithm::DoubleTree,
        Algorithm::Halving,
        Algorithm::Doubling,
        Algorithm::Binomial,
        Algorithm::Bruck,
        Algorithm::Pairwise,
        Algorithm::Direct,
        Algorithm::Ordered,
    ];
    let number = u32::from(code % 64);
    let algorithm = match code / 64 {
        0 => *PLAIN.get(usize::from(code))?,
        1 => Algorithm::Hierarchical { node_ranks: number },
        2 => Algorithm::ParameterServer { servers: number },
        _ => return None,
    };
    Some(algorithm.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_name() {
        for collective in Collective::ALL {
            for algorithm in Algorithm::all_for(collective, 8) {
                assert_eq!(code_name(code(algorithm)), Some(algorithm.to_string()));
            }
        }
        assert_eq!(code_name(10), None);
        assert_eq!(code_name(255), None);
    }
}
