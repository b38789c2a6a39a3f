//! What it costs to get bytes from one rank to another: found by calls of two.

use std::time::Duration;

use brigade_comm::{Communicator, Dtype, Error, Op};
use brigade_schedule::Link;

use crate::failure::Failure;
use crate::kind::{Case, Kind};
use crate::measure::{Bench, Method, pair};
use crate::news::news;
use crate::progress::Progress;

/// Bytes of a long call in each direction, at least and at most.
const LONG_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=4 << 20;

/// How often each of a pair's calls is sampled. The least counts: what else a machine does makes a
/// sample longer, never shorter.
const SAMPLES: usize = 5;

/// The links of all pairs of ranks.
pub(super) struct Links {
    ranks: u32,
    /// The link from rank a to rank b at a · ranks + b.
    links: Vec<Link>,
    /// Pairs whose long call took no longer than their empty one, so that no rate came of it.
    unfound: usize,
}

impl Links {
    /// Every rank with every other one, as many pairs at a time as there can be, as in a call;
    /// `bytes` is how long the call is. All ranks have the same numbers then. Collective. Cost: a
    /// group of two and some 75 ms for each other rank.
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
        Ok(Self::of(ranks as u32, pairs.map(link).collect()))
    }

    /// Where no rate was found, that of the others is taken: the one in their middle.
    fn of(ranks: u32, mut links: Vec<Link>) -> Self {
        let apart = |at: usize| at / ranks as usize != at % ranks as usize;
        let rates = links.iter().map(|link| link.beta_s_per_byte).enumerate();
        let mut found: Vec<f64> =
            rates.filter(|&(at, beta)| apart(at) && beta > 0.0).map(|(_, beta)| beta).collect();
        found.sort_by(f64::total_cmp);
        let unfound = (ranks * (ranks - 1)) as usize - found.len();
        let middle = found.get(found.len() / 2).copied().unwrap_or(0.0);
        for link in links.iter_mut().filter(|link| link.beta_s_per_byte == 0.0) {
            link.beta_s_per_byte = middle;
        }
        // Both directions of a pair are one measurement.
        Self { ranks, links, unfound: unfound / 2 }
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
        let fold = range(|link| link.gamma_s_per_byte * 1e9, 3);
        let why = "a long call took no longer there than an empty one";
        let all = (self.ranks * (self.ranks - 1) / 2) as usize;
        let (rate, doubt) = match self.unfound {
            0 => (range(rate, 1) + " GB/s", String::new()),
            unfound if unfound == all => {
                let told =
                    format!("# no rate was found ({why}): what is predicted leaves it out\n");
                (String::from("unknown GB/s"), told)
            }
            unfound => {
                let told = format!("# {unfound} of {all} pairs have the others' rate: {why}\n");
                (range(rate, 1) + " GB/s", told)
            }
        };
        format!(
            "# links: {alpha} us for an empty message, {rate} each way at once, and {fold} ns more \
             to add a byte\n{doubt}"
        )
    }
}

fn rate(link: Link) -> f64 {
    1e-9 / link.beta_s_per_byte
}

/// The link of two ranks, by calls in which each sends the other as much as it receives. A rate
/// that was not found is zero seconds for a byte.
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
    let method = Method { budget: Duration::from_millis(5), ..Method::quick(None) };
    let mut bench = Bench::new(pair, method, &cases)?;
    let mut least_s = [f64::INFINITY; 3];
    for _ in 0..SAMPLES {
        for (least_s, case) in least_s.iter_mut().zip(&cases) {
            *least_s = least_s.min(bench.out_of_place(case)?.us(50) * 1e-6);
        }
    }
    let [alpha_s, gather_s, fold_s] = least_s;
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
    fn links(betas: [f64; 3]) -> Links {
        // Rank 0 with 1, 0 with 2, 1 with 2.
        let pair = |from: usize, to: usize| from.min(to) + from.max(to) - 1;
        let link = |at: usize| Link {
            alpha_s: 1e-6,
            beta_s_per_byte: if at / 3 == at % 3 { 0.0 } else { betas[pair(at / 3, at % 3)] },
            gamma_s_per_byte: 0.0,
            crosses: false,
        };
        Links::of(3, (0..9).map(link).collect())
    }

    #[test]
    fn a_rate_that_was_not_found_is_not_made_up() {
        let all = links([1e-9, 5e-10, 2e-10]).told();
        assert!(all.contains(", 1.0 to 5.0 GB/s each way"), "{all}");
        assert_eq!(all.lines().count(), 1, "{all}");
        let some = links([1e-9, 0.0, 1e-9]);
        assert_eq!(some.between(2, 0).beta_s_per_byte, 1e-9);
        let some = some.told();
        assert!(some.contains(", 1.0 GB/s") && some.contains("\n# 1 of 3 pairs have"), "{some}");
        let none = links([0.0; 3]).told();
        assert!(none.contains("unknown GB/s") && none.contains("no rate was found"), "{none}");
    }
}
