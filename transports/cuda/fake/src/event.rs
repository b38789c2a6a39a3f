//! Events: two counters, which other processes may share: records given, and records reached.

use std::ffi::{c_uint, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::graph::{Capture, forbidden_in_capture};
use crate::memory::{map, new_file, open_of, unmap};
use crate::races;
use crate::stream::{self, Stream};
use crate::table::{
    Answer, CAPTURE_ISOLATION, Handle, INVALID_CONTEXT, INVALID_VALUE, NOT_READY, Table, export,
    lock, put,
};

pub(crate) const IN_ORDER: Ordering = Ordering::SeqCst;
const PAGE: usize = 4096;
const INTERPROCESS: c_uint = 4;
const DISABLE_TIMING: c_uint = 2;
const MAGIC: u64 = u64::from_le_bytes(*b"fakeevnt");

struct Event {
    page: Arc<Page>,
    file: Option<OwnedFd>,
    has_time: bool,
    /// The capture that it was recorded in, if that came last.
    captured: Mutex<Option<Arc<Capture>>>,
}

/// The counters, mapped.
struct Page {
    start: u64,
}

#[repr(C)]
struct Counters {
    given: AtomicU64,
    reached: AtomicU64,
    at_ns: AtomicU64,
}

static EVENTS: Table<Event> = Table::new();

impl Page {
    fn counters(&self) -> &Counters {
        // SAFETY: mapped for as long as we live, aligned to a page, and any bytes are counters.
        unsafe { &*(self.start as *const Counters) }
    }

    fn is_reached(&self, record: u64) -> bool {
        self.counters().reached.load(IN_ORDER) >= record
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        unmap(self.start, PAGE);
    }
}

/// Wait for what others do, without taking the processor from them.
pub(crate) fn patiently(is_so: impl Fn() -> bool) {
    let mut looks = 0;
    while !is_so() {
        looks += 1;
        if looks < 100 {
            thread::yield_now();
        } else {
            thread::sleep(Duration::from_micros(50));
        }
    }
}

/// A number that devices and hosts write.
pub(crate) fn number_at(address: u64) -> &'static AtomicU32 {
    // SAFETY: who gives a stream an address owes the memory until the stream is done with it.
    unsafe { &*(address as *const AtomicU32) }
}

/// What comes after in `stream` waits for the event's last record.
pub(crate) fn wait_in(stream: &Stream, event: Handle) -> Answer {
    let event = EVENTS.find(event)?;
    if let Some(capture) = lock(&event.captured).as_ref().filter(|capture| capture.is_open()) {
        // What waits for a captured event is captured too; jobs of one graph run in order anyway.
        *lock(&stream.capture) = Some(capture.clone());
        return Ok(());
    }
    if stream.is_captured() {
        return Err(CAPTURE_ISOLATION);
    }
    let (page, record) = (event.page.clone(), event.page.counters().given.load(IN_ORDER));
    stream.submit(move || {
        patiently(|| page.is_reached(record));
        races::come_behind(page.counters());
    })
}

fn now_ns() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Token {
    magic: u64,
    process: u64,
    fd: u64,
    rest: [u64; 5],
}

export! {
    fn cuEventCreate(target: *mut Handle, flags: c_uint) {
        crate::device::current()?;
        let file = new_file(PAGE)?;
        let page = Arc::new(Page { start: map(&file, PAGE, 0)? });
        let file = (flags & INTERPROCESS != 0).then_some(file);
        let has_time = flags & DISABLE_TIMING == 0;
        if has_time && file.is_some() {
            return Err(INVALID_VALUE);
        }
        put(target, EVENTS.add(Event { page, file, has_time, captured: Mutex::new(None) }))
    }
    fn cuEventDestroy_v2(event: Handle) {
        EVENTS.remove(event).map(drop)
    }
    fn cuEventRecord(event: Handle, handle: Handle) {
        let event = EVENTS.find(event)?;
        let stream = stream::find(handle)?;
        let capture = lock(&stream.capture).clone();
        *lock(&event.captured) = capture.clone();
        if capture.is_some() {
            return Ok(());
        }
        let page = event.page.clone();
        let record = page.counters().given.fetch_add(1, IN_ORDER) + 1;
        stream.submit(move || {
            races::go_before(page.counters());
            page.counters().at_ns.store(now_ns(), IN_ORDER);
            page.counters().reached.fetch_max(record, IN_ORDER);
        })
    }
    fn cuEventQuery(event: Handle) {
        forbidden_in_capture()?;
        let event = EVENTS.find(event)?;
        let given = event.page.counters().given.load(IN_ORDER);
        if !event.page.is_reached(given) {
            return Err(NOT_READY);
        }
        races::come_behind(event.page.counters());
        Ok(())
    }
    fn cuEventSynchronize(event: Handle) {
        forbidden_in_capture()?;
        let event = EVENTS.find(event)?;
        let given = event.page.counters().given.load(IN_ORDER);
        patiently(|| event.page.is_reached(given));
        races::come_behind(event.page.counters());
        Ok(())
    }
    fn cuEventElapsedTime(target: *mut f32, start: Handle, end: Handle) {
        let (start, end) = (EVENTS.find(start)?, EVENTS.find(end)?);
        if !start.has_time || !end.has_time {
            return Err(400);
        }
        let times = [&start, &end].map(|event| event.page.counters().at_ns.load(IN_ORDER));
        put(target, (times[1] as f64 - times[0] as f64) as f32 / 1e6)
    }
    fn cuIpcGetEventHandle(target: *mut c_void, event: Handle) {
        let event = EVENTS.find(event)?;
        let file = event.file.as_ref().ok_or(INVALID_VALUE)?;
        let process = u64::from(std::process::id());
        let fd = file.as_raw_fd() as u64;
        put(target.cast(), Token { magic: MAGIC, process, fd, rest: [0; 5] })
    }
    fn cuIpcOpenEventHandle(target: *mut Handle, token: Token) {
        if token.magic != MAGIC {
            return Err(INVALID_VALUE);
        }
        if token.process == u64::from(std::process::id()) {
            return Err(INVALID_CONTEXT);
        }
        let page = map(&open_of(token.process, token.fd)?, PAGE, 0)?;
        let page = Arc::new(Page { start: page });
        let event = Event { page, file: None, has_time: false, captured: Mutex::new(None) };
        put(target, EVENTS.add(event))
    }
}
