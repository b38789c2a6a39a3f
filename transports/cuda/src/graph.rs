//! Graphs: what was given to a stream, kept to be given again at once.

use std::ffi::c_uint;
use std::fmt;
use std::ptr;

use crate::aloof::Aloof;
use crate::pace::COMMAND;
use crate::sys::{
    CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, Handle,
};
use crate::{Context, Result, Stream};

/// What other threads may do while a stream is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// Nothing that could disturb a capture, in any thread: such calls fail.
    Global,
    /// The same, in this thread only.
    Thread,
    /// Anything.
    Relaxed,
}

/// What was captured.
pub struct Graph {
    context: Context,
    raw: Handle,
}

// SAFETY: a graph is used by one thread at a time, since launching takes an `Executable`.
unsafe impl Send for Graph {}

/// A graph that can be launched.
pub struct Executable {
    context: Context,
    raw: Handle,
    /// What a launch takes of a stream.
    places: u32,
}

// SAFETY: as above; launches take it exclusively.
unsafe impl Send for Executable {}

impl fmt::Debug for Graph {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Graph of {:?}", self.context)
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Executable of {:?}", self.context)
    }
}

impl Stream {
    /// From here on what is given to the stream goes into a graph.
    ///
    /// # Errors
    ///
    /// What the driver says: the default stream cannot be captured.
    pub fn begin_capture(&self, mode: CaptureMode) -> Result<()> {
        let mode: c_uint = match mode {
            CaptureMode::Global => CU_STREAM_CAPTURE_MODE_GLOBAL,
            CaptureMode::Thread => CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            CaptureMode::Relaxed => CU_STREAM_CAPTURE_MODE_RELAXED,
        };
        self.begin(mode)
    }

    /// What was given to the stream since [`Stream::begin_capture`].
    ///
    /// # Errors
    ///
    /// What the driver says: a call in between may have spoilt the capture, which ends even so.
    pub fn end_capture(&self) -> Result<Graph> {
        let raw = self.end()?;
        Ok(Graph { context: self.context().clone(), raw })
    }
}

impl Graph {
    /// Make it launchable. Costs some microseconds a node.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn instantiate(&self) -> Result<Executable> {
        let places = u32::try_from(self.nodes()?).unwrap_or(u32::MAX).saturating_mul(COMMAND);
        let _here = self.context.enter()?;
        let _aloof = Aloof::new(self.context.driver());
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is to a handle that outlives the call; the graph is alive.
        unsafe { self.context.driver().graph_instantiate(&mut raw, self.raw, 0) }
            .ok("making a graph launchable")?;
        Ok(Executable { context: self.context.clone(), raw, places })
    }

    /// How many kernels, copies and the like it holds.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn nodes(&self) -> Result<usize> {
        let _here = self.context.enter()?;
        let mut count = 0;
        // SAFETY: no array is passed, so that only the number is written.
        unsafe { self.context.driver().graph_get_nodes(self.raw, ptr::null_mut(), &mut count) }
            .ok("counting a graph's nodes")?;
        Ok(count)
    }
}

impl Executable {
    /// Bring it to the device, and wait until it is there. The first launch does so otherwise, and
    /// takes memory of the device for it, for which it may wait.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn upload(&mut self, stream: &Stream) -> Result<()> {
        let here = self.context.enter()?;
        let aloof = Aloof::new(self.context.driver());
        // SAFETY: both are alive.
        unsafe { self.context.driver().graph_upload(self.raw, stream.raw()) }
            .ok("bringing a graph to the device")?;
        drop((aloof, here));
        stream.synchronize()
    }

    /// Launch all of it: it begins when the stream gets here. Launches of one graph run one after
    /// the other.
    ///
    /// # Safety
    ///
    /// What was owed when each part was captured is owed again.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub unsafe fn launch(&mut self, stream: &Stream) -> Result<()> {
        stream.keep_pace(self.places)?;
        let _here = self.context.enter()?;
        // SAFETY: both are alive; the rest is handed on to our caller.
        unsafe { self.context.driver().graph_launch(self.raw, stream.raw()) }
            .ok("launching a graph")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(_here) = self.context.enter() {
            // SAFETY: captured once and destroyed once; executables do not need it.
            unsafe { self.context.driver().graph_destroy(self.raw) }.sunk();
        }
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        if let Ok(_here) = self.context.enter() {
            let _aloof = Aloof::new(self.context.driver());
            // SAFETY: made once and destroyed once; what was launched is still done.
            unsafe { self.context.driver().graph_exec_destroy(self.raw) }.sunk();
        }
    }
}
