//! Memory of a group's own for a call, taken while kernels of other ranks may wait for this one.

use brigade_cuda::{CudaError, DeviceMemory, Shareable};

use super::Inner;
use super::setup::Way;

/// Some of it, until the group ends.
pub(super) enum Room {
    /// As drivers allocate it, and lend it to other processes.
    Plain(DeviceMemory),
    /// Mapped, which waits for nothing.
    Mapped(Shareable),
}

impl Room {
    /// Where kernels wait for each other, allocating must not wait for them: so memory is mapped
    /// there, where the device can. Its pool does only if it must, since a driver may let whoever
    /// takes some wait for a stream that is to give it back, behind a call.
    pub(super) fn new(inner: &Inner, bytes: usize) -> Result<Self, CudaError> {
        let (context, way) = (&inner.context, inner.way);
        match way {
            Way::Together | Way::Linked if context.device().has_shareable => {
                let room = Shareable::new(context, bytes)?;
                // Other ranks read it where it lies.
                let own = context.device();
                let others = own.cuda.devices()?;
                let is_other = |ordinal: u32| {
                    way == Way::Together
                        && ordinal != own.ordinal
                        && inner.cards.iter().any(|card| card.ordinal == ordinal)
                };
                let mut others = others.iter().filter(|device| is_other(device.ordinal));
                others.try_for_each(|device| room.open_to(device))?;
                Ok(Self::Mapped(room))
            }
            Way::Together | Way::Linked => {
                let room = DeviceMemory::pooled(&inner.stream, bytes)?;
                inner.stream.synchronize()?;
                Ok(Self::Plain(room))
            }
            Way::Met | Way::Staged => DeviceMemory::new(context, bytes).map(Self::Plain),
        }
    }

    pub(super) fn address(&self) -> u64 {
        match self {
            Self::Plain(memory) => memory.address(),
            Self::Mapped(memory) => memory.address(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Plain(memory) => memory.bytes(),
            Self::Mapped(memory) => memory.bytes(),
        }
    }
}
