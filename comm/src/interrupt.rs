//! Whether a thread that waits in a call shall go on waiting, for those who are told of signals
//! between calls only, as interpreters are.
//!
//! Nothing here knows what a signal is.

use std::cell::RefCell;

use crate::inside::Inside;

/// Whether the call shall end now.
type Check = Box<dyn FnMut() -> bool>;

thread_local! {
    static CHECK: RefCell<Option<Check>> = const { RefCell::new(None) };
}

/// Have the calls of this thread ask `check`, some fifty times a second while they wait for other
/// ranks and nothing moves; `None` asks nobody. Once it says true, the call ends the world: an
/// [`Error::Aborted`](crate::Error) on all ranks, which names this one and the call. A call that
/// it makes itself is refused. Finding the others, with which a world begins, asks nobody.
pub fn interrupt_by(check: Option<Box<dyn FnMut() -> bool>>) {
    CHECK.set(check);
}

/// Whether this thread's call shall end now.
pub(crate) fn is_wanted() -> bool {
    // A thread that is ending has nobody left to ask.
    let taken = CHECK.try_with(RefCell::take).ok().flatten();
    let Some(mut check) = taken else { return false };
    let is_wanted = {
        let _inside = Inside::any_call();
        check()
    };
    CHECK.with_borrow_mut(|place| {
        // It may have named another one.
        place.get_or_insert(check);
    });
    is_wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_asked_until_another_or_none_takes_its_place() {
        assert!(!is_wanted());
        let mut times = 0;
        interrupt_by(Some(Box::new(move || {
            times += 1;
            times == 2
        })));
        assert!(!is_wanted() && is_wanted() && !is_wanted());
        interrupt_by(Some(Box::new(|| {
            interrupt_by(None);
            true
        })));
        assert!(is_wanted());
        interrupt_by(None);
        assert!(!is_wanted());
    }
}
