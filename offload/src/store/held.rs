//! What a store holds where.

use std::fmt;

/// Bytes by tier, in whole pages. Those in memory are what the arena has lent to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// In memory, the same as in the files.
    pub clean: usize,
    /// In memory alone.
    pub changed: usize,
    /// In memory, on its way in or out.
    pub moving: usize,
    /// With the caller.
    pub lent: usize,
    /// In files alone.
    pub file: usize,
}

impl fmt::Display for Held {
    /// What is in memory, as `HostFull` says it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clean, changed, moving, lent, .. } = self;
        write!(f, "{lent} bytes lent out, {moving} on their way, {} to be had", clean + changed)
    }
}
