//! Memory of the host that devices reach by themselves.

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::slice;

use crate::aloof::Aloof;
use crate::sys::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_DEVICEMAP,
    CU_MEMHOSTREGISTER_PORTABLE,
};
use crate::{Context, Result};

/// Pinned memory of the host, freed when dropped. Every device of the process reaches it.
pub struct Pinned {
    context: Context,
    pointer: *mut u8,
    device_address: u64,
    bytes: usize,
}

// SAFETY: the memory is ours, and shared only as slices may be.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl fmt::Debug for Pinned {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Pinned {:?}, {} bytes", self.pointer, self.bytes)
    }
}

impl Pinned {
    /// `bytes` of pinned memory, zeroed. Costs about a second for 4 GiB.
    ///
    /// # Errors
    ///
    /// What the driver says: mostly that there is no memory left that can be pinned.
    pub fn new(context: &Context, bytes: usize) -> Result<Self> {
        let _here = context.enter()?;
        let _aloof = Aloof::new(context.driver());
        let mut pointer: *mut c_void = ptr::null_mut();
        let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the pointer is to a pointer that outlives the call.
        unsafe { context.driver().mem_host_alloc(&mut pointer, bytes.max(1), flags) }
            .ok(format_args!("pinning {bytes} bytes of the host"))?;
        let mut pinned =
            Self { context: context.clone(), pointer: pointer.cast(), device_address: 0, bytes };
        pinned.device_address = device_address(context, pointer)?;
        // SAFETY: the driver has just allocated this many bytes for us.
        unsafe { ptr::write_bytes(pinned.pointer, 0, bytes) };
        Ok(pinned)
    }

    /// Where it begins, for the host. Copies take this address too.
    pub fn as_ptr(&self) -> *const u8 {
        self.pointer
    }

    /// Where it begins, for the host. Copies take this address too.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.pointer
    }

    /// Where it begins, for kernels.
    pub fn device_address(&self) -> u64 {
        self.device_address
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// All of it. Whoever lets a device write it (which takes unsafe code) waits before looking.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: ours, this long, and zeroed in the beginning.
        unsafe { slice::from_raw_parts(self.pointer, self.bytes) }
    }

    /// All of it. Whoever lets a device use it (which takes unsafe code) waits before writing.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: ours, this long, zeroed in the beginning, and borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.pointer, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Ok(_here) = self.context.enter() {
            let _aloof = Aloof::new(self.context.driver());
            // SAFETY: allocated once and freed once.
            unsafe { self.context.driver().mem_free_host(self.pointer.cast()) }.sunk();
        }
    }
}

/// Memory of somebody else that is pinned where it lies, until this is dropped.
pub struct Registered {
    context: Context,
    pointer: *mut u8,
    device_address: u64,
    bytes: usize,
}

// SAFETY: only the address is used, and only by the driver.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl fmt::Debug for Registered {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Registered {:?}, {} bytes", self.pointer, self.bytes)
    }
}

impl Registered {
    /// Pin `bytes` from `pointer`. Whole pages are pinned. Costs some 100 ns a page.
    ///
    /// # Safety
    ///
    /// The memory stays mapped until this is dropped.
    ///
    /// # Errors
    ///
    /// What the driver says: parts of it are pinned already, or it cannot be.
    pub unsafe fn new(context: &Context, pointer: *mut u8, bytes: usize) -> Result<Self> {
        let _here = context.enter()?;
        let _aloof = Aloof::new(context.driver());
        let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: handed on to our caller.
        unsafe { context.driver().mem_host_register(pointer.cast(), bytes, flags) }
            .ok(format_args!("pinning {bytes} bytes of the host where they lie"))?;
        let mut registered = Self { context: context.clone(), pointer, device_address: 0, bytes };
        registered.device_address = device_address(context, pointer.cast())?;
        Ok(registered)
    }

    /// Where it begins, for kernels.
    pub fn device_address(&self) -> u64 {
        self.device_address
    }

    /// How many bytes were asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Let it go, and hear whether devices have: while the driver still has it pinned, a kernel may
    /// write there, so it must stay mapped.
    ///
    /// # Errors
    ///
    /// What the driver says. The memory is as it was then, for good.
    pub fn let_go(self) -> Result<()> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: read once, and the place that it is read from is not dropped.
        let context = unsafe { ptr::read(&this.context) };
        unpin(&context, this.pointer)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Whoever wants to hear of it asks for it.
        let _ = unpin(&self.context, self.pointer);
    }
}

/// Let go of memory that was pinned where it lies.
fn unpin(context: &Context, pointer: *mut u8) -> Result<()> {
    let _here = context.enter()?;
    let _aloof = Aloof::new(context.driver());
    // SAFETY: pinned once and let go once.
    unsafe { context.driver().mem_host_unregister(pointer.cast()) }
        .ok("letting go of pinned memory")
}

impl Context {
    /// Where devices reach pinned memory that the host has at `address`: mostly there.
    ///
    /// # Errors
    ///
    /// What the driver says of memory that is not pinned, or not from there on.
    pub fn address_of_pinned(&self, address: u64) -> Result<u64> {
        let _here = self.enter()?;
        device_address(self, ptr::with_exposed_provenance_mut(address as usize))
    }
}

fn device_address(context: &Context, pointer: *mut c_void) -> Result<u64> {
    let mut address = 0;
    // SAFETY: the pointer is to a number that outlives the call; the driver checks the other.
    unsafe { context.driver().mem_host_get_device_pointer(&mut address, pointer, 0) }
        .ok("asking for the device's address of pinned memory")?;
    Ok(address)
}
