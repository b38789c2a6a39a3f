//! Handles: numbers that stand for communicators, works and operators.
//!
//! C holds a number that is never followed, only looked up: where in a table, and which of all the
//! things that were ever there. So a handle that was destroyed, invented, or inherited by `fork`
//! is refused, and costs nobody a crash.
//!
//! ```text
//! handle  63..56 magic | 55..24 generation | 23..16 kind    | 15..0 place
//! slot    63..32 generation                | 31 closed 30..24 kind | 23..0 pins
//! ```
//!
//! Whoever uses a thing pins its slot for as long: one addition to the slot's word, which also
//! tells whether the handle is still right. Destroying closes the slot; what was in it ends with
//! the last pin. There are no locks, and nothing is allocated in a look-up.
//!
//! The table lies in memory that a child of `fork` finds empty, so there every handle of the parent
//! is unknown; generations go on counting, so it never becomes known again.

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::failure::{Failure, Outcome};

/// What C may hold a handle of.
pub trait Noun: Send + Sync + 'static {
    /// Its number among the kinds: 1 to 127.
    const KIND: u8;
    /// What sentences call it.
    const NAME: &'static str;
}

impl Noun for brigade_comm::Op {
    const KIND: u8 = 3;
    const NAME: &'static str = "operator";
}

const MAGIC: u64 = 0xB1;
/// Handles that can be alive at a time.
const SLOTS: usize = 1 << 16;
const PINS: u64 = (1 << 24) - 1;
const CLOSED: u64 = 1 << 31;
const KIND_SHIFT: u32 = 24;

/// A place for one thing. Lines of their own, so that ranks in one process do not share them.
#[repr(C, align(64))]
struct Slot {
    word: AtomicU64,
    thing: AtomicPtr<Head>,
}

/// What every thing in a slot begins with.
struct Head {
    release: unsafe fn(*mut Head),
}

#[repr(C)]
struct Entry<T> {
    head: Head,
    value: Arc<T>,
}

static TABLE: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// The process that last made a handle.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// A place for a thing that is to be made: whoever finds none has done nothing yet.
pub struct Reserved<T: Noun> {
    slot: &'static Slot,
    handle: u64,
    noun: PhantomData<Arc<T>>,
}

/// Make a handle for a thing.
pub fn register<T: Noun>(value: Arc<T>) -> Outcome<u64> {
    Ok(reserve()?.fill(value))
}

/// Have a handle for a thing that comes later.
pub fn reserve<T: Noun>() -> Outcome<Reserved<T>> {
    let slots = table()?;
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    let generation = GENERATION.fetch_add(1, Ordering::Relaxed);
    for step in 0..SLOTS {
        let place = (generation as usize + step) % SLOTS;
        let slot = &slots[place];
        // The same place must not be found twice before it is ready, so it is taken as closed.
        let word = u64::from(generation) << 32 | u64::from(T::KIND) << KIND_SHIFT;
        let taken = word | CLOSED | 1;
        if slot.word.compare_exchange(0, taken, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            let tag = u64::from(generation) << 8 | u64::from(T::KIND);
            let handle = MAGIC << 56 | tag << 16 | place as u64;
            return Ok(Reserved { slot, handle, noun: PhantomData });
        }
    }
    Err(Failure::usage(format!(
        "{SLOTS} handles are alive, as many as there can be: free what is not used any more, such \
         as works that have ended, and operators"
    )))
}

impl<T: Noun> Reserved<T> {
    /// The handle, now that the thing is there.
    pub fn fill(self, value: Arc<T>) -> u64 {
        let entry = Entry { head: Head { release: release::<T> }, value };
        self.slot.thing.store(Box::into_raw(Box::new(entry)).cast(), Ordering::Relaxed);
        // Opens the slot and gives up our pin; pins of strangers are kept.
        self.slot.word.fetch_sub(CLOSED | 1, Ordering::Release);
        let handle = self.handle;
        std::mem::forget(self);
        handle
    }
}

impl<T: Noun> Drop for Reserved<T> {
    fn drop(&mut self) {
        self.slot.unpin();
    }
}

/// Look a handle up, and keep the thing alive meanwhile.
#[inline]
pub fn pin<T: Noun>(handle: u64) -> Outcome<Pinned<T>> {
    let slot = find::<T>(handle)?;
    let before = slot.word.fetch_add(1, Ordering::Acquire);
    // From here on the pin is given back, also where the handle is refused.
    let pinned = Pinned { slot, noun: PhantomData };
    if before >> KIND_SHIFT == tag(handle) { Ok(pinned) } else { Err(refused::<T>(handle)) }
}

/// End a handle. The thing ends now, or with the last call on it.
pub fn close<T: Noun>(handle: u64) -> Outcome {
    let pinned = pin::<T>(handle)?;
    let before = pinned.slot.word.fetch_or(CLOSED, Ordering::Relaxed);
    if before & CLOSED != 0 {
        // Another thread closed it between our look and now.
        return Err(refused::<T>(handle));
    }
    Ok(())
}

/// A thing that does not end while this lives.
pub struct Pinned<T: Noun> {
    slot: &'static Slot,
    noun: PhantomData<Arc<T>>,
}

impl<T: Noun> Pinned<T> {
    /// The thing, to be kept for longer than a call.
    pub fn share(&self) -> Arc<T> {
        Arc::clone(self.shared())
    }

    #[inline]
    fn shared(&self) -> &Arc<T> {
        let entry: *const Entry<T> = self.slot.thing.load(Ordering::Relaxed).cast();
        // SAFETY: the slot was open, with this kind, when it was pinned, so the entry is one of a
        // `T`, stored before that; and while pins are left nobody takes it out.
        unsafe { &(*entry).value }
    }
}

impl<T: Noun> Deref for Pinned<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.shared()
    }
}

impl<T: Noun> Drop for Pinned<T> {
    #[inline]
    fn drop(&mut self) {
        self.slot.unpin();
    }
}

impl Slot {
    #[inline]
    fn unpin(&self) {
        let before = self.word.fetch_sub(1, Ordering::Release);
        if before & (CLOSED | PINS) == CLOSED | 1 {
            self.empty(before - 1);
        }
    }

    /// End what is in a slot that was seen closed and without pins, as the word `closed`. Several
    /// threads may come here, with pins for handles that are refused; one of them claims the slot,
    /// with a pin of its own. Whoever comes late finds another word, perhaps of the next tenant.
    #[cold]
    fn empty(&self, closed: u64) {
        // What other threads did with the thing comes before its end.
        let (pinned, order) = (closed + 1, Ordering::Acquire);
        if self.word.compare_exchange(closed, pinned, order, Ordering::Relaxed).is_err() {
            return;
        }
        let thing = self.thing.swap(ptr::null_mut(), Ordering::Relaxed);
        // Pins of strangers are kept, and none of them will look at the thing.
        self.word.fetch_sub(pinned, Ordering::Release);
        // A place that was reserved may never have been filled.
        if !thing.is_null() {
            // SAFETY: it was made by `fill`, claimed once, and every pin that could look at it
            // has been given back before the last one was.
            unsafe { ((*thing).release)(thing) };
        }
    }
}

/// # Safety
///
/// The head of an `Entry<T>` that was boxed, and that nobody uses any more.
unsafe fn release<T>(thing: *mut Head) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(thing.cast::<Entry<T>>()) });
}

/// What the upper part of a slot's word must be.
#[inline]
fn tag(handle: u64) -> u64 {
    handle >> 16 & 0xFF_FFFF_FFFF
}

#[inline]
fn find<T: Noun>(handle: u64) -> Outcome<&'static Slot> {
    let table = TABLE.load(Ordering::Acquire);
    let kind = (handle >> 16) as u8;
    if table.is_null() || handle >> 56 != MAGIC || kind != T::KIND {
        return Err(refused::<T>(handle));
    }
    // SAFETY: the table has as many slots as 16 bits can name, and is never given back.
    let slot = unsafe { &*table.add(handle as usize % SLOTS) };
    // Most that is wrong is seen before anything is written.
    if slot.word.load(Ordering::Relaxed) >> KIND_SHIFT != tag(handle) {
        return Err(refused::<T>(handle));
    }
    Ok(slot)
}

#[cold]
fn refused<T: Noun>(handle: u64) -> Box<Failure> {
    let name = T::NAME;
    let maker = PROCESS.load(Ordering::Relaxed);
    let here = std::process::id();
    let why = if handle == 0 {
        format!("{name} is NULL")
    } else if handle >> 56 != MAGIC {
        format!("{handle:#x} is no {name}")
    } else if (handle >> 16) as u8 != T::KIND {
        format!("{handle:#x} is a handle, but no {name}")
    } else if maker != 0 && maker != here {
        format!(
            "the {name} {handle:#x} belongs to process {maker}, of which this one ({here}) was \
             forked: make what you need after the fork"
        )
    } else {
        format!(
            "the {name} {handle:#x} does not exist any more: it was destroyed, freed or finalized"
        )
    };
    Failure::argument(why)
}

fn table() -> Outcome<&'static [Slot]> {
    static MADE: OnceLock<Result<(), i32>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let bytes = SLOTS * size_of::<Slot>();
        // SAFETY: a new mapping at an address of the system's choice.
        let memory = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or_default());
        }
        // SAFETY: the mapping that was just made. Where a system (older than Linux 4.14) does not
        // know this, only the protection of forked children is lost.
        unsafe { libc::madvise(memory, bytes, libc::MADV_WIPEONFORK) };
        TABLE.store(memory.cast(), Ordering::Release);
        Ok(())
    });
    if let Err(errno) = made {
        let error = std::io::Error::from_raw_os_error(*errno);
        return Err(Failure::system(format!("no memory for handles: {error}")));
    }
    // SAFETY: the mapping holds so many slots, is never given back, and zeros are slots.
    Ok(unsafe { std::slice::from_raw_parts(TABLE.load(Ordering::Acquire), SLOTS) })
}

#[cfg(test)]
mod tests;
