//! The caller's memory for one call: two pointers, with the lengths that the call gives them.

use std::ffi::{c_int, c_void};

use brigade_comm::{Buffers, Dtype};

use crate::failure::{Failure, Outcome};

/// A rank of so many, for whom lengths are counted.
#[derive(Clone, Copy)]
pub struct Seat {
    /// Its number.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
}

impl Seat {
    /// Whether this is the rank that C means.
    #[inline]
    pub fn is(self, rank: c_int) -> bool {
        usize::try_from(rank) == Ok(self.rank)
    }

    /// The rank that C means. What is none is shown as C wrote it, behind what it is for.
    #[inline]
    pub fn member(self, purpose: &str, rank: c_int) -> Outcome<usize> {
        let member = usize::try_from(rank).ok().filter(|member| *member < self.ranks);
        member.ok_or_else(|| nobody(purpose, rank, self.ranks))
    }

    /// One block in, a block of each rank out.
    #[inline]
    pub fn gathering(self, count: usize) -> Lengths {
        Lengths::gathering(count, self.ranks, self.rank)
    }
}

/// How many elements a call reads and writes on this rank. A number that cannot be counted is the
/// largest there is, which no memory holds.
#[derive(Clone, Copy)]
pub struct Lengths {
    input: usize,
    output: usize,
    /// In a buffer with one block of each rank: the elements in front of this rank's.
    own: usize,
}

impl Lengths {
    /// As many elements in as out.
    #[inline]
    pub fn equal(count: usize) -> Self {
        Self { input: count, output: count, own: 0 }
    }

    /// So many in, and so many out.
    #[inline]
    pub fn apart(input: usize, output: usize) -> Self {
        Self { input, output, own: 0 }
    }

    /// One block in, a block of each rank out.
    #[inline]
    pub fn gathering(count: usize, ranks: usize, rank: usize) -> Self {
        Self { input: count, output: count.saturating_mul(ranks), own: count.saturating_mul(rank) }
    }

    /// One block in, a block of each rank out; all of their own lengths.
    pub fn gathering_v(counts: &[usize], rank: usize) -> Self {
        Self { input: counts[rank], output: sum(counts), own: sum(&counts[..rank]) }
    }

    /// A block of each rank in, one block out.
    #[inline]
    pub fn reversed(self) -> Self {
        Self { input: self.output, output: self.input, own: self.own }
    }
}

/// The sum of counts.
pub fn sum(counts: &[usize]) -> usize {
    counts.iter().fold(0_usize, |sum, count| sum.saturating_add(*count))
}

/// Memory that was looked at, as far as it can be.
#[derive(Clone, Copy)]
pub struct Memory {
    input: *const u8,
    input_bytes: usize,
    output: *mut u8,
    output_bytes: usize,
    in_place: bool,
}

// SAFETY: these are numbers until `buffers` makes slices of them, whose caller vouches for them.
unsafe impl Send for Memory {}

impl Memory {
    /// In place is what NCCL calls so: both pointers lead to the same elements, where the shorter
    /// buffer lies at this rank's block of the longer one.
    #[inline(always)]
    pub fn new(
        send: *const c_void,
        recv: *mut c_void,
        lengths: Lengths,
        dtype: Dtype,
    ) -> Outcome<Self> {
        // Sizes are 1, 2, 4 or 8, so what overflows is larger than any memory anyway.
        let bytes = |elems: usize| elems.saturating_mul(dtype.size());
        let (input_bytes, output_bytes) = (bytes(lengths.input), bytes(lengths.output));
        let own = bytes(lengths.own);
        if input_bytes.max(output_bytes) > isize::MAX as usize {
            return Err(too_long(&lengths));
        }
        let (input, output) = (send.cast::<u8>(), recv.cast::<u8>());
        if (input.is_null() && input_bytes > 0) || (output.is_null() && output_bytes > 0) {
            let is_input = input.is_null() && input_bytes > 0;
            return Err(match is_input {
                true => null("sendbuf", input_bytes),
                false => null("recvbuf", output_bytes),
            });
        }
        let mut memory = Self { input, input_bytes, output, output_bytes, in_place: false };
        if input_bytes > 0 && output_bytes > 0 {
            let (input, output) = (input.addr(), output.addr());
            memory.in_place = if input_bytes <= output_bytes {
                input.wrapping_sub(output) == own
            } else {
                output.wrapping_sub(input) == own
            };
            let apart = input.wrapping_sub(output) >= output_bytes
                && output.wrapping_sub(input) >= input_bytes;
            if !memory.in_place && !apart {
                return Err(memory.overlap(own));
            }
        }
        Ok(memory)
    }

    /// Memory that is only read, or only written, which C calls so.
    pub fn of_message(
        name: &str,
        memory: *const c_void,
        count: usize,
        dtype: Dtype,
    ) -> Outcome<Self> {
        let bytes = count.saturating_mul(dtype.size());
        if bytes > isize::MAX as usize {
            return Err(Failure::argument(format!("{name}: no memory holds {count} elements")));
        }
        if memory.is_null() && bytes > 0 {
            return Err(null(name, bytes));
        }
        let (input, output) = (memory.cast(), std::ptr::null_mut());
        Ok(Self { input, input_bytes: bytes, output, output_bytes: 0, in_place: false })
    }

    /// Where what is read and what is written begin, and their bytes: for memory that only a
    /// device can look into.
    pub fn ranges(&self) -> [(u64, usize); 2] {
        let input = self.input.expose_provenance() as u64;
        let output = self.output.expose_provenance() as u64;
        [(input, self.input_bytes), (output, self.output_bytes)]
    }

    /// What is read.
    ///
    /// # Safety
    ///
    /// As for [`Memory::buffers`].
    pub unsafe fn read<'a>(&self) -> &'a [u8] {
        // SAFETY: the caller's promise; no pointer with a length is null.
        unsafe { slice(self.input, self.input_bytes) }
    }

    /// The memory of a message that is to be written.
    ///
    /// # Safety
    ///
    /// As for [`Memory::buffers`].
    pub unsafe fn written<'a>(&self) -> &'a mut [u8] {
        // SAFETY: the caller's promise; no pointer with a length is null.
        unsafe { slice_mut(self.input.cast_mut(), self.input_bytes) }
    }

    /// The slices that a call works on.
    ///
    /// # Safety
    ///
    /// For `'a` what is read stays as it is, and nobody else touches what is written.
    #[inline(always)]
    pub unsafe fn buffers<'a>(&self) -> Buffers<'a> {
        // SAFETY: the caller's promise; no pointer with a length is null, and the two lie apart
        // unless they are one.
        unsafe {
            if !self.in_place {
                return Buffers::OutOfPlace {
                    input: slice(self.input, self.input_bytes),
                    output: slice_mut(self.output, self.output_bytes),
                };
            }
            if self.input_bytes > self.output_bytes {
                Buffers::InPlace(slice_mut(self.input.cast_mut(), self.input_bytes))
            } else {
                Buffers::InPlace(slice_mut(self.output, self.output_bytes))
            }
        }
    }

    #[cold]
    fn overlap(&self, own: usize) -> Box<Failure> {
        let Self { input, input_bytes, output, output_bytes, .. } = *self;
        let place = match input_bytes {
            _ if input_bytes == output_bytes => "sendbuf == recvbuf".to_owned(),
            _ if input_bytes < output_bytes => format!("sendbuf == recvbuf + {own} bytes"),
            _ => format!("recvbuf == sendbuf + {own} bytes"),
        };
        Failure::argument(format!(
            "the {input_bytes} bytes at sendbuf ({input:p}) and the {output_bytes} bytes at \
             recvbuf ({output:p}) overlap; in place would be {place}"
        ))
    }
}

#[cold]
fn nobody(purpose: &str, rank: c_int, ranks: usize) -> Box<Failure> {
    Failure::argument(format!("{purpose} {rank} of {ranks} ranks"))
}

#[cold]
fn too_long(lengths: &Lengths) -> Box<Failure> {
    let (count, purpose) = match *lengths {
        Lengths { input, output, .. } if input == output => (input, "send, and as many to receive"),
        Lengths { input, output, .. } if input > output => (input, "send"),
        Lengths { output, .. } => (output, "receive"),
    };
    Failure::argument(format!("no memory holds {count} elements to {purpose}"))
}

#[cold]
fn null(name: &str, bytes: usize) -> Box<Failure> {
    Failure::argument(format!("{name} is NULL, but it must hold {bytes} bytes"))
}

/// # Safety
///
/// So many bytes can be read and stay as they are for `'a`; null will do for none.
#[inline(always)]
unsafe fn slice<'a>(start: *const u8, bytes: usize) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start, bytes) }
}

/// # Safety
///
/// So many bytes can be written, and nobody else touches them for `'a`; null will do for none.
#[inline(always)]
unsafe fn slice_mut<'a>(start: *mut u8, bytes: usize) -> &'a mut [u8] {
    if bytes == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(start, bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(send: usize, recv: usize, lengths: Lengths) -> &'static str {
        let send = std::ptr::without_provenance(send);
        let recv = std::ptr::without_provenance_mut(recv);
        match Memory::new(send, recv, lengths, Dtype::I16) {
            Err(_) => "refused",
            Ok(memory) if memory.in_place => "in place",
            Ok(_) => "apart",
        }
    }

    #[test]
    fn in_place_is_where_nccl_has_it_and_overlaps_are_refused() {
        let all_reduce = Lengths::equal(4);
        for (recv, want) in
            [(100, "in place"), (99, "refused"), (107, "refused"), (108, "apart"), (92, "apart")]
        {
            assert_eq!(kind(100, recv, all_reduce), want, "{recv}");
        }
        // Rank 1 of 3 with two elements of two bytes in each block.
        let gather = Lengths::gathering(2, 3, 1);
        for (send, want) in
            [(104, "in place"), (100, "refused"), (108, "refused"), (112, "apart"), (96, "apart")]
        {
            assert_eq!(kind(send, 100, gather), want, "{send}");
            assert_eq!(kind(100, send, gather.reversed()), want, "{send}");
        }
        let uneven = Lengths::gathering_v(&[3, 1, 0], 1);
        assert_eq!(kind(106, 100, uneven), "in place");
        assert_eq!(kind(100, 100, uneven), "refused");
    }

    #[test]
    fn a_rank_that_is_none_is_named_as_it_was_written() {
        let seat = Seat { rank: 0, ranks: 3 };
        assert!((0..3).all(|rank| seat.member("root", rank).is_ok_and(|it| it == rank as usize)));
        for wrong in [-1, 3, c_int::MIN, c_int::MAX] {
            let told = seat.member("broadcast: root", wrong).unwrap_err().sentence;
            assert_eq!(told, format!("broadcast: root {wrong} of 3 ranks"));
        }
    }

    #[test]
    fn what_is_too_long_is_said_to_be_what_it_is() {
        let told =
            |lengths| Memory::new(std::ptr::null(), std::ptr::null_mut(), lengths, Dtype::I8);
        let told = |lengths| told(lengths).map(drop).unwrap_err().sentence;
        let many = usize::MAX;
        let ends = |lengths, end: &str| assert!(told(lengths).ends_with(end), "{}", told(lengths));
        ends(Lengths { input: many, output: 0, own: 0 }, &format!("{many} elements to send"));
        ends(Lengths { input: 0, output: many, own: 0 }, &format!("{many} elements to receive"));
        ends(Lengths::equal(many), "elements to send, and as many to receive");
        ends(Lengths::gathering(many / 4, 4, 0), "elements to receive");
    }

    #[test]
    fn null_will_do_for_nothing_and_no_length_overflows() {
        assert_eq!(kind(0, 0, Lengths::equal(0)), "apart");
        assert_eq!(kind(0, 100, Lengths::equal(1)), "refused");
        assert_eq!(kind(100, 0, Lengths::equal(1)), "refused");
        for count in [usize::MAX, usize::MAX / 2, usize::MAX / 4 + 1] {
            assert_eq!(kind(2, 4, Lengths::gathering(count, 4, 3)), "refused");
            assert_eq!(kind(2, 4, Lengths::gathering_v(&[count, count, count], 2)), "refused");
        }
    }
}
