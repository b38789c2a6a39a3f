//! Ranks that end well while others still wait for all ranks to come together: those wait in vain.
//! Who ends early is no mistake otherwise, and so is who never comes where nobody waits for it.

use std::time::{Duration, Instant};

/// How long a rank has to have ended: somebody that it has started may be about to come as it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Ranks that have ended well, and of which that was not told.
#[derive(Default)]
pub(super) struct Quitters(Vec<(usize, u32, Instant)>);

impl Quitters {
    pub(super) fn add(&mut self, rank: usize, pid: u32, now: Instant) {
        self.0.push((rank, pid, now));
    }

    /// Tell of those that have ended for long enough, each once: others wait for ranks to come.
    pub(super) fn tell(&mut self, now: Instant) {
        for (rank, pid, _) in self.0.extract_if(.., |(.., ended)| now - *ended >= PATIENCE) {
            eprintln!(
                "brigade: rank {rank} (pid {pid}) has ended with code 0, and others still wait \
                 for all ranks to join"
            );
        }
    }
}
