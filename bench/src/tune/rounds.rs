//! What rounds of timing say of one size: which algorithm is the fastest, and if that is known.
//!
//! Rounds are pairs: each has timed all algorithms within a second or so. That one is faster than
//! another is taken for known if it was so in more rounds than chance explains: a coin that is
//! thrown once a round comes up heads as often less than once in a hundred times. Nothing is taken
//! for granted of how noise is distributed, what a busy machine does to some rounds costs these and
//! no others, and more rounds see what fewer do not.

use brigade_comm::Rule;
use brigade_schedule::{Algorithm, Collective};

use crate::median::median;

/// What is chosen without rules stays where nothing is faster by this part: clocks are no better.
const WORTH: f64 = 0.03;
/// How often chance may look like a difference.
const CHANCE: f64 = 0.01;

/// One size: what each algorithm took in each round, in microseconds, and which is taken without
/// rules.
pub(super) struct Timed {
    pub(super) bytes: u64,
    pub(super) usual: Algorithm,
    pub(super) us: Vec<(Algorithm, Vec<f64>)>,
}

impl Timed {
    /// The algorithm to take: the fastest of those that are known to be faster than the usual one,
    /// or that one.
    pub(super) fn choice(&self) -> Algorithm {
        let known = self.us.iter().map(|(algorithm, _)| *algorithm).filter(|&it| self.is_known(it));
        self.fastest(known).unwrap_or(self.usual)
    }

    /// The algorithm that seems to be the fastest, where none is known to be faster than the usual
    /// one and this one is by more than clocks tell.
    pub(super) fn seeming(&self) -> Option<Algorithm> {
        let fastest = self.fastest(self.us.iter().map(|(algorithm, _)| *algorithm));
        let is_usual = self.choice() == self.usual;
        fastest.filter(|&fastest| is_usual && self.is_worth(fastest, self.usual))
    }

    /// The median over the rounds.
    pub(super) fn median(&self, algorithm: Algorithm) -> f64 {
        median(self.of(algorithm).iter().copied()).unwrap_or(f64::INFINITY)
    }

    /// In how many rounds it was faster than the usual one.
    pub(super) fn won(&self, algorithm: Algorithm) -> u32 {
        let rounds = self.of(algorithm).iter().zip(self.of(self.usual));
        rounds.filter(|(here, usual)| here < usual).count() as u32
    }

    fn of(&self, algorithm: Algorithm) -> &[f64] {
        let found = self.us.iter().find(|(known, _)| *known == algorithm);
        found.map_or(&[], |(_, us)| us)
    }

    fn fastest(&self, among: impl Iterator<Item = Algorithm>) -> Option<Algorithm> {
        among.min_by(|&one, &two| self.median(one).total_cmp(&self.median(two)))
    }

    fn is_worth(&self, one: Algorithm, than: Algorithm) -> bool {
        self.median(one) * (1.0 + WORTH) < self.median(than)
    }

    fn is_known(&self, algorithm: Algorithm) -> bool {
        let enough = enough(self.of(algorithm).len() as u32);
        self.is_worth(algorithm, self.usual) && enough.is_some_and(|won| self.won(algorithm) >= won)
    }
}

/// In how many of so many rounds the faster one of two must have won; none is enough of few.
pub(super) fn enough(rounds: u32) -> Option<u32> {
    let mut tail = 0.0;
    // How likely a coin is to come up heads so often: all of the rounds, then one fewer, ...
    let mut chance = 0.5_f64.powi(rounds as i32);
    let mut least = None;
    for won in (1..=rounds).rev() {
        tail += chance;
        if tail > CHANCE {
            break;
        }
        least = Some(won);
        chance *= f64::from(won) / f64::from(rounds - won + 1);
    }
    least
}

/// The rules for one collective at sizes that grow by `factor`: sizes in between go with the nearer
/// one, and so does what is longer than all of them. What is nearer to the next one, which was not
/// timed, has no rule.
pub(super) fn rules(collective: Collective, ranks: u32, timed: &[Timed], factor: u32) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for (at, one) in timed.iter().enumerate() {
        let next =
            timed.get(at + 1).map_or(one.bytes as f64 * f64::from(factor), |it| it.bytes as f64);
        let up_to = (one.bytes as f64 * next).sqrt() as u64;
        let rule = Rule { collective, ranks, up_to, algorithm: one.choice() };
        match rules.last_mut().filter(|last| last.algorithm == rule.algorithm) {
            Some(last) => last.up_to = up_to,
            None => rules.push(rule),
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(rings: &[f64], doublings: &[f64]) -> Timed {
        let us = vec![
            (Algorithm::Ring, rings.to_vec()),
            (Algorithm::Doubling, doublings.to_vec()),
            (Algorithm::Halving, vec![1e6; rings.len()]),
        ];
        Timed { bytes: 64, usual: Algorithm::Ring, us }
    }

    #[test]
    fn as_many_rounds_are_enough_as_a_coin_hardly_wins() {
        let all = [1, 6, 7, 8, 9, 10, 11, 20, 99].map(enough);
        let some = [7, 8, 9, 10, 10, 16, 62].map(Some);
        assert_eq!(all[..2], [None; 2]);
        assert_eq!(all[2..], some);
    }

    #[test]
    fn what_rounds_agree_on_is_chosen_and_what_they_do_not_is_told() {
        let fast = timed(&[5.0; 7], &[4.0; 7]);
        assert_eq!((fast.choice(), fast.seeming()), (Algorithm::Doubling, None));
        assert_eq!(fast.won(Algorithm::Doubling), 7);
        // The machine was busy in one round of nine, for both, which changes nothing, or for one.
        let (mut busy, mut other) = ([5.0; 9], [4.0; 9]);
        (busy[3], other[3]) = (500.0, 400.0);
        assert_eq!(timed(&busy, &other).choice(), Algorithm::Doubling);
        busy[3] = 5.0;
        let unsure = timed(&busy, &other);
        assert_eq!(
            (unsure.choice(), unsure.seeming()),
            (Algorithm::Ring, Some(Algorithm::Doubling))
        );
        // More rounds of the same kind tell.
        let more = |round: [f64; 9]| [round, [round[0]; 9], [round[0]; 9]].concat();
        assert_eq!(timed(&more(busy), &more(other)).choice(), Algorithm::Doubling);
    }

    #[test]
    fn what_is_known_is_chosen_also_where_another_seems_faster_still() {
        let mut three = timed(&[40.0; 7], &[30.0; 7]);
        three.us[2].1 = vec![20.0; 7];
        three.us[2].1[3] = 50.0;
        assert_eq!((three.choice(), three.seeming()), (Algorithm::Doubling, None));
    }

    #[test]
    fn few_rounds_and_small_differences_change_nothing() {
        let few = timed(&[5.0; 3], &[1.0; 3]);
        assert_eq!((few.choice(), few.seeming()), (Algorithm::Ring, Some(Algorithm::Doubling)));
        let near = timed(&[10.0; 9], &[9.9; 9]);
        assert_eq!((near.choice(), near.seeming()), (Algorithm::Ring, None));
    }

    #[test]
    fn noise_hardly_ever_becomes_a_rule() {
        const SEEDS: u64 = 2000;
        let among = &Algorithm::PLAIN[..8];
        let differ = |rounds: usize| {
            let is_other = |&seed: &u64| {
                let mut rng = fastrand::Rng::with_seed(seed);
                // As on busy cores: calls of the same time, some of which wait for their turn.
                let mut us = || if rng.u8(..4) == 0 { 700.0 } else { 5.0 + rng.f64() };
                let mut of_rounds = || (0..rounds).map(|_| us()).collect();
                let us = among.iter().map(|&algorithm| (algorithm, of_rounds())).collect();
                let timed = Timed { bytes: 64, usual: among[0], us };
                timed.choice() != timed.usual
            };
            (0..SEEDS).filter(is_other).count() as u64
        };
        for rounds in [7, 9, 20, 50] {
            // Each of the others may look faster, by chance alone.
            let (rules, most) = (differ(rounds), CHANCE * (among.len() - 1) as f64);
            assert!((rules as f64) < most * SEEDS as f64, "{rules} of {SEEDS}, {rounds} rounds");
        }
    }
}
