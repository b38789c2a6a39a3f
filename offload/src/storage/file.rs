//! An open file, as the engines see it and as users hold it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::body::Body;
use super::error::StorageError;
use super::inbox::Inbox;
use super::namespace::Namespace;
use super::pieces::Grain;
use super::request::Ticket;

/// Devices that are told apart; more than these share their bounds.
pub(crate) const DEVICES: usize = 16;
/// As a drive's, so that requests are cut on a simulated device as they are on real ones.
const SIMULATED_GRAIN: Grain = Grain { file_bytes: 4096, memory_bytes: 512 };

/// An open file of a [`super::Storage`]. Cheap to clone; closed when the last clone and the last
/// request on it are gone.
#[derive(Debug, Clone)]
pub struct File {
    pub(crate) opened: Arc<Opened>,
}

/// What an engine needs to know about a file.
#[derive(Debug)]
pub(crate) struct Opened {
    path: Arc<Path>,
    /// Small, and not used again before the engine has forgotten this file.
    id: u32,
    /// Small: which of the devices that were seen it is on.
    device: usize,
    bytes: AtomicU64,
    body: Body,
    inbox: Arc<Inbox>,
    trouble: Mutex<Trouble>,
    /// The same, as it was opened first, if it was opened anew since: that has the lock.
    first: Option<Arc<Opened>>,
}

/// What the next sync has to report.
#[derive(Debug, Default)]
struct Trouble {
    /// The first write that failed since the last sync.
    write: Option<StorageError>,
    /// A sync that failed: the system may have dropped the pages, so no later sync can succeed.
    sync: Option<StorageError>,
}

impl File {
    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.opened.path
    }

    /// Its length in bytes, as of opening, creating or extending it here.
    pub fn bytes(&self) -> u64 {
        self.opened.bytes.load(Ordering::Acquire)
    }

    /// Whether its whole blocks go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.opened.grain() != Grain::BUFFERED
    }

    /// A descriptor of its own for others who go past the page cache, and of which bytes blocks
    /// are; none where there is no such way.
    ///
    /// Errors: the system's.
    pub(crate) fn direct(&self) -> io::Result<Option<(OwnedFd, usize)>> {
        match &self.opened.body {
            Body::System { direct: Some(direct), grain, .. } if *grain != Grain::BUFFERED => {
                Ok(Some((direct.try_clone()?.into(), grain.file_bytes)))
            }
            _ => Ok(None),
        }
    }
}

impl Opened {
    pub(crate) fn new(path: &Path, bytes: u64, body: Body, inbox: &Arc<Inbox>) -> Self {
        let (id, bytes) = (inbox.next_file_id(), AtomicU64::new(bytes));
        let device = inbox.device_number(body.device()) % DEVICES;
        let (inbox, trouble, first) = (Arc::clone(inbox), Mutex::default(), None);
        Self { path: path.into(), id, device, bytes, body, inbox, trouble, first }
    }

    /// The same file, opened anew: as long as anything needs this, `elder` keeps its lock.
    pub(crate) fn anew(elder: &Arc<Self>, bytes: u64, body: Body) -> Self {
        let mut opened = Self::new(&elder.path, bytes, body, &elder.inbox);
        opened.first = Some(Arc::clone(elder.first.as_ref().unwrap_or(elder)));
        opened
    }

    pub(crate) fn path(&self) -> Arc<Path> {
        Arc::clone(&self.path)
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn device(&self) -> usize {
        self.device
    }

    pub(crate) fn grow_to(&self, bytes: u64) {
        self.bytes.fetch_max(bytes, Ordering::AcqRel);
    }

    /// Somebody waits for this request on it.
    pub(crate) fn hurry(&self, ticket: &Arc<Ticket>) {
        self.inbox.hurry(ticket);
    }

    pub(crate) fn body(&self) -> &Body {
        &self.body
    }

    /// A write failed: the next sync will say so.
    pub(crate) fn write_failed(&self, why: &StorageError) {
        self.trouble().write.get_or_insert_with(|| why.clone());
    }

    /// What a sync reports that ended with `result`: also what went wrong before it.
    pub(crate) fn synced(
        &self,
        result: Result<usize, StorageError>,
    ) -> Result<usize, StorageError> {
        let mut trouble = self.trouble();
        if let Err(why) = &result {
            trouble.sync.get_or_insert_with(|| why.clone());
        }
        if let Some(cause) = trouble.write.take() {
            return Err(StorageError::WriteFailed { path: self.path(), cause: Box::new(cause) });
        }
        trouble.sync.clone().map_or(result, Err)
    }

    fn trouble(&self) -> MutexGuard<'_, Trouble> {
        // Changed by code that does not panic between its lines.
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What its direct transfers need.
    pub(crate) fn grain(&self) -> Grain {
        match &self.body {
            Body::System { grain, .. } => *grain,
            Body::Namespace { namespace, .. } => Grain {
                file_bytes: namespace.block_bytes as usize,
                // Drives take any multiple of four.
                memory_bytes: 4,
            },
            Body::Simulated => SIMULATED_GRAIN,
        }
    }

    /// The descriptor for direct transfers, or the one for the others. None is -1.
    pub(crate) fn descriptor(&self, is_direct: bool) -> i32 {
        match &self.body {
            Body::System { direct: Some(direct), .. } if is_direct => direct.as_raw_fd(),
            Body::System { buffered, .. } => buffered.as_raw_fd(),
            Body::Namespace { device, .. } => device.as_raw_fd(),
            Body::Simulated => -1,
        }
    }

    /// The longest transfer that it takes in whole, of blocks of so many bytes.
    pub(crate) fn block_bytes(&self, block_bytes: usize) -> usize {
        match &self.body {
            Body::Namespace { namespace, .. } => block_bytes.min(namespace.transfer_bytes_max),
            _ => block_bytes,
        }
    }

    /// What commands to its drive need, where it is a namespace.
    pub(crate) fn namespace(&self) -> Option<&Namespace> {
        match &self.body {
            Body::Namespace { namespace, .. } => Some(namespace),
            _ => None,
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.body.disown();
        self.inbox.forget(self.id);
    }
}
