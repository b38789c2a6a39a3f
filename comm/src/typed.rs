//! The collectives as typed calls, one method each.
//!
//! Counts are elements. Cost is that of the algorithm chosen for the size; see
//! [`Communicator::algorithm_for`]. Errors are those of [`Communicator::run`]. In all of them a
//! count of zero, a group of one rank and odd sizes are legal.

use std::sync::Arc;

use brigade_schedule::Collective;

use crate::call::{Buffers, Call, Counts};
use crate::communicator::Communicator;
use crate::dtype::Element;
use crate::{Error, Op};

impl Communicator {
    /// Fold `data` over all ranks, in place: `[count]` elements on every rank, and every rank ends
    /// with identical bits.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: Op) -> Result<(), Error> {
        let call = Call::new(Collective::AllReduce, T::DTYPE, op, data.len());
        self.run(&call, Buffers::InPlace(bytes_mut(data)))
    }

    /// Fold the inputs of all ranks into every rank's `output`: `[count]` elements each.
    pub fn all_reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: Op,
    ) -> Result<(), Error> {
        let call = Call::new(Collective::AllReduce, T::DTYPE, op, output.len());
        self.apart(&call, input, output)
    }

    /// Fold several tensors over all ranks, in place. Small ones travel together, so many short
    /// tensors cost little more than one.
    pub fn all_reduce_many<T: Element>(&self, list: &mut [&mut [T]], op: Op) -> Result<(), Error> {
        /// Up to here copying a tensor costs less than a call of its own.
        const FUSE_BYTES: usize = 64 << 10;
        let is_small = |tensor: &[T]| std::mem::size_of_val(tensor) <= FUSE_BYTES;
        let mut fused: Vec<T> = Vec::new();
        for tensor in list.iter().filter(|tensor| is_small(tensor)) {
            fused.extend_from_slice(tensor);
        }
        self.all_reduce(&mut fused, op.clone())?;
        let mut rest = &fused[..];
        for tensor in list.iter_mut() {
            if is_small(tensor) {
                let (head, tail) = rest.split_at(tensor.len());
                tensor.copy_from_slice(head);
                rest = tail;
            } else {
                self.all_reduce(tensor, op.clone())?;
            }
        }
        Ok(())
    }

    /// Fold the inputs of all ranks; rank `r` gets block `r`. `input`: `[ranks * count]`, `output`:
    /// `[count]`.
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: Op,
    ) -> Result<(), Error> {
        let call = Call::new(Collective::ReduceScatter, T::DTYPE, op, output.len());
        self.apart(&call, input, output)
    }

    /// Like [`Communicator::reduce_scatter`] with `counts[r]` elements for rank `r`.
    pub fn reduce_scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        op: Op,
    ) -> Result<(), Error> {
        let counts = Counts::PerRank(counts.into());
        let call = Call { collective: Collective::ReduceScatter, dtype: T::DTYPE, op, counts };
        self.apart(&call, input, output)
    }

    /// Collect the inputs of all ranks on all ranks. `input`: `[count]`, `output`:
    /// `[ranks * count]`.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.apart(&Call::moving(Collective::AllGather, T::DTYPE, input.len()), input, output)
    }

    /// Like [`Communicator::all_gather`] with `counts[r]` elements from rank `r`.
    pub fn all_gather_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
    ) -> Result<(), Error> {
        self.uneven(Collective::AllGather, counts, input, output)
    }

    /// Copy `data` of rank `root` to all ranks, in place: `[count]` on every rank.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        let collective = Collective::Broadcast { root: rank_number(root) };
        let call = Call::moving(collective, T::DTYPE, data.len());
        self.run(&call, Buffers::InPlace(bytes_mut(data)))
    }

    /// Fold `data` of all ranks into `data` of rank `root`; that of other ranks stays as it is.
    pub fn reduce<T: Element>(&self, data: &mut [T], op: Op, root: usize) -> Result<(), Error> {
        let collective = Collective::Reduce { root: rank_number(root) };
        let call = Call::new(collective, T::DTYPE, op, data.len());
        self.run(&call, Buffers::InPlace(bytes_mut(data)))
    }

    /// Send block `r` of `input` to rank `r`, and collect in `output` what all ranks sent here.
    /// Both are `[ranks * count]`.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        if !input.len().is_multiple_of(self.size()) {
            return Err(Error::invalid(format!(
                "all-to-all: {} elements cannot be divided among {} ranks",
                input.len(),
                self.size()
            )));
        }
        let count = input.len() / self.size();
        self.apart(&Call::moving(Collective::AllToAll, T::DTYPE, count), input, output)
    }

    /// Like [`Communicator::all_to_all`] with `to[r]` elements to rank `r` and `from[r]` from it.
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &[T],
        to: &[usize],
        output: &mut [T],
        from: &[usize],
    ) -> Result<(), Error> {
        let counts = Counts::PerPair { to: to.into(), from: from.into() };
        let call = Call { counts, ..Call::moving(Collective::AllToAll, T::DTYPE, 0) };
        self.apart(&call, input, output)
    }

    /// Collect the inputs of all ranks on rank `root`. `input`: `[count]`; `output`:
    /// `[ranks * count]` on the root, ignored elsewhere.
    pub fn gather<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        root: usize,
    ) -> Result<(), Error> {
        let collective = Collective::Gather { root: rank_number(root) };
        self.apart(&Call::moving(collective, T::DTYPE, input.len()), input, output)
    }

    /// Like [`Communicator::gather`] with `counts[r]` elements from rank `r`. The root needs all
    /// counts right; elsewhere only the rank's own is looked at.
    pub fn gather_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<(), Error> {
        self.uneven(Collective::Gather { root: rank_number(root) }, counts, input, output)
    }

    /// Send block `r` of rank `root`'s input to rank `r`. `input`: `[ranks * count]` on the root,
    /// ignored elsewhere; `output`: `[count]`.
    pub fn scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        root: usize,
    ) -> Result<(), Error> {
        let collective = Collective::Scatter { root: rank_number(root) };
        self.apart(&Call::moving(collective, T::DTYPE, output.len()), input, output)
    }

    /// Like [`Communicator::scatter`] with `counts[r]` elements to rank `r`. The root needs all
    /// counts right; elsewhere only the rank's own is looked at.
    pub fn scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<(), Error> {
        self.uneven(Collective::Scatter { root: rank_number(root) }, counts, input, output)
    }

    /// Wait until every rank has come here.
    pub fn barrier(&self) -> Result<(), Error> {
        let call = Call::moving(Collective::Barrier, crate::Dtype::U8, 0);
        self.run(&call, Buffers::InPlace(&mut []))
    }

    fn uneven<T: Element>(
        &self,
        collective: Collective,
        counts: &[usize],
        input: &[T],
        output: &mut [T],
    ) -> Result<(), Error> {
        let counts: Arc<[usize]> = counts.into();
        let call =
            Call { counts: Counts::PerRank(counts), ..Call::moving(collective, T::DTYPE, 0) };
        self.apart(&call, input, output)
    }

    fn apart<T: Element>(&self, call: &Call, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.run(call, Buffers::OutOfPlace { input: bytes(input), output: bytes_mut(output) })
    }
}

/// A rank as calls number them; one that no group has stays one that no group has.
fn rank_number(rank: usize) -> u32 {
    u32::try_from(rank).unwrap_or(u32::MAX)
}

/// The bytes of elements.
pub(crate) fn bytes<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: elements have no padding, and any byte may be read.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// The bytes of elements, to be overwritten by bytes of elements of the same type.
pub(crate) fn bytes_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    let bytes = size_of_val(elements);
    // SAFETY: elements have no padding. What is written through the slice comes from folds of this
    // type or from the same call's buffers of other ranks, whose type the header has compared, so
    // it is valid for the type.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), bytes) }
}
