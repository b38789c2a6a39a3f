//! Looking into shared memory: values that may change at any time, and plain bytes.
//!
//! A view keeps the mapping that it looks into. What lies where is not known here.

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::sys::Mapping;
use crate::caches;

/// A value with a cache line of its own.
#[repr(C, align(64))]
pub(super) struct Line<T>(pub(super) T);

/// What may be looked at through a [`Shared`]: atomics, and plain bytes behind a protocol.
///
/// # Safety
/// Every pattern of bits is a valid value, and all of it may change behind a shared reference.
pub(super) unsafe trait Plain {}
// SAFETY: an atomic word has no invalid pattern.
unsafe impl Plain for AtomicU32 {}
// SAFETY: as above.
unsafe impl Plain for AtomicU64 {}
// SAFETY: a line is its content and padding.
unsafe impl<T: Plain> Plain for Line<T> {}
// SAFETY: an array of such values.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Define structures that are made of such values only, each with whole cache lines of its own.
macro_rules! plain {
    ($(
        $(#[$about:meta])*
        struct $name:ident { $($(#[$note:meta])* $field:ident: $type:ty,)* }
    )*) => {$(
        $(#[$about])*
        #[repr(C, align(64))]
        struct $name {
            $($(#[$note])* $field: $type,)*
        }

        const _: () = {
            const fn is_plain<T: $crate::shm::region::Plain>() {}
            $(is_plain::<$type>();)*
        };

        // SAFETY: each field is such a value, as just checked, and there is nothing else but
        // padding.
        unsafe impl $crate::shm::region::Plain for $name {}
    )*};
}
pub(super) use plain;

/// A value in shared memory, kept mapped as long as this lives.
pub(super) struct Shared<T> {
    place: NonNull<T>,
    _map: Arc<Mapping>,
    _type: PhantomData<T>,
}

// SAFETY: what lies there is `Plain`: shared by its nature, between processes even.
unsafe impl<T: Plain> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Shared<T> {}

impl<T: Plain> Shared<T> {
    /// # Panics
    /// When the value does not lie, aligned, within the mapping.
    pub(super) fn new(map: &Arc<Mapping>, offset: usize) -> Self {
        let end = offset.checked_add(size_of::<T>());
        assert!(
            end.is_some_and(|end| end <= map.bytes()) && offset.is_multiple_of(align_of::<T>())
        );
        // SAFETY: `offset` is within the mapping, as just asserted; mappings are page-aligned.
        let place = unsafe { map.base().add(offset) }.cast();
        Self { place, _map: map.clone(), _type: PhantomData }
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { place: self.place, _map: self._map.clone(), _type: PhantomData }
    }
}

impl<T: Plain> Deref for Shared<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the place is mapped while `_map` lives, aligned, and any bits there are a `T`
        // whose parts may change behind this reference.
        unsafe { self.place.as_ref() }
    }
}

/// Which way stores take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stores {
    /// Into the cache.
    Through,
    /// To memory, leaving the caches as they are.
    Past,
}

/// Plain bytes in shared memory, kept mapped as long as this lives. Whoever touches them follows
/// the ring's or the window's protocol.
pub(super) struct Bytes {
    base: NonNull<u8>,
    bytes: usize,
    _map: Arc<Mapping>,
}

// SAFETY: the bytes belong to nobody in particular; the protocol of their users orders accesses.
unsafe impl Send for Bytes {}

impl Bytes {
    /// # Panics
    /// When the bytes do not lie within the mapping.
    pub(super) fn new(map: &Arc<Mapping>, offset: usize, bytes: usize) -> Self {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= map.bytes()));
        // SAFETY: `offset` is within the mapping, as just asserted.
        let base = unsafe { map.base().add(offset) };
        Self { base, bytes, _map: map.clone() }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// The address of the byte at `offset`, from which `bytes` may be touched.
    ///
    /// # Panics
    /// When they do not lie within.
    #[inline]
    pub(super) fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset);
        // SAFETY: `offset` is within the bytes, as just asserted.
        unsafe { self.base.add(offset) }
    }

    /// A value at `offset`, as [`Shared`] has one.
    ///
    /// # Panics
    /// When the value does not lie, aligned, within.
    #[inline]
    pub(super) fn value<T: Plain>(&self, offset: usize) -> &T {
        let place = self.at(offset, size_of::<T>()).cast::<T>();
        assert!(place.is_aligned());
        // SAFETY: the place is mapped while `_map` lives, aligned, and any bits there are a `T`
        // whose parts may change behind this reference.
        unsafe { place.as_ref() }
    }

    /// Copy `bytes` to `offset`. By the protocol of its users, nobody else touches that place now.
    #[inline]
    pub(super) fn write(&self, offset: usize, bytes: &[u8], stores: Stores) {
        let place = self.at(offset, bytes.len()).as_ptr();
        match stores {
            // SAFETY: the place is mapped and as long as `bytes`; no memory of ours overlaps it.
            Stores::Through => unsafe {
                place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            },
            Stores::Past => {
                // SAFETY: as above.
                unsafe { caches::copy_past(bytes, place) };
            }
        }
    }

    /// Copy from `offset` to `target`. What somebody is writing there arrives in any state.
    pub(super) fn read(&self, offset: usize, target: &mut [u8]) {
        let place = self.at(offset, target.len());
        // SAFETY: the place is mapped and as long as `target`, which does not overlap it.
        unsafe { place.as_ptr().copy_to_nonoverlapping(target.as_mut_ptr(), target.len()) }
    }
}
