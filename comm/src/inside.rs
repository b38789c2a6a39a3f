//! Functions of the user's that run inside a call: operators, updates, and who is asked whether to
//! go on waiting.
//!
//! While one runs, its communicator is busy with that call, so another call on it would wait for
//! itself, and no deadline would end that. Such a call is refused instead.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Error;

const NONE: u64 = 0;
const ALL: u64 = u64::MAX;

thread_local! {
    /// The communicator on which this thread may make no call, by its number; or none, or all.
    static BARRED: Cell<u64> = const { Cell::new(NONE) };
}

/// A number for a communicator, which no other one of this process has.
pub(crate) fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(NONE + 1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The stretch during which such a function runs on this thread.
pub(crate) struct Inside {
    before: u64,
}

impl Inside {
    /// In a call of the communicator with this number: it may make calls on others, though no
    /// function inside those may.
    pub(crate) fn call_of(number: u64) -> Self {
        let before = BARRED.get();
        BARRED.set(if before == NONE { number } else { ALL });
        Self { before }
    }

    /// In a call, where it may make none.
    pub(crate) fn any_call() -> Self {
        Self { before: BARRED.replace(ALL) }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        BARRED.set(self.before);
    }
}

/// Refuse a call on the communicator with this number to a function that would wait for itself.
#[inline]
pub(crate) fn refuse(number: u64) -> Result<(), Error> {
    let barred = BARRED.get();
    if barred == NONE || (barred != number && barred != ALL) { Ok(()) } else { Err(refusal()) }
}

#[cold]
fn refusal() -> Error {
    Error::invalid(
        "a communicator was called from a function that runs inside a call, as operators and \
         updates do: it would wait for itself",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_inside_a_call_makes_none_on_its_communicator() {
        let (one, other) = (number(), number());
        let may = |number| refuse(number).is_ok();
        assert!(may(one) && may(other));
        {
            let _update = Inside::call_of(one);
            assert!(!may(one) && may(other));
            {
                let _update_within = Inside::call_of(other);
                assert!(!may(one) && !may(other));
            }
            assert!(!may(one) && may(other));
            let _operator = Inside::any_call();
            assert!(!may(one) && !may(other));
        }
        assert!(may(one) && may(other));
    }
}
