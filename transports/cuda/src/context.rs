//! A device's primary context: the one that the CUDA runtime, PyTorch and CuPy use as well.

use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use crate::access::access_of;
use crate::aloof::Aloof;
use crate::library::Driver;
use crate::sys::{CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, Handle};
use crate::{Code, Cuda, CudaError, Device, Result};

/// A device's primary context, kept alive. Cloning it is cheap; every thread may use it.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    raw: Handle,
}

// SAFETY: contexts belong to no thread; the driver locks what its calls share.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl fmt::Debug for Context {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "Context of device {} ({})",
            self.inner.device.ordinal,
            self.device().name
        )
    }
}

/// The thread has the context, until this is dropped. Then it has again what it had before.
#[must_use]
pub struct Entered<'a> {
    context: &'a Context,
    is_pushed: bool,
    /// What is current is a matter of one thread.
    stays: PhantomData<*const ()>,
}

impl Context {
    /// The primary context of `device`. The first one of a process costs some 100 ms.
    ///
    /// # Errors
    ///
    /// What the driver says: no memory, or a device that somebody else has exclusively.
    pub fn new(device: &Device) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is to a handle that outlives the call.
        unsafe { device.cuda.driver.primary_ctx_retain(&mut raw, device.raw) }
            .ok(format_args!("opening device {}", device.ordinal))?;
        Ok(Self { inner: Arc::new(Inner { device: device.clone(), raw }) })
    }

    /// The context that the calling thread has, if any: that of a program which uses CUDA itself.
    /// Loads no driver. Costs some 100 us.
    ///
    /// # Errors
    ///
    /// What the driver says; [`CudaError::Refused`] where it is not the primary one of a device.
    pub fn current() -> Result<Option<Self>> {
        let Some(cuda) = Cuda::in_use() else { return Ok(None) };
        let mut current = ptr::null_mut();
        // SAFETY: the pointer is to a handle that outlives the call.
        unsafe { cuda.driver.ctx_get_current(&mut current) }.ok("asking for the context")?;
        if current.is_null() {
            return Ok(None);
        }
        let mut raw = 0;
        // SAFETY: the pointer is to a number that outlives the call.
        unsafe { cuda.driver.ctx_get_device(&mut raw) }.ok("asking for its device")?;
        let found = cuda.devices()?.into_iter().find(|found| found.raw == raw);
        let found = found.ok_or_else(|| CudaError::refused("the context has no device"))?;
        let context = Self::new(&found)?;
        if context.raw() != current {
            return Err(CudaError::refused("the thread's context is not its device's primary one"));
        }
        Ok(Some(context))
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The driver's handle (`CUcontext`), for libraries that want one.
    pub fn raw(&self) -> *mut std::ffi::c_void {
        self.inner.raw
    }

    /// Make this the thread's context for as long as what is returned lives. Every call here does
    /// so by itself; this is for calls of other libraries. Costs some 10 ns where it is already.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn enter(&self) -> Result<Entered<'_>> {
        let mut current = ptr::null_mut();
        // SAFETY: the pointer is to a handle that outlives the call.
        unsafe { self.driver().ctx_get_current(&mut current) }.ok("asking for the context")?;
        let is_pushed = current != self.inner.raw;
        if is_pushed {
            // SAFETY: the context is retained by us.
            unsafe { self.driver().ctx_push_current(self.inner.raw) }.ok("entering a context")?;
        }
        Ok(Entered { context: self, is_pushed, stays: PhantomData })
    }

    /// Wait until everything that was ever given to the device in this process is done. There is
    /// no deadline. While a stream of the device is captured, in whichever mode, that is refused,
    /// and spoils the capture.
    ///
    /// # Errors
    ///
    /// What has gone wrong on the device since it was last asked; see
    /// [`CudaError::is_for_capture`].
    pub fn synchronize(&self) -> Result<()> {
        let _here = self.enter()?;
        // SAFETY: the call has no conditions.
        unsafe { self.driver().ctx_synchronize() }.ok("waiting for the device")
    }

    /// Bytes of the device's memory that are free, and all of them. Other processes count.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn memory(&self) -> Result<(usize, usize)> {
        let _here = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to numbers that outlive the call.
        unsafe { self.driver().mem_get_info(&mut free, &mut total) }.ok("asking for memory")?;
        Ok((free, total))
    }

    /// Let kernels and copies of this device reach memory of `peer`, if they do not yet: what
    /// `cuMemAlloc` gives, and the device's pool, if it has one that can be opened. It holds for
    /// the rest of the process, whoever asked.
    ///
    /// # Errors
    ///
    /// What the driver says; [`Device::link_to`] tells beforehand.
    pub fn reach(&self, peer: &Context) -> Result<()> {
        if self.inner.raw == peer.inner.raw {
            return Ok(());
        }
        let _here = self.enter()?;
        let _aloof = Aloof::new(self.driver());
        // SAFETY: both contexts are retained.
        let called = unsafe { self.driver().ctx_enable_peer_access(peer.inner.raw, 0) };
        match called.ok(format_args!("reaching device {}", peer.device().ordinal)) {
            Err(CudaError::Call { code: Code::PEER_ACCESS_ALREADY_ENABLED, .. }) => {}
            other => other?,
        }
        if let Ok(pool) = peer.pool() {
            let access = access_of(self.device());
            // Where that fails, memory of pools stays closed, which [`Context::accesses`] tells.
            // SAFETY: the pool is its device's, and the structure outlives the call.
            let _ = unsafe { self.driver().mem_pool_set_access(pool, &access, 1) }
                .ok("opening a device's pool to another");
        }
        Ok(())
    }

    /// Keep what is freed to the device's pool, up to `bytes`, rather than giving it back to the
    /// system at every synchronisation. It holds for whoever uses the pool in this process.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn keep_pooled(&self, bytes: u64) -> Result<()> {
        let _here = self.enter()?;
        let mut value = bytes;
        // SAFETY: this attribute is a number of 64 bits, which outlives the call.
        unsafe {
            let value = ptr::from_mut(&mut value).cast();
            self.driver().mem_pool_set_attribute(
                self.pool()?,
                CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                value,
            )
        }
        .ok("setting up the device's pool")
    }

    fn pool(&self) -> Result<Handle> {
        let mut pool = ptr::null_mut();
        let device = self.inner.device.raw;
        // SAFETY: the pointer is to a handle that outlives the call.
        unsafe { self.driver().device_get_default_mem_pool(&mut pool, device) }
            .ok("asking for the device's pool")?;
        Ok(pool)
    }

    pub(crate) fn driver(&self) -> &'static Driver {
        self.inner.device.cuda.driver
    }
}

impl PartialEq for Context {
    fn eq(&self, other: &Self) -> bool {
        self.inner.raw == other.inner.raw
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: retained once in `Context::new`, and released once, here.
        unsafe { self.device.cuda.driver.primary_ctx_release(self.device.raw) }.sunk();
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.is_pushed {
            let mut popped = ptr::null_mut();
            // SAFETY: pushed by `enter` on this thread; whoever pushes after us pops before us.
            unsafe { self.context.driver().ctx_pop_current(&mut popped) }.sunk();
        }
    }
}
