//! What it costs to get bytes from one rank to another: found by calls of two.

use brigade_comm::{Communicator, Dtype, Error, Op};
use brigade_schedule::Link;

use crate::failure::Failure;
use crate::kind::{Case, Kind};
use crate::measure::{Bench, Method, pair};
use crate::news::news;
use crate::progress::Progress;

/// Bytes of a long call in each direction, at least and at most.
const LONG_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=4 << 20;

/// The links of all pairs of ranks.
pub(super) struct Links {
    ranks: u32,
    /// The link from rank a to rank b at a · ranks + b.
    links: Vec<Link>,
}

impl Links {
    /// Every rank with every other one, as many pairs at a time as there can be, as in a call;
    /// `bytes` is how long the call is. All ranks have the same numbers then. Collective. Cost: a
    /// group of two and some 50 ms for each other rank.
    pub(super) fn measure(comm: &Communicator, bytes: usize) -> Result<Self, Failure> {
        let (me, ranks) = (comm.rank(), comm.size());
        let bytes = (bytes / ranks).clamp(*LONG_BYTES.start(), *LONG_BYTES.end());
        // Alpha, beta and gamma to each rank, in 1e-18 s.
        let mut found = vec![0u64; 3 * ranks];
        let (what, rounds, is_shown) = ("links", rounds(ranks), me == 0);
        let progress = Progress { what, rounds: rounds as u32, is_shown };
        for round in 0..rounds {
            progress.round(round);
            let peer = partner(me, round, ranks);
            let Some(pair) = pair(comm, peer)? else { continue };
            let link = link_of(&pair, bytes)?;
            let seconds = [link.alpha_s, link.beta_s_per_byte, link.gamma_s_per_byte];
            let place = 3 * peer.expect("who is in a pair has a partner");
            found[place..place + 3]
                .copy_from_slice(&seconds.map(|seconds| (seconds * 1e18) as u64));
        }
        let (all, nodes) = (news(comm, &found)?, comm.nodes());
        let link = |(from, to): (usize, usize)| {
            let [alpha_s, beta_s_per_byte, gamma_s_per_byte] =
                [0, 1, 2].map(|part| all[from][3 * to + part] as f64 * 1e-18);
            let crosses = nodes[from] != nodes[to];
            Link { alpha_s, beta_s_per_byte, gamma_s_per_byte, crosses }
        };
        let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
        Ok(Self { ranks: ranks as u32, links: pairs.map(link).collect() })
    }

    /// The link between two ranks.
    pub(super) fn between(&self, from: u32, to: u32) -> Link {
        self.links[(from * self.ranks + to) as usize]
    }

    /// Lines of a table's head: the fastest and the slowest.
    pub(super) fn told(&self) -> String {
        if self.ranks == 1 {
            return String::from("# links: none, of one rank\n");
        }
        let pairs =
            (0..self.ranks).flat_map(|from| (from + 1..self.ranks).map(move |to| (from, to)));
        let range = |of: fn(Link) -> f64, digits: usize| {
            let all = pairs.clone().map(|(from, to)| of(self.between(from, to)));
            let all: Vec<f64> = all.collect();
            let least = all.iter().copied().fold(f64::INFINITY, f64::min);
            let most = all.iter().copied().fold(0.0, f64::max);
            match format!("{least:.digits$}") {
                least if least == format!("{most:.digits$}") => least,
                least => format!("{least} to {most:.digits$}"),
            }
        };
        let alpha = range(|link| link.alpha_s * 1e6, 1);
        let rate = range(|link| 1e-9 / link.beta_s_per_byte.max(1e-15), 1);
        let fold = range(|link| link.gamma_s_per_byte * 1e9, 3);
        format!(
            "# links: {alpha} us for an empty message, {rate} GB/s each way at once, and {fold} ns \
             more to add a byte\n"
        )
    }
}

/// The link of two ranks, by calls in which each sends the other as much as it receives.
fn link_of(pair: &Communicator, bytes: usize) -> Result<Link, Error> {
    let case = |kind: Kind, bytes: usize| Case {
        kind,
        dtype: Dtype::F32,
        op: Op::Sum,
        root: 0,
        block_elems: bytes / size_of::<f32>(),
    };
    let cases = [(Kind::AllGather, 4), (Kind::AllGather, bytes), (Kind::ReduceScatter, bytes)];
    let cases = cases.map(|(kind, bytes)| case(kind, bytes));
    let mut bench = Bench::new(pair, Method::quick(None), &cases)?;
    let mut seconds = |case| Ok::<_, Error>(bench.out_of_place(case)?.us(50) * 1e-6);
    let (alpha_s, gather_s, fold_s) =
        (seconds(&cases[0])?, seconds(&cases[1])?, seconds(&cases[2])?);
    let per_byte = |seconds: f64| seconds.max(0.0) / bytes as f64;
    Ok(Link {
        alpha_s,
        beta_s_per_byte: per_byte(gather_s - alpha_s),
        gamma_s_per_byte: per_byte(fold_s - gather_s),
        crosses: false,
    })
}

/// How many rounds it takes until each rank has met each other one.
fn rounds(ranks: usize) -> usize {
    if ranks.is_multiple_of(2) { ranks - 1 } else { ranks }
}

/// Whom a rank meets in a round: the last one stands still while all others walk around it. Among
/// an odd number nobody stands there, and who would meet that one waits.
fn partner(me: usize, round: usize, ranks: usize) -> Option<usize> {
    let circle = rounds(ranks);
    let across = |rank: usize| (2 * circle + round - rank) % circle;
    let met = match me {
        // Whoever stands across from oneself.
        last if last == circle => (0..circle).find(|&rank| across(rank) == rank)?,
        me if across(me) == me => circle,
        me => across(me),
    };
    (met < ranks).then_some(met)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_meets_each_other_once() {
        for ranks in 2..20 {
            let met = |me| (0..rounds(ranks)).filter_map(move |round| partner(me, round, ranks));
            for me in 0..ranks {
                let mut others: Vec<usize> = met(me).collect();
                others.sort_unstable();
                assert!(others.into_iter().eq((0..ranks).filter(|&rank| rank != me)), "{ranks}");
                for round in 0..rounds(ranks) {
                    let peer = partner(me, round, ranks);
                    let back = peer.and_then(|peer| partner(peer, round, ranks));
                    assert_eq!(back, peer.map(|_| me), "{ranks} ranks, round {round}");
                }
            }
        }
    }
}
