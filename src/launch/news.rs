//! How the ends of ranks are told: those that end alike within a moment in one sentence, as a world
//! of many ranks would fill a screen with them when it fails.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use super::{Failure, TERM_GRACE};
use crate::sys;

/// How long an end may wait for others that are alike.
const SETTLING: Duration = Duration::from_millis(100);

/// Ends that are still to be told, in the order in which they were seen.
#[derive(Default)]
pub(super) struct News {
    failures: Vec<Failure>,
    since: Option<Instant>,
}

impl News {
    pub(super) fn add(&mut self, failure: Failure, now: Instant) {
        self.failures.push(failure);
        self.since.get_or_insert(now);
    }

    /// When to tell what there is.
    pub(super) fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + SETTLING)
    }

    /// What there is to tell, as sentences.
    pub(super) fn take(&mut self) -> Vec<String> {
        self.since = None;
        let mut alike: Vec<Vec<Failure>> = Vec::new();
        for failure in self.failures.drain(..) {
            match alike.iter_mut().find(|others| others[0].is_like(&failure)) {
                Some(others) => others.push(failure),
                None => alike.push(vec![failure]),
            }
        }
        alike.iter_mut().map(|failures| sentence(failures)).collect()
    }
}

/// What those hear that wait for a rank which has ended so.
pub(super) fn in_vain(failure: Failure) -> String {
    format!("{}, and nobody starts another in its place", sentence(&mut [failure]))
}

/// How these ranks have ended, alike.
fn sentence(failures: &mut [Failure]) -> String {
    failures.sort_by_key(|failure| failure.rank);
    let Failure { pid, status, outlasted, .. } = failures[0];
    let (who, were) = match failures {
        [Failure { rank, .. }] => (format!("rank {rank} (pid {pid})"), "was"),
        _ => (format!("ranks {}", runs(failures)), "were"),
    };
    match (status.signal(), outlasted) {
        (Some(_), Some(signal)) => {
            let (signal, seconds) = (sys::signal_name(signal), TERM_GRACE.as_secs());
            format!("{who} did not end within {seconds} s of {signal} and {were} killed")
        }
        (Some(signal), None) => {
            format!("{who} {were} killed by signal {signal} ({})", sys::signal_name(signal))
        }
        (None, _) => format!("{who} exited with code {}", status.code().unwrap_or(1)),
    }
}

/// Ranks that follow each other as one: `0, 2-5`.
fn runs(failures: &[Failure]) -> String {
    let runs = failures.chunk_by(|one, next| one.rank + 1 == next.rank);
    let words = runs.map(|run| match run {
        [one] => one.rank.to_string(),
        [first, .., last] => format!("{}-{}", first.rank, last.rank),
        [] => String::new(),
    });
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn who_ended_alike_is_told_in_one_sentence() {
        let now = Instant::now();
        let mut news = News::default();
        assert_eq!(news.due(), None);
        let mut end = |rank, status, outlasted| {
            let status = ExitStatus::from_raw(status);
            news.add(Failure { rank, pid: 70 + rank as u32, status, outlasted }, now);
        };
        end(3, 1 << 8, None);
        [7, 0, 1, 5, 2].into_iter().for_each(|rank| end(rank, libc::SIGTERM, None));
        end(4, libc::SIGKILL, Some(libc::SIGTERM));
        end(6, libc::SIGKILL, None);
        assert_eq!(news.due(), Some(now + SETTLING));
        assert_eq!(
            news.take(),
            [
                "rank 3 (pid 73) exited with code 1",
                "ranks 0-2, 5, 7 were killed by signal 15 (SIGTERM)",
                "rank 4 (pid 74) did not end within 2 s of SIGTERM and was killed",
                "rank 6 (pid 76) was killed by signal 9 (SIGKILL)",
            ]
        );
        assert!(news.take().is_empty() && news.due().is_none());
    }
}
