//! What a plan calls out to: the fold of a reducing collective, and the function in the middle of a
//! sharded update.

use crate::reduction::Reduction;

/// The functions of one call.
pub(crate) struct Functions<'a> {
    pub(crate) reduction: &'a Reduction,
    pub(crate) middle: Option<&'a mut dyn Middle>,
}

/// An update of weights by gradients, a part of a shard at a time, without their types.
pub(crate) trait Middle {
    /// Whether the part that begins at element `first` of the shard can be updated now.
    fn is_ready(&mut self, first: usize, elems: usize) -> bool;

    /// Update it.
    ///
    /// # Safety
    ///
    /// Both places hold `elems` elements of the types that this was made for, and nobody else
    /// touches them meanwhile.
    unsafe fn update(&mut self, first: usize, elems: usize, gradients: *mut u8, weights: *mut u8);
}
