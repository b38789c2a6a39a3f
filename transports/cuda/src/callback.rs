//! Functions of the host that a stream calls when it gets there.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::pace::FUNCTION;
use crate::sys::CUhostFn;
use crate::{CudaError, Result, Stream};

impl Stream {
    /// Call `function` on a thread of the driver when the stream gets here; what comes after waits
    /// for it. It must not call CUDA. Allocates; a stream that is being captured is refused, since
    /// graphs run more than once.
    ///
    /// # Errors
    ///
    /// [`CudaError::Refused`] during capture, and what the driver says. Then it is not called.
    pub fn call(&self, function: impl FnOnce() + Send + 'static) -> Result<()> {
        if self.is_capturing()? {
            let why = "a function that is called once cannot go into a graph";
            return Err(CudaError::refused(why));
        }
        let data: *mut Boxed = Box::into_raw(Box::new(Box::new(function)));
        // SAFETY: `call_once` takes the box back, once, since nothing is captured.
        let given = unsafe { self.call_raw(call_once, data.cast()) };
        if given.is_err() {
            // SAFETY: it was not given to the driver, so it is still ours.
            drop(unsafe { Box::from_raw(data) });
        }
        given
    }

    /// Call a C function on a thread of the driver whenever the stream, or a graph that this goes
    /// into, gets here.
    ///
    /// # Safety
    ///
    /// `data` is what the function wants, each time and on any thread; the function neither calls
    /// CUDA nor unwinds.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub unsafe fn call_raw(&self, function: CUhostFn, data: *mut c_void) -> Result<()> {
        self.keep_pace(FUNCTION)?;
        let _here = self.context().enter()?;
        // SAFETY: handed on to our caller.
        unsafe { self.driver().launch_host_func(self.raw(), function, data) }
            .ok("giving a stream a function of the host")
    }
}

type Boxed = Box<dyn FnOnce() + Send>;

unsafe extern "C" fn call_once(data: *mut c_void) {
    // SAFETY: made by `Stream::call`, for this one call.
    let function = unsafe { Box::from_raw(data.cast::<Boxed>()) };
    // A panic must not unwind into the driver; whoever waits for the function's effects finds
    // them missing.
    let _ = catch_unwind(AssertUnwindSafe(function));
}
