//! Files and memory of a device: by GPUDirect Storage, where a drive writes into a device's memory
//! and reads from it, and by pinned memory of the host everywhere else.
//!
//! | file | what it does |
//! |---|---|
//! | here | which way a file goes, and what is cut off for the other one |
//! | `part`, `problem` | which bytes, and why they do not pass |
//! | `straight` | whole blocks through cuFile, by several threads |
//! | `staged` | anything at all: between file and pinned buffers, between those and the device |
//!
//! The straight way is asked for, never relied upon. Where cuFile is missing, does not take the
//! file or fails with it later, the bytes go the other way, which is also the judge of what is
//! wrong with the file; [`DeviceFile::way`] says which it is and why. Not here: what bytes mean.
//! Reads are of files as they are: whoever wants checksums looks at them on the host.

mod part;
mod problem;
mod staged;
mod straight;

use super::PinnedArena;
use crate::memory::{ALIGNMENT, Arena, Budget, span_bytes};
use crate::storage::{File, Settings, Storage};
use brigade_cuda::cufile::{DirectFile, DirectMemory, GpuDirect};
use brigade_cuda::{Context, CudaError, DeviceMemory, Stream};
use part::Direction;
pub use part::{FileSettings, Part};
pub use problem::FileProblem;
use staged::Staged;
use std::fmt;
use std::path::Path;

/// How a file's bytes reach a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way<'a> {
    /// Whole blocks by GPUDirect Storage; what begins or ends within one is staged.
    Direct,
    /// Through pinned memory of the host.
    Staged {
        /// Why not straight.
        why: &'a str,
    },
}

impl fmt::Display for Way<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Direct => write!(f, "GPUDirect Storage"),
            Way::Staged { why } => write!(f, "pinned memory of the host: {why}"),
        }
    }
}

/// A file that bytes of a device come from and go to. Closed when it is dropped.
pub struct DeviceFile {
    /// Or why not.
    direct: Result<DirectFile, String>,
    file: File,
    /// Where its blocks begin and end.
    grain: usize,
}

impl DeviceFile {
    /// The file, for [`Storage::sync`] and its kin.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// How its bytes go, as far as is known by now.
    pub fn way(&self) -> Way<'_> {
        match &self.direct {
            Ok(_) => Way::Direct,
            Err(why) => Way::Staged { why },
        }
    }

    fn check(&self, part: Part) -> Result<(), FileProblem> {
        let Part { offset, bytes, .. } = part;
        let (path, have) = (self.file.path().to_owned(), self.file.bytes());
        match offset.checked_add(bytes as u64) {
            Some(end) if end <= have => Ok(()),
            _ => Err(FileProblem::Beyond { path, offset, bytes, have }),
        }
    }

    /// The whole blocks of a part, after this many bytes of it: none where there is no whole one.
    fn whole(&self, part: Part) -> (usize, usize) {
        let past = (part.offset % self.grain as u64) as usize;
        let head = if past == 0 { 0 } else { self.grain - past };
        (head, part.bytes.saturating_sub(head) / self.grain * self.grain)
    }
}

/// Memory of a device that bytes of files come to and go from.
pub struct FileMemory {
    held: Held,
}

enum Held {
    Plain(DeviceMemory),
    Direct(DirectMemory),
}

impl FileMemory {
    /// The memory.
    pub fn memory(&self) -> &DeviceMemory {
        match &self.held {
            Held::Plain(memory) => memory,
            Held::Direct(memory) => memory.memory(),
        }
    }

    /// The same, for those who write it.
    pub fn memory_mut(&mut self) -> &mut DeviceMemory {
        match &mut self.held {
            Held::Plain(memory) => memory,
            Held::Direct(memory) => memory.memory_mut(),
        }
    }

    /// Why cuFile takes a copy on the device between drive and memory; nothing where it does not,
    /// or where there is none.
    pub fn copied(&self) -> Option<String> {
        match &self.held {
            Held::Plain(_) => None,
            Held::Direct(memory) => memory.refused().map(ToString::to_string),
        }
    }

    fn check(&self, part: Part) -> Result<(), FileProblem> {
        let Part { at, bytes, .. } = part;
        let have = self.memory().bytes();
        match at.checked_add(bytes) {
            Some(end) if end <= have => Ok(()),
            _ => {
                let why = format!("{bytes} bytes at {at} lie beyond the {have} of the memory");
                Err(CudaError::Refused { why }.into())
            }
        }
    }
}

/// Moves bytes between files and memory of one device.
pub struct DeviceFiles {
    storage: Storage,
    pinned: PinnedArena,
    /// Or why not.
    direct: Result<GpuDirect, String>,
    settings: FileSettings,
}

impl DeviceFiles {
    /// With pinned memory for the staged way, and GPUDirect Storage if it is wanted and there.
    ///
    /// Cost: a thread, and pinning `pieces` times `piece_bytes`; opening cuFile for the first time
    /// up to a second. Panics: settings out of their bounds.
    ///
    /// # Errors
    ///
    /// No memory that can be pinned, no engine for the storage. That cuFile is missing is none.
    pub fn new(context: &Context, settings: FileSettings) -> Result<DeviceFiles, FileProblem> {
        let FileSettings { piece_bytes, pieces, direct } = settings;
        assert!(pieces > 0, "pieces: {pieces}");
        assert!(piece_bytes > 0 && piece_bytes.is_multiple_of(ALIGNMENT), "bytes: {piece_bytes}");
        let room = (pieces * span_bytes(piece_bytes)).next_multiple_of(2 << 20);
        let arena = Arena::new(Budget::new(room))?;
        let storage = Storage::new(&arena, Settings::default())?;
        let direct = match direct {
            true => {
                GpuDirect::open().map_err(|missing| format!("{missing}; {}", missing.next_step))
            }
            false => Err(String::from("nothing else was asked for")),
        };
        let pinned = PinnedArena::new(context, &arena)?;
        Ok(DeviceFiles { storage, pinned, direct, settings })
    }

    /// One line: cuFile, where it is there, and what moves the bytes of the staged way.
    pub fn describe(&self) -> String {
        let storage = self.storage.describe();
        match &self.direct {
            Ok(direct) => format!("{}; else {storage}", direct.describe()),
            Err(_) => storage,
        }
    }

    /// What creates, extends, syncs and removes files.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Open a file that exists.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn open(&self, path: &Path) -> Result<DeviceFile, FileProblem> {
        Ok(self.file(self.storage.open(path)?))
    }

    /// Use a file that [`DeviceFiles::storage`] has opened or created.
    pub fn file(&self, file: File) -> DeviceFile {
        let mut grain = ALIGNMENT;
        let direct = self.direct.clone().and_then(|direct| {
            let found = file.direct().map_err(|e| e.to_string())?;
            let (descriptor, bytes) =
                found.ok_or("nothing of the file goes past the page cache")?;
            grain = bytes;
            // Else two pieces would have a part of one block.
            if !self.settings.piece_bytes.is_multiple_of(bytes) {
                let piece = self.settings.piece_bytes;
                return Err(format!("pieces of {piece} bytes do not end with blocks of {bytes}"));
            }
            DirectFile::new(direct, descriptor).map_err(|problem| problem.to_string())
        });
        DeviceFile { direct, file, grain }
    }

    /// Let bytes of files come into this memory, and go from it. Cost: where cuFile is there, it is
    /// shown to drives once, some milliseconds.
    pub fn memory(&self, memory: DeviceMemory) -> FileMemory {
        let held = match &self.direct {
            Ok(direct) => Held::Direct(DirectMemory::new(*direct, memory)),
            Err(_) => Held::Plain(memory),
        };
        FileMemory { held }
    }

    /// Read a part of a file into memory of the device, once all that `after` was given so far is
    /// done, and wait until it is there.
    ///
    /// # Errors
    ///
    /// [`FileProblem::Beyond`], what the system says of the file, what the driver says of the
    /// device. The part of the memory holds anything then.
    pub fn read(
        &mut self,
        file: &mut DeviceFile,
        memory: &mut FileMemory,
        part: Part,
        after: &Stream,
    ) -> Result<(), FileProblem> {
        self.pass(Direction::Read, file, memory, part, after)
    }

    /// Write memory of the device to a part of a file, once all that `after` was given so far is
    /// done. It survives a loss of power after a [`Storage::sync`].
    ///
    /// # Errors
    ///
    /// As [`DeviceFiles::read`]. The part of the file holds anything then.
    pub fn write(
        &mut self,
        file: &mut DeviceFile,
        memory: &FileMemory,
        part: Part,
        after: &Stream,
    ) -> Result<(), FileProblem> {
        self.pass(Direction::Write, file, memory, part, after)
    }

    fn pass(
        &mut self,
        direction: Direction,
        file: &mut DeviceFile,
        memory: &FileMemory,
        part: Part,
        after: &Stream,
    ) -> Result<(), FileProblem> {
        file.check(part)?;
        memory.check(part)?;
        after.synchronize()?;
        let (head, body) = file.whole(part);
        let mut left = [part, part.cut(part.bytes, 0)];
        if body > 0
            && let (Ok(direct), Held::Direct(memory)) = (&file.direct, &memory.held)
        {
            match straight::pass(direct, memory, direction, part.cut(head, body), self.settings) {
                Ok(()) => {
                    let end = head + body;
                    left = [part.cut(0, head), part.cut(end, part.bytes - end)];
                }
                // Nothing is lost: all of it goes the other way.
                Err(problem) => file.direct = Err(format!("it failed once: {problem}")),
            }
        }
        let (address, settings) = (memory.memory().address(), self.settings);
        let staged = Staged { storage: &self.storage, pinned: &self.pinned, settings };
        let mut left = left.iter().filter(|part| part.bytes > 0);
        left.try_for_each(|part| staged.pass(direction, &file.file, address, *part))
    }
}
