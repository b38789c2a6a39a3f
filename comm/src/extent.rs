//! How much memory a call touches on one rank, and the check of the caller's buffers against it.

use crate::Error;
use crate::call::{Buffers, Call};
use crate::plan::{Place, Space};

/// The lengths of one rank's buffers in calls of one shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    input_elems: usize,
    output_elems: usize,
    elem_bytes: usize,
    /// In a buffer that holds one block of each rank: the bytes in front of this rank's.
    own_bytes: usize,
}

/// The memory of one call, as addresses.
#[derive(Clone, Copy)]
pub(crate) struct CallMemory {
    /// Where places of `Space::Input` count from.
    pub(crate) input: *const u8,
    /// The first byte of this rank's input.
    pub(crate) input_start: *const u8,
    /// The first byte of this rank's output.
    pub(crate) output: *mut u8,
    pub(crate) input_elems: usize,
    pub(crate) output_elems: usize,
}

/// The three memories of one call.
///
/// The pointers are good for every place of the plan that is run with them, for as long as it is
/// run; whoever makes one vouches for that.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) input: *const u8,
    pub(crate) output: *mut u8,
    pub(crate) scratch: *mut u8,
}

impl Memory {
    /// The address of a place.
    pub(crate) fn at(&self, place: Place) -> *mut u8 {
        let base = match place.space {
            Space::Input => self.input.cast_mut(),
            Space::Output => self.output,
            Space::Scratch => self.scratch,
            Space::Absolute => return std::ptr::with_exposed_provenance_mut(place.at as usize),
        };
        base.wrapping_add(place.at as usize)
    }
}

impl Extent {
    /// The lengths of a call that makes sense; refuses one that does not.
    pub(crate) fn of(call: &Call, ranks: u32, rank: u32) -> Result<Self, Error> {
        call.validate(ranks, rank)?;
        let (input_elems, output_elems) = call.buffer_elems(ranks, rank);
        let elem_bytes = call.dtype.size();
        let own = if call.collective.blocks(ranks) == ranks { 0..rank } else { 0..0 };
        let own: usize = own.map(|block| call.block_elems(ranks, rank, block)).sum();
        Ok(Self { input_elems, output_elems, elem_bytes, own_bytes: own * elem_bytes })
    }

    /// Refuse buffers that are too short or too long, with both numbers and the world's rank of
    /// this member.
    pub(crate) fn check(
        &self,
        call: &Call,
        buffers: &mut Buffers<'_>,
        rank: impl Fn() -> u32,
    ) -> Result<CallMemory, Box<Error>> {
        let Self { input_elems, output_elems, elem_bytes, own_bytes } = *self;
        let wrong = |what: &str, got: usize, elems: usize| {
            Box::new(Error::invalid(format!(
                "{call}: the {what} of rank {} has {got} bytes, but {elems} elements of \
                 {elem_bytes} bytes are {} bytes",
                rank(),
                elems * elem_bytes
            )))
        };
        match buffers {
            Buffers::OutOfPlace { input, output } => {
                if input_elems > 0 && input.len() != input_elems * elem_bytes {
                    return Err(wrong("input", input.len(), input_elems));
                }
                if output_elems > 0 && output.len() != output_elems * elem_bytes {
                    return Err(wrong("output", output.len(), output_elems));
                }
                let input = input.as_ptr();
                let output = output.as_mut_ptr();
                Ok(CallMemory { input, input_start: input, output, input_elems, output_elems })
            }
            Buffers::InPlace(buffer) => {
                let elems = input_elems.max(output_elems);
                if buffer.len() != elems * elem_bytes {
                    return Err(wrong("buffer", buffer.len(), elems));
                }
                let start = buffer.as_mut_ptr();
                let (mut input_start, mut output) = (start, start);
                if input_elems < output_elems && input_elems > 0 {
                    input_start = start.wrapping_add(own_bytes);
                } else if output_elems < input_elems && output_elems > 0 {
                    output = start.wrapping_add(own_bytes);
                }
                Ok(CallMemory { input: start, input_start, output, input_elems, output_elems })
            }
        }
    }
}
