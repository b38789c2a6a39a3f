//! What the calling thread is in the middle of: a group, in which calls are only listed.

use std::cell::{Cell, RefCell};

use brigade_wall::{Failure, Outcome};

thread_local! {
    /// How many groups are open, one within the other.
    static OPEN: Cell<u32> = const { Cell::new(0) };
    /// Why nothing of them will be carried out.
    static SPOILT: RefCell<Option<Box<Failure>>> = const { RefCell::new(None) };
}

/// How many groups are open.
pub(crate) fn count() -> u32 {
    OPEN.get()
}

/// Open a group within those that are open, or close the innermost one.
pub(crate) fn set_count(count: u32) {
    OPEN.set(count);
}

/// Whether calls are only listed.
pub(crate) fn is_open() -> bool {
    OPEN.get() > 0
}

/// Refuse what cannot be part of a group.
pub(crate) fn refuse(what: &str) -> Outcome {
    if is_open() {
        return Err(Failure::usage(format!("{what} cannot be part of a group")));
    }
    Ok(())
}

/// Note that a call of an open group was refused.
pub(crate) fn spoil(failure: &Failure) {
    if is_open() {
        // A thread that is ending has no groups any more.
        let _ = SPOILT.try_with(|spoilt| {
            spoilt.borrow_mut().get_or_insert_with(|| Box::new(failure.clone()));
        });
    }
}

/// The first call that was refused since a group was opened.
pub(crate) fn take_spoilt() -> Option<Box<Failure>> {
    SPOILT.try_with(RefCell::take).unwrap_or_default()
}
