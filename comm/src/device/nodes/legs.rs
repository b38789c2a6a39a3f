//! The legs of a call by nodes ([`super`]): which calls it is made of, inside of nodes and
//! between them.

use std::ops::Range;
use std::sync::Arc;

use brigade_cuda::Stream;
use brigade_schedule::Collective;

use super::super::staged::pieces::Pieces;
use super::super::staged::relay::{Crossing, Relay};
use super::Nodes;
use crate::Error;
use crate::call::{Call, Counts};

/// The calls that one is made of, in the order of a stream.
///
/// `input` and `output` are what whoever enqueues the call vouches for, as for
/// [`DeviceGroup::enqueue`](crate::device::DeviceGroup::enqueue); `part` is as long as the call
/// along the column needs it, and so is the pinned memory of the relay.
pub(super) struct Legs<'a> {
    pub(super) nodes: &'a Nodes,
    pub(super) call: &'a Call,
    /// The call along the column, of as many elements as it has in all.
    pub(super) across: Call,
    /// How calls along the column go.
    pub(super) relay: Relay<'a>,
    pub(super) input: u64,
    pub(super) part: Part,
    pub(super) output: u64,
    pub(super) stream: &'a Stream,
}

/// Where what goes along the column is.
#[derive(Clone, Copy)]
pub(super) enum Part {
    /// Where it belongs in the output.
    Output,
    /// In a room of its own, which begins here.
    Room(u64),
}

/// A piece of a vector, and what it is to the ranks of a node.
pub(super) struct Divided {
    /// Elements of the vector.
    range: Range<usize>,
    /// How many of these are whose.
    parts: Arc<[usize]>,
}

/// This rank's part of a piece, and the call of it along the column.
struct Own {
    call: Call,
    at: u64,
}

/// A vector of so many elements in pieces, which the ranks of a node divide: parts begin at
/// multiples of `unit`.
pub(super) fn divided(pieces: Pieces, ranks: usize, unit: usize) -> Vec<Divided> {
    let divided =
        |range: Range<usize>| Divided { parts: parts(range.len(), ranks, unit).collect(), range };
    pieces.iter().map(divided).collect()
}

impl Divided {
    /// Elements of the part of the rank with this place, in front of it in the piece, and its own.
    pub(super) fn part(&self, place: usize) -> (usize, usize) {
        (self.parts[..place].iter().sum(), self.parts[place])
    }
}

impl Own {
    /// None where there is nothing to be had: all of a column alike.
    fn crossing(&self, whole: usize) -> Option<Crossing<'_>> {
        let has_some = self.call.counts != Counts::Even(0);
        has_some.then_some(Crossing { call: &self.call, whole, input: self.at, output: self.at })
    }
}

impl Legs<'_> {
    /// A call on a vector: one of the node's ranks before, if this node has one, and one behind.
    /// All pieces are on their way down before the first one is across.
    ///
    /// # Safety
    ///
    /// As [`Legs`] says.
    pub(super) unsafe fn of_vector(
        mut self,
        pieces: &[Divided],
        before: Option<Collective>,
        behind: Option<Collective>,
    ) -> Result<(), Error> {
        let (size, whole) = (self.call.dtype.size(), self.whole());
        let begin = |buffer: u64, piece: &Divided| buffer + (piece.range.start * size) as u64;
        let own = self.own_parts(pieces);
        for (piece, own) in pieces.iter().zip(&own) {
            // SAFETY: the piece lies within the vector, and its part where there is room for it.
            unsafe {
                self.inside(before, &piece.parts, begin(self.input, piece), own.at)?;
                own.crossing(whole).map_or(Ok(()), |it| self.relay.bring_down(&it))?;
            }
        }
        for (piece, own) in pieces.iter().zip(&own) {
            // SAFETY: likewise.
            unsafe {
                own.crossing(whole).map_or(Ok(()), |it| self.relay.take_across(&it))?;
                self.inside(behind, &piece.parts, own.at, begin(self.output, piece))?;
            }
        }
        Ok(())
    }

    /// Of each piece this rank's part.
    fn own_parts(&self, pieces: &[Divided]) -> Vec<Own> {
        let (size, place) = (self.call.dtype.size(), self.nodes.here.place as usize);
        let mut in_room = 0;
        let own = |piece: &Divided| {
            let (in_front, elems) = piece.part(place);
            let at = match self.part {
                Part::Output => self.output + ((piece.range.start + in_front) * size) as u64,
                Part::Room(room) => room + (in_room * size) as u64,
            };
            in_room += elems;
            Own { call: Call { counts: Counts::Even(elems), ..self.across.clone() }, at }
        };
        pieces.iter().map(own).collect()
    }

    /// Elements of a block of the whole call.
    fn whole(&self) -> usize {
        let Counts::Even(count) = self.call.counts else { unreachable!("such are not taken") };
        count
    }

    /// Blocks of so many bytes: those of the column to each of its ranks, which spread them inside.
    ///
    /// # Safety
    ///
    /// As [`Legs`] says; the room has a block for each node.
    pub(super) unsafe fn all_gather(mut self, room: u64, bytes: u64) -> Result<(), Error> {
        let place = u64::from(self.nodes.here.place);
        // SAFETY: the caller's promise; the blocks of a node lie side by side.
        unsafe {
            self.along_column(self.input, room)?;
            for (first, arrived) in self.blocks(room, bytes) {
                let blocks = self.output + first;
                let own = blocks + place * bytes;
                let copied = self.stream.copy(own, arrived, bytes as usize);
                copied.map_err(|error| self.relay.give_up(self.call, &error))?;
                self.of_blocks(Collective::AllGather, own, blocks)?;
            }
        }
        Ok(())
    }

    /// Of blocks of so many bytes the sum inside of each node, and of these along the column.
    ///
    /// # Safety
    ///
    /// As of [`Legs::all_gather`].
    pub(super) unsafe fn reduce_scatter(mut self, room: u64, bytes: u64) -> Result<(), Error> {
        // SAFETY: as above.
        unsafe {
            for (first, sum) in self.blocks(room, bytes) {
                self.of_blocks(Collective::ReduceScatter, self.input + first, sum)?;
            }
            self.along_column(room, self.output)
        }
    }

    /// Of each node how far its blocks are behind the first of all, and its block of the room.
    fn blocks(&self, room: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let firsts: Vec<u64> =
            self.nodes.nodes.iter().map(|ranks| u64::from(ranks[0]) * bytes).collect();
        firsts.into_iter().zip(0..).map(move |(first, node)| (first, room + node * bytes))
    }

    /// The call along the column.
    ///
    /// # Safety
    ///
    /// Both buffers are as long as it says.
    unsafe fn along_column(&mut self, input: u64, output: u64) -> Result<(), Error> {
        let crossing = Crossing { call: &self.across, whole: self.whole(), input, output };
        // SAFETY: the caller's promise.
        unsafe {
            self.relay.bring_down(&crossing)?;
            self.relay.take_across(&crossing)
        }
    }

    /// A call of the node's ranks on the parts of a piece, if there is one.
    ///
    /// # Safety
    ///
    /// Both buffers are as long as it says.
    unsafe fn inside(
        &self,
        collective: Option<Collective>,
        parts: &Arc<[usize]>,
        input: u64,
        output: u64,
    ) -> Result<(), Error> {
        let Some(collective) = collective else { return Ok(()) };
        // SAFETY: the caller's promise.
        unsafe { self.call_inside(collective, Counts::PerRank(Arc::clone(parts)), input, output) }
    }

    /// A call of the node's ranks on blocks as the whole call has them.
    ///
    /// # Safety
    ///
    /// Both buffers are as long as it says.
    unsafe fn of_blocks(
        &self,
        collective: Collective,
        input: u64,
        output: u64,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.call_inside(collective, self.call.counts.clone(), input, output) }
    }

    /// # Safety
    ///
    /// Both buffers are as long as the call says.
    unsafe fn call_inside(
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
}

/// So many elements in as many parts as there are ranks, which begin at multiples of `unit`.
fn parts(count: usize, ranks: usize, unit: usize) -> impl Iterator<Item = usize> {
    let most = count.div_ceil(ranks).next_multiple_of(unit);
    (0..ranks).map(move |rank| count.saturating_sub(rank * most).min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_all_there_is_and_begin_at_multiples() {
        for (count, ranks, unit) in
            (0..300).flat_map(|count| [1, 2, 3, 8].map(|ranks| (count, ranks, 16)))
        {
            let parts: Vec<usize> = parts(count, ranks, unit).collect();
            assert_eq!((parts.iter().sum::<usize>(), parts.len()), (count, ranks));
            let starts = parts.iter().scan(0, |at, part| Some(std::mem::replace(at, *at + part)));
            assert!(starts.zip(&parts).all(|(at, part)| *part == 0 || at % unit == 0), "{parts:?}");
        }
    }
}
