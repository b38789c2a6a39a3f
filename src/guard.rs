//! Who ends what ranks have started when the launcher is killed: the system ends only the ranks
//! themselves, as it tells nobody else of their parent.
//!
//! The guard is a copy of the launcher in a process group of its own, which has nothing of it but
//! the end of a pipe, and a page that both see, with the groups of the ranks. Nobody writes into
//! that pipe: it ends with the launcher, however that ends, and then the groups on the page are
//! killed. A group is on it for as long as its leader has not been waited for, so that its number
//! is nobody else's.

mod sys;

use std::io::{self, PipeWriter};
use std::sync::atomic::{AtomicI32, Ordering};

/// A guard of some groups, which ends with this value.
pub(crate) struct Guard {
    process: i32,
    groups: &'static [AtomicI32],
    /// Ends with this process: children do not inherit it.
    _line: PipeWriter,
}

impl Guard {
    /// Of no more than so many groups. For a time in which this process has few files, and holds
    /// back the signals that are not meant for the guard.
    pub(crate) fn start(most: usize) -> io::Result<Self> {
        let (end, line) = io::pipe()?;
        let groups = sys::shared_numbers(most)?;
        let process = sys::fork_guard(&end, groups)?;
        Ok(Self { process, groups, _line: line })
    }

    /// Kill the group that `leader` leads, too, once this process is gone.
    pub(crate) fn watch(&self, at: usize, leader: u32) {
        self.groups[at].store(leader.cast_signed(), Ordering::Release);
    }

    /// Kill nobody any more.
    pub(crate) fn dismiss(&self) {
        self.groups.iter().for_each(|group| group.store(0, Ordering::Release));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        sys::end_guard(self.process);
    }
}
