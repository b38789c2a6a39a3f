//! How long the kernel may put off what is handed to it.
//!
//! Without memory for a request, or for its completion, the kernel asks for it to be tried again.
//! That passes in moments, or never: then every caller has to be told.

use std::io;
use std::time::{Duration, Instant};

/// How long nothing at all may be taken in.
const LIMIT: Duration = Duration::from_secs(30);
/// Between two attempts, so that they are not all that a processor does.
const PAUSE: Duration = Duration::from_millis(1);

/// Since when the kernel has put off everything.
#[derive(Debug, Default)]
pub(super) struct Patience {
    since: Option<Instant>,
}

impl Patience {
    /// It took something in.
    pub(super) fn calm(&mut self) {
        self.since = None;
    }

    /// It has put everything off, for this reason.
    ///
    /// Errors: it does so for longer than anything passing would take.
    pub(super) fn bear(&mut self, now: Instant, why: &io::Error) -> io::Result<()> {
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) < LIMIT {
            std::thread::sleep(PAUSE);
            return Ok(());
        }
        let seconds = LIMIT.as_secs();
        let what = format!("for {seconds} s the kernel took in no transfer: {why}; free memory");
        Err(io::Error::new(why.kind(), what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_borne_and_what_does_not_is_told() {
        let (mut patience, start) = (Patience::default(), Instant::now());
        let why = io::Error::from_raw_os_error(libc::EAGAIN);
        patience.bear(start, &why).unwrap();
        patience.bear(start + LIMIT / 2, &why).unwrap();
        patience.calm();
        // Counted anew after anything was taken in.
        patience.bear(start + LIMIT, &why).unwrap();
        patience.bear(start + LIMIT * 3 / 2, &why).unwrap();
        let told = patience.bear(start + LIMIT * 2, &why).unwrap_err().to_string();
        assert!(told.contains("30 s") && told.contains("os error 11"), "{told}");
    }
}
