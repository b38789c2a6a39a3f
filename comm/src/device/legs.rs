//! The legs of a call by nodes ([`super::nodes`]): which calls of its two groups it is made of.

use std::sync::Arc;

use brigade_cuda::Stream;
use brigade_schedule::Collective;

use super::nodes::{Nodes, Place};
use crate::Error;
use crate::call::{Call, Counts};

/// The calls that one is made of, in the order of a stream.
pub(super) struct Legs<'a> {
    pub(super) nodes: &'a Nodes,
    pub(super) call: &'a Call,
    /// Of the column.
    pub(super) across: Call,
    /// Elements of a vector that the ranks of a node divide.
    pub(super) parts: Arc<[usize]>,
    pub(super) input: u64,
    /// Where this rank's part of a vector is, in the output or in a room; or a room with a block
    /// for each node.
    pub(super) part: u64,
    pub(super) output: u64,
    pub(super) stream: &'a Stream,
}

impl Legs<'_> {
    pub(super) unsafe fn all_reduce(&self) -> Result<(), Error> {
        // SAFETY: the caller's promise; a part lies within the vector.
        unsafe {
            self.parts_inside(Collective::ReduceScatter, self.input, self.part)?;
            self.along_column(self.part, self.part)?;
            self.parts_inside(Collective::AllGather, self.part, self.output)
        }
    }

    pub(super) unsafe fn broadcast(&self, root: Place) -> Result<(), Error> {
        // SAFETY: as above.
        unsafe {
            if root.node == self.nodes.here.node {
                let scatter = Collective::Scatter { root: root.place };
                self.parts_inside(scatter, self.input, self.part)?;
            }
            self.along_column(self.part, self.part)?;
            self.parts_inside(Collective::AllGather, self.part, self.output)
        }
    }

    pub(super) unsafe fn reduce(&self, root: Place) -> Result<(), Error> {
        // SAFETY: as above; the room is as long as this rank's part.
        unsafe {
            self.parts_inside(Collective::ReduceScatter, self.input, self.part)?;
            self.along_column(self.part, self.part)?;
            if root.node == self.nodes.here.node {
                let gather = Collective::Gather { root: root.place };
                self.parts_inside(gather, self.part, self.output)?;
            }
            Ok(())
        }
    }

    /// Blocks of so many bytes: those of the column to each of its ranks, which spread them inside.
    pub(super) unsafe fn all_gather(&self, bytes: u64) -> Result<(), Error> {
        let whole = &self.nodes.column.inner;
        let place = u64::from(self.nodes.here.place);
        // SAFETY: as above; the room has a block for each node, of which those lie side by side.
        unsafe {
            self.along_column(self.input, self.part)?;
            for (first, arrived) in self.blocks(bytes) {
                let blocks = self.output + first;
                let own = blocks + place * bytes;
                let copied = self.stream.copy(own, arrived, bytes as usize);
                copied.map_err(|error| whole.give_up(self.call, &error, self.stream))?;
                self.blocks_inside(Collective::AllGather, own, blocks)?;
            }
        }
        Ok(())
    }

    pub(super) unsafe fn reduce_scatter(&self, bytes: u64) -> Result<(), Error> {
        // SAFETY: as above.
        unsafe {
            for (first, sum) in self.blocks(bytes) {
                self.blocks_inside(Collective::ReduceScatter, self.input + first, sum)?;
            }
            self.along_column(self.part, self.output)
        }
    }

    /// Of each node how far its blocks are behind the first of all, and its block of the room.
    fn blocks(&self, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        let firsts = self.nodes.nodes.iter().map(|ranks| u64::from(ranks[0]));
        firsts.zip(0..).map(move |(first, node)| (first * bytes, self.part + node * bytes))
    }

    /// A call of the node's ranks on the parts of a vector.
    unsafe fn parts_inside(
        &self,
        collective: Collective,
        input: u64,
        output: u64,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.inside(collective, Counts::PerRank(Arc::clone(&self.parts)), input, output) }
    }

    /// A call of the node's ranks on blocks as the whole call has them.
    unsafe fn blocks_inside(
        &self,
        collective: Collective,
        input: u64,
        output: u64,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.inside(collective, self.call.counts.clone(), input, output) }
    }

    unsafe fn inside(
        &self,
        collective: Collective,
        counts: Counts,
        input: u64,
        output: u64,
    ) -> Result<(), Error> {
        let (dtype, op) = (self.call.dtype, self.call.op.clone());
        let call = Call { collective, dtype, op, counts };
        // SAFETY: the caller's promise.
        unsafe { self.nodes.inside.enqueue(&call, input, output, self.stream) }
    }

    /// The call of the column, unless its part of a vector has nothing.
    unsafe fn along_column(&self, input: u64, output: u64) -> Result<(), Error> {
        if self.across.counts == Counts::Even(0) {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.nodes.column.enqueue(&self.across, input, output, self.stream) }
    }
}
