//! Calls of the hosts on memory of a device, which goes down into pinned memory, across to other
//! ranks, and up again, in pieces ([`super::pieces`]).

use std::slice;

use brigade_cuda::{Context, CudaError, Event, Pinned, Stream};

use super::super::Inner;
use super::pieces::Pieces;
use crate::Error;
use crate::call::{Buffers, Call, Counts};
use crate::communicator::Shared;

/// Pinned memory of the host that calls go through.
#[derive(Default)]
pub(in crate::device) struct Staging {
    buffers: Option<(Pinned, Pinned)>,
    /// Behind what is brought down of each piece.
    marks: Vec<Event>,
}

/// A call of the hosts, and where on the device its buffers begin.
pub(in crate::device) struct Crossing<'a> {
    pub(in crate::device) call: &'a Call,
    /// Elements in every block of the call that it is a piece of, which others shall read of.
    pub(in crate::device) whole: usize,
    pub(in crate::device) input: u64,
    pub(in crate::device) output: u64,
}

/// Crossings in the order of a stream: all are brought down, then all are taken across and up.
pub(in crate::device) struct Relay<'a> {
    group: &'a Inner,
    /// Whose hosts call.
    shared: &'a Shared,
    input: *mut u8,
    output: *mut u8,
    marks: &'a mut Vec<Event>,
    stream: &'a Stream,
    /// Pieces that were brought down, and their bytes.
    down: (usize, usize),
    /// Pieces that were taken across, and their bytes in both buffers.
    across: (usize, usize, usize),
}

impl Staging {
    /// Whether there is room for so many bytes each.
    pub(super) fn fits(&self, (input_bytes, output_bytes): (usize, usize)) -> bool {
        self.buffers.as_ref().is_some_and(|(input, output)| {
            input.bytes() >= input_bytes && output.bytes() >= output_bytes
        })
    }

    /// Have room for so many bytes each, and not less than before. May wait for the device, and
    /// hold up others.
    pub(in crate::device) fn make_room(
        &mut self,
        context: &Context,
        bytes @ (input_bytes, output_bytes): (usize, usize),
    ) -> Result<(), CudaError> {
        if self.fits(bytes) {
            return Ok(());
        }
        let before = self.buffers.take().map(|(input, output)| (input.bytes(), output.bytes()));
        let (input, output) = before.unwrap_or_default();
        let pinned = |bytes: usize| Pinned::new(context, bytes.next_power_of_two());
        self.buffers = Some((pinned(input_bytes.max(input))?, pinned(output_bytes.max(output))?));
        Ok(())
    }
}

impl<'a> Relay<'a> {
    /// Through pinned memory that has room for all that crosses.
    pub(in crate::device) fn new(
        group: &'a Inner,
        shared: &'a Shared,
        staging: &'a mut Staging,
        stream: &'a Stream,
    ) -> Result<Self, Error> {
        // What the program has queued comes first.
        shared.drain()?;
        let Staging { buffers, marks } = staging;
        let (input, output) = buffers.as_mut().expect("room was made");
        let (input, output) = (input.as_mut_ptr(), output.as_mut_ptr());
        let (down, across) = ((0, 0), (0, 0, 0));
        Ok(Self { group, shared, input, output, marks, stream, down, across })
    }

    /// Have the stream copy what a call reads to the host.
    ///
    /// # Safety
    ///
    /// The call's buffers are on the device, and pinned memory has room for it.
    pub(in crate::device) unsafe fn bring_down(
        &mut self,
        crossing: &Crossing<'_>,
    ) -> Result<(), Error> {
        let Crossing { call, input, .. } = crossing;
        let (group, stream) = (self.group, self.stream);
        let failed = |error| group.give_up(call, &error, stream);
        let (elems, _) = call.buffer_elems(self.shared.ranks, self.shared.rank);
        let pieces = self.pieces(call);
        for piece in pieces.iter() {
            let (at, begin) = (self.down.0, self.input as u64 + self.down.1 as u64);
            for strip in pieces.strips(elems, &piece) {
                let (to, from) = (begin + strip.packed_at as u64, input + strip.at as u64);
                // SAFETY: the caller's promise; nothing else uses that part of pinned memory.
                unsafe { stream.copy(to, from, strip.bytes) }.map_err(failed)?;
                self.down.1 += strip.bytes;
            }
            if self.marks.len() == at {
                self.marks.push(Event::new(&group.context).map_err(failed)?);
            }
            stream.record(&self.marks[at]).map_err(failed)?;
            self.down.0 += 1;
        }
        Ok(())
    }

    /// Once it is there, make the call, and have the stream copy the result to the device. In the
    /// order in which calls were brought down.
    ///
    /// # Safety
    ///
    /// As of [`Relay::bring_down`].
    pub(in crate::device) unsafe fn take_across(
        &mut self,
        crossing: &Crossing<'_>,
    ) -> Result<(), Error> {
        let Crossing { call, whole, output, .. } = crossing;
        let (group, stream) = (self.group, self.stream);
        let failed = |error| group.give_up(call, &error, stream);
        let Shared { ranks, rank, .. } = *self.shared;
        let (_, elems) = call.buffer_elems(ranks, rank);
        let pieces = self.pieces(call);
        let last = pieces.iter().count() - 1;
        for (at, piece) in pieces.iter().enumerate() {
            let (done, from, to) = self.across;
            let mark = &self.marks[done];
            group.await_device("a copy to the host", || mark.is_done())?;
            let part = match (&call.counts, last) {
                (Counts::Even(_), 1..) => {
                    &Call { counts: Counts::Even(piece.len()), ..(*call).clone() }
                }
                _ => *call,
            };
            let (input_elems, output_elems) = part.buffer_elems(ranks, rank);
            let lens = [input_elems, output_elems].map(|elems| elems * part.dtype.size());
            // SAFETY: pinned memory has room for both; what the device had to write there it has
            // written, and what it still reads or writes are other pieces.
            let (input, result) = unsafe {
                let input = slice::from_raw_parts(self.input.add(from), lens[0]);
                (input, slice::from_raw_parts_mut(self.output.add(to), lens[1]))
            };
            let buffers = Buffers::OutOfPlace { input, output: result };
            self.shared.run_piece((part, *whole, at == last), buffers)?;
            let begin = self.output as u64 + to as u64;
            for strip in pieces.strips(elems, &piece) {
                let (to, from) = (output + strip.at as u64, begin + strip.packed_at as u64);
                // SAFETY: the caller's promise; that part of pinned memory stays as it is.
                unsafe { stream.copy(to, from, strip.bytes) }.map_err(failed)?;
            }
            self.across = (done + 1, from + lens[0], to + lens[1]);
        }
        Ok(())
    }

    /// This rank cannot do its part of a call.
    pub(in crate::device) fn give_up(&self, call: &Call, error: &CudaError) -> Error {
        self.group.give_up(call, error, self.stream)
    }

    fn pieces(&self, call: &Call) -> Pieces {
        let Shared { ranks, settings, .. } = self.shared;
        Pieces::of(call, *ranks, settings.window() as usize)
    }
}

#[cfg(test)]
mod tests {
    use brigade_cuda::Cuda;

    use super::*;

    #[test]
    fn room_that_was_made_stays_whatever_comes_after_it() {
        if !brigade_cuda_fake::has_device() {
            return;
        }
        let device = Cuda::load().expect("a driver").devices().expect("devices").remove(0);
        let context = Context::new(&device).expect("a context");
        let mut staging = Staging::default();
        assert!(!staging.fits((0, 0)), "nothing is pinned before it is needed");
        for bytes in [(100, 10), (10, 100)] {
            staging.make_room(&context, bytes).expect("room");
        }
        assert!(staging.fits((100, 100)) && !staging.fits((129, 1)) && !staging.fits((1, 129)));
    }
}
