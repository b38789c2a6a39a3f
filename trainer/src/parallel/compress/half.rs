//! An all-reduce in 16 bits. It adds in 32 and rounds what it passes on, so a sum over R ranks is
//! rounded up to R times, each time by 2⁻⁹ (bf16) or 2⁻¹² (f16) of itself at most.

use super::{Codec, wait};
use crate::error::Error;
use ::half::slice::HalfFloatSliceExt;
use brigade_comm::{Call, Communicator, Element, Op, Owned};
use brigade_schedule::Collective;
use std::time::Duration;

pub(super) struct Half<T: Element> {
    /// The gradient, narrow; with the call while that is on its way.
    room: Vec<T>,
    len: usize,
    call: Option<Owned<T>>,
}

impl<T: Element + Default + Clone> Half<T> {
    pub(super) fn new(len: usize) -> Half<T> {
        Half { room: vec![T::default(); len], len, call: None }
    }
}

impl<T: Element> Codec for Half<T>
where
    [T]: HalfFloatSliceExt,
{
    fn start(&mut self, group: &Communicator, sum: &mut [f32]) -> Result<(), Error> {
        self.room.convert_from_f32_slice(sum);
        let room = std::mem::take(&mut self.room);
        self.call = Some(group.all_reduce_owned(room, Op::Sum)?);
        Ok(())
    }

    fn finish(&mut self, sum: &mut [f32], waited: &mut Duration) -> Result<(), Error> {
        (_, self.room) = wait(self.call.take(), waited)?;
        self.room.convert_to_f32_slice(sum);
        Ok(())
    }

    fn calls(&self) -> Vec<Call> {
        vec![Call::new(Collective::AllReduce, T::DTYPE, Op::Sum, self.len)]
    }

    fn bytes(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }
}
