//! Locks that outlive a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lock, whether or not someone panicked while holding it: what is changed under one here is
/// never left half changed.
pub(crate) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
