//! What the calling thread is in the middle of: a group of calls, or a user's operator.

use std::cell::{Cell, RefCell};

use brigade_wall::{Failure, Outcome};

thread_local! {
    /// How many groups are open, and whether an operator runs. Read by every call, so it is one
    /// word that needs no destructor.
    static MODE: Cell<u32> = const { Cell::new(0) };
    /// Why nothing of the open group will be carried out.
    static SPOILT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Set while a function of the user's runs inside a call; the bits below count open groups.
const FOLDING: u32 = 1 << 31;

/// Whether calls are carried out at once.
#[inline]
pub(crate) fn is_plain() -> bool {
    MODE.get() == 0
}

/// How many groups are open.
pub(crate) fn open_groups() -> u32 {
    MODE.get() & !FOLDING
}

/// Open a group within those that are open, or close the innermost one.
pub(crate) fn set_open_groups(count: u32) {
    MODE.set(MODE.get() & FOLDING | count & !FOLDING);
}

/// Note that a call of an open group was refused.
pub(crate) fn spoil(failure: &Failure) {
    if open_groups() > 0 {
        // A thread that is ending has no groups any more.
        let _ = SPOILT.try_with(|spoilt| {
            spoilt.borrow_mut().get_or_insert_with(|| failure.sentence.clone());
        });
    }
}

/// The first call that was refused since a group was opened, in a sentence.
pub(crate) fn take_spoilt() -> Option<String> {
    SPOILT.try_with(RefCell::take).unwrap_or_default()
}

/// Refuse what an operator may not do, or who is asked by a call that waits: it runs inside the
/// call, and would wait for itself.
pub(crate) fn refuse_in_operator() -> Outcome {
    if MODE.get() & FOLDING != 0 {
        return Err(Failure::usage(
            "a function that runs inside a call, as operators do, called one that may wait",
        ));
    }
    Ok(())
}

/// Refuse what cannot be part of a group.
pub(crate) fn refuse_in_group(what: &str) -> Outcome {
    if open_groups() > 0 {
        return Err(Failure::usage(format!(
            "{what} cannot be part of a group: call it before brigade_group_start"
        )));
    }
    Ok(())
}

/// The stretch during which such a function runs on this thread.
pub(crate) struct Folding(u32);

impl Folding {
    pub(crate) fn begin() -> Self {
        let before = MODE.get();
        MODE.set(before | FOLDING);
        Self(before)
    }
}

impl Drop for Folding {
    fn drop(&mut self) {
        MODE.set(self.0);
    }
}
