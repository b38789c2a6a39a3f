//! Slots: memory that a plugin reads and writes on its own. Only slots that it does not have are
//! seen as slices.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use super::{SLOT_BYTES, SLOTS};

/// Begins at a page.
const LAYOUT: Layout = match Layout::from_size_align(SLOTS * SLOT_BYTES, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

/// The slots of one end of a wire.
pub(super) struct Slots(NonNull<u8>);

// SAFETY: plain memory that is owned; who may touch which slot is decided by the wire that owns it.
unsafe impl Send for Slots {}

impl Slots {
    /// Zeroed memory, of which the system gives what is used.
    pub(super) fn new() -> Slots {
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(LAYOUT) };
        Slots(NonNull::new(start).unwrap_or_else(|| handle_alloc_error(LAYOUT)))
    }

    /// All of it.
    pub(super) fn all(&self) -> (*mut u8, usize) {
        (self.0.as_ptr(), LAYOUT.size())
    }

    /// Where a slot begins.
    pub(super) fn start(&self, slot: usize) -> *mut u8 {
        assert!(slot < SLOTS);
        // SAFETY: the slot lies within the memory.
        unsafe { self.0.as_ptr().add(slot * SLOT_BYTES) }
    }

    /// What is in a slot.
    ///
    /// # Safety
    ///
    /// The plugin does not have the slot.
    pub(super) unsafe fn bytes(&self, slot: usize, from: usize, count: usize) -> &[u8] {
        assert!(from + count <= SLOT_BYTES);
        // SAFETY: within the slot, which nobody writes: the plugin by the caller's promise, we
        // because of the borrow.
        unsafe { std::slice::from_raw_parts(self.start(slot).add(from), count) }
    }

    /// Room in a slot.
    ///
    /// # Safety
    ///
    /// The plugin does not have the slot.
    pub(super) unsafe fn room(&mut self, slot: usize, from: usize, count: usize) -> &mut [u8] {
        assert!(from + count <= SLOT_BYTES);
        // SAFETY: within the slot, which nobody else has.
        unsafe { std::slice::from_raw_parts_mut(self.start(slot).add(from), count) }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and given back once.
        unsafe { dealloc(self.0.as_ptr(), LAYOUT) };
    }
}
