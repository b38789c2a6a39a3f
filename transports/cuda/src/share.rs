//! Memory of a device behind a file descriptor: for other processes, where handles do not work,
//! and for cards that read devices' memory.

use std::ffi::c_int;
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use crate::access::{access_of, location};
use crate::aloof::Aloof;
use crate::sys::{
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, CU_MEM_ALLOCATION_TYPE_PINNED,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, CUmemAllocFlags,
    CUmemAllocationProp,
};
use crate::{Context, CudaError, Device, Result};

/// Memory of a device that other processes can map through a file descriptor.
pub struct Shareable {
    context: Context,
    handle: u64,
    /// Zero until it is reserved.
    address: u64,
    mapped_bytes: usize,
    is_mapped: bool,
    bytes: usize,
}

impl fmt::Debug for Shareable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Shareable {:#x}, {} bytes", self.address, self.bytes)
    }
}

impl Shareable {
    /// At least `bytes` of the device's memory, rounded up to 2 MiB. Costs some 100 us. Unlike
    /// [`DeviceMemory`](crate::DeviceMemory) it waits for nothing that the device does.
    ///
    /// # Errors
    ///
    /// What the driver says; [`Device::has_shareable`](crate::Device::has_shareable) tells
    /// beforehand.
    pub fn new(context: &Context, bytes: usize) -> Result<Self> {
        let _here = context.enter()?;
        let _aloof = Aloof::new(context.driver());
        let properties = properties(context);
        let mapped_bytes = bytes.max(1).next_multiple_of(granularity(context, &properties)?);
        let mut handle = 0;
        // SAFETY: the pointers are to structures that outlive the call.
        unsafe { context.driver().vmm_create(&mut handle, mapped_bytes, &properties, 0) }
            .ok(format_args!("allocating {bytes} bytes that can be shared"))?;
        Self::of_handle(context, handle, mapped_bytes, bytes)
    }

    /// Memory of another process, from the descriptor and the bytes of its [`Shareable`].
    ///
    /// # Safety
    ///
    /// `bytes` is what the other process asked for. The memory lives for as long as anybody has it.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub unsafe fn open(context: &Context, fd: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        let _here = context.enter()?;
        let _aloof = Aloof::new(context.driver());
        let properties = properties(context);
        let mapped_bytes = bytes.max(1).next_multiple_of(granularity(context, &properties)?);
        let mut handle = 0;
        let source = fd.as_raw_fd() as isize as *mut std::ffi::c_void;
        let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: the pointer is to a number that outlives the call; of this kind the descriptor
        // itself stands for the source.
        unsafe { context.driver().vmm_import(&mut handle, source, kind) }
            .ok("importing memory of another process")?;
        Self::of_handle(context, handle, mapped_bytes, bytes)
    }

    fn of_handle(
        context: &Context,
        handle: u64,
        mapped_bytes: usize,
        bytes: usize,
    ) -> Result<Self> {
        let mut memory = Self {
            context: context.clone(),
            handle,
            address: 0,
            mapped_bytes,
            is_mapped: false,
            bytes,
        };
        let driver = context.driver();
        // SAFETY: the pointer is to a number that outlives the call.
        unsafe { driver.vmm_reserve(&mut memory.address, mapped_bytes, 0, 0, 0) }
            .ok("reserving addresses")?;
        // SAFETY: the range was just reserved, and the handle has this many bytes or is refused.
        unsafe { driver.vmm_map(memory.address, mapped_bytes, 0, handle, 0) }
            .ok("mapping memory that is shared")?;
        memory.is_mapped = true;
        memory.open_to(context.device())?;
        Ok(memory)
    }

    /// Let kernels and copies of `device` reach it: that devices reach each other
    /// ([`Context::reach`]) is not enough for memory of this kind. Its own device always does.
    ///
    /// # Errors
    ///
    /// What the driver says of devices that do not reach each other.
    pub fn open_to(&self, device: &Device) -> Result<()> {
        let _here = self.context.enter()?;
        let _aloof = Aloof::new(self.context.driver());
        let access = access_of(device);
        // SAFETY: the range is mapped, and the structure outlives the call.
        unsafe { self.context.driver().vmm_set_access(self.address, self.mapped_bytes, &access, 1) }
            .ok("opening memory that is shared to a device")
    }

    /// Where it begins, as kernels and copies of this process name it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes were asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A descriptor for another process. The memory lives for as long as it, too.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn descriptor(&self) -> Result<OwnedFd> {
        let _here = self.context.enter()?;
        let _aloof = Aloof::new(self.context.driver());
        let mut fd: c_int = -1;
        let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let target = ptr::from_mut(&mut fd).cast();
        // SAFETY: of this kind the target is a descriptor, which outlives the call.
        unsafe { self.context.driver().vmm_export(target, self.handle, kind, 0) }
            .ok("exporting memory as a descriptor")?;
        owned(fd)
    }
}

impl Context {
    /// A descriptor of `bytes` of a device's memory at `address`, for a network card to register
    /// (dmabuf). Both are multiples of the system's page.
    ///
    /// # Errors
    ///
    /// What the driver says; [`Device::has_dmabuf`](crate::Device::has_dmabuf) tells beforehand.
    pub fn dmabuf(&self, address: u64, bytes: usize) -> Result<OwnedFd> {
        let _here = self.enter()?;
        let _aloof = Aloof::new(self.driver());
        let mut fd: c_int = -1;
        let target = ptr::from_mut(&mut fd).cast();
        let kind = CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        // SAFETY: of this kind the target is a descriptor, which outlives the call; the driver
        // checks the range.
        unsafe { self.driver().range_handle(target, address, bytes, kind, 0) }
            .ok("exporting memory for network cards")?;
        owned(fd)
    }
}

fn owned(fd: c_int) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(CudaError::refused("the driver gave no descriptor"));
    }
    // SAFETY: the driver has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn properties(context: &Context) -> CUmemAllocationProp {
    CUmemAllocationProp {
        kind: CU_MEM_ALLOCATION_TYPE_PINNED,
        requested_handle_types: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: location(context.device()),
        win32_handle_metadata: ptr::null_mut(),
        alloc_flags: CUmemAllocFlags {
            compression_type: 0,
            gpu_direct_rdma_capable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn granularity(context: &Context, properties: &CUmemAllocationProp) -> Result<usize> {
    let mut bytes = 0;
    let option = CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    // SAFETY: the pointers are to structures that outlive the call.
    unsafe { context.driver().vmm_granularity(&mut bytes, properties, option) }
        .ok("asking in what steps memory can be shared")?;
    Ok(bytes.max(1))
}

impl Drop for Shareable {
    fn drop(&mut self) {
        let Ok(_here) = self.context.enter() else { return };
        let driver = self.context.driver();
        let _aloof = Aloof::new(driver);
        if self.is_mapped {
            // SAFETY: mapped once and unmapped once.
            unsafe { driver.vmm_unmap(self.address, self.mapped_bytes) }.sunk();
        }
        if self.address != 0 {
            // SAFETY: reserved once and freed once, after it was unmapped.
            unsafe { driver.vmm_free(self.address, self.mapped_bytes) }.sunk();
        }
        // SAFETY: created or imported once, and released once.
        unsafe { driver.vmm_release(self.handle) }.sunk();
    }
}
