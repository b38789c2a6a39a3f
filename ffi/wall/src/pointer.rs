//! Pointers from C: looked at before they are used.

use std::ffi::{CStr, c_char};
use std::ptr::NonNull;

use crate::failure::{Failure, Outcome};

/// Where a result goes.
pub struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// A place that can be written to, as far as can be seen.
    pub fn new(pointer: *mut T, name: &str) -> Outcome<Self> {
        match NonNull::new(pointer) {
            Some(place) if place.is_aligned() => Ok(Self(place)),
            Some(_) => Err(misaligned::<T>(name)),
            None => Err(Failure::argument(format!("{name} is NULL"))),
        }
    }

    /// Write what will do until there is something better.
    ///
    /// # Safety
    ///
    /// The place can be written to, now.
    pub unsafe fn holding(self, value: T) -> Self {
        // SAFETY: the caller's promise.
        unsafe { self.put(value) };
        self
    }

    /// # Safety
    ///
    /// The place can be written to, now.
    pub unsafe fn put(&self, value: T) {
        // SAFETY: it is neither null nor misaligned, and the caller vouches for the rest.
        unsafe { self.0.write(value) };
    }
}

/// A reference to what C lets us read.
///
/// # Safety
///
/// The pointer is NULL, or misaligned, or leads to a `T` that stays as it is for `'a`.
pub unsafe fn read<'a, T>(pointer: *const T, name: &str) -> Outcome<&'a T> {
    // SAFETY: the caller's promise; it is checked for the two exceptions inside.
    unsafe { list(pointer, 1, name) }.map(|list| &list[0])
}

/// `count` elements of what C lets us read; NULL will do for none.
///
/// # Safety
///
/// As for [`read`], for so many elements.
pub unsafe fn list<'a, T>(pointer: *const T, count: usize, name: &str) -> Outcome<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    check_list(pointer, count, name)?;
    // SAFETY: it is neither null nor misaligned nor too long, and the caller vouches for the rest.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// `count` elements of what C lets us write; NULL will do for none.
///
/// # Safety
///
/// The pointer is NULL, or misaligned, or leads to so many elements that nobody else touches for
/// `'a`.
pub unsafe fn list_mut<'a, T>(pointer: *mut T, count: usize, name: &str) -> Outcome<&'a mut [T]> {
    if count == 0 {
        return Ok(&mut []);
    }
    check_list(pointer, count, name)?;
    // SAFETY: it is neither null nor misaligned nor too long, and the caller vouches for the rest.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count) })
}

fn check_list<T>(pointer: *const T, count: usize, name: &str) -> Outcome {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    if !pointer.is_aligned() {
        return Err(misaligned::<T>(name));
    }
    if count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Failure::argument(format!("{name}: no memory holds {count} of them")));
    }
    Ok(())
}

/// Text that ends with a zero.
///
/// # Safety
///
/// The pointer is NULL, or leads to bytes with a zero behind them that stay as they are for `'a`.
pub unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Outcome<&'a str> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::argument(format!("{name} is not UTF-8: {text:?}")))
}

fn misaligned<T>(name: &str) -> Box<Failure> {
    let align = align_of::<T>();
    Failure::argument(format!("{name} is not aligned to {align} bytes, so it is no such pointer"))
}
