//! Streams: what a device does, in order.

use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use crate::aloof::Aloof;
use crate::library::Driver;
use crate::pace::{COMMAND, Pace};
use crate::sys::{
    CU_STREAM_CAPTURE_STATUS_NONE, CU_STREAM_NON_BLOCKING, CU_STREAM_WAIT_VALUE_GEQ, Handle,
};
use crate::{Code, Context, CudaError, Event, Result};

/// A queue of work for one device. Cloning it is cheap and gives the same queue.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    raw: Handle,
    /// Of those that were made here.
    pace: Option<Pace>,
}

// SAFETY: streams belong to no thread; the driver locks what its calls share.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Stream {:?} of {:?}", self.inner.raw, self.inner.context)
    }
}

impl Stream {
    /// A new stream, which does not wait for the default stream. Whoever gives it something while
    /// it has some 190 commands that it has not begun waits until it has begun enough of them, so
    /// that the driver never lacks room and holds up other threads. So a thread that has several
    /// ranks gives each its part of a call before it goes on.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn new(context: &Context) -> Result<Self> {
        Self::with_priority(context, 0)
    }

    /// A new stream whose blocks are placed before those of ordinary streams.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn urgent(context: &Context) -> Result<Self> {
        let (mut least, mut greatest) = (0, 0);
        let here = context.enter()?;
        // SAFETY: the pointers are to numbers that outlive the call.
        unsafe { context.driver().ctx_get_stream_priority_range(&mut least, &mut greatest) }
            .ok("asking for priorities of streams")?;
        drop(here);
        Self::with_priority(context, greatest)
    }

    fn with_priority(context: &Context, priority: c_int) -> Result<Self> {
        let pace = Pace::new(context)?;
        let _here = context.enter()?;
        let _aloof = Aloof::new(context.driver());
        let mut raw = ptr::null_mut();
        let flags = CU_STREAM_NON_BLOCKING;
        // SAFETY: the pointer is to a handle that outlives the call.
        unsafe { context.driver().stream_create_with_priority(&mut raw, flags, priority) }
            .ok("making a stream")?;
        Ok(Self { inner: Arc::new(Inner { context: context.clone(), raw, pace: Some(pace) }) })
    }

    /// A stream of somebody else (a `cudaStream_t` or `CUstream`; null and 1 are the default
    /// stream, 2 is the thread's). It is not destroyed here.
    ///
    /// # Safety
    ///
    /// It is a stream of `context`, and stays alive for as long as what is returned is used.
    pub unsafe fn borrowed(context: &Context, raw: *mut c_void) -> Self {
        Self { inner: Arc::new(Inner { context: context.clone(), raw, pace: None }) }
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Whether it is a stream of somebody else, who may destroy it.
    pub fn is_borrowed(&self) -> bool {
        self.inner.pace.is_none()
    }

    /// The driver's handle (`CUstream`), for libraries that want one.
    pub fn raw(&self) -> *mut c_void {
        self.inner.raw
    }

    /// Wait until everything in it is done. There is no deadline: who needs one asks
    /// [`Stream::is_done`].
    ///
    /// # Errors
    ///
    /// What has gone wrong on the device.
    pub fn synchronize(&self) -> Result<()> {
        let _here = self.inner.context.enter()?;
        let _aloof = Aloof::new(self.driver());
        // SAFETY: the stream is alive.
        unsafe { self.driver().stream_synchronize(self.inner.raw) }.ok("waiting for a stream")
    }

    /// Whether everything in it is done.
    ///
    /// # Errors
    ///
    /// What has gone wrong on the device.
    pub fn is_done(&self) -> Result<bool> {
        let _here = self.inner.context.enter()?;
        let _aloof = Aloof::new(self.driver());
        // SAFETY: the stream is alive.
        match unsafe { self.driver().stream_query(self.inner.raw) }.ok("asking a stream") {
            Ok(()) => Ok(true),
            Err(CudaError::Call { code: Code::NOT_READY, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether what is given to it goes into a graph rather than to the device.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn is_capturing(&self) -> Result<bool> {
        let _here = self.inner.context.enter()?;
        let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is alive, and the pointer is to a number that outlives the call.
        unsafe { self.driver().stream_is_capturing(self.inner.raw, &mut status) }
            .ok("asking whether a stream is captured")?;
        Ok(status != CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Mark this place in the stream with `event`.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.keep_pace(COMMAND)?;
        self.mark(event)
    }

    pub(crate) fn mark(&self, event: &Event) -> Result<()> {
        let _here = self.inner.context.enter()?;
        // SAFETY: both are alive.
        unsafe { self.driver().event_record(event.raw(), self.inner.raw) }.ok("recording an event")
    }

    /// What comes after in this stream waits for the last record of `event`.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.keep_pace(COMMAND)?;
        let _here = self.inner.context.enter()?;
        // SAFETY: both are alive.
        unsafe { self.driver().stream_wait_event(self.inner.raw, event.raw(), 0) }
            .ok("letting a stream wait for an event")
    }

    /// Copy `bytes` from `source` to `target`, either of them on any device or on the host. Host
    /// memory that is not pinned is copied too, but may make the call wait for what the stream has,
    /// and hold up other threads that give the device something meanwhile: so wait for the stream
    /// before, where it may wait for one of them.
    ///
    /// # Safety
    ///
    /// Both ranges exist, and stay, until the copy is done; nobody else writes either meanwhile,
    /// nor reads the target.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub unsafe fn copy(&self, target: u64, source: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.keep_pace(COMMAND)?;
        let _here = self.inner.context.enter()?;
        // SAFETY: handed on to our caller.
        unsafe { self.driver().memcpy_async(target, source, bytes, self.inner.raw) }
            .ok(format_args!("copying {bytes} bytes"))
    }

    /// Set `bytes` bytes from `address` to `byte`.
    ///
    /// # Safety
    ///
    /// The range is memory of this device or pinned, stays until it is done, and nobody else uses
    /// it meanwhile.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub unsafe fn fill(&self, address: u64, byte: u8, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.keep_pace(COMMAND)?;
        let _here = self.inner.context.enter()?;
        // SAFETY: handed on to our caller.
        unsafe { self.driver().memset_d8_async(address, byte, bytes, self.inner.raw) }
            .ok(format_args!("filling {bytes} bytes"))
    }

    /// Write a number when the stream gets here, after everything before it is visible.
    ///
    /// # Safety
    ///
    /// The address is a multiple of four, of device memory or of pinned memory as the device names
    /// it, and stays until it is written.
    ///
    /// # Errors
    ///
    /// What the driver says; not every device can.
    pub unsafe fn write_number(&self, address: u64, value: u32) -> Result<()> {
        self.keep_pace(COMMAND)?;
        let _here = self.inner.context.enter()?;
        // SAFETY: handed on to our caller.
        unsafe { self.driver().stream_write_value32(self.inner.raw, address, value, 0) }
            .ok("letting a stream write a number")
    }

    /// What comes after waits until the number is at least `value`, on a circle: it may wrap.
    ///
    /// # Safety
    ///
    /// As of [`Stream::write_number`].
    ///
    /// # Errors
    ///
    /// What the driver says; not every device can.
    pub unsafe fn wait_number(&self, address: u64, value: u32) -> Result<()> {
        self.keep_pace(COMMAND)?;
        let _here = self.inner.context.enter()?;
        let (driver, raw) = (self.driver(), self.inner.raw);
        // SAFETY: handed on to our caller.
        unsafe { driver.stream_wait_value32(raw, address, value, CU_STREAM_WAIT_VALUE_GEQ) }
            .ok("letting a stream wait for a number")
    }

    /// Wait until there is room for so many commands, which a library gives the stream next. What
    /// is given through this type does so by itself.
    ///
    /// # Errors
    ///
    /// What has gone wrong on the device.
    pub fn make_room(&self, commands: u32) -> Result<()> {
        self.keep_pace(commands * COMMAND)
    }

    pub(crate) fn keep_pace(&self, places: u32) -> Result<()> {
        self.inner.pace.as_ref().map_or(Ok(()), |pace| pace.keep(self, places))
    }

    pub(crate) fn driver(&self) -> &'static Driver {
        self.inner.context.driver()
    }

    pub(crate) fn begin(&self, mode: c_uint) -> Result<()> {
        let _here = self.inner.context.enter()?;
        // SAFETY: the stream is alive.
        unsafe { self.driver().stream_begin_capture(self.inner.raw, mode) }
            .ok("beginning to capture a stream")
    }

    pub(crate) fn end(&self) -> Result<Handle> {
        let _here = self.inner.context.enter()?;
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is alive, and the pointer is to a handle that outlives the call.
        unsafe { self.driver().stream_end_capture(self.inner.raw, &mut graph) }
            .ok("ending the capture of a stream")?;
        Ok(graph)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.pace.is_some()
            && let Ok(_here) = self.context.enter()
        {
            // SAFETY: made once and destroyed once; what is in it is still done.
            unsafe { self.context.driver().stream_destroy(self.raw) }.sunk();
        }
    }
}
