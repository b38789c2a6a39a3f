//! What may be done beside another thread's capture.

use std::ffi::c_uint;

use crate::library::Driver;
use crate::sys::CU_STREAM_CAPTURE_MODE_RELAXED;

/// What the thread does while this lives disturbs no capture, and is refused for none: for looking
/// at streams and events that are not captured, and waiting for them, and for allocating, pinning,
/// loading, sharing, and the opposite of each. A capture in
/// [`CaptureMode::Global`](crate::CaptureMode::Global) would forbid that to all threads of the
/// process, and be spoilt by it, so no rank could wait for a call while another one captures its
/// own, and what is let go of meanwhile would stay for good. Waiting for a whole context is no such
/// thing: a capture in any mode is spoilt by that.
#[must_use]
pub(crate) struct Aloof {
    driver: &'static Driver,
    /// What the thread's mode was before.
    before: c_uint,
}

impl Aloof {
    pub(crate) fn new(driver: &'static Driver) -> Self {
        let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the pointer is to a mode that outlives the call. If it fails, the mode is as it
        // was, and what is forbidden says so.
        unsafe { driver.exchange_capture_mode(&mut mode) }.sunk();
        Self { driver, before: mode }
    }
}

impl Drop for Aloof {
    fn drop(&mut self) {
        let mut mode = self.before;
        // SAFETY: as above.
        unsafe { self.driver.exchange_capture_mode(&mut mode) }.sunk();
    }
}
