//! A request on its way: a buffer lent to transfers, and the ticket that its caller holds.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::error::{Operation, StorageError};
use super::file::{DEVICES, Opened};
use super::kind::Kind;
use super::pieces::Span;
use super::sys::REPEATS_MAX;
use crate::memory::{Buffer, Window};

/// Who goes first when the device is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Priority {
    /// Somebody waits: overtakes everything that was not started yet.
    Urgent,
    /// Nobody waits yet: reading ahead, writing behind.
    Background,
}

/// A request that was completed, one way or the other.
#[derive(Debug)]
pub struct Outcome {
    /// The memory, back from the engine. None for a sync, and after [`StorageError::Late`] and
    /// [`StorageError::Stopped`], when the system may still use it.
    pub buffer: Option<Buffer>,
    /// Bytes transferred, all that were asked for; or what went wrong. After an error the range of
    /// the buffer (of a read) or of the file (of a write) holds no defined bytes.
    pub result: Result<usize, StorageError>,
}

impl Outcome {
    /// The buffer of a read or write that did all it should.
    ///
    /// Errors: the request's. The buffer goes back to the arena then.
    pub fn into_buffer(self) -> Result<Buffer, StorageError> {
        let Outcome { buffer, result } = self;
        result?;
        buffer.ok_or_else(|| StorageError::Stopped { why: "a sync has no buffer".into() })
    }
}

/// A request that was handed in. Dropped unseen, it goes on, and its memory returns to the arena
/// when it ends; a write that fails unseen is reported by the file's next sync.
#[derive(Debug)]
#[must_use = "only the outcome says whether the bytes were transferred"]
pub struct Pending {
    ticket: Arc<Ticket>,
}

/// What the caller's side and the engine's side of a request share.
#[derive(Debug)]
pub(crate) struct Ticket {
    is_done: AtomicBool,
    /// It was handed in so, or has become so.
    is_urgent: AtomicBool,
    slot: Mutex<Slot>,
    changed: Condvar,
    operation: Operation,
    file: Arc<Opened>,
    offset: u64,
    bytes: usize,
}

/// Where the outcome is left.
#[derive(Debug, Default)]
struct Slot {
    outcome: Option<Outcome>,
    /// Somebody sleeps until it is there, and must be woken.
    has_waiter: bool,
}

/// The engine's side of a request.
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) priority: Priority,
    pub(crate) file: Arc<Opened>,
    /// Order of arrival among all requests.
    pub(crate) sequence: u64,
    /// What was not cut into transfers yet.
    pub(crate) left: Span,
    /// What short transfers left over.
    pub(crate) again: Vec<Span>,
    pub(crate) in_flight: usize,
    pub(crate) failure: Option<StorageError>,
    done_bytes: usize,
    repeats: u32,
    loan: Option<Loan>,
    ticket: Arc<Ticket>,
}

/// Somebody sleeps until a request is done that is done now.
#[must_use = "the sleeper has to be woken"]
pub(crate) struct Awaited {
    ticket: Arc<Ticket>,
}

/// A buffer that transfers may see. Dropped before [`Loan::end`], it leaks the buffer, because the
/// system may still write into it.
struct Loan {
    buffer: Option<Buffer>,
    window: Window,
}

impl Pending {
    /// Whether [`Pending::wait`] would return at once.
    pub fn is_done(&self) -> bool {
        self.ticket.is_done.load(Ordering::Acquire)
    }

    /// Somebody waits now: from here on it goes like an urgent request.
    ///
    /// Cost: a hand-over to the storage's thread, unless it is done or urgent already.
    pub fn hurry(&self) {
        if !self.is_done() && !self.ticket.is_urgent.swap(true, Ordering::Relaxed) {
            self.ticket.file.hurry(&self.ticket);
        }
    }

    /// Wait for at most `limit`, and say whether it is done.
    pub fn wait_until_done(&self, limit: Duration) -> bool {
        let start = Instant::now();
        let mut slot = self.ticket.slot();
        while slot.outcome.is_none() {
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                return false;
            }
            slot.has_waiter = true;
            let waited = self.ticket.changed.wait_timeout(slot, left);
            slot = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Wait for the outcome, at most `limit`.
    ///
    /// Errors, in the outcome: [`StorageError::Late`] after `limit`. The request goes on then
    /// without an observer; use [`Pending::wait_until_done`] to be able to wait again.
    pub fn wait(self, limit: Duration) -> Outcome {
        self.wait_until_done(limit);
        self.outcome(limit)
    }

    /// The outcome, or that it was not there when `limit` had passed.
    fn outcome(self, limit: Duration) -> Outcome {
        if let Some(outcome) = self.ticket.slot().outcome.take() {
            return outcome;
        }
        let late = StorageError::Late {
            operation: self.ticket.operation,
            path: self.ticket.file.path(),
            offset: self.ticket.offset,
            wanted_bytes: self.ticket.bytes as u64,
            waited_ms: limit.as_millis().min(u128::from(u64::MAX)) as u64,
        };
        Outcome { buffer: None, result: Err(late) }
    }
}

/// Wait for all of them, at most `limit`, and give their outcomes in the same order.
///
/// Cheaper than one after the other: the last is waited for first, so the caller sleeps once or
/// twice instead of once for each.
pub fn wait_all(pending: Vec<Pending>, limit: Duration) -> Vec<Outcome> {
    let start = Instant::now();
    for one in pending.iter().rev() {
        one.wait_until_done(limit.saturating_sub(start.elapsed()));
    }
    pending.into_iter().map(|one| one.outcome(limit)).collect()
}

/// A bit for each kind of transfer, priority and device, because each has bounds of its own; none
/// for syncs, which have no device's.
pub(crate) fn way(kind: Kind, priority: Priority, device: usize) -> u64 {
    const { assert!(4 * DEVICES <= u64::BITS as usize) };
    let lane = match kind {
        Kind::Read => 0,
        Kind::Write => 1,
        Kind::Sync => return 0,
    };
    1 << ((2 * lane + priority as usize) * DEVICES + device)
}

impl Request {
    /// A read or write of `range` of the buffer at `offset` of the file.
    ///
    /// Panics: when the range is not within the buffer.
    pub(crate) fn transfer(
        kind: Kind,
        file: &Arc<Opened>,
        offset: u64,
        buffer: Buffer,
        range: Range<usize>,
        priority: Priority,
    ) -> (Self, Pending) {
        let bytes = range.len();
        let loan = Loan::begin(buffer, range);
        Self::new(kind, file, Span { offset, start: 0, bytes }, Some(loan), priority)
    }

    /// A sync of the file.
    pub(crate) fn sync(file: &Arc<Opened>, priority: Priority) -> (Self, Pending) {
        Self::new(Kind::Sync, file, Span { offset: 0, start: 0, bytes: 0 }, None, priority)
    }

    fn new(
        kind: Kind,
        file: &Arc<Opened>,
        left: Span,
        loan: Option<Loan>,
        priority: Priority,
    ) -> (Self, Pending) {
        let operation = match kind {
            Kind::Read => Operation::Read,
            Kind::Write => Operation::Write,
            Kind::Sync => Operation::Sync,
        };
        let ticket = Arc::new(Ticket {
            is_done: AtomicBool::new(false),
            is_urgent: AtomicBool::new(priority == Priority::Urgent),
            slot: Mutex::default(),
            changed: Condvar::new(),
            operation,
            file: Arc::clone(file),
            offset: left.offset,
            bytes: left.bytes,
        });
        let pending = Pending { ticket: Arc::clone(&ticket) };
        let request = Self {
            kind,
            priority,
            file: Arc::clone(file),
            sequence: 0,
            left,
            again: Vec::new(),
            in_flight: 0,
            failure: None,
            done_bytes: 0,
            repeats: 0,
            loan,
            ticket,
        };
        (request, pending)
    }

    /// Whether this is its caller's side.
    pub(crate) fn is_of(&self, ticket: &Arc<Ticket>) -> bool {
        Arc::ptr_eq(&self.ticket, ticket)
    }

    /// Which way it goes: what may be full.
    pub(crate) fn way(&self) -> u64 {
        way(self.kind, self.priority, self.file.device())
    }

    /// The memory of this part. None for a sync.
    pub(crate) fn window(&self, span: Span) -> Option<Window> {
        self.loan.as_ref().map(|loan| loan.window.part(span.start, span.bytes))
    }

    /// Where the request's memory begins.
    pub(crate) fn address(&self) -> usize {
        self.loan.as_ref().map_or(0, |loan| loan.window.pointer().addr())
    }

    /// Whether there is something to be started.
    pub(crate) fn has_more(&self) -> bool {
        self.failure.is_none() && (self.left.bytes > 0 || !self.again.is_empty())
    }

    /// Whether a transfer that was put off may be tried once more: not for ever.
    pub(crate) fn may_repeat(&mut self) -> bool {
        self.repeats += 1;
        self.repeats < REPEATS_MAX
    }

    /// One of its transfers has moved so many bytes.
    pub(crate) fn moved(&mut self, bytes: usize) {
        self.done_bytes += bytes;
    }

    /// One of its transfers was refused; the first refusal is what the caller will see.
    pub(crate) fn refused(&mut self, errno: i32) {
        let why = StorageError::Refused {
            operation: self.ticket.operation,
            path: self.file.path(),
            offset: self.ticket.offset,
            wanted_bytes: self.ticket.bytes as u64,
            got_bytes: self.done_bytes as u64,
            errno,
        };
        self.failure.get_or_insert(why);
    }

    /// One of its reads met the end of the file.
    pub(crate) fn truncated(&mut self) {
        let why = StorageError::Truncated {
            path: self.file.path(),
            offset: self.ticket.offset,
            wanted_bytes: self.ticket.bytes as u64,
            got_bytes: self.done_bytes as u64,
        };
        self.failure.get_or_insert(why);
    }

    /// Nothing of it is in flight: give the memory back and leave the outcome. Who waits for it is
    /// the caller's to wake, so that whoever waits for several in turn is woken once.
    pub(crate) fn complete(mut self) -> Option<Awaited> {
        assert!(self.in_flight == 0, "completed with transfers in flight");
        let result = match self.failure.take() {
            Some(why) => Err(why),
            None => {
                assert_eq!(self.done_bytes, self.ticket.bytes, "completed with bytes missing");
                Ok(self.done_bytes)
            }
        };
        let result = match (self.kind, result) {
            (Kind::Sync, result) => self.file.synced(result),
            (Kind::Write, Err(why)) => {
                self.file.write_failed(&why);
                Err(why)
            }
            (_, result) => result,
        };
        let buffer = self.loan.take().and_then(Loan::end);
        let is_awaited = self.ticket.settle(Outcome { buffer, result });
        is_awaited.then_some(Awaited { ticket: self.ticket })
    }

    /// The engine is broken and transfers may be in flight for ever: keep the memory from
    /// everybody, and the file for us, and tell the caller.
    pub(crate) fn abandon(mut self, why: &str) {
        if self.in_flight > 0 {
            // Another owner could be written over. With this process the kernel lets go of it, not
            // before what is under way has ended.
            std::mem::forget(Arc::clone(&self.file));
        }
        let buffer = match self.loan.take() {
            Some(loan) if self.in_flight == 0 => loan.end(),
            _ => None,
        };
        let result = Err(StorageError::Stopped { why: why.into() });
        if self.ticket.settle(Outcome { buffer, result }) {
            self.ticket.changed.notify_all();
        }
    }
}

impl Awaited {
    pub(crate) fn wake(self) {
        self.ticket.changed.notify_all();
    }
}

impl Ticket {
    /// Leave the outcome. True: somebody sleeps, and must be woken.
    fn settle(&self, outcome: Outcome) -> bool {
        let mut slot = self.slot();
        slot.outcome = Some(outcome);
        self.is_done.store(true, Ordering::Release);
        slot.has_waiter
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        // Changed by code that does not panic between its lines.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Loan {
    fn begin(mut buffer: Buffer, range: Range<usize>) -> Self {
        // SAFETY: the buffer is out of everybody's reach in here, and comes out by `end` only, when
        // no transfer is in flight; in every other case it is leaked.
        let window = unsafe { buffer.window(range) };
        Self { buffer: Some(buffer), window }
    }

    /// The buffer, when no transfer sees it any more.
    fn end(mut self) -> Option<Buffer> {
        self.buffer.take()
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // Also when the engine's thread panics: a leak is better than a transfer into memory that
        // has a new owner.
        std::mem::forget(self.buffer.take());
    }
}
