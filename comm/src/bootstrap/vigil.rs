//! A wait for others that tells of itself while it goes on.
//!
//! Joining ends with an error at its deadline only, as whoever is missing may still come. So that
//! nobody looks at a silent terminal until then, a wait is told of after some seconds, once, and
//! again when it has become several times as long.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::conn::SILENCE;
use super::site::Site;
use crate::control::Control;
use crate::say::warn;

/// How many times as long a wait has become when it is told of again.
const GROWTH: u32 = 3;
/// What hardly passes by itself is told after this part of the time.
const EARLY: u32 = 5;
/// The shortest time; growing, it must get somewhere.
const AFTER_MIN: Duration = Duration::from_millis(1);

/// For how long others are waited for, and after what time that is told.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    pub(crate) deadline: Instant,
    /// Without one nothing is told.
    pub(crate) report_after: Option<Duration>,
    /// How long the root's machine may be silent afterwards.
    pub(crate) silence: Duration,
    /// Whether what is said to the root is sealed.
    pub(crate) encrypt: bool,
    /// What hears of the others meanwhile, for those who knew each other before: once it has a
    /// verdict there is nobody to wait for.
    pub(crate) meeting: Option<Arc<Control>>,
    /// Set once nobody wants to meet any more.
    pub(crate) called_off: Option<Arc<AtomicBool>>,
    /// Where a root may be that this rank opens.
    pub(crate) site: Site,
}

impl Patience {
    /// Of which nobody is told.
    pub(crate) fn silent(deadline: Instant) -> Self {
        let (report_after, encrypt, meeting, site) = (None, false, None, Site::default());
        let (silence, called_off) = (SILENCE, None);
        Self { deadline, report_after, silence, encrypt, meeting, called_off, site }
    }
}

/// When a wait is to be told of.
#[derive(Debug)]
pub(super) struct Reports {
    since: Instant,
    /// How long it will have been then.
    after: Option<Duration>,
}

impl Reports {
    pub(super) fn new(since: Instant, after: Option<Duration>) -> Self {
        Self { since, after: after.map(|after| after.max(AFTER_MIN)) }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.since.checked_add(self.after?)
    }

    /// It is told now. The next time is later.
    pub(super) fn tell(&mut self, now: Instant) {
        let stood = now.saturating_duration_since(self.since);
        let grown = |after: &Duration| after.checked_mul(GROWTH);
        self.after = self.after.as_ref().and_then(grown);
        while self.after.is_some_and(|after| after <= stood) {
            self.after = self.after.as_ref().and_then(grown);
        }
    }

    /// How long it has been, in words.
    pub(super) fn waited(&self, now: Instant) -> String {
        format!("has waited {:.1} s", now.saturating_duration_since(self.since).as_secs_f64())
    }
}

/// How long it will go on, in words.
pub(super) fn remains(deadline: Instant, now: Instant) -> String {
    format!("it gives up in {:.0} s", deadline.saturating_duration_since(now).as_secs_f64())
}

/// Whether what is in the way will go by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// Somebody is late.
    Open,
    /// A mistake, as far as one can see from here: a name that nobody knows, another secret.
    Poor,
}

impl Outlook {
    /// Of a name that was looked up in vain: where nobody has answered, somebody may.
    pub(super) fn of_name(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::TimedOut { Self::Open } else { Self::Poor }
    }
}

/// The wait of one rank, for whatever it needs next.
#[derive(Debug)]
pub(super) struct Vigil {
    rank: usize,
    deadline: Instant,
    reports: Reports,
    /// When it is told for the first time, with a poor outlook.
    early: Option<Instant>,
    meeting: Option<Arc<Control>>,
    called_off: Option<Arc<AtomicBool>>,
}

impl Vigil {
    pub(super) fn new(rank: usize, patience: Patience) -> Self {
        let Patience { deadline, report_after, meeting, called_off, .. } = patience;
        let reports = Reports::new(Instant::now(), report_after);
        let early = report_after.and_then(|after| reports.since.checked_add(after / EARLY));
        Self { rank, deadline, reports, early, meeting, called_off }
    }

    /// A wait of which nobody is told.
    pub(super) fn silent(deadline: Instant) -> Self {
        Self::new(0, Patience::silent(deadline))
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the wait at a root may end before the deadline and without its word. Who calls it
    /// off closes the root.
    pub(super) fn may_end(&self) -> bool {
        self.meeting.is_some()
    }

    /// Whether it has.
    pub(super) fn has_ended(&self) -> bool {
        self.meeting.as_ref().is_some_and(|meeting| meeting.verdict().is_some())
            || self.called_off.as_ref().is_some_and(|it| it.load(Ordering::Acquire))
    }

    /// Until when one may wait without looking here.
    pub(super) fn rest_until(&self) -> Instant {
        self.reports.due().map_or(self.deadline, |due| due.min(self.deadline))
    }

    /// Tell for `what` the rank waits, if it is time for that. At the deadline an error says it.
    pub(super) fn look(&mut self, outlook: Outlook, what: impl FnOnce() -> String) {
        let now = Instant::now();
        let early = self.early.filter(|_| outlook == Outlook::Poor);
        if now < self.deadline && early.or(self.reports.due()).is_some_and(|due| due <= now) {
            let (waited, remains) = (self.reports.waited(now), remains(self.deadline, now));
            warn(&format!("rank {} {waited} for {}; {remains}", self.rank, what()));
            self.reports.tell(now);
            self.early = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_told_of_at_growing_intervals_that_are_never_over_already() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut reports = Reports::new(start, Some(Duration::from_millis(500)));
        assert_eq!(reports.due(), Some(at(500)));
        reports.tell(at(510));
        assert_eq!(reports.due(), Some(at(1500)));
        // Told for another reason, and late.
        reports.tell(at(1000));
        assert_eq!(reports.due(), Some(at(4500)));
        reports.tell(at(13_600));
        assert_eq!(reports.due(), Some(at(40_500)));
        for after in [None, Some(Duration::MAX)] {
            let mut reports = Reports::new(start, after);
            assert_eq!(reports.due(), None);
            reports.tell(at(1));
            assert_eq!(reports.due(), None);
        }
        let mut always = Reports::new(start, Some(Duration::ZERO));
        always.tell(at(1));
        assert!(always.due() > Some(at(1)));
    }
}
