//! A wait in which nothing moves for long.

use std::time::{Duration, Instant};

/// How long after a rank has left its bytes may still be on their way: TCP sends a lost tail again
/// after 200 ms, and after 400 ms more.
const LEFT_GRACE: Duration = Duration::from_millis(700);

/// Since when nothing has moved, and what was done about it.
#[derive(Clone, Copy)]
pub(crate) struct Stall {
    since: Instant,
    /// The root knows in which call we stand still.
    pub(super) is_told: bool,
    /// The user has been warned.
    pub(super) is_reported: bool,
    /// When the peer that we wait for was first seen to have left.
    left: Option<Instant>,
}

impl Stall {
    pub(crate) fn begin() -> Self {
        Self { since: Instant::now(), is_told: false, is_reported: false, left: None }
    }

    pub(crate) fn stood(&self) -> Duration {
        self.since.elapsed()
    }

    /// The peer that we wait for is seen to have left: whether what it sent has had its time.
    pub(super) fn outlasts_leaver(&mut self) -> bool {
        self.left.get_or_insert_with(Instant::now).elapsed() >= LEFT_GRACE
    }

    /// Something of those who left has come: the rest has as much time again.
    pub(crate) fn forget_leaver(&mut self) {
        self.left = None;
    }
}
