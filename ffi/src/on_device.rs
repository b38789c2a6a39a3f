//! What a communicator has on the devices of its ranks.

use std::sync::Arc;

use brigade_wall::handle::Noun;
use brigade_wall::memory::Seat;
use brigade_wall::streams::Streams;

use crate::comm::Comm;

/// What stands behind a handle.
pub(crate) struct OnDevice {
    /// In front of the communicator, whose calls it makes.
    pub(crate) streams: Streams,
    pub(crate) seat: Seat,
    pub(crate) ordinal: u32,
    pub(crate) _comm: Arc<Comm>,
}

impl Noun for OnDevice {
    const KIND: u8 = 8;
    const NAME: &'static str = "group on devices";
}

impl OnDevice {
    pub(crate) fn streams(&self) -> &Streams {
        &self.streams
    }
}
