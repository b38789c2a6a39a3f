//! The storage as users hold it.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::body::Body;
use super::engine::Engine;
use super::error::StorageError;
use super::file::{File, Opened};
use super::inbox::Inbox;
use super::kind::Kind;
use super::place::Place;
use super::queue::Queue;
use super::request::{Pending, Priority, Request};
use super::serve::{Maker, Server};
use super::simulated::{SimulatedDevice, Simulation};
use super::sys;
use super::threads::Threads;
use super::uring::{TRANSFER_BYTES_MAX, Uring};
use crate::memory::{ALIGNMENT, Arena, Buffer};

/// Which engine runs the transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineChoice {
    /// io_uring, or threads where it is forbidden.
    #[default]
    Auto,
    /// io_uring or nothing.
    IoUring,
    /// Threads.
    Threads,
}

/// Beyond so many, threads wait for each other more than for the drive.
const THREADS_MAX: usize = 32;

/// How a storage works. The defaults are right for drives as we know them.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Which engine runs the transfers.
    pub engine: EngineChoice,
    /// The most bytes of one transfer: a multiple of 4 KiB, at most 4 MiB.
    pub block_bytes: usize,
    /// Blocks in flight each way on each device, across all requests: 1 to 128. Of transfers
    /// smaller than a block there may be up to four times as many.
    pub in_flight: usize,
    /// Look for completions instead of waiting for interrupts, on devices that can: a little faster
    /// on a drive with queues for it, at the price of a core while transfers are under way.
    pub is_polled: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { engine: EngineChoice::Auto, block_bytes: 1 << 20, in_flight: 32, is_polled: false }
    }
}

/// Moves bytes between the buffers of an arena and files. Cheap to clone, and every clone can be
/// used by any thread. When the last clone goes, it waits until every request has ended, for up to
/// a minute; the kernel may hold registered memory for a moment longer, and count it as ours.
///
/// Requests are not ordered among each other: a read may overtake a write of the same bytes that
/// was handed in before it. What must follow waits for what it follows; only a sync waits by
/// itself.
#[derive(Clone)]
pub struct Storage {
    inner: Arc<Inner>,
    inbox: Arc<Inbox>,
}

struct Inner {
    /// Ends when the last clone of the storage goes.
    _server: Server,
    description: String,
    place: Place,
}

impl Storage {
    /// Start an engine whose transfers into this arena's buffers are the fast ones.
    ///
    /// Cost: a thread, and registering the arena's memory. Errors: no engine could be started.
    /// Panics: settings out of their bounds.
    pub fn new(arena: &Arena, settings: Settings) -> Result<Self, StorageError> {
        let transfers = Queue::transfers_max(settings.in_flight);
        let arena = arena.clone();
        let make: Maker = Box::new(move || {
            let threads = |why| {
                Threads::new(THREADS_MAX.min(2 * settings.in_flight), why)
                    .map(|engine| Box::new(engine) as Box<dyn Engine>)
            };
            if settings.engine == EngineChoice::Threads {
                return threads(String::from("as the settings say"));
            }
            match Uring::new(&arena, transfers, settings.is_polled) {
                Ok(ring) => Ok(Box::new(ring) as Box<dyn Engine>),
                Err(why) if settings.engine == EngineChoice::Auto => threads(why),
                Err(why) => Err(why),
            }
        });
        Self::with_engine(make, Place::System, settings)
    }

    /// An engine on a simulated device: what [`Storage::create`] makes is there, not in the system.
    pub fn simulated(device: &SimulatedDevice, settings: Settings) -> Result<Self, StorageError> {
        let place = Place::Simulated(device.clone());
        let device = device.clone();
        let make: Maker = Box::new(move || Ok(Box::new(Simulation::new(device))));
        Self::with_engine(make, place, settings)
    }

    fn with_engine(make: Maker, place: Place, settings: Settings) -> Result<Self, StorageError> {
        let Settings { block_bytes, in_flight, .. } = settings;
        let bounds = ALIGNMENT..=TRANSFER_BYTES_MAX;
        assert!(bounds.contains(&block_bytes), "block_bytes: {block_bytes}");
        assert!(block_bytes.is_multiple_of(ALIGNMENT), "block_bytes: {block_bytes}");
        assert!((1..=128).contains(&in_flight), "in_flight: {in_flight}");
        let inbox = Arc::new(Inbox::default());
        let queue = Queue::new(block_bytes, in_flight);
        let (server, engine) =
            Server::start(&inbox, make, queue).map_err(|why| StorageError::Stopped { why })?;
        let kib = block_bytes >> 10;
        let description = format!("{engine}, {in_flight} blocks of {kib} KiB each way");
        Ok(Self { inner: Arc::new(Inner { _server: server, description, place }), inbox })
    }

    /// Make a file of `bytes` bytes with its space reserved, so that a full device shows now. What
    /// was at this path before is gone; the name survives a loss of power. A block device is taken
    /// as it is, when it is large enough. It is owned, as by [`Storage::own`].
    ///
    /// Errors: the system's; somebody else owns it, and nothing was done. A file that does not fit
    /// is removed again.
    pub fn create(&self, path: &Path, bytes: u64) -> Result<File, StorageError> {
        Ok(self.create_all(&[(path, bytes)])?.remove(0))
    }

    /// Make several, as [`Storage::create`] does one. What was at the paths is there still when one
    /// of them cannot be had, or there is no room for all: that is found out first.
    pub fn create_all(&self, files: &[(&Path, u64)]) -> Result<Vec<File>, StorageError> {
        let bodies = self.inner.place.create(files)?;
        let made = files.iter().zip(bodies).map(|(&(path, bytes), body)| File {
            opened: Arc::new(Opened::new(path, bytes, body, &self.inbox)),
        });
        Ok(made.collect())
    }

    /// Open a file, a block device, or an NVMe namespace's generic device (as /dev/ng0n1, which
    /// takes commands past the block layer) that exists, to read and write.
    ///
    /// Errors: the system's.
    pub fn open(&self, path: &Path) -> Result<File, StorageError> {
        let (body, bytes) = self.inner.place.open(path)?;
        Ok(File { opened: Arc::new(Opened::new(path, bytes, body, &self.inbox)) })
    }

    /// Open this very file anew, whatever its name leads to by now. Whoever owned it still does.
    ///
    /// Errors: the system's.
    pub(crate) fn reopen(&self, file: &File) -> Result<File, StorageError> {
        let (opened, path) = (&file.opened, file.path());
        let at = match opened.body() {
            Body::Simulated => path.to_path_buf(),
            _ => sys::own_file(opened.descriptor(false)),
        };
        let (body, bytes) = self.inner.place.open_at(path, &at)?;
        Ok(File { opened: Arc::new(Opened::anew(opened, bytes, body)) })
    }

    /// Be the only owner of this file until its last clone and the last request on it are gone.
    /// Who does not ask can still write to it. On a simulated device everybody owns everything.
    ///
    /// Errors: somebody else owns it, who lives. What a dead one had under way is waited for, up to
    /// five seconds.
    pub fn own(&self, file: &File) -> Result<(), StorageError> {
        file.opened.body().own(file.path())
    }

    /// Let others own it, if nobody else has it open with us.
    pub(crate) fn disown(&self, file: &File) {
        file.opened.body().disown();
    }

    /// The process that owns this file, where one does and the system tells.
    pub fn owner(&self, file: &File) -> Option<u32> {
        file.opened.body().owner()
    }

    /// Let a file be at least `bytes` long, with its space reserved.
    ///
    /// Errors: the system's; the file is as it was.
    pub fn extend(&self, file: &File, bytes: u64) -> Result<(), StorageError> {
        if bytes > file.bytes() {
            self.inner.place.extend(file.path(), file.opened.body(), bytes)?;
            file.opened.grow_to(bytes);
        }
        Ok(())
    }

    /// Remove a file's name. Who has it open can go on using it, except on a simulated device.
    ///
    /// Errors: the system's.
    pub fn remove(&self, path: &Path) -> Result<(), StorageError> {
        self.inner.place.remove(path)
    }

    /// Read `range.len()` bytes at `offset` of the file into that range of the buffer.
    ///
    /// Cost: one allocation and one hand-over to the storage's thread, then a transfer for each
    /// block. Any offset and length will do: whole pages from page boundaries go past the page
    /// cache, the rest through it. Only a drive's namespace takes nothing but whole blocks.
    /// Errors, in the outcome. Panics: when the range is not within the buffer.
    pub fn read(
        &self,
        file: &File,
        offset: u64,
        buffer: Buffer,
        range: Range<usize>,
        priority: Priority,
    ) -> Pending {
        let read = Request::transfer(Kind::Read, &file.opened, offset, buffer, range, priority);
        self.hand_in(read)
    }

    /// Write that range of the buffer at `offset` of the file. Done means that the system has taken
    /// it and reads show it; that it survives a loss of power is what a [`Storage::sync`] after it
    /// means.
    ///
    /// Cost, errors, panics: as [`Storage::read`].
    pub fn write(
        &self,
        file: &File,
        offset: u64,
        buffer: Buffer,
        range: Range<usize>,
        priority: Priority,
    ) -> Pending {
        let write = Request::transfer(Kind::Write, &file.opened, offset, buffer, range, priority);
        self.hand_in(write)
    }

    /// Make every write to this file survive that was handed in before this call, done or not.
    ///
    /// Errors, in the outcome: also when one of those writes failed, even if nobody looked.
    pub fn sync(&self, file: &File) -> Pending {
        self.hand_in(Request::sync(&file.opened, Priority::Urgent))
    }

    /// One line: which engine and why, what is registered, how much is in flight, and what it found
    /// out about the devices since it runs.
    pub fn describe(&self) -> String {
        let mut words = vec![self.inner.description.clone()];
        words.extend(self.inbox.news());
        words.join("; ")
    }

    fn hand_in(&self, (request, pending): (Request, Pending)) -> Pending {
        self.inbox.leave(request);
        pending
    }
}

impl std::fmt::Debug for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Storage({})", self.describe())
    }
}
