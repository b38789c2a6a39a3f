//! Slots: memory that a plugin reads and writes on its own. Only slots that it does not have are
//! seen as slices.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use super::net::Failure;
use super::{SLOT_BYTES, SLOTS};

/// Begins at a page.
const LAYOUT: Layout = match Layout::from_size_align(SLOTS * SLOT_BYTES, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

/// The slots of one end of a wire.
pub(super) struct Slots {
    start: NonNull<u8>,
    /// Whether a plugin may still write there, for ever.
    is_kept: bool,
}

// SAFETY: plain memory that is owned; who may touch which slot is decided by the wire that owns it.
unsafe impl Send for Slots {}

impl Slots {
    /// Zeroed memory, of which the system gives what is used.
    pub(super) fn new() -> Slots {
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(LAYOUT) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(LAYOUT));
        Slots { start, is_kept: false }
    }

    /// All of it.
    pub(super) fn all(&self) -> (*mut u8, usize) {
        (self.start.as_ptr(), LAYOUT.size())
    }

    /// What a plugin has said to its end of the wire being closed. A plugin may refuse that where
    /// receives are posted (the one of EFA does), and goes on with them: then the memory stays.
    pub(super) fn after(&mut self, closing: &Result<(), Failure>) {
        self.is_kept |= closing.is_err();
    }

    /// Where a slot begins.
    pub(super) fn start(&self, slot: usize) -> *mut u8 {
        assert!(slot < SLOTS);
        // SAFETY: the slot lies within the memory.
        unsafe { self.start.as_ptr().add(slot * SLOT_BYTES) }
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
        if !self.is_kept {
            // SAFETY: allocated with this layout, and given back once.
            unsafe { dealloc(self.start.as_ptr(), LAYOUT) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::outlet::{Outlet, lock};
    use super::super::trial;
    use super::*;

    #[test]
    fn memory_that_a_plugin_does_not_let_go_of_is_not_used_for_anything_else() {
        let outlet = Outlet::new(trial::net(), 1, trial::STUBBORN).expect("it registers that");
        let kept = lock(&outlet).start();
        drop(outlet);
        assert_eq!(trial::closed("send", trial::STUBBORN), 1);
        let others: Vec<Slots> = (0..16).map(|_| Slots::new()).collect();
        assert!(others.iter().all(|slots| slots.all().0 != kept));
    }
}
