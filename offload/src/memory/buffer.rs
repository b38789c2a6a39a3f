//! A buffer: an owned, exact range of the arena.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use bytemuck::Pod;

use super::pool::Pool;
use super::{Category, Window};

/// Memory taken from an [`Arena`](super::Arena); it goes back when this is dropped.
///
/// Begins at a multiple of [`super::ALIGNMENT`], so any type of number may look at it.
pub struct Buffer {
    pool: Arc<Pool>,
    start: usize,
    bytes: usize,
    category: Category,
}

impl Buffer {
    /// The owner of `bytes` bytes from `start` of the arena, as its books say.
    pub(super) fn new(pool: Arc<Pool>, start: usize, bytes: usize, category: Category) -> Self {
        assert!(start + bytes <= pool.region.bytes());
        Self { pool, start, bytes, category }
    }

    /// What it was taken for.
    pub fn category(&self) -> Category {
        self.category
    }

    /// The bytes as numbers.
    ///
    /// Panics: when the length is no multiple of a number's.
    pub fn view<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(self)
    }

    /// The bytes as numbers, to be changed.
    ///
    /// Panics: when the length is no multiple of a number's.
    pub fn view_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self)
    }

    /// The part that a transfer shall see.
    ///
    /// Panics: when the range is not within the buffer.
    ///
    /// # Safety
    /// The buffer must be neither dropped nor touched until every transfer that was given the
    /// window has completed.
    pub(crate) unsafe fn window(&mut self, range: Range<usize>) -> Window {
        let part = &mut self[range];
        // SAFETY: the part is valid memory now, and the caller promises that it stays so.
        unsafe { Window::new(part.as_mut_ptr(), part.len()) }
    }
}

// Buffers are plain memory that only their owner touches: `Pool` is Send and Sync, and the books
// give no range to two buffers, so the automatic Send and Sync are right.
impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies within the arena, which this buffer keeps mapped and populated,
        // and the books gave it to no other buffer. All bit patterns are bytes.
        unsafe { std::slice::from_raw_parts(self.pool.base().as_ptr().add(self.start), self.bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the borrow of the only owner is exclusive.
        unsafe {
            std::slice::from_raw_parts_mut(self.pool.base().as_ptr().add(self.start), self.bytes)
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.give(self.start, self.bytes, self.category);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes, {})", self.bytes, self.category.name())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Arena, Budget};
    use super::*;

    #[test]
    fn buffers_are_exact_and_apart() {
        let arena = Arena::new(Budget::new(8 << 20)).unwrap();
        let mut first = arena.take(4 * 1001, Category::Gradients).unwrap();
        let mut second = arena.take(1 << 20, Category::Staging).unwrap();
        first.view_mut::<f32>().fill(1.5);
        second.fill(7);
        assert_eq!(first.len(), 4004);
        assert!(first.view::<f32>().iter().all(|x| *x == 1.5));
        assert_eq!(second.as_ptr().addr() % super::super::ALIGNMENT, 0);
        assert_eq!(arena.take(0, Category::Other).unwrap().len(), 0);
    }
}
