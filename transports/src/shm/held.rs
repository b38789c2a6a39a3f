//! What ranks of one process hold together: the kernel lets one thread at a time change what is
//! mapped and wakes those who wait in turn, so 64 threads that each mapped a new group's area came
//! out of that 2 ms later.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Things that live as long as somebody holds them, by their keys.
pub(super) struct Held<K, T>(Mutex<BTreeMap<K, Weak<T>>>);

impl<K: Ord, T> Held<K, T> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// What somebody holds by this key. If nobody does, what `make` makes, while others wait.
    pub(super) fn get_or<E>(
        &self,
        key: K,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = held.get(&key).and_then(Weak::upgrade) {
            return Ok(one);
        }
        held.retain(|_, one| one.strong_count() > 0);
        let one = Arc::new(make()?);
        held.insert(key, Arc::downgrade(&one));
        Ok(one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_made_while_somebody_holds_it_and_nothing_is_kept_for_nobody() {
        let held = Held::new();
        let get = |key, value| held.get_or(key, || Ok::<u32, ()>(value)).unwrap();
        let (first, second) = (get(1, 10), get(1, 11));
        assert!(Arc::ptr_eq(&first, &second) && *first == 10 && *get(2, 20) == 20);
        drop((first, second));
        assert_eq!(*get(1, 12), 12);
        assert_eq!(held.0.lock().unwrap().len(), 1, "of the second nothing is left");
        assert_eq!(held.get_or(3, || Err("no")).unwrap_err(), "no");
    }
}
