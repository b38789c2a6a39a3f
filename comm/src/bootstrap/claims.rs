//! Which ranks threads of this process are about to be.
//!
//! The root tells processes apart, and takes one that comes again for one that has lost its
//! connection. So two threads that claim the same rank would take the seat from each other for
//! ever: the second one says that it is another.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::launch::RootSpec;

/// A process, which a child of a fork is not; a root; and a rank.
type Key = (u32, String, usize);

static CLAIMED: Mutex<BTreeMap<Key, usize>> = Mutex::new(BTreeMap::new());

/// That one thread joins as a rank, until it has or has failed to.
pub(super) struct Claim {
    /// None where no two of a process can meet.
    key: Option<Key>,
    is_second: bool,
}

impl Claim {
    pub(super) fn new(root: &RootSpec, rank: usize) -> Self {
        let name = match root {
            RootSpec::Id(id) => Some(id.to_string()),
            RootSpec::IdFile(path) => Some(path.display().to_string()),
            RootSpec::Address(address) => Some(address.to_string()),
            // Each time that a process comes to a store it is for a world of its own.
            RootSpec::Alone | RootSpec::Store(_) => None,
        };
        let key = name.map(|name| (std::process::id(), name, rank));
        let mut claims = 1;
        if let Some(key) = &key {
            let mut claimed = claimed();
            let count = claimed.entry(key.clone()).or_default();
            *count += 1;
            claims = *count;
        }
        Self { key, is_second: claims > 1 }
    }

    /// Whether another thread is about to be the same rank.
    pub(super) fn is_second(&self) -> bool {
        self.is_second
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else { return };
        let mut claimed = claimed();
        let left = claimed.remove(&key).unwrap_or_default().saturating_sub(1);
        if left > 0 {
            claimed.insert(key, left);
        }
    }
}

fn claimed() -> MutexGuard<'static, BTreeMap<Key, usize>> {
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner)
}
