//! The roots that unique ids lead to, as far as they are in this process.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use brigade_comm::Communicator;
use brigade_comm::bootstrap::{ID_BYTES, Root, UniqueId};
use brigade_comm::{Error, Settings};

use crate::failure::{Failure, Outcome};

/// A root of this process: kept until the first rank joins here, then with the ranks that have;
/// where none does, until it has ended by itself.
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

    /// Whether ranks here have joined, or still can.
    fn is_needed(&self) -> bool {
        match &self.waiting {
            // A child must not end the root of its parent: it would wait for a thread.
            Some(root) => self.process != std::process::id() || !root.has_ended(),
            None => self.serving.strong_count() > 0,
        }
    }
}

/// Draw an id for one world, and open its root, which waits for the ranks in a thread, where the
/// environment's settings let it.
pub fn draw() -> Outcome<[u8; ID_BYTES]> {
    let settings = Settings::from_env()?;
    let (id, root) = UniqueId::create_for(&settings)
        .map_err(|error| Failure::system(format!("no unique id can be drawn: {error}")))?;
    let (id, root) = (id.to_bytes(), Arc::new(root));
    let serving = Arc::downgrade(&root);
    let mut roots = ROOTS.lock().unwrap_or_else(PoisonError::into_inner);
    roots.retain(Kept::is_needed);
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

/// Join the world that a group grows to, with its own rank there. Ranks that were given its id give
/// it; where none was, those that remember one do. The root, if it is here, must outlive the
/// communicator. For a rank whose settings are wrong the others wait only where they join, and name
/// it.
pub fn grow(
    group: &Communicator,
    ranks: i64,
    [given, remembered]: [Option<[u8; ID_BYTES]>; 2],
    settings: impl FnOnce() -> Outcome<Settings>,
) -> Outcome<(Communicator, Option<Arc<Root>>)> {
    let id = match group.agree_to_grow(ranks, given)? {
        Some(id) => Some(id),
        None => group.agree_to_grow(ranks, remembered)?,
    };
    let none = || Failure::argument("grow: no rank was given a unique id for the new world");
    let opened = open(id.ok_or_else(none)?.to_bytes())?;
    // All agree on a number, so it is not below theirs.
    let ranks = usize::try_from(ranks).unwrap_or_default();
    let settings = settings()?;
    Ok(opened.join_by(|id| group.grow_to(id, ranks, settings))?)
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
        self.join_by(|id| Communicator::from_id(id, rank, ranks, settings))
    }

    fn join_by(
        self,
        join: impl FnOnce(&UniqueId) -> Result<Communicator, Error>,
    ) -> Result<(Communicator, Option<Arc<Root>>), Error> {
        let communicator = join(&self.id)?;
        let mut roots = ROOTS.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = roots.iter_mut().find(|kept| kept.is(&self.bytes));
        let waiting = kept.and_then(|kept| kept.waiting.take());
        drop(roots);
        // We hold another reference, so this ends nothing.
        drop(waiting);
        Ok((communicator, self.root))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn known(id: &[u8; ID_BYTES]) -> Option<bool> {
        let roots = ROOTS.lock().unwrap();
        let kept = roots.iter().find(|kept| kept.is(id))?;
        Some(kept.waiting.as_ref().is_some_and(|root| root.has_ended()))
    }

    /// No rank joins through this list, as where all are elsewhere, or none comes in.
    #[test]
    fn a_root_that_has_ended_is_let_go() {
        let (bytes, waiting) = (draw().unwrap(), draw().unwrap());
        let id = UniqueId::from_bytes(bytes).unwrap();
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let (id, settings) = (&id, Settings::from_env().unwrap());
                scope.spawn(move || Communicator::from_id(id, rank, 2, settings).unwrap());
            }
        });
        let deadline = Instant::now() + Duration::from_secs(30);
        while known(&bytes) == Some(false) {
            assert!(Instant::now() < deadline, "the root goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
        draw().unwrap();
        assert_eq!((known(&bytes), known(&waiting)), (None, Some(false)));
    }
}
