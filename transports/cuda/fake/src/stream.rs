//! Streams: each a thread that does what it is given, in order.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread;

use crate::device::current;
use crate::event;
use crate::graph::{self, Capture, forbidden_in_capture};
use crate::memory::around;
use crate::races;
use crate::table::{
    Answer, CAPTURE_UNSUPPORTED, Code, Handle, INVALID_HANDLE, INVALID_VALUE, NOT_READY, Table,
    export, lock, put, while_all_wait,
};

/// What a stream does: once, or in a graph as often as that is launched.
pub(crate) type Job = Arc<dyn Fn() + Send + Sync>;

pub(crate) struct Stream {
    pub(crate) device: usize,
    /// What no other stream of the process has.
    pub(crate) number: u64,
    jobs: Mutex<Sender<Job>>,
    given: Mutex<u64>,
    done: Arc<(Mutex<u64>, Condvar)>,
    /// Where jobs go instead of to the thread.
    pub(crate) capture: Mutex<Option<Arc<Capture>>>,
}

static STREAMS: Table<Stream> = Table::new();
static EVERY: Mutex<Vec<Arc<Stream>>> = Mutex::new(Vec::new());
/// The streams that need not be made, by device and thread; 0 is every thread's.
static DEFAULTS: Mutex<Option<Defaults>> = Mutex::new(None);

/// How much a stream holds that it has not done. Behind that, who gives it more waits for room, and
/// so does whoever gives any stream something meanwhile.
const ROOM: u64 = 1024;

type Defaults = HashMap<(usize, u64), Arc<Stream>>;

impl Stream {
    fn new(device: usize) -> Self {
        let (sender, jobs) = channel::<Job>();
        let done = Arc::new((Mutex::new(0), Condvar::new()));
        let counted = done.clone();
        thread::spawn(move || {
            for job in jobs {
                job();
                races::go_before(&*counted);
                *lock(&counted.0) += 1;
                counted.1.notify_all();
            }
        });
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (given, capture) = (Mutex::new(0), Mutex::new(None));
        Self { device, number, jobs: Mutex::new(sender), given, done, capture }
    }

    pub(crate) fn submit(&self, job: impl Fn() + Send + Sync + 'static) -> Answer {
        self.submit_job(Arc::new(job))
    }

    pub(crate) fn submit_job(&self, job: Job) -> Answer {
        // What the host has done or waited for comes before.
        let given = Box::new(0_u8);
        races::go_before(&*given);
        let job: Job = Arc::new(move || {
            races::come_behind(&*given);
            job();
        });
        if let Some(capture) = &*lock(&self.capture) {
            capture.push(job);
            return Ok(());
        }
        let mut given = lock(&self.given);
        while !self.has_done((*given + 1).saturating_sub(ROOM)) {
            let done = *given + 1 - ROOM;
            // Others look at the stream meanwhile.
            drop(given);
            while_all_wait(|| self.wait_for(done));
            given = lock(&self.given);
        }
        lock(&self.jobs).send(job).map_err(|_| INVALID_HANDLE)?;
        *given += 1;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.has_done(self.given())
    }

    pub(crate) fn wait(&self) {
        self.wait_for(self.given());
    }

    /// How many jobs it was given so far.
    pub(crate) fn given(&self) -> u64 {
        *lock(&self.given)
    }

    /// Whether so many of them are done.
    pub(crate) fn has_done(&self, given: u64) -> bool {
        *lock(&self.done.0) >= given
    }

    /// Until so many of them are.
    pub(crate) fn wait_for(&self, given: u64) {
        let mut done = lock(&self.done.0);
        while *done < given {
            done = self.done.1.wait(done).unwrap_or_else(|broken| broken.into_inner());
        }
        races::come_behind(&*self.done);
    }

    /// Looking whether a stream is done spoils its capture.
    fn not_captured(&self) -> Answer {
        lock(&self.capture).as_ref().map_or(Ok(()), |capture| Err(capture.spoil()))
    }

    pub(crate) fn is_captured(&self) -> bool {
        lock(&self.capture).is_some()
    }
}

/// A stream by its handle; null and 1 are the default stream of the current device, 2 is the
/// calling thread's.
pub(crate) fn find(handle: Handle) -> Result<Arc<Stream>, Code> {
    if handle as u64 > 2 {
        return STREAMS.find(handle);
    }
    // The default stream and its name 1 are one.
    let key = (current()?, if handle as u64 == 2 { this_thread() } else { 0 });
    let mut defaults = lock(&DEFAULTS);
    let stream = defaults.get_or_insert_default().entry(key).or_insert_with(|| {
        let stream = Arc::new(Stream::new(key.0));
        lock(&EVERY).push(stream.clone());
        stream
    });
    Ok(stream.clone())
}

/// A number of the calling thread's.
fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// As loading code does.
pub(crate) fn wait_for_device(device: usize) {
    let every: Vec<_> = lock(&EVERY).clone();
    every.iter().filter(|stream| stream.device == device).for_each(|stream| stream.wait());
}

/// As a driver may let allocating, pinning and freeing memory do, and making graphs launchable:
/// what was given to any device is done first, and what other threads give one comes afterwards.
pub(crate) fn settle() {
    while_all_wait(|| {
        let every: Vec<_> = lock(&EVERY).clone();
        every.iter().for_each(|stream| stream.wait());
    });
}

/// As a driver may let freeing memory do, but need not (`BRIGADE_FAKE_CUDA_FREES`).
pub(crate) fn settle_to_free() {
    static AT_ONCE: OnceLock<bool> = OnceLock::new();
    let is_told = || std::env::var("BRIGADE_FAKE_CUDA_FREES").is_ok_and(|how| how == "at-once");
    if !*AT_ONCE.get_or_init(is_told) {
        settle();
    }
}

/// Whether the host's part of a copy is memory that a device does not reach by itself.
fn is_pageable(address: u64) -> bool {
    around(address, |_, _| ()).is_none()
}

fn copy(target: u64, source: u64, bytes: usize, stream: &Stream) -> Answer {
    if bytes == 0 {
        return Ok(());
    }
    if target == 0 || source == 0 {
        return Err(INVALID_VALUE);
    }
    stream.submit(move || {
        races::copies(Some(source), target, bytes);
        // SAFETY: who asked for the copy owes both ranges until it is done.
        unsafe { ptr::copy(source as *const u8, target as *mut u8, bytes) };
    })?;
    let waits = is_pageable(target) || is_pageable(source);
    if waits && !stream.is_captured() {
        // A driver may hold up whoever else gives the device something until the copy is done, and
        // all that comes before it in the stream.
        while_all_wait(|| stream.wait());
    }
    Ok(())
}

type HostFunction = extern "C" fn(*mut c_void);

export! {
    fn cuStreamCreateWithPriority(target: *mut Handle, _flags: c_uint, _priority: c_int) {
        let handle = STREAMS.add(Stream::new(current()?));
        lock(&EVERY).push(STREAMS.find(handle)?);
        put(target, handle)
    }
    fn cuStreamDestroy_v2(handle: Handle) {
        let stream = STREAMS.remove(handle)?;
        lock(&EVERY).retain(|other| !Arc::ptr_eq(other, &stream));
        Ok(())
    }
    fn cuStreamSynchronize(handle: Handle) {
        let stream = find(handle)?;
        stream.not_captured()?;
        forbidden_in_capture()?;
        stream.wait();
        Ok(())
    }
    fn cuStreamQuery(handle: Handle) {
        let stream = find(handle)?;
        stream.not_captured()?;
        forbidden_in_capture()?;
        if !stream.is_done() {
            return Err(NOT_READY);
        }
        races::come_behind(&*stream.done);
        Ok(())
    }
    fn cuStreamIsCapturing(handle: Handle, target: *mut c_uint) {
        put(target, u32::from(find(handle)?.is_captured()))
    }
    fn cuStreamBeginCapture_v2(handle: Handle, mode: c_uint) {
        if handle as u64 <= 2 {
            return Err(CAPTURE_UNSUPPORTED);
        }
        let stream = find(handle)?;
        graph::begin(&stream, handle, mode)
    }
    fn cuStreamEndCapture(handle: Handle, target: *mut Handle) {
        let graph = graph::end(handle, &lock(&EVERY).clone())?;
        put(target, graph)
    }
    fn cuStreamWaitEvent(handle: Handle, event: Handle, _flags: c_uint) {
        let stream = find(handle)?;
        event::wait_in(&stream, event)
    }
    fn cuStreamWriteValue32_v2(handle: Handle, address: u64, value: u32, _flags: c_uint) {
        find(handle)?.submit(move || {
            races::go_before(event::number_at(address));
            event::number_at(address).store(value, event::IN_ORDER)
        })
    }
    fn cuStreamWaitValue32_v2(handle: Handle, address: u64, value: u32, _flags: c_uint) {
        find(handle)?.submit(move || {
            let number = event::number_at(address);
            event::patiently(|| number.load(event::IN_ORDER).wrapping_sub(value) as i32 >= 0);
            races::come_behind(number);
        })
    }
    fn cuCtxSynchronize() {
        forbidden_in_capture()?;
        let device = current()?;
        // A context has its streams in it, and the mode of no thread helps.
        let every: Vec<_> = lock(&EVERY).clone();
        let its = every.iter().filter(|stream| stream.device == device);
        let refused: Vec<Code> = its.filter_map(|stream| stream.not_captured().err()).collect();
        refused.first().map_or(Ok(()), |code| Err(*code))?;
        wait_for_device(device);
        Ok(())
    }
    fn cuLaunchHostFunc(handle: Handle, function: HostFunction, data: *mut c_void) {
        let data = data as u64;
        find(handle)?.submit(move || function(data as *mut c_void))
    }
    fn cuMemcpyAsync(target: u64, source: u64, bytes: usize, handle: Handle) {
        copy(target, source, bytes, &*find(handle)?)
    }
    fn cuMemsetD8Async(address: u64, byte: u8, bytes: usize, handle: Handle) {
        find(handle)?.submit(move || {
            races::copies(None, address, bytes);
            // SAFETY: who asked for it owes the range until it is done.
            unsafe { ptr::write_bytes(address as *mut u8, byte, bytes) };
        })
    }
}
