//! Memory of a device.

use std::fmt;

use crate::aloof::Aloof;
use crate::pace::COMMAND;
use crate::{Context, CudaError, Result, Stream};

/// A range of a device's memory, freed when dropped.
pub struct DeviceMemory {
    context: Context,
    address: u64,
    bytes: usize,
    /// Where it was allocated in the order of a stream, and is freed so.
    stream: Option<Stream>,
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DeviceMemory {:#x}, {} bytes", self.address, self.bytes)
    }
}

impl DeviceMemory {
    /// `bytes` of the device's memory, aligned to 256, holding anything. Other processes can be
    /// given it ([`DeviceMemory::handle`](crate::IpcHandle)). Costs up to a millisecond. Freeing it
    /// may wait for the device, and need not: who uses it in a stream waits first.
    ///
    /// # Errors
    ///
    /// What the driver says; see [`CudaError::is_out_of_memory`].
    pub fn new(context: &Context, bytes: usize) -> Result<Self> {
        let _here = context.enter()?;
        let _aloof = Aloof::new(context.driver());
        let mut address = 0;
        // SAFETY: the pointer is to a number that outlives the call.
        unsafe { context.driver().mem_alloc(&mut address, bytes.max(1)) }
            .ok(format_args!("allocating {bytes} bytes on device {}", context.device().ordinal))?;
        Ok(Self { context: context.clone(), address, bytes, stream: None })
    }

    /// `bytes` of the device's pool, which may be used by what comes after in `stream`, and which
    /// are given back to the pool, when dropped, after what was given to `stream` before. Costs
    /// about a microsecond once the pool has grown ([`Context::keep_pooled`]). No other process
    /// can be given it; other devices reach it once they reach this one ([`Context::reach`]).
    ///
    /// # Errors
    ///
    /// What the driver says; see [`CudaError::is_out_of_memory`].
    pub fn pooled(stream: &Stream, bytes: usize) -> Result<Self> {
        let context = stream.context();
        // For giving it back, too, which does not wait.
        stream.keep_pace(2 * COMMAND)?;
        let _here = context.enter()?;
        let mut address = 0;
        // SAFETY: the pointer is to a number that outlives the call; the stream is alive.
        unsafe { context.driver().mem_alloc_async(&mut address, bytes.max(1), stream.raw()) }
            .ok(format_args!("taking {bytes} bytes of the device's pool"))?;
        Ok(Self { context: context.clone(), address, bytes, stream: Some(stream.clone()) })
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Where it begins, as kernels and copies name it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes were asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Write `source` at `offset`, and wait until it is there. `stream` says what comes before,
    /// which is waited for first: see [`Stream::copy`].
    ///
    /// # Errors
    ///
    /// [`CudaError::Refused`] where it does not fit, and what the driver says.
    pub fn write(&mut self, stream: &Stream, offset: usize, source: &[u8]) -> Result<()> {
        self.check(offset, source.len())?;
        stream.synchronize()?;
        let target = self.address + offset as u64;
        // SAFETY: the range is ours, the slice is borrowed until the copy is done.
        unsafe { stream.copy(target, source.as_ptr() as u64, source.len()) }?;
        stream.synchronize()
    }

    /// Read into `target` from `offset`, and wait until it is there. `stream` says what comes
    /// before, which is waited for first: see [`Stream::copy`].
    ///
    /// # Errors
    ///
    /// [`CudaError::Refused`] beyond the end, and what the driver says.
    pub fn read(&self, stream: &Stream, offset: usize, target: &mut [u8]) -> Result<()> {
        self.check(offset, target.len())?;
        stream.synchronize()?;
        let source = self.address + offset as u64;
        // SAFETY: the range is ours, the slice is borrowed until the copy is done.
        unsafe { stream.copy(target.as_mut_ptr() as u64, source, target.len()) }?;
        stream.synchronize()
    }

    pub(crate) fn check(&self, offset: usize, bytes: usize) -> Result<()> {
        if offset.checked_add(bytes).is_some_and(|end| end <= self.bytes) {
            return Ok(());
        }
        let have = self.bytes;
        Err(CudaError::refused(format!("{bytes} bytes at {offset} lie beyond the {have} there")))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let Ok(_here) = self.context.enter() else { return };
        let driver = self.context.driver();
        let _aloof = self.stream.is_none().then(|| Aloof::new(driver));
        match &self.stream {
            // SAFETY: allocated once and freed once; what comes before in the stream is done first.
            Some(stream) => unsafe { driver.mem_free_async(self.address, stream.raw()) }.sunk(),
            // SAFETY: allocated once and freed once; who gave it to a stream has promised that it
            // exists until that is done.
            None => unsafe { driver.mem_free(self.address) }.sunk(),
        }
    }
}
