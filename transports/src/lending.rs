//! Memory that is lent to a wire, so that a device sends from where the bytes lie.

/// What a wire has done with bytes that it was lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lending {
    /// How many it took.
    pub taken: usize,
    /// Whether it still needs them where they lie.
    pub is_held: bool,
}

/// What became of lent memory, over the life of a rank.
///
/// A device reads memory only after it was registered, which pins it and takes longer than a copy
/// of a few pages. So registrations are kept, and found again when the same memory is lent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LendingStats {
    /// Pieces whose memory was registered already.
    pub hits: u64,
    /// Pieces whose memory had to be registered first.
    pub misses: u64,
    /// Registrations given up to make room for others.
    pub evicted: u64,
    /// Registrations given up because their memory went away.
    pub invalidated: u64,
    /// Bytes that are registered now.
    pub registered_bytes: u64,
    /// The most bytes that were registered at once.
    pub registered_bytes_max: u64,
    /// Bytes sent from where the caller had them.
    pub lent_bytes: u64,
}

impl LendingStats {
    /// The sum of two, for a rank that uses several transports.
    #[must_use]
    pub fn plus(self, other: LendingStats) -> LendingStats {
        LendingStats {
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            evicted: self.evicted + other.evicted,
            invalidated: self.invalidated + other.invalidated,
            registered_bytes: self.registered_bytes + other.registered_bytes,
            registered_bytes_max: self.registered_bytes_max + other.registered_bytes_max,
            lent_bytes: self.lent_bytes + other.lent_bytes,
        }
    }
}
