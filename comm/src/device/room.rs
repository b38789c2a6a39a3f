//! Memory of a group's own for a call, taken while kernels of other ranks may wait for this one.

use brigade_cuda::{CudaError, Device, DeviceMemory, Shareable};

use super::Inner;
use super::way::Way;

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
        if matches!(inner.way, Way::Met | Way::Staged | Way::ByNodes) {
            return DeviceMemory::new(&inner.context, bytes).map(Self::Plain);
        }
        let readers = inner.readers()?;
        match Self::mapped(inner, bytes, &readers) {
            // A device that can may still be refused it, in containers. Whether other devices read
            // what is of a pool is not certain.
            Err(error) if readers.is_empty() && !error.is_out_of_memory() => {
                let room = DeviceMemory::pooled(&inner.stream, bytes)?;
                inner.stream.synchronize()?;
                Ok(Self::Plain(room))
            }
            made => made,
        }
    }

    fn mapped(inner: &Inner, bytes: usize, readers: &[Device]) -> Result<Self, CudaError> {
        let room = Shareable::new(&inner.context, bytes)?;
        readers.iter().try_for_each(|device| room.open_to(device))?;
        Ok(Self::Mapped(room))
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
