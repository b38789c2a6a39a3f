//! Graphs: jobs that were captured, in the order in which they were given.

use std::cell::Cell;
use std::ffi::c_uint;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::stream::{self, Job, Stream};
use crate::table::{
    Answer, CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED, Code, Handle, INVALID_VALUE, Table, export,
    lock, put,
};

/// A capture that is going on, or was.
pub(crate) struct Capture {
    origin: u64,
    mode: c_uint,
    is_open: AtomicBool,
    jobs: Mutex<Vec<Job>>,
}

const GLOBAL: c_uint = 0;
const THREAD: c_uint = 1;

static GRAPHS: Table<Vec<Job>> = Table::new();
static EXECUTABLES: Table<Vec<Job>> = Table::new();
/// Captures of this process that forbid every thread what could disturb them.
static GLOBALS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Those that forbid it to this thread.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

impl Capture {
    pub(crate) fn push(&self, job: Job) {
        lock(&self.jobs).push(job);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }
}

/// For calls that wait or allocate: while a capture goes on they are errors.
pub(crate) fn forbidden_in_capture() -> Answer {
    match GLOBALS.load(Ordering::Relaxed) + OWN.get() {
        0 => Ok(()),
        _ => Err(CAPTURE_UNSUPPORTED),
    }
}

pub(crate) fn begin(stream: &Stream, handle: Handle, mode: c_uint) -> Answer {
    let mut capture = lock(&stream.capture);
    if capture.is_some() {
        return Err(CAPTURE_UNSUPPORTED);
    }
    match mode {
        GLOBAL => drop(GLOBALS.fetch_add(1, Ordering::Relaxed)),
        THREAD => OWN.set(OWN.get() + 1),
        _ => {}
    }
    *capture = Some(Arc::new(Capture {
        origin: handle as u64,
        mode,
        is_open: AtomicBool::new(true),
        jobs: Mutex::new(Vec::new()),
    }));
    Ok(())
}

pub(crate) fn end(handle: Handle, every: &[Arc<Stream>]) -> Result<Handle, Code> {
    let stream = stream::find(handle)?;
    let capture = lock(&stream.capture).clone().ok_or(CAPTURE_UNMATCHED)?;
    if capture.origin != handle as u64 {
        return Err(CAPTURE_UNMATCHED);
    }
    capture.is_open.store(false, Ordering::Relaxed);
    match capture.mode {
        GLOBAL => drop(GLOBALS.fetch_sub(1, Ordering::Relaxed)),
        THREAD => OWN.set(OWN.get().saturating_sub(1)),
        _ => {}
    }
    for stream in every {
        let mut joined = lock(&stream.capture);
        if joined.as_ref().is_some_and(|joined| Arc::ptr_eq(joined, &capture)) {
            *joined = None;
        }
    }
    let jobs = std::mem::take(&mut *lock(&capture.jobs));
    Ok(GRAPHS.add(jobs))
}

export! {
    fn cuGraphInstantiateWithFlags(target: *mut Handle, graph: Handle, _flags: u64) {
        put(target, EXECUTABLES.add(GRAPHS.find(graph)?.to_vec()))
    }
    fn cuGraphLaunch(executable: Handle, handle: Handle) {
        let jobs = EXECUTABLES.find(executable)?;
        stream::find(handle)?.submit(move || jobs.iter().for_each(|job| job()))
    }
    fn cuGraphDestroy(graph: Handle) {
        GRAPHS.remove(graph).map(drop)
    }
    fn cuGraphExecDestroy(executable: Handle) {
        EXECUTABLES.remove(executable).map(drop)
    }
    fn cuGraphGetNodes(graph: Handle, nodes: *mut Handle, number: *mut usize) {
        if !nodes.is_null() {
            return Err(INVALID_VALUE);
        }
        put(number, GRAPHS.find(graph)?.len())
    }
}
