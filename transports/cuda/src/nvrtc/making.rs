//! Of several threads that want the same code one makes it, and the others wait for it: ranks that
//! are threads of one process begin alike, and with an empty cache each would compile for itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::Result;

/// What one makes, for as long as anybody waits for it.
type Made = Mutex<Option<Arc<[u8]>>>;

/// What is being made, by its names.
static MAKING: Mutex<BTreeMap<String, Weak<Made>>> = Mutex::new(BTreeMap::new());

/// What `make` makes by this name, or what another thread has made by it since this one asked. Who
/// waited for one that failed tries by itself.
pub(super) fn once(name: &str, make: impl FnOnce() -> Result<Arc<[u8]>>) -> Result<Arc<[u8]>> {
    let made = made(name);
    let mut made = locked(&made);
    if let Some(image) = &*made {
        return Ok(Arc::clone(image));
    }
    Ok(Arc::clone(made.insert(make()?)))
}

fn made(name: &str) -> Arc<Made> {
    let mut making = locked(&MAKING);
    if let Some(made) = making.get(name).and_then(Weak::upgrade) {
        return made;
    }
    making.retain(|_, made| made.strong_count() > 0);
    let made = Arc::default();
    making.insert(name.to_owned(), Arc::downgrade(&made));
    made
}

/// The lock, whether or not someone panicked while holding it: nothing here is left half changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::CudaError;

    /// Have threads ask at once, of which the first that makes something takes a while.
    fn ask(name: &'static str, fails: bool) -> (usize, Vec<Result<Arc<[u8]>>>) {
        const THREADS: usize = 4;
        let (asking, makes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let make = || {
            let number = makes.fetch_add(1, Ordering::Relaxed);
            while asking.load(Ordering::Relaxed) < THREADS {
                std::thread::sleep(Duration::from_millis(1));
            }
            // They have come so far, and have little left to do before they wait.
            std::thread::sleep(Duration::from_millis(100));
            match fails && number == 0 {
                true => Err(CudaError::refused("the first one fails")),
                false => Ok(Arc::from([number as u8])),
            }
        };
        let outcomes = std::thread::scope(|scope| {
            let ask = || {
                asking.fetch_add(1, Ordering::Relaxed);
                once(name, make)
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        (makes.into_inner(), outcomes)
    }

    #[test]
    fn what_several_want_at_once_is_made_once() {
        let (makes, outcomes) = ask("once", false);
        assert_eq!(makes, 1);
        assert!(outcomes.iter().all(|made| made.as_deref().is_ok_and(|made| made == [0])));
        let again = once("once", || Ok(Arc::from([7_u8])));
        assert_eq!(again.expect("made")[..], [7], "nothing is kept for nobody");
        assert!(locked(&MAKING).get("once").is_none_or(|made| made.upgrade().is_none()));
    }

    #[test]
    fn who_waited_for_one_that_failed_tries_by_itself() {
        let (makes, outcomes) = ask("fails", true);
        assert_eq!(makes, 2);
        let made = outcomes.iter().filter(|made| made.as_deref().is_ok_and(|made| made == [1]));
        assert_eq!((made.count(), outcomes.iter().filter(|made| made.is_err()).count()), (3, 1));
    }
}
