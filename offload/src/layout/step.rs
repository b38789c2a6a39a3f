//! What protocols are made of: writes and syncs, as data.

/// One step of a protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write these bytes. Length and offset are multiples of [`ALIGNMENT`](super::ALIGNMENT).
    Write {
        /// Which file.
        stripe: u32,
        /// Where in it. \[bytes\]
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// Make everything that was written to this file before survive a power cut.
    Sync {
        /// Which file.
        stripe: u32,
    },
}
