//! The ranks of one process, a thread for each.

use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, scope};

use crate::Error;

/// Do something as each of them, in a thread of its own, as they may wait for each other; what it
/// came to, in their order. Nothing is begun unless all can have a thread: those that have one
/// would wait for those that have none.
///
/// # Errors
///
/// [`Error::Exhausted`] if there are not so many threads.
///
/// # Panics
///
/// If one of them does.
pub fn at_once<A: Send, B: Send>(
    those: impl IntoIterator<Item = A>,
    what: impl Fn(A) -> B + Sync,
) -> Result<Vec<B>, Error> {
    let (what, all_are_there) = (&what, &Mutex::new(false));
    let lock = || all_are_there.lock().unwrap_or_else(PoisonError::into_inner);
    scope(|scope| {
        let mut word = lock();
        let begin = |(rank, one)| {
            let body = move || {
                let is_told = *lock();
                is_told.then(|| what(one))
            };
            let started = Builder::new().name(format!("rank {rank}")).spawn_scoped(scope, body);
            started.map_err(|error| Error::no_thread(format!("thread for rank {rank}"), &error))
        };
        let threads: Result<Vec<_>, Error> = those.into_iter().enumerate().map(begin).collect();
        *word = threads.is_ok();
        drop(word);
        let ended = threads?.into_iter().map(|thread| thread.join());
        let came_to = ended.map(|end| end.unwrap_or_else(|panic| resume_unwind(panic)));
        Ok(came_to.map(|one| one.expect("all were told to begin")).collect())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn those_that_wait_for_each_other_come_to_an_end() {
        let barrier = Barrier::new(5);
        let doubled = at_once(0..5, |one| {
            barrier.wait();
            2 * one
        });
        assert_eq!(doubled.unwrap(), [0, 2, 4, 6, 8]);
    }
}
