//! What a step asks of whoever adds up the gradients of all lanes.

use crate::error::Error;
use std::time::Duration;

/// How the gradients of all lanes become one, unit by unit, while backward goes on below.
pub(super) trait LaneSums {
    /// Room for the gradient of this rank's lane in `slot`.
    fn open(&mut self, unit: usize, slot: usize) -> Result<&mut [f32], Error>;

    /// The gradient of the lane is in its room.
    fn close(&mut self, unit: usize, slot: usize) -> Result<(), Error>;

    /// After the last slot: what is left to be done for the sum of a unit is on its way.
    fn complete(&mut self, unit: usize) -> Result<(), Error>;

    /// The sum over all lanes: of the whole unit, or of this rank's part.
    fn sum(&mut self, unit: usize) -> Result<&mut [f32], Error>;

    /// Bytes that one step makes this rank send.
    fn formula_bytes(&self) -> Result<u64, Error>;

    /// Whether a step sends something else than was told last.
    fn has_changed(&mut self) -> bool {
        false
    }

    /// Bytes of sums, and of what is beside them. Call it when nothing is on its way.
    fn bytes(&self) -> (u64, u64);

    /// How long anybody had to wait for calls since this was asked last.
    fn take_waited(&mut self) -> Duration;
}
