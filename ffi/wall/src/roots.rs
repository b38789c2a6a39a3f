//! The roots that unique ids lead to, as far as they are in this process.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use brigade_comm::Communicator;
use brigade_comm::bootstrap::{ID_BYTES, Root, UniqueId};
use brigade_comm::{Error, Settings};

use crate::failure::{Failure, Outcome};

/// A root of this process: kept until the first rank joins here, then with the ranks that have.
struct Kept {
    id: [u8; ID_BYTES],
    /// A child of `fork` inherits the list, but not the thread behind a root.
    process: u32,
    waiting: Option<Arc<Root>>,
    serving: Weak<Root>,
}

static ROOTS: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

impl Kept {
    fn is(&self, id: &[u8; ID_BYTES]) -> bool {
        self.id == *id && self.process == std::process::id()
    }
}

/// Draw an id for one world, and open its root, which waits for the ranks in a thread.
pub fn draw() -> Outcome<[u8; ID_BYTES]> {
    let (id, root) = UniqueId::create(None)
        .map_err(|error| Failure::system(format!("no unique id can be drawn: {error}")))?;
    let (id, root) = (id.to_bytes(), Arc::new(root));
    let serving = Arc::downgrade(&root);
    let mut roots = ROOTS.lock().unwrap_or_else(PoisonError::into_inner);
    roots.retain(|kept| kept.serving.strong_count() > 0);
    roots.push(Kept { id, process: std::process::id(), waiting: Some(root), serving });
    Ok(id)
}

/// An id that was parsed, and its root if that is in this process.
pub struct Opened {
    bytes: [u8; ID_BYTES],
    id: UniqueId,
    root: Option<Arc<Root>>,
}

/// Parse an id, which may be anybody's.
pub fn open(bytes: [u8; ID_BYTES]) -> Outcome<Opened> {
    let wrong = |error| Failure::argument(format!("unique_id: {error}"));
    let id = UniqueId::from_bytes(bytes).map_err(wrong)?;
    let roots = ROOTS.lock().unwrap_or_else(PoisonError::into_inner);
    let root = roots.iter().find(|kept| kept.is(&bytes));
    let root = root.and_then(|kept| kept.serving.upgrade());
    Ok(Opened { bytes, id, root })
}

impl Opened {
    /// Join the world of this id. The root, if it is here, must outlive the communicator; from now
    /// on it lives as long as such ranks do.
    pub fn join(
        self,
        rank: usize,
        ranks: usize,
        settings: Settings,
    ) -> Result<(Communicator, Option<Arc<Root>>), Error> {
        let communicator = Communicator::from_id(&self.id, rank, ranks, settings)?;
        let mut roots = ROOTS.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = roots.iter_mut().find(|kept| kept.is(&self.bytes));
        let waiting = kept.and_then(|kept| kept.waiting.take());
        drop(roots);
        // We hold another reference, so this ends nothing.
        drop(waiting);
        Ok((communicator, self.root))
    }
}
