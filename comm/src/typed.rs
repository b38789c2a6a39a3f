//! The collectives as typed calls, one method each.
//!
//! Counts are elements. In all of them a count of zero, a group of one rank and odd sizes are
//! legal.

use std::sync::Arc;

use brigade_schedule::Collective;

use crate::call::{Buffers, Call, Counts};
use crate::communicator::Communicator;
use crate::dtype::Element;
use crate::{Error, Op};

/// The typed collectives. In their costs P is the number of ranks and n the bytes of the longer
/// buffer of a rank, and the algorithm is the one chosen for the length where the settings name no
/// other; see [`Communicator::algorithm_for`]. What ends a group, and so any call, is told by
/// [`Error`]. A buffer of which the call needs no element is not looked at, whatever its length.
impl Communicator {
    /// Fold `data` over all ranks, in place: `[count]` elements on every rank, and every rank ends
    /// with identical bits.
    ///
    /// Cost: ceil(log2 P) steps and n bytes sent in each if short, else 2n(P-1)/P bytes in at most
    /// 2(P-1) steps.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an operator that has no meaning for `T`; otherwise what ended the
    /// group.
    ///
    /// ```
    /// # use brigade_comm::*;
    /// # at_once(Communicator::local_world(2, &Settings::default()).unwrap(), |comm| {
    /// let mut numbers = [comm.rank() as f32, 1.0];
    /// comm.all_reduce(&mut numbers, Op::Sum)?;
    /// assert_eq!(numbers, [1.0, 2.0]);
    /// # Ok::<(), Error>(()) }).unwrap().into_iter().for_each(Result::unwrap);
    /// ```
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: Op) -> Result<(), Error> {
        let call = Call::new(Collective::AllReduce, T::DTYPE, op, data.len());
        self.run(&call, Buffers::InPlace(bytes_mut(data)))
    }

    /// Fold the inputs of all ranks into every rank's `output`: `[count]` elements each.
    ///
    /// Cost: that of [`Communicator::all_reduce`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an operator that has no meaning for `T` or buffers of unequal
    /// lengths; otherwise what ended the group.
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
    ///
    /// Cost: one [`Communicator::all_reduce`] for all tensors up to 64 KiB together, which are
    /// copied out and back, and one for each longer one.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an operator that has no meaning for `T`; otherwise what ended the
    /// group.
    pub fn all_reduce_many<T: Element>(&self, list: &mut [&mut [T]], op: Op) -> Result<(), Error> {
        /// Up to here copying a tensor costs less than a call of its own.
        const FUSE_BYTES: usize = 64 << 10;
        let is_small = |tensor: &[T]| std::mem::size_of_val(tensor) <= FUSE_BYTES;
        let mut fused: Vec<T> = Vec::new();
        for tensor in list.iter().filter(|tensor| is_small(tensor)) {
            fused.extend_from_slice(tensor);
        }
        // All ranks see the same lengths, so all of them skip it or none.
        if !fused.is_empty() {
            self.all_reduce(&mut fused, op.clone())?;
        }
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
    ///
    /// Cost: n(P-1)/P bytes sent in P-1 steps; if short, in log2 P steps where P is a power of two.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an operator that has no meaning for `T`, an `input` that is not P
    /// times as long as `output`; otherwise what ended the group.
    ///
    /// ```
    /// # use brigade_comm::*;
    /// # at_once(Communicator::local_world(2, &Settings::default()).unwrap(), |comm| {
    /// let mut own = [0];
    /// comm.reduce_scatter(&[1, 10], &mut own, Op::Sum)?;
    /// assert_eq!(own, [[2], [20]][comm.rank()]);
    /// # Ok::<(), Error>(()) }).unwrap().into_iter().for_each(Result::unwrap);
    /// ```
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
    ///
    /// Cost: that of [`Communicator::reduce_scatter`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an operator that has no meaning for `T`, or `counts` that fit neither
    /// the group nor the buffers; otherwise what ended the group.
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
    ///
    /// Cost: n(P-1)/P bytes sent in P-1 steps; if short, in ceil(log2 P) steps.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an `output` that is not P times as long as `input`; otherwise what
    /// ended the group.
    ///
    /// ```
    /// # use brigade_comm::*;
    /// # at_once(Communicator::local_world(2, &Settings::default()).unwrap(), |comm| {
    /// let mut all = [0; 2];
    /// comm.all_gather(&[comm.rank() as i32], &mut all)?;
    /// assert_eq!(all, [0, 1]);
    /// # Ok::<(), Error>(()) }).unwrap().into_iter().for_each(Result::unwrap);
    /// ```
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.apart(&Call::moving(Collective::AllGather, T::DTYPE, input.len()), input, output)
    }

    /// Like [`Communicator::all_gather`] with `counts[r]` elements from rank `r`.
    ///
    /// Cost: that of [`Communicator::all_gather`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for `counts` that fit neither the group nor the buffers; otherwise what
    /// ended the group.
    pub fn all_gather_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
    ) -> Result<(), Error> {
        self.uneven(Collective::AllGather, counts, input, output)
    }

    /// Copy `data` of rank `root` to all ranks, in place: `[count]` on every rank.
    ///
    /// Cost: ceil(log2 P) steps if short; else n bytes stream along P-1 steps and are sent once by
    /// each rank but the last.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a bad root; otherwise what ended the group.
    ///
    /// ```
    /// # use brigade_comm::*;
    /// # at_once(Communicator::local_world(2, &Settings::default()).unwrap(), |comm| {
    /// let mut word = [*b"hello", *b"-----"][comm.rank()];
    /// comm.broadcast(&mut word, 0)?;
    /// assert_eq!(&word, b"hello");
    /// # Ok::<(), Error>(()) }).unwrap().into_iter().for_each(Result::unwrap);
    /// ```
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        let collective = Collective::Broadcast { root: rank_number(root) };
        let call = Call::moving(collective, T::DTYPE, data.len());
        self.run(&call, Buffers::InPlace(bytes_mut(data)))
    }

    /// Fold `data` of all ranks into `data` of rank `root`; that of other ranks stays as it is.
    ///
    /// Cost: as for [`Communicator::broadcast`], the other way round.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a bad root or an operator that has no meaning for `T`; otherwise what
    /// ended the group.
    pub fn reduce<T: Element>(&self, data: &mut [T], op: Op, root: usize) -> Result<(), Error> {
        let collective = Collective::Reduce { root: rank_number(root) };
        let call = Call::new(collective, T::DTYPE, op, data.len());
        self.run(&call, Buffers::InPlace(bytes_mut(data)))
    }

    /// Send block `r` of `input` to rank `r`, and collect in `output` what all ranks sent here.
    /// Both are `[ranks * count]`.
    ///
    /// Cost: n(P-1)/P bytes sent in P-1 steps; if short, among more than eight ranks, ceil(log2 P)
    /// steps with about n/2 bytes in each.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for buffers of unequal lengths, or of a length that P does not divide;
    /// otherwise what ended the group.
    ///
    /// ```
    /// # use brigade_comm::*;
    /// # at_once(Communicator::local_world(2, &Settings::default()).unwrap(), |comm| {
    /// let mut came = [0; 2];
    /// comm.all_to_all(&[[1, 2], [3, 4]][comm.rank()], &mut came)?;
    /// assert_eq!(came, [[1, 3], [2, 4]][comm.rank()]);
    /// # Ok::<(), Error>(()) }).unwrap().into_iter().for_each(Result::unwrap);
    /// ```
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

    /// Like [`Communicator::all_to_all`] with `to[r]` elements to rank `r` and `from[r]` from it;
    /// for itself a rank has one number in both.
    ///
    /// Cost: P-1 steps; every block is sent once.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for `to` or `from` that fit neither the group nor the buffers; otherwise
    /// what ended the group.
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
    ///
    /// Cost: one step, in which each rank sends its block to the root; if short, among more than
    /// four ranks, ceil(log2 P) steps.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a bad root, or an `output` of the root that is not P times as long as
    /// `input`; otherwise what ended the group.
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
    ///
    /// Cost: one step, in which each rank sends its block to the root.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a bad root, or `counts` that fit neither the group nor the buffers;
    /// otherwise what ended the group.
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
    ///
    /// Cost: one step, in which the root sends each rank its block; if short, among more than four
    /// ranks, ceil(log2 P) steps.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a bad root, or an `input` of the root that is not P times as long as
    /// `output`; otherwise what ended the group.
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
    ///
    /// Cost: one step, in which the root sends each rank its block.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a bad root, or `counts` that fit neither the group nor the buffers;
    /// otherwise what ended the group.
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
    ///
    /// Cost: ceil(log2 P) steps without payload.
    ///
    /// # Errors
    ///
    /// What ended the group.
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
