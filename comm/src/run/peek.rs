//! Headers that were looked at before it was decided which message to receive.

use brigade_transports::{RecvWire, TransportError};

use crate::header::{HEADER_BYTES, Header};

/// What was taken from one wire to see what comes next on it. Whoever receives from the wire takes
/// it from here first.
#[derive(Default)]
pub(crate) struct Peeked {
    bytes: [u8; HEADER_BYTES],
    taken: u8,
    /// How the wire failed when there was nothing more on it.
    failed: Option<TransportError>,
}

impl Peeked {
    /// The header at the front of the wire, once it is whole.
    pub(crate) fn look(
        &mut self,
        wire: &mut dyn RecvWire,
    ) -> Result<Option<Header>, TransportError> {
        let taken = usize::from(self.taken);
        if taken < HEADER_BYTES {
            if let Some(error) = &self.failed {
                return Err(error.clone());
            }
            match wire.pull_into(&mut self.bytes[taken..]) {
                Ok(more) => self.taken += more as u8,
                Err(error) => return Err(self.failed.insert(error).clone()),
            }
        }
        let is_whole = usize::from(self.taken) == HEADER_BYTES;
        Ok(is_whole.then(|| Header::from_bytes(self.bytes)))
    }

    /// Hand out what was taken, all at once. A header that has begun is never looked at, so there
    /// is room for it.
    pub(super) fn give(&mut self, target: &mut [u8]) -> usize {
        let taken = usize::from(std::mem::take(&mut self.taken));
        target[..taken].copy_from_slice(&self.bytes[..taken]);
        taken
    }
}
