//! Memory of a device, lent to other processes on the same machine.

use std::fmt;

use crate::aloof::Aloof;
use crate::sys::{CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CUipcHandle};
use crate::{Context, Cuda, Result};

/// What another process opens memory of this one with: plain bytes, for whatever channel there is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IpcHandle {
    /// The driver's handle of the allocation.
    pub token: [u8; 64],
    /// Where in the allocation the memory begins.
    pub offset: u64,
    /// Bytes from there to the allocation's end.
    pub bytes: u64,
}

impl fmt::Debug for IpcHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "IpcHandle of {} bytes at {}", self.bytes, self.offset)
    }
}

impl IpcHandle {
    /// Bytes of [`IpcHandle::to_bytes`].
    pub const BYTES: usize = 80;

    /// For memory at `address`, whoever allocated it (with `cuMemAlloc` or `cudaMalloc`), anywhere
    /// in it. It is good for as long as the allocation lives.
    ///
    /// # Errors
    ///
    /// What the driver says: memory of pools and of expandable segments cannot be exported so.
    pub fn of(context: &Context, address: u64) -> Result<Self> {
        let (start, bytes) = range_of(context, address)?;
        let _here = context.enter()?;
        let _aloof = Aloof::new(context.driver());
        let mut handle = CUipcHandle { reserved: [0; 64] };
        // SAFETY: the pointer is to a structure that outlives the call; the driver checks the
        // address.
        unsafe { context.driver().ipc_get_mem_handle(&mut handle, start) }
            .ok("exporting memory to other processes")?;
        let offset = address - start;
        Ok(Self { token: handle.reserved, offset, bytes: bytes as u64 - offset })
    }

    /// As bytes for a channel.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..64].copy_from_slice(&self.token);
        bytes[64..72].copy_from_slice(&self.offset.to_le_bytes());
        bytes[72..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// From the bytes of a channel. Nonsense is refused when it is opened.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        let mut token = [0; 64];
        token.copy_from_slice(&bytes[..64]);
        Self { token, offset: number(64), bytes: number(72) }
    }
}

/// Memory of another process, mapped into this one until dropped. One allocation is opened once a
/// process and context: who wants two ranges of it opens it once and adds.
pub struct Opened {
    context: Context,
    start: u64,
    offset: u64,
    bytes: usize,
}

impl fmt::Debug for Opened {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Opened {:#x}, {} bytes", self.address(), self.bytes)
    }
}

impl Opened {
    /// Map the memory that `handle` names, for the device of `context`, which may be another one
    /// than the memory's if they reach each other. Costs 0.1 to 1.3 ms by what others have
    /// measured, and half of that to let go of it.
    ///
    /// # Safety
    ///
    /// The handle came from a process that keeps the memory until this is dropped.
    ///
    /// # Errors
    ///
    /// What the driver says: the handle is of this process, or the memory is gone, or another
    /// container hides it. [`crate::CudaError::Refused`] where the allocation is shorter than the
    /// handle says.
    pub unsafe fn open(context: &Context, handle: &IpcHandle) -> Result<Self> {
        let here = context.enter()?;
        let aloof = Aloof::new(context.driver());
        let mut start = 0;
        let token = CUipcHandle { reserved: handle.token };
        let flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
        // SAFETY: the pointer is to a number that outlives the call; the driver checks the rest.
        unsafe { context.driver().ipc_open_mem_handle(&mut start, token, flags) }
            .ok("opening memory of another process")?;
        drop((aloof, here));
        let mut opened = Self { context: context.clone(), start, offset: handle.offset, bytes: 0 };
        let end = handle.offset.checked_add(handle.bytes);
        // The other process is believed where the driver does not say how long it is.
        let whole = range_of(context, start).map_or(u64::MAX, |(_, bytes)| bytes as u64);
        if end.is_none_or(|end| end > whole) {
            let why = format!("{handle:?} does not fit in {whole} bytes");
            return Err(crate::CudaError::refused(why));
        }
        opened.bytes = handle.bytes as usize;
        Ok(opened)
    }

    /// Where it begins, as kernels and copies of this process name it.
    pub fn address(&self) -> u64 {
        self.start + self.offset
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Ok(_here) = self.context.enter() {
            let _aloof = Aloof::new(self.context.driver());
            // SAFETY: opened once and closed once.
            unsafe { self.context.driver().ipc_close_mem_handle(self.start) }.sunk();
        }
    }
}

/// Where the allocation around `address` begins, and its bytes.
fn range_of(context: &Context, address: u64) -> Result<(u64, usize)> {
    let _here = context.enter()?;
    let (mut start, mut bytes) = (0, 0);
    // SAFETY: the pointers are to numbers that outlive the call; the driver checks the address.
    unsafe { context.driver().mem_get_address_range(&mut start, &mut bytes, address) }
        .ok("asking for the allocation around an address")?;
    Ok((start, bytes))
}

impl Cuda {
    /// Where the allocation around a device's `address` begins, and its bytes.
    ///
    /// # Errors
    ///
    /// What the driver says of addresses that it did not allocate.
    pub fn allocation(self, context: &Context, address: u64) -> Result<(u64, usize)> {
        range_of(context, address)
    }
}
