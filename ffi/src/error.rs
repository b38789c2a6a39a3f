//! What calls end with: a number, and a sentence for each thread.

use std::ffi::{c_char, c_int};

use brigade_comm::Error;
use brigade_wall::Cause;
use brigade_wall::failure::{guard, last_sentence};
pub(crate) use brigade_wall::{Failure, Outcome};

use crate::thread::spoil;

/// How a call ended. Results that NCCL knows have NCCL's numbers.
///
/// After BRIGADE_INVALID_ARGUMENT and BRIGADE_INVALID_USAGE everything is as it was before the
/// call; so it is after BRIGADE_SYSTEM_ERROR where the system had no more threads or files for work
/// that goes on, and after BRIGADE_JOIN_FAILED with a communicator that others were to be made of.
/// After any other error of a call on a communicator the other ranks get an error too, and every
/// later call on it returns the first error again. It can still be asked about, as by
/// brigade_comm_get_rank_error, and those who are left go on with what brigade_comm_shrink makes of
/// it; it must still be destroyed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum brigade_result_t {
    /// It did what it says.
    BRIGADE_SUCCESS = 0,
    /// The operating system or a device failed.
    BRIGADE_SYSTEM_ERROR = 2,
    /// A mistake in the library itself.
    BRIGADE_INTERNAL_ERROR = 3,
    /// An argument makes no sense by itself.
    BRIGADE_INVALID_ARGUMENT = 4,
    /// The call makes no sense here and now.
    BRIGADE_INVALID_USAGE = 5,
    /// The process of a rank ended, or cannot be reached any more; or the one ended that brought
    /// the ranks together.
    BRIGADE_PEER_LOST = 6,
    /// Not an error: the call goes on.
    BRIGADE_IN_PROGRESS = 7,
    /// Nothing moved until the deadline (BRIGADE_TIMEOUT_MS).
    BRIGADE_TIMEOUT = 8,
    /// A rank destroyed its communicator while another one needs it.
    BRIGADE_PEER_LEFT = 9,
    /// Ranks are in different calls.
    BRIGADE_MISMATCH = 10,
    /// A rank called brigade_comm_abort, or ended the world because of what it met in a call: its
    /// deadline, a rank that left, a failure of the system, a panic. The error has its sentence.
    BRIGADE_ABORTED = 11,
    /// The ranks could not come together.
    BRIGADE_JOIN_FAILED = 12,
    /// Bytes in a file are not what was written there.
    BRIGADE_CORRUPT = 13,
    /// A budget of memory does not hold what was asked for.
    BRIGADE_OVER_BUDGET = 14,
}

use brigade_result_t::*;

/// The same number as in tests/c/layout.c.
const _: () = assert!(size_of::<brigade_result_t>() == 4);

impl brigade_result_t {
    const ALL: [(Self, &'static [u8]); 14] = [
        (BRIGADE_SUCCESS, b"success\0"),
        (BRIGADE_SYSTEM_ERROR, b"the system or a device failed\0"),
        (BRIGADE_INTERNAL_ERROR, b"internal error: please report it\0"),
        (BRIGADE_INVALID_ARGUMENT, b"invalid argument\0"),
        (BRIGADE_INVALID_USAGE, b"invalid usage\0"),
        (BRIGADE_PEER_LOST, b"a rank is lost\0"),
        (BRIGADE_IN_PROGRESS, b"in progress\0"),
        (BRIGADE_TIMEOUT, b"nothing moved until the deadline\0"),
        (BRIGADE_PEER_LEFT, b"a rank has left\0"),
        (BRIGADE_MISMATCH, b"ranks are in different calls\0"),
        (BRIGADE_ABORTED, b"a rank aborted\0"),
        (BRIGADE_JOIN_FAILED, b"the ranks could not come together\0"),
        (BRIGADE_CORRUPT, b"a file does not hold what was written there\0"),
        (BRIGADE_OVER_BUDGET, b"a budget of memory does not hold it\0"),
    ];
}

/// Any number where C says `brigade_result_t`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct ResultCode(c_int);

/// A few words for a result; never NULL, and good for ever.
///
/// Threads: from any thread, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn brigade_error_string(result: ResultCode) -> *const c_char {
    let known = brigade_result_t::ALL.iter().find(|(code, _)| *code as c_int == result.0);
    known.map_or(&b"not a result of Brigade\0"[..], |(_, words)| words).as_ptr().cast()
}

/// The whole sentence of the last call that failed on this thread: what, where, which rank, the
/// number that was wrong. Ranks have their numbers in the world, also where a call is one of a part
/// of it. Never NULL; empty if none has failed, or on a thread that is ending. It is good until the
/// next call fails on this thread, or the thread ends.
///
/// Threads: each thread has its own.
#[unsafe(no_mangle)]
pub extern "C" fn brigade_last_error() -> *const c_char {
    last_sentence()
}

impl From<Cause> for brigade_result_t {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Argument => BRIGADE_INVALID_ARGUMENT,
            Cause::Usage => BRIGADE_INVALID_USAGE,
            Cause::System => BRIGADE_SYSTEM_ERROR,
            Cause::Internal => BRIGADE_INTERNAL_ERROR,
            Cause::Mismatch => BRIGADE_MISMATCH,
            Cause::PeerLost => BRIGADE_PEER_LOST,
            Cause::PeerLeft => BRIGADE_PEER_LEFT,
            Cause::Timeout => BRIGADE_TIMEOUT,
            Cause::Aborted => BRIGADE_ABORTED,
            Cause::Join => BRIGADE_JOIN_FAILED,
            Cause::Corrupt => BRIGADE_CORRUPT,
            Cause::OverBudget => BRIGADE_OVER_BUDGET,
        }
    }
}

impl From<&Error> for brigade_result_t {
    fn from(error: &Error) -> Self {
        Cause::from(error).into()
    }
}

/// The wall: what every function of the library does inside. No panic gets through.
#[inline]
pub(crate) fn enter(body: impl FnOnce() -> Outcome) -> brigade_result_t {
    enter_for(|| body().map(|()| BRIGADE_SUCCESS))
}

/// Like [`enter`], for calls that have more than one way to go well.
#[inline]
pub(crate) fn enter_for(body: impl FnOnce() -> Outcome<brigade_result_t>) -> brigade_result_t {
    guard(body).unwrap_or_else(|failure| report(&failure))
}

/// Keep the sentence for whoever asks on this thread.
#[cold]
fn report(failure: &Failure) -> brigade_result_t {
    spoil(failure);
    failure.note();
    failure.cause.into()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn last() -> String {
        // SAFETY: the sentence is good until the next call fails on this thread.
        unsafe { CStr::from_ptr(brigade_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_is_a_result_with_its_words() {
        assert_eq!(enter(|| panic!("boom {}", 1)), BRIGADE_INTERNAL_ERROR);
        assert!(last().ends_with("boom 1"), "{}", last());
    }

    #[test]
    fn sentences_are_kept_for_each_thread_and_without_zeros() {
        assert_eq!(enter(|| Err(Failure::argument("a\0b"))), BRIGADE_INVALID_ARGUMENT);
        assert_eq!(enter(|| Ok(())), BRIGADE_SUCCESS);
        assert_eq!(last(), "a b");
        std::thread::spawn(|| assert_eq!(last(), "")).join().unwrap();
    }

    #[test]
    fn every_result_has_its_words_and_every_number_has_some() {
        for (code, words) in brigade_result_t::ALL {
            let told = brigade_error_string(ResultCode(code as c_int));
            // SAFETY: the words end with a zero and live for ever.
            let told = unsafe { CStr::from_ptr(told) };
            assert_eq!(told.to_bytes_with_nul(), words);
        }
        for wrong in [-1, 1, 15, c_int::MAX] {
            // SAFETY: as above.
            let told = unsafe { CStr::from_ptr(brigade_error_string(ResultCode(wrong))) };
            assert_eq!(told, c"not a result of Brigade");
        }
    }
}
