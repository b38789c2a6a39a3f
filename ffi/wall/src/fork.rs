//! What a child of `fork` inherits without being meant by it.

use crate::{Failure, Outcome};

/// A group that was `begun` in a process, as long as that is this one. A child of `fork` inherits
/// it: there it is refused, and what it holds is never dropped, for it is the parent's.
pub fn own_group<T>(begun: u32, group: T) -> Outcome<T> {
    let here = std::process::id();
    if begun == here {
        return Ok(group);
    }
    std::mem::forget(group);
    Err(Failure::usage(format!(
        "the group was begun in process {begun}, of which this one ({here}) was forked: \
         nothing of it was carried out here"
    )))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::own_group;

    #[test]
    fn what_another_process_began_is_refused_and_not_ended() {
        let (thing, here) = (Rc::new(()), std::process::id());
        assert!(own_group(here, thing.clone()).is_ok());
        assert_eq!(Rc::strong_count(&thing), 1);
        let refused = own_group(here + 1, thing.clone()).expect_err("it is another's");
        assert!(refused.sentence.starts_with("the group was begun in process"), "{refused:?}");
        assert_eq!(Rc::strong_count(&thing), 2, "it was not dropped");
    }
}
