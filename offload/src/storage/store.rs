//! The storage as users hold it.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use super::engine::{Engine, Kind};
use super::error::{Operation, StorageError};
use super::file::{Body, File, Opened};
use super::inbox::Inbox;
use super::pieces::Grain;
use super::queue::Queue;
use super::request::{Pending, Priority, Request};
use super::serve::{Maker, Server};
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

/// How a storage works. The defaults are right for drives as we know them.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Which engine runs the transfers.
    pub engine: EngineChoice,
    /// The most bytes of one transfer: a multiple of 4 KiB, at most 4 MiB.
    pub block_bytes: usize,
    /// Transfers in flight each way, across all requests: 1 to 128.
    pub in_flight: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { engine: EngineChoice::Auto, block_bytes: 1 << 20, in_flight: 8 }
    }
}

/// Moves bytes between the buffers of an arena and files. Cheap to clone, and every clone can be
/// used by any thread. When the last clone goes, it waits until every request has ended.
#[derive(Clone)]
pub struct Storage {
    // Declared before the inbox: the server closes it when it goes.
    server: Arc<ServerAndWords>,
    inbox: Arc<Inbox>,
}

struct ServerAndWords {
    _server: Server,
    description: String,
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
                Threads::new(transfers, why).map(|engine| Box::new(engine) as Box<dyn Engine>)
            };
            if settings.engine == EngineChoice::Threads {
                return threads(String::from("as the settings say"));
            }
            match Uring::new(&arena, transfers) {
                Ok(ring) => Ok(Box::new(ring) as Box<dyn Engine>),
                Err(why) if settings.engine == EngineChoice::Auto => threads(why),
                Err(why) => Err(why),
            }
        });
        Self::with_engine(make, settings)
    }

    fn with_engine(make: Maker, settings: Settings) -> Result<Self, StorageError> {
        let Settings { block_bytes, in_flight, .. } = settings;
        assert!(
            (ALIGNMENT..=TRANSFER_BYTES_MAX).contains(&block_bytes),
            "block_bytes: {block_bytes}"
        );
        assert!(block_bytes.is_multiple_of(ALIGNMENT), "block_bytes: {block_bytes}");
        assert!((1..=128).contains(&in_flight), "in_flight: {in_flight}");
        let inbox = Arc::new(Inbox::default());
        let queue = Queue::new(block_bytes, in_flight);
        let (server, engine) =
            Server::start(&inbox, make, queue).map_err(|why| StorageError::Stopped { why })?;
        let kib = block_bytes >> 10;
        let description = format!("{engine}, {in_flight} blocks of {kib} KiB each way");
        Ok(Self { server: Arc::new(ServerAndWords { _server: server, description }), inbox })
    }

    /// Make a file of `bytes` bytes with its space reserved, so that a full device shows now. What
    /// was at this path before is gone; the name survives a loss of power.
    ///
    /// Errors: the system's. A file that does not fit is removed again.
    pub fn create(&self, path: &Path, bytes: u64) -> Result<File, StorageError> {
        let refused = |operation, e| refused(operation, path, bytes, &e);
        let buffered = options()
            .create(true)
            .truncate(true)
            .open(path)
            .map_err(|e| refused(Operation::Open, e))?;
        let reserve = |file: &fs::File| {
            file.set_len(bytes)?;
            match sys::allocate(file, bytes) {
                // This file system cannot reserve: a full one will show when it is written.
                Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
                other => other,
            }
        };
        if bytes > 0
            && let Err(e) = reserve(&buffered)
        {
            drop(buffered);
            // Ours alone, and of no use; that it could not be removed is the lesser trouble.
            let _ = fs::remove_file(path);
            return Err(refused(Operation::Allocate, e));
        }
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        fs::File::open(folder.unwrap_or(Path::new(".")))
            .and_then(|folder| folder.sync_all())
            .map_err(|e| refused(Operation::Sync, e))?;
        Ok(self.opened(path, buffered, bytes))
    }

    /// Open a file or a block device that exists, to read and write.
    ///
    /// Errors: the system's.
    pub fn open(&self, path: &Path) -> Result<File, StorageError> {
        let opened = options().open(path).and_then(|file| Ok((length(&file)?, file)));
        let (bytes, file) = opened.map_err(|e| refused(Operation::Open, path, 0, &e))?;
        Ok(self.opened(path, file, bytes))
    }

    /// Let a file be at least `bytes` long, with its space reserved.
    ///
    /// Errors: the system's; the file is as it was.
    pub fn extend(&self, file: &File, bytes: u64) -> Result<(), StorageError> {
        if bytes <= file.bytes() {
            return Ok(());
        }
        let Body::System { buffered, .. } = file.opened.body();
        match sys::allocate(buffered, bytes) {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => buffered.set_len(bytes),
            other => other,
        }
        .map_err(|e| refused(Operation::Allocate, file.path(), bytes, &e))?;
        file.opened.grow_to(bytes);
        Ok(())
    }

    /// Read `range.len()` bytes at `offset` of the file into that range of the buffer.
    ///
    /// Cost: one allocation and one hand-over to the storage's thread, then a transfer for each
    /// block. Any offset and length will do; whole pages from page boundaries go past the page cache.
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

    /// Write that range of the buffer at `offset` of the file. Done means that the device has it;
    /// that it survives a loss of power is what a [`Storage::sync`] after it means.
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

    /// One line: which engine and why, what is registered, how much is in flight.
    pub fn describe(&self) -> &str {
        &self.server.description
    }

    fn hand_in(&self, (request, pending): (Request, Pending)) -> Pending {
        self.inbox.leave(request);
        pending
    }

    fn opened(&self, path: &Path, buffered: fs::File, bytes: u64) -> File {
        // Not every file system takes direct transfers; tmpfs does since Linux 6.6.
        let direct = options().custom_flags(libc::O_DIRECT).open(path).ok();
        let found = direct.as_ref().and_then(|_| sys::direct_grain(path));
        let grain = found.map_or(Grain::BUFFERED, |(file, memory)| Grain::direct(file, memory));
        let body = Body::System { buffered, direct, grain };
        File { opened: Arc::new(Opened::new(path, bytes, body, &self.inbox)) }
    }
}

impl std::fmt::Debug for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Storage({})", self.describe())
    }
}

fn options() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_CLOEXEC);
    options
}

/// Its length: of a block device, how far one can seek.
fn length(mut file: &fs::File) -> io::Result<u64> {
    io::Seek::seek(&mut file, io::SeekFrom::End(0))
}

fn refused(operation: Operation, path: &Path, wanted_bytes: u64, e: &io::Error) -> StorageError {
    let errno = e.raw_os_error().unwrap_or(libc::EIO);
    let (offset, got_bytes) = (0, 0);
    StorageError::Refused { operation, path: path.into(), offset, wanted_bytes, got_bytes, errno }
}
