//! Unique ids: how ranks find each other, and the roots that they lead to.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use brigade_comm::bootstrap::{ID_BYTES, Root, UniqueId};

use crate::error::{Failure, Outcome, brigade_result_t, enter};
use brigade_wall::pointer::Out;

/// Bytes of a unique id.
pub const BRIGADE_UNIQUE_ID_BYTES: usize = 128;
const _: () = assert!(BRIGADE_UNIQUE_ID_BYTES == ID_BYTES);

/// Where ranks meet, and the secret that lets them in: hand it on as one hands on a password.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct brigade_unique_id_t {
    /// To be copied as they are.
    pub bytes: [u8; BRIGADE_UNIQUE_ID_BYTES],
}

/// The same number as in tests/c/layout.c.
const _: () = assert!(size_of::<brigade_unique_id_t>() == BRIGADE_UNIQUE_ID_BYTES);

/// Draw an id for one world. One process calls this, and brings the id to all ranks by any way it
/// has. A thread of this process then waits for the ranks, so the process stays until they have
/// come; it need not be a rank itself.
///
/// Threads: from any thread, at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_get_unique_id(
    unique_id: *mut brigade_unique_id_t,
) -> brigade_result_t {
    enter(|| {
        let out = Out::new(unique_id, "unique_id")?;
        let (id, root) = UniqueId::create(None)
            .map_err(|error| Failure::system(format!("no unique id can be drawn: {error}")))?;
        let bytes = id.to_bytes();
        keep(bytes, root);
        // SAFETY: C passed a place for it.
        unsafe { out.put(brigade_unique_id_t { bytes }) };
        Ok(())
    })
}

/// A root of this process: kept until the first rank joins here, then with the ranks that have.
struct Kept {
    id: [u8; ID_BYTES],
    /// A child of `fork` inherits the list, but not the thread behind a root.
    process: u32,
    waiting: Option<Arc<Root>>,
    serving: Weak<Root>,
}

static ROOTS: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

fn keep(id: [u8; ID_BYTES], root: Root) {
    let root = Arc::new(root);
    let serving = Arc::downgrade(&root);
    let mut roots = ROOTS.lock().unwrap_or_else(PoisonError::into_inner);
    roots.retain(|kept| kept.serving.strong_count() > 0);
    roots.push(Kept { id, process: std::process::id(), waiting: Some(root), serving });
}

impl Kept {
    fn is(&self, id: &[u8; ID_BYTES]) -> bool {
        self.id == *id && self.process == std::process::id()
    }
}

impl brigade_unique_id_t {
    /// The id, and its root if that is in this process. The root must outlive the communicator.
    pub(crate) fn open(&self) -> Outcome<(UniqueId, Option<Arc<Root>>)> {
        let wrong = |error| Failure::argument(format!("unique_id: {error}"));
        let id = UniqueId::from_bytes(self.bytes).map_err(wrong)?;
        let roots = ROOTS.lock().unwrap_or_else(PoisonError::into_inner);
        let root = roots.iter().find(|kept| kept.is(&self.bytes));
        Ok((id, root.and_then(|kept| kept.serving.upgrade())))
    }

    /// A rank of this process has joined: from now on the root lives as long as such ranks do.
    pub(crate) fn joined(&self) {
        let mut roots = ROOTS.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = roots.iter_mut().find(|kept| kept.is(&self.bytes));
        let root = kept.and_then(|kept| kept.waiting.take());
        drop(roots);
        // The caller holds another reference, so this ends nothing.
        drop(root);
    }
}
