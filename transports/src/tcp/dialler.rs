//! A thread that makes one link, so that whoever wants it can look at other things meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use super::dial::Call;
use super::patience::Patience;
use crate::{MAKE_THREAD, TransportError};

/// The running thread. Dropping it calls the attempt off.
pub(super) struct Dialler {
    thread: Option<JoinHandle<Result<(), TransportError>>>,
    wanted: Arc<AtomicBool>,
}

impl Dialler {
    /// Have the link that `call` describes stand by the deadline.
    pub(super) fn start(
        deadline: Instant,
        call: impl FnOnce(Patience) -> Call,
    ) -> Result<Dialler, TransportError> {
        let wanted = Arc::new(AtomicBool::new(true));
        let call = call(Patience::while_wanted(deadline, wanted.clone()));
        let thread = std::thread::Builder::new()
            .name("brigade-dial".into())
            .spawn(move || call.link())
            .map_err(|error| TransportError::from_io(MAKE_THREAD, &error, "dialling"))?;
        Ok(Dialler { thread: Some(thread), wanted })
    }

    pub(super) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Call it off, without waiting for that.
    pub(super) fn call_off(&self) {
        self.wanted.store(false, Ordering::Relaxed);
    }

    /// What came of it, once it has ended.
    pub(super) fn outcome(mut self) -> Result<(), TransportError> {
        let thread = self.thread.take().expect("it is taken here and by dropping only");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Dialler {
    fn drop(&mut self) {
        self.call_off();
        if let Some(thread) = self.thread.take() {
            let outcome = thread.join();
            debug_assert!(outcome.is_ok(), "a dialler does not panic");
        }
    }
}
