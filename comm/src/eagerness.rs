//! How eagerly a call waits: it looks again and again, then lets others run, then sleeps.
//!
//! A wait goes through these, and begins anew when something has moved:
//!
//! | what it does | who | until |
//! |---|---|---|
//! | looks, without a clock | all | [`LOOKS`] looks were in vain |
//! | looks on, by the clock | who has a core of its own | `spin` is over |
//! | yields between looks | who is not `wary`, in a call that is not long | `yielding.most` times |
//! | sleeps (`stall`) | all | it is woken, or a nap is over; then it sleeps again |
//!
//! From wait to wait it learns: a short sleep doubles `spin`, up to [`SPIN_MAX`], and a long one
//! has it begin anew; a yield that gave the core to a stranger makes it `wary` for so many waits,
//! twice as many (`wary_next`) each time until as many have met nobody (`unmet`); and yields that
//! were all in vain, for a few (`vain_waits`).
//!
//! Nothing of this is on the path of a call that finds its bytes there: the clock is first read
//! after so many looks in vain.

use std::time::{Duration, Instant};

use brigade_transports::Share;

use crate::aside::Aside;
use crate::sys;
use crate::wait::Stall;

/// How long a rank with a core of its own looks on before it sleeps, at first: what a sleep costs,
/// or twice.
const SPIN: Duration = Duration::from_micros(40);
/// It looks on for up to this long if sleeps turn out short. Otherwise two ranks on a busy machine,
/// each woken a little later than the other cares to look, would send each other to sleep for ever.
const SPIN_MAX: Duration = Duration::from_micros(320);
/// A sleep shorter than this was not worth it.
const SHORT_SLEEP: Duration = Duration::from_micros(500);
/// How many looks there are between two looks at the clock.
const LOOKS: u32 = 32;
/// Looks that follow each other without a pause, while the answer is a cache line away.
const HOT_LOOKS: u32 = 256;
/// Upper limit on how many waits skip yielding after a yield let a stranger keep the core for a
/// whole time slice. A sleeper in such company is woken a hundred times sooner than one who
/// yielded.
const WARY_WAITS: u32 = 1000;

/// How a rank lets others run.
#[derive(Clone, Copy)]
struct Yielding {
    /// How often, before it sleeps.
    most: u32,
    /// A yield that took longer gave the core to a stranger.
    stranger: Duration,
    /// For how many waits nobody yields after that, at first; twice as many each time it is so
    /// again before as many waits have yielded and met nobody.
    wary_waits: u32,
    /// For how many waits nobody yields after one in which all yields were in vain, or would be.
    vain_waits: u32,
}

/// With a core of one's own nobody who has business there is among the ranks.
const ALONE: Yielding = Yielding {
    most: 16,
    stranger: Duration::from_micros(50),
    wary_waits: WARY_WAITS,
    vain_waits: 0,
};
/// Ranks that share cores have business there: to wake one takes longer than its turn, and in a
/// call of some length it may work for a while. Four ranks on two cores, which took each other for
/// strangers after 50 us, slept for nearly every message, and a short call took three times as
/// long. Somebody passes by now and then, above all while a world begins: who slept for a thousand
/// waits after each took twice as long in the first tenths of a second.
const CROWDED: Yielding =
    Yielding { most: 50, stranger: Duration::from_millis(1), wary_waits: 16, vain_waits: 8 };

/// When the ranks that share a core have so many bytes to move over a wire of each, a wait is
/// longer than it takes to wake one, and yields keep others from their work.
const LONG_BYTES: u64 = 900 << 10;

/// The waiting of one communicator, call after call.
#[derive(Clone)]
pub(crate) struct Eagerness {
    /// More ranks than cores: do not hold a core that another rank may need.
    crowded: bool,
    yielding: Yielding,
    /// A call with so many bytes on a wire is long for ranks that share cores.
    long_bytes: u64,
    is_long: bool,
    /// Not two cores for each rank: a thread that runs behind others holds none while it waits.
    scarce: bool,
    /// Waits to come in which we sleep rather than yield, and how many there will be after the next
    /// yield to a stranger.
    wary: u32,
    wary_next: u32,
    /// Waits since then that yielded, and met nobody.
    unmet: u32,
    /// Whether to leave the core to a rank that may need it.
    aside: Aside,
    looks: u32,
    yields: u32,
    spin: Duration,
    spin_end: Option<Instant>,
    /// Once nothing has moved for long: for whoever watches meanwhile.
    pub(crate) stall: Option<Stall>,
}

impl Eagerness {
    /// For a rank with its share of a host's cores.
    pub(crate) fn among(share: Share, aside: Aside) -> Self {
        let yielding = if share.is_crowded() { CROWDED } else { ALONE };
        Self {
            crowded: share.is_crowded(),
            yielding,
            long_bytes: LONG_BYTES * share.cores as u64 / share.ranks.max(1) as u64,
            is_long: false,
            scarce: share.ranks > share.cores / 2,
            wary: 0,
            wary_next: yielding.wary_waits,
            unmet: 0,
            aside,
            looks: 0,
            yields: 0,
            spin: SPIN,
            spin_end: None,
            stall: None,
        }
    }

    /// A call begins, with so many bytes on its busiest wire.
    #[inline]
    pub(crate) fn begin(&mut self, wire_bytes: impl FnOnce() -> u64) {
        self.is_long = self.crowded && wire_bytes() >= self.long_bytes;
        self.moved();
    }

    /// Something moved: start over.
    #[inline]
    pub(crate) fn moved(&mut self) {
        self.looks = 0;
        if self.spin_end.is_some() || self.yields > 0 || self.stall.is_some() {
            match self.stall {
                Some(stall) => self.slept(stall.stood()),
                None => self.aside.found(),
            }
            if self.yields > 0 && self.wary == 0 {
                self.met_nobody();
            }
            (self.spin_end, self.yields, self.stall) = (None, 0, None);
        }
    }

    /// Learn from a sleep how long to look on before the next one.
    fn slept(&mut self, slept: Duration) {
        let short = slept < SHORT_SLEEP;
        if short && self.spin == SPIN_MAX && self.spin_end.is_some() {
            self.aside.missed();
        }
        self.spin = if short { SPIN_MAX.min(self.spin * 2) } else { SPIN };
    }

    /// Wait a little without sleeping, if that is still worth it.
    #[inline]
    pub(crate) fn is_brief(&mut self) -> bool {
        self.looks = self.looks.saturating_add(1);
        if !self.looks.is_multiple_of(LOOKS) && self.stall.is_none() && self.yields == 0 {
            if self.looks > HOT_LOOKS {
                std::hint::spin_loop();
            }
            return true;
        }
        self.stall.is_none() && (self.spins(Instant::now) || self.yields())
    }

    /// Whether to go on looking for now.
    fn spins(&mut self, clock: impl FnOnce() -> Instant) -> bool {
        if self.crowded || self.yields > 0 || self.scarce && sys::runs_behind() {
            return false;
        }
        let now = clock();
        now < *self.spin_end.get_or_insert(now + self.spin)
    }

    /// Let others run, unless strangers would keep the core; false when it is time to sleep.
    fn yields(&mut self) -> bool {
        let is_vain = self.is_long || self.yields == self.yielding.most;
        if is_vain || self.wary > 0 {
            let vain_waits = if is_vain { self.yielding.vain_waits } else { 0 };
            self.wary = vain_waits.max(self.wary.saturating_sub(1));
            self.stall = Some(Stall::begin());
            return false;
        }
        self.yields += 1;
        let before = Instant::now();
        std::thread::yield_now();
        self.yielded(before.elapsed());
        true
    }

    /// Learn from a yield who else is there.
    fn yielded(&mut self, took: Duration) {
        if took > self.yielding.stranger {
            (self.wary, self.unmet) = (self.wary_next, 0);
            self.wary_next = WARY_WAITS.min(2 * self.wary_next);
        }
    }

    /// A wait has yielded, and no stranger kept the core: one who is there for half of the time is
    /// not forgotten in the other half.
    fn met_nobody(&mut self) {
        self.unmet += 1;
        if self.unmet >= self.wary_next {
            (self.wary_next, self.unmet) = (self.yielding.wary_waits.max(self.wary_next / 2), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: Share = Share { ranks: 1, cores: 2 };
    const MANY: Share = Share { ranks: 3, cores: 2 };

    /// How many looks a wait has before it sleeps.
    fn looks(waiting: &mut Eagerness) -> u32 {
        waiting.moved();
        (0..).find(|_| !waiting.is_brief()).expect("a wait comes to an end")
    }

    #[test]
    fn short_sleeps_lengthen_the_next_look_and_a_long_one_ends_that() {
        let mut waiting = Eagerness::among(FEW, Aside::never());
        let start = Instant::now();
        let spun = |waiting: &mut Eagerness, after: Duration| {
            waiting.spin_end = None;
            assert!(waiting.spins(|| start), "the first look at the clock");
            waiting.spins(|| start + after)
        };
        assert!(!spun(&mut waiting, SPIN));
        for _ in 0..10 {
            waiting.slept(SHORT_SLEEP / 2);
        }
        assert!(spun(&mut waiting, SPIN_MAX - Duration::from_nanos(1)));
        assert!(!spun(&mut waiting, SPIN_MAX));
        waiting.slept(SHORT_SLEEP);
        assert!(!spun(&mut waiting, SPIN));
    }

    #[test]
    fn who_lost_the_core_to_a_stranger_sleeps_for_many_waits_and_then_tries_again() {
        let mut waiting = Eagerness::among(MANY, Aside::never());
        // Another rank may have taken so long.
        waiting.yielded(ALONE.stranger * 2);
        assert_eq!(waiting.wary, 0);
        waiting.yielded(CROWDED.stranger * 2);
        for _ in 0..CROWDED.wary_waits {
            assert_eq!(looks(&mut waiting), LOOKS - 1);
            assert_eq!(waiting.yields, 0);
        }
        looks(&mut waiting);
        assert!(waiting.yields > 0, "some waits later it yields again");
        let mut alone = Eagerness::among(FEW, Aside::never());
        alone.yielded(ALONE.stranger * 2);
        assert_eq!(alone.wary, WARY_WAITS, "no rank has business on its core");
    }

    #[test]
    fn a_stranger_who_stays_is_met_seldom_and_one_who_passed_by_is_soon_forgotten() {
        let mut waiting = Eagerness::among(MANY, Aside::never());
        let met = |waiting: &mut Eagerness| {
            waiting.yielded(CROWDED.stranger * 2);
            std::mem::take(&mut waiting.wary)
        };
        let waits: Vec<u32> = (0..8).map(|_| met(&mut waiting)).collect();
        assert_eq!(waits, [16, 32, 64, 128, 256, 512, WARY_WAITS, WARY_WAITS]);
        let meets_nobody = |waiting: &mut Eagerness, times: u32| {
            for _ in 0..times {
                waiting.yields = 1;
                waiting.moved();
            }
        };
        for _ in 0..100 {
            // It is there now and then.
            meets_nobody(&mut waiting, 100);
            assert_eq!(met(&mut waiting), WARY_WAITS);
        }
        meets_nobody(&mut waiting, 2 * WARY_WAITS);
        assert_eq!(met(&mut waiting), CROWDED.wary_waits);
    }

    #[test]
    fn where_cores_are_scarce_a_thread_behind_others_does_not_look_on() {
        let behind = |share| {
            let body = move || {
                sys::run_behind();
                looks(&mut Eagerness::among(share, Aside::never())) < LOOKS + CROWDED.most
            };
            std::thread::spawn(body).join().expect("a thread")
        };
        assert!(behind(Share { ranks: 2, cores: 3 }));
        // Who loses its core meanwhile looks on for a shorter time.
        assert!((0..50).any(|_| !behind(Share { ranks: 2, cores: 4 })));
    }

    #[test]
    fn crowded_ranks_look_a_little_yield_a_little_and_sleep_until_something_moves() {
        let mut waiting = Eagerness::among(MANY, Aside::never());
        assert!(looks(&mut waiting) <= LOOKS - 1 + CROWDED.most);
        assert!(!waiting.is_brief() && !waiting.is_brief(), "it sleeps again after a nap");
        waiting.moved();
        assert!(waiting.is_brief());
    }

    #[test]
    fn crowded_ranks_that_yielded_in_vain_sleep_at_once_for_a_few_waits() {
        let mut waiting = Eagerness::among(MANY, Aside::never());
        waiting.yields = CROWDED.most;
        assert!(!waiting.yields(), "it has yielded often enough");
        assert_eq!(waiting.wary, CROWDED.vain_waits);
        for _ in 0..CROWDED.vain_waits {
            assert_eq!(looks(&mut waiting), LOOKS - 1);
        }
        assert_eq!(waiting.wary, 0);
    }

    #[test]
    fn crowded_ranks_sleep_at_once_in_calls_that_are_long_for_so_many() {
        let sleeps = |share, bytes| {
            let mut waiting = Eagerness::among(share, Aside::never());
            waiting.begin(|| bytes);
            (0..LOOKS - 1).all(|_| waiting.is_brief()) && !waiting.is_brief()
        };
        assert!(sleeps(MANY, 1 << 20) && !sleeps(MANY, 512 << 10) && !sleeps(FEW, 1 << 30));
        assert!(sleeps(Share { ranks: 8, cores: 2 }, 256 << 10));
    }
}
