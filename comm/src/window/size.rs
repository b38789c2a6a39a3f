//! How large a window is.

/// How much a rank exposes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowSize {
    /// Bytes of memory, zeros at first.
    pub bytes: usize,
    /// Counters, zero at first.
    pub signals: usize,
}
