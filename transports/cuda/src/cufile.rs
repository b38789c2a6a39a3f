//! GPUDirect Storage: a drive writes into a device's memory, and reads from it, without the host's
//! memory between. NVIDIA's library for it, cuFile, is found at run time.
//!
//! | file | what it does |
//! |---|---|
//! | `sys` | libcufile as C sees it |
//! | `library` | loading it, and seeing that it goes straight |
//! | `code` | its answers in words |
//! | here | files and memory that it knows, bytes between them |
//!
//! Where cuFile cannot go straight it has a way of its own through the host's memory, the
//! compatibility mode, of which it tells nobody. It is turned off here for the process, so that
//! what works is GPUDirect; where that cannot be had, [`GpuDirect::open`] says why.

mod code;
mod library;
mod sys;

use std::ffi::{c_long, c_void};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

pub use code::FileCode;
use library::{Library, Opened};
use sys::{CU_FILE_HANDLE_TYPE_OPAQUE_FD, CUfileDescr, CUfileDescrHandle, CUfileHandle};

use crate::{CudaError, DeviceMemory, Missing, Result};

/// The variable that names the library: the file, or a folder to look for it in.
pub const LIBRARY_VARIABLE: &str = "BRIGADE_CUFILE_LIBRARY";

/// cuFile, open and going straight. It stays open until the process ends.
#[derive(Clone, Copy)]
pub struct GpuDirect {
    opened: &'static Opened,
}

impl GpuDirect {
    /// The one of this machine. The first call loads it and costs up to a second; later ones cost
    /// a load. [`LIBRARY_VARIABLE`] names another file than the system's.
    ///
    /// # Errors
    ///
    /// [`Missing`]: there is no driver of CUDA, no cuFile, no module in the kernel, or only the
    /// compatibility mode; each time alike.
    pub fn open() -> std::result::Result<GpuDirect, Missing> {
        library::opened().map(|opened| GpuDirect { opened })
    }

    /// One line: the version, by what bytes go, and the file.
    pub fn describe(self) -> String {
        let Opened { library, by } = self.opened;
        let version = library::version(library).map_or(String::new(), |version| version + " ");
        format!("cuFile {version}by {by} ({})", library.file)
    }

    fn library(self) -> &'static Library {
        &self.opened.library
    }
}

/// A file that cuFile has looked at and goes straight to.
pub struct DirectFile {
    library: &'static Library,
    handle: CUfileHandle,
    /// Closed after the handle is given back.
    _file: OwnedFd,
}

// SAFETY: cuFile's handles belong to no thread, and its calls may be made by many at once.
unsafe impl Send for DirectFile {}
// SAFETY: as above.
unsafe impl Sync for DirectFile {}

impl DirectFile {
    /// Have cuFile look at a file, which was opened with `O_DIRECT`.
    ///
    /// # Errors
    ///
    /// [`CudaError::Direct`]: what it stands on is no drive or file system that it goes straight
    /// to.
    pub fn new(direct: GpuDirect, file: OwnedFd) -> Result<DirectFile> {
        let library = direct.library();
        let mut handle = ptr::null_mut();
        // All of the union is given, whichever part of it is read.
        let mut of_file = CUfileDescrHandle { handle: ptr::null_mut() };
        of_file.fd = file.as_raw_fd();
        let kind = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
        let mut descr = CUfileDescr { kind, handle: of_file, fs_ops: ptr::null() };
        // SAFETY: the pointers are to values that outlive the call, and the file stays open for as
        // long as the handle.
        let answer = unsafe { (library.handle_register)(&mut handle, &mut descr) };
        done("cuFileHandleRegister", answer, "showing a file to cuFile")?;
        Ok(DirectFile { library, handle, _file: file })
    }

    /// Read into memory of a device, and wait until it is there: `bytes` at `offset` of the file,
    /// to `at` of the memory. Gives how many were read, which are fewer at the file's end, and may
    /// be elsewhere. The thread must have the memory's context.
    ///
    /// # Errors
    ///
    /// [`CudaError::Direct`], and [`CudaError::Refused`] beyond the memory's end.
    ///
    /// # Safety
    ///
    /// Nobody else uses this part of the memory meanwhile: what a stream has been given before is
    /// done, and what comes after is given later.
    pub unsafe fn read(
        &self,
        memory: &DirectMemory,
        at: usize,
        offset: u64,
        bytes: usize,
    ) -> Result<usize> {
        let base = memory.part(at, bytes)?;
        // SAFETY: the file is known to cuFile and the range is the memory's; the rest is owed to
        // us.
        let count = unsafe {
            (self.library.read)(self.handle, base, bytes, offset as c_long, at as c_long)
        };
        counted("cuFileRead", count, bytes)
    }

    /// Write memory of a device to the file, and wait until the system has it; else as
    /// [`DirectFile::read`].
    ///
    /// # Errors
    ///
    /// As above.
    ///
    /// # Safety
    ///
    /// Nobody writes to this part of the memory meanwhile: what a stream has been given before is
    /// done.
    pub unsafe fn write(
        &self,
        memory: &DirectMemory,
        at: usize,
        offset: u64,
        bytes: usize,
    ) -> Result<usize> {
        let base = memory.part(at, bytes)?;
        // SAFETY: as in `read`.
        let count = unsafe {
            (self.library.write)(self.handle, base, bytes, offset as c_long, at as c_long)
        };
        counted("cuFileWrite", count, bytes)
    }
}

impl Drop for DirectFile {
    fn drop(&mut self) {
        // SAFETY: registered once and given back once; calls on it have returned.
        unsafe { (self.library.handle_deregister)(self.handle) };
    }
}

/// Memory of a device that cuFile is shown once, so that drives reach it where it lies.
pub struct DirectMemory {
    library: &'static Library,
    /// Why it is not known to cuFile, which then has buffers of its own on the device between.
    refused: Option<CudaError>,
    /// Freed after cuFile has forgotten it.
    memory: DeviceMemory,
}

impl DirectMemory {
    /// Show it to cuFile, where that can be: devices can show only so much of their memory at a
    /// time. Costs some milliseconds.
    pub fn new(direct: GpuDirect, memory: DeviceMemory) -> DirectMemory {
        let library = direct.library();
        let known = memory.context().enter().and_then(|_here| {
            let start = memory.address() as *const c_void;
            // SAFETY: the memory stays for as long as it is registered.
            let answer = unsafe { (library.buf_register)(start, memory.bytes(), 0) };
            done("cuFileBufRegister", answer, "showing memory to cuFile")
        });
        DirectMemory { library, refused: known.err(), memory }
    }

    /// The memory.
    pub fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// The same, for those who write it.
    pub fn memory_mut(&mut self) -> &mut DeviceMemory {
        &mut self.memory
    }

    /// Why cuFile takes a copy on the device between drive and memory; nothing where it does not.
    pub fn refused(&self) -> Option<&CudaError> {
        self.refused.as_ref()
    }

    /// Where the memory begins, if it has this part.
    fn part(&self, at: usize, bytes: usize) -> Result<*mut c_void> {
        self.memory.check(at, bytes)?;
        Ok(self.memory.address() as *mut c_void)
    }
}

impl Drop for DirectMemory {
    fn drop(&mut self) {
        if self.refused.is_none()
            && let Ok(_here) = self.memory.context().enter()
        {
            // SAFETY: registered once and given back once. If it fails, the memory stays pinned.
            let _ = unsafe { (self.library.buf_deregister)(self.memory.address() as *const _) };
        }
    }
}

fn done(call: &'static str, answer: sys::CUfileError, what: &str) -> Result<()> {
    match FileCode::of(answer) {
        None => Ok(()),
        Some(code) => Err(CudaError::Direct { call, code, what: what.to_owned() }),
    }
}

/// How many bytes a call moved, if it moved any or there were none to move.
fn counted(call: &'static str, count: isize, asked: usize) -> Result<usize> {
    // Read first: everything that comes may change it.
    let said = io::Error::last_os_error();
    match usize::try_from(count) {
        Ok(moved) if moved <= asked => Ok(moved),
        Ok(moved) => Err(CudaError::refused(format!("{call} moved {moved} bytes of {asked}"))),
        Err(_) => {
            let (code, what) = (FileCode::of_count(count, &said), format!("moving {asked} bytes"));
            Err(CudaError::Direct { call, code, what })
        }
    }
}
