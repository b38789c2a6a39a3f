//! How a sender writes payload: through its cache, or past it.

use super::region::Bytes;

/// The choice of one wire, revised as it goes.
#[derive(Default)]
pub(super) struct Pace {}

impl Pace {
    /// Copy `bytes` to `offset` of `ring`.
    pub(super) fn write(&mut self, ring: &Bytes, offset: usize, bytes: &[u8]) {
        ring.write(offset, bytes);
    }
}
