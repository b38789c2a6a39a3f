//! Events: marks in streams that others wait for, also in other processes.

use std::fmt;
use std::ptr;
use std::time::Duration;

use crate::aloof::Aloof;
use crate::sys::{
    CU_EVENT_BLOCKING_SYNC, CU_EVENT_DEFAULT, CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS,
    CUipcHandle, Handle,
};
use crate::{Code, Context, CudaError, Result};

/// A mark in a stream. It is done when everything before its last record is, and also when it was
/// never recorded.
pub struct Event {
    context: Context,
    raw: Handle,
}

// SAFETY: events belong to no thread; the driver locks what its calls share.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

/// What another process opens an event with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EventHandle(pub [u8; 64]);

impl fmt::Debug for EventHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("EventHandle")
    }
}

impl Event {
    /// An event for order only, which costs least.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn new(context: &Context) -> Result<Self> {
        Self::with_flags(context, CU_EVENT_DISABLE_TIMING)
    }

    /// An event for order only, for which a thread waits without turning in place.
    pub(crate) fn patient(context: &Context) -> Result<Self> {
        Self::with_flags(context, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC)
    }

    /// An event that knows when it was reached.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn timed(context: &Context) -> Result<Self> {
        Self::with_flags(context, CU_EVENT_DEFAULT)
    }

    /// An event that other processes can open.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn interprocess(context: &Context) -> Result<Self> {
        Self::with_flags(context, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)
    }

    fn with_flags(context: &Context, flags: u32) -> Result<Self> {
        let _here = context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is to a handle that outlives the call.
        unsafe { context.driver().event_create(&mut raw, flags) }.ok("making an event")?;
        Ok(Self { context: context.clone(), raw })
    }

    /// What another process opens this event with.
    ///
    /// # Errors
    ///
    /// What the driver says, of events that are not [`Event::interprocess`] too.
    pub fn handle(&self) -> Result<EventHandle> {
        let _here = self.context.enter()?;
        let mut handle = CUipcHandle { reserved: [0; 64] };
        // SAFETY: the pointer is to a structure that outlives the call; the event is alive.
        unsafe { self.context.driver().ipc_get_event_handle(&mut handle, self.raw) }
            .ok("exporting an event")?;
        Ok(EventHandle(handle.reserved))
    }

    /// An event of another process.
    ///
    /// # Errors
    ///
    /// What the driver says: the handle is of this process, or its event is gone.
    pub fn open(context: &Context, handle: &EventHandle) -> Result<Self> {
        let _here = context.enter()?;
        let mut raw = ptr::null_mut();
        let handle = CUipcHandle { reserved: handle.0 };
        // SAFETY: the pointer is to a handle that outlives the call; the driver checks the rest.
        unsafe { context.driver().ipc_open_event_handle(&mut raw, handle) }
            .ok("opening an event of another process")?;
        Ok(Self { context: context.clone(), raw })
    }

    /// Whether everything before its last record is done.
    ///
    /// # Errors
    ///
    /// What has gone wrong on the device.
    pub fn is_done(&self) -> Result<bool> {
        let _here = self.context.enter()?;
        let _aloof = Aloof::new(self.context.driver());
        // SAFETY: the event is alive.
        match unsafe { self.context.driver().event_query(self.raw) }.ok("asking an event") {
            Ok(()) => Ok(true),
            Err(CudaError::Call { code: Code::NOT_READY, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Wait until everything before its last record is done. There is no deadline: who needs one
    /// asks [`Event::is_done`].
    ///
    /// # Errors
    ///
    /// What has gone wrong on the device.
    pub fn synchronize(&self) -> Result<()> {
        let _here = self.context.enter()?;
        let _aloof = Aloof::new(self.context.driver());
        // SAFETY: the event is alive.
        unsafe { self.context.driver().event_synchronize(self.raw) }.ok("waiting for an event")
    }

    /// How long after `start` this event was reached on the device. Both are [`Event::timed`] and
    /// done; the clock ticks every half microsecond.
    ///
    /// # Errors
    ///
    /// What the driver says of events that are not so.
    pub fn since(&self, start: &Event) -> Result<Duration> {
        let _here = self.context.enter()?;
        let mut ms = 0.0;
        // SAFETY: both events are alive, and the pointer is to a number that outlives the call.
        unsafe { self.context.driver().event_elapsed_time(&mut ms, start.raw, self.raw) }
            .ok("asking for the time between events")?;
        Ok(Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3))
    }

    /// The driver's handle (`CUevent`), for libraries that want one.
    pub fn raw(&self) -> *mut std::ffi::c_void {
        self.raw
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_here) = self.context.enter() {
            // SAFETY: made once and destroyed once; waits that began keep what they need.
            unsafe { self.context.driver().event_destroy(self.raw) }.sunk();
        }
    }
}
