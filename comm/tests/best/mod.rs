//! What a machine can do, on which other things happen.

use std::time::{Duration, Instant};

/// How long a machine that is busy with other things may take to show what it can do.
const PATIENCE: Duration = Duration::from_secs(30);

/// Try until one try is quick enough; panics with the best of them if none is.
pub(crate) fn best(what: &str, limit: Duration, mut attempt: impl FnMut() -> Duration) {
    let (begin, mut least) = (Instant::now(), Duration::MAX);
    while begin.elapsed() < PATIENCE {
        least = least.min(attempt());
        if least < limit {
            return eprintln!("{what}: {least:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{what}: {least:?} at best, not {limit:?}");
}
