//! Graphs: jobs that were captured, in the order in which they were given.

use std::cell::Cell;
use std::ffi::c_uint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use crate::stream::{self, Job, Stream};
use crate::table::{
    Answer, CAPTURE_INVALIDATED, CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED, Code, Handle,
    INVALID_VALUE, Table, export, lock, put,
};

/// A capture that is going on, or was.
pub(crate) struct Capture {
    origin: u64,
    mode: c_uint,
    thread: ThreadId,
    is_open: AtomicBool,
    /// Somebody did what must not be done meanwhile.
    is_spoilt: AtomicBool,
    jobs: Mutex<Vec<Job>>,
}

const GLOBAL: c_uint = 0;
const RELAXED: c_uint = 2;

/// What can be launched.
struct Executable {
    jobs: Vec<Job>,
    /// Whether it was brought to the device.
    is_there: AtomicBool,
}

thread_local! {
    /// Which captures forbid something to this thread.
    static MODE: Cell<c_uint> = const { Cell::new(GLOBAL) };
}

static GRAPHS: Table<Vec<Job>> = Table::new();
static EXECUTABLES: Table<Executable> = Table::new();
/// Captures that are going on.
static OPEN: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());

impl Capture {
    pub(crate) fn push(&self, job: Job) {
        lock(&self.jobs).push(job);
    }

    /// What cannot be captured was asked for: the capture's end will say so.
    pub(crate) fn spoil(&self) -> Code {
        self.is_spoilt.store(true, Ordering::Relaxed);
        CAPTURE_UNSUPPORTED
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }
}

/// For calls that wait, look at what is done, or allocate: while a capture goes on that forbids
/// them they are errors, and end it. A thread may say that it heeds its own captures only, or none.
pub(crate) fn forbidden_in_capture() -> Answer {
    let (here, mode) = (thread::current().id(), MODE.get());
    let mut answer = Ok(());
    for capture in lock(&OPEN).iter() {
        let is_own = capture.thread == here && capture.mode != RELAXED;
        if mode != RELAXED && (is_own || (mode == GLOBAL && capture.mode == GLOBAL)) {
            answer = Err(capture.spoil());
        }
    }
    answer
}

pub(crate) fn begin(stream: &Stream, handle: Handle, mode: c_uint) -> Answer {
    let mut joined = lock(&stream.capture);
    if joined.is_some() {
        return Err(CAPTURE_UNSUPPORTED);
    }
    let capture = Arc::new(Capture {
        origin: handle as u64,
        mode,
        thread: thread::current().id(),
        is_open: AtomicBool::new(true),
        is_spoilt: AtomicBool::new(false),
        jobs: Mutex::new(Vec::new()),
    });
    lock(&OPEN).push(capture.clone());
    *joined = Some(capture);
    Ok(())
}

pub(crate) fn end(handle: Handle, every: &[Arc<Stream>]) -> Result<Handle, Code> {
    let stream = stream::find(handle)?;
    let capture = lock(&stream.capture).clone().ok_or(CAPTURE_UNMATCHED)?;
    if capture.origin != handle as u64 {
        return Err(CAPTURE_UNMATCHED);
    }
    capture.is_open.store(false, Ordering::Relaxed);
    let is_this = |other: &Arc<Capture>| Arc::ptr_eq(other, &capture);
    lock(&OPEN).retain(|other| !is_this(other));
    for stream in every {
        let mut joined = lock(&stream.capture);
        if joined.as_ref().is_some_and(is_this) {
            *joined = None;
        }
    }
    if capture.is_spoilt.load(Ordering::Relaxed) {
        return Err(CAPTURE_INVALIDATED);
    }
    let jobs = std::mem::take(&mut *lock(&capture.jobs));
    Ok(GRAPHS.add(jobs))
}

/// Bring a graph to the device, once: that takes memory, for which a driver may wait.
fn bring(executable: &Executable) {
    if !executable.is_there.swap(true, Ordering::Relaxed) {
        stream::settle();
    }
}

export! {
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) {
        if mode.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller owes a pointer to a mode.
        match unsafe { mode.read() } {
            wanted if wanted <= RELAXED => put(mode, MODE.replace(wanted)),
            _ => Err(INVALID_VALUE),
        }
    }
    fn cuGraphInstantiateWithFlags(target: *mut Handle, graph: Handle, _flags: u64) {
        forbidden_in_capture()?;
        stream::settle();
        let (jobs, is_there) = (GRAPHS.find(graph)?.to_vec(), AtomicBool::new(false));
        put(target, EXECUTABLES.add(Executable { jobs, is_there }))
    }
    fn cuGraphUpload(executable: Handle, _stream: Handle) {
        forbidden_in_capture()?;
        bring(&*EXECUTABLES.find(executable)?);
        Ok(())
    }
    fn cuGraphLaunch(executable: Handle, handle: Handle) {
        let executable = EXECUTABLES.find(executable)?;
        bring(&executable);
        stream::find(handle)?.submit(move || executable.jobs.iter().for_each(|job| job()))
    }
    fn cuGraphDestroy(graph: Handle) {
        GRAPHS.remove(graph).map(drop)
    }
    fn cuGraphExecDestroy(executable: Handle) {
        forbidden_in_capture()?;
        stream::settle();
        EXECUTABLES.remove(executable).map(drop)
    }
    fn cuGraphGetNodes(graph: Handle, nodes: *mut Handle, number: *mut usize) {
        if !nodes.is_null() {
            return Err(INVALID_VALUE);
        }
        put(number, GRAPHS.find(graph)?.len())
    }
}
