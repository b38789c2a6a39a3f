//! When to leave a core to another rank.
//!
//! Ranks that nobody bound can come to share a core while strangers have the others. Each then
//! looks on for its longest while the other cannot run, and a call that takes a quarter of a
//! microsecond takes two such looks: the system, to whom the ranks look busy for half of their
//! time, leaves them there. So one of them steps aside.

use std::time::{Duration, Instant};

use brigade_transports::{Share, step_aside};

/// Waits in a row, each with the longest look in vain and a short sleep behind it, after which a
/// rank suspects that it held the core which the other needed.
const VAIN: u32 = 2;
/// How long nobody steps aside again, at first. The peer may be late for a reason of its own, which
/// comes to light only by trying: each time that did not help is followed by twice that rest.
const REST: Duration = Duration::from_millis(10);
/// The longest such rest. Who had no reason for twice as long begins anew.
const REST_MAX: Duration = Duration::from_secs(10);

/// One rank's readiness to step aside.
#[derive(Clone)]
pub(crate) struct Aside {
    me: u32,
    /// In how many bits the members' numbers may differ.
    bits: u32,
    /// Whether other members share cores with this one.
    has_company: bool,
    /// Waits in a row, up to now, whose longest look was in vain.
    vain: u32,
    /// How often there was reason to step aside, and when last.
    times: u32,
    last: Option<Instant>,
    rest: Duration,
}

impl Aside {
    /// For member `me` of a group of `ranks`. Who waits only for ranks on other hosts, or on cores
    /// that are not its own, has nobody to step aside for.
    pub(crate) fn of(me: usize, ranks: usize, share: Share) -> Self {
        let bits = usize::BITS - (ranks - 1).max(1).leading_zeros();
        let has_company = share.ranks > 1;
        Self { me: me as u32, bits, has_company, vain: 0, times: 0, last: None, rest: REST }
    }

    /// For who stays where it is.
    pub(crate) fn never() -> Self {
        Self::of(0, 1, Share { ranks: 1, cores: 1 })
    }

    /// A look found what it waited for: nobody needed this core.
    #[inline]
    pub(crate) fn found(&mut self) {
        self.vain = 0;
    }

    /// The longest look was in vain, and the sleep behind it was short. Step aside if that is
    /// likely to help.
    #[cold]
    pub(crate) fn missed(&mut self) {
        if self.is_due(Instant::now()) {
            // Where the system refuses, all stays as it was.
            let _ = step_aside();
        }
    }

    /// Whether it is this rank's turn. Of two that share a core just one must go, or both meet
    /// again on the next; their numbers differ in some bit, and each time another bit decides.
    fn is_due(&mut self, now: Instant) -> bool {
        if !self.has_company {
            return false;
        }
        self.vain += 1;
        let rested = self.last.map(|last| now.duration_since(last));
        if self.vain < VAIN || rested.is_some_and(|rested| rested < self.rest) {
            return false;
        }
        self.rest = match rested {
            Some(rested) if rested < 2 * REST_MAX => REST_MAX.min(self.rest * 2),
            _ => REST,
        };
        let bit = self.times % self.bits;
        (self.vain, self.times, self.last) = (0, self.times.wrapping_add(1), Some(now));
        self.me >> bit & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPANY: Share = Share { ranks: 2, cores: 2 };

    /// When member `me`, all of whose looks are in vain for `duration`, steps aside.
    fn steps(me: usize, duration: Duration) -> Vec<Duration> {
        let (mut aside, start) = (Aside::of(me, 2, COMPANY), Instant::now());
        let looks = (0..).map(|look| Duration::from_micros(650) * look);
        looks.take_while(|at| *at < duration).filter(|at| aside.is_due(start + *at)).collect()
    }

    #[test]
    fn of_any_two_ranks_that_share_a_core_just_one_goes_soon() {
        let turns = |me, ranks| {
            let (mut aside, start) = (Aside::of(me, ranks, COMPANY), Instant::now());
            let looks = (0..2 * 7).map(|look| start + look / 2 * 3 * REST_MAX);
            looks.map(|at| aside.is_due(at)).collect::<Vec<_>>()
        };
        assert_eq!(turns(1, 2)[..4], [false, true, false, true]);
        for ranks in [2, 3, 8, 65] {
            for (a, b) in (0..ranks).flat_map(|a| (0..a).map(move |b| (a, b))) {
                assert_ne!(turns(a, ranks), turns(b, ranks), "{a} and {b} of {ranks}");
            }
        }
        let alone = Share { ranks: 1, cores: 2 };
        for mut stays in [Aside::never(), Aside::of(3, 4, alone)] {
            assert!(!(0..100).any(|n| stays.is_due(Instant::now() + n * 3 * REST_MAX)));
        }
    }

    #[test]
    fn one_look_in_vain_is_no_reason_nor_are_two_with_a_good_one_between() {
        let (mut aside, now) = (Aside::of(1, 2, COMPANY), Instant::now());
        assert!(!aside.is_due(now));
        aside.found();
        assert!(!aside.is_due(now));
        assert!(aside.is_due(now), "two in a row are");
    }

    #[test]
    fn who_steps_aside_for_nothing_does_so_ever_more_rarely() {
        let steps = steps(1, Duration::from_secs(40));
        assert!((10..16).contains(&steps.len()), "{steps:?}");
        assert!(steps[0] < Duration::from_millis(2), "{steps:?}");
        let gaps: Vec<_> = steps.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.is_sorted(), "{gaps:?}");
        assert!(gaps[0] >= REST && *gaps.last().expect("a gap") >= REST_MAX / 2, "{gaps:?}");
    }
}
