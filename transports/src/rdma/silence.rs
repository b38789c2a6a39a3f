//! Queue pairs that neither do what they were asked for nor say that they cannot.
//!
//! A device has so much time for a request: it waits for an answer as often as it may try, and the
//! standard lets each wait last four times what was set. Some forget requests nevertheless. So does
//! soft-RoCE of Linux 6.1 when a packet cannot be made while earlier ones wait for answers, as in
//! the moment in which a link goes down: its requester is in error from then on and retries
//! nothing (`rxe_requester`), while its completer has asked for a retry once and looks at nothing
//! before that is done (`rxe_completer`). No timer runs, and the queue pair still says that it is
//! ready to send.

use std::time::{Duration, Instant};

use super::Settings;

/// How often a wait for an answer may last what was set.
const STRETCH: u32 = 4;
/// What a busy device may take beyond that.
const MARGIN: Duration = Duration::from_secs(1);

/// What one queue pair was last seen to complete.
#[derive(Debug, Default)]
pub(super) struct Silence {
    completed: u32,
    since: Option<Instant>,
}

impl Silence {
    /// Whether so many requests are waiting, and none has completed for longer than the device may
    /// take. To be asked now and then; `completed` counts what completed so far, modulo 2^32.
    pub(super) fn is_too_long(
        &mut self,
        (waiting, completed): (u32, u32),
        now: Instant,
        limit: Duration,
    ) -> bool {
        if waiting == 0 {
            self.since = None;
            return false;
        }
        if completed != self.completed {
            (self.completed, self.since) = (completed, None);
        }
        now.saturating_duration_since(*self.since.get_or_insert(now)) > limit
    }
}

/// How long a device may take for a request; `None` where it was told to wait for ever.
pub(super) fn limit(settings: &Settings) -> Option<Duration> {
    let answer = Duration::from_nanos(4096 << settings.timeout);
    let waits = STRETCH * (u32::from(settings.retries) + 1);
    (settings.timeout > 0).then(|| answer * waits + MARGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_of_which_none_completes_for_too_long_are_forgotten() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        let limit = Duration::from_secs(3);
        let mut is_too_long = |waiting, completed, after_s| {
            let now = start + Duration::from_secs(after_s);
            silence.is_too_long((waiting, completed), now, limit)
        };
        assert!(!is_too_long(0, 0, 0));
        assert!(!is_too_long(2, 0, 10), "nothing was waiting before");
        assert!(!is_too_long(2, 0, 13));
        assert!(is_too_long(2, 0, 14));
        assert!(!is_too_long(2, 1, 15), "one has completed");
        assert!(!is_too_long(1, 1, 18));
        assert!(is_too_long(5, 1, 19), "what was posted meanwhile is no answer");
        assert!(!is_too_long(0, 6, 30) && !is_too_long(1, 6, 40) && is_too_long(1, 6, 44));
    }

    /// Against what happened in truth, of which the queue pair's owner sees only what it asks for.
    #[test]
    fn whatever_happens_between_questions_silence_counts_from_the_first_after_the_last_sign() {
        let limit = Duration::from_secs(3);
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut silence, mut now) = (Silence::default(), Instant::now());
            let (mut waiting, mut completed) = (0, u32::MAX - rng.u32(0..9));
            // When it was first asked since something completed, or nothing was waiting.
            let mut first_asked = None;
            for step in 0..400 {
                now += Duration::from_millis(rng.u64(0..1500));
                for _ in 0..rng.u32(0..3) {
                    if waiting > 0 && rng.u8(0..4) == 0 {
                        let done = rng.u32(1..=waiting);
                        (waiting, completed) = (waiting - done, completed.wrapping_add(done));
                        first_asked = None;
                    } else if rng.u8(0..4) == 0 {
                        waiting += rng.u32(1..5);
                    }
                }
                let since = (waiting > 0).then(|| *first_asked.get_or_insert(now));
                let is_silent = since.is_some_and(|since| now - since > limit);
                let is_found = silence.is_too_long((waiting, completed), now, limit);
                assert_eq!(is_found, is_silent, "seed {seed}, step {step}: {waiting} waiting");
            }
        }
    }

    #[test]
    fn a_device_may_try_as_often_as_it_was_told() {
        let settings = |timeout, retries| Settings { timeout, retries, ..Settings::default() };
        // 134 ms, seven times, four times as long; and a second.
        let usual = limit(&Settings::default()).unwrap();
        assert!((4.7..4.8).contains(&usual.as_secs_f64()), "{usual:?}");
        assert!(limit(&settings(14, 6)).unwrap() < usual);
        assert!(limit(&settings(31, 6)).unwrap() > Duration::from_secs(200_000));
        assert_eq!(limit(&settings(0, 6)), None);
    }
}
