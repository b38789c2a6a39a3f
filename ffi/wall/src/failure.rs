//! Calls that end with an error, on their way to C: a cause, and a sentence for each thread.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use brigade_comm::Error;

/// Why a call failed, before a library gives it its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// An argument makes no sense by itself.
    Argument,
    /// The call makes no sense here and now.
    Usage,
    /// The operating system or a device failed.
    System,
    /// A mistake in the library itself.
    Internal,
    /// Ranks are in different calls.
    Mismatch,
    /// The process of a rank ended, or cannot be reached any more; or that of the root ended, which
    /// brought the ranks together.
    PeerLost,
    /// A rank closed its communicator while another one needs it.
    PeerLeft,
    /// Nothing moved until the deadline.
    Timeout,
    /// A rank called abort, or ended the world because of what it met in a call.
    Aborted,
    /// The ranks could not come together.
    Join,
    /// Bytes in a file are not what was written there.
    Corrupt,
    /// A budget of memory does not hold what was asked for.
    OverBudget,
}

impl From<&Error> for Cause {
    fn from(error: &Error) -> Self {
        match error {
            Error::Invalid { .. } => Self::Argument,
            Error::Mismatch { .. } => Self::Mismatch,
            Error::PeerLost { .. } | Error::RootLost { .. } => Self::PeerLost,
            Error::PeerLeft { .. } => Self::PeerLeft,
            Error::Timeout { .. } => Self::Timeout,
            Error::Aborted { .. } => Self::Aborted,
            Error::Transport { .. } | Error::Exhausted { .. } => Self::System,
            Error::Join { .. } => Self::Join,
            _ => Self::Internal,
        }
    }
}

/// A call that ends with an error.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Of which kind.
    pub cause: Cause,
    /// What, where, which rank, the number that was wrong.
    pub sentence: String,
}

/// Successes are one word that is null.
pub type Outcome<T = ()> = Result<T, Box<Failure>>;

impl Failure {
    /// A failure of this kind.
    #[cold]
    pub fn new(cause: Cause, sentence: impl Into<String>) -> Box<Self> {
        Box::new(Self { cause, sentence: sentence.into() })
    }

    /// An argument makes no sense by itself.
    pub fn argument(sentence: impl Into<String>) -> Box<Self> {
        Self::new(Cause::Argument, sentence)
    }

    /// The call makes no sense here and now.
    pub fn usage(sentence: impl Into<String>) -> Box<Self> {
        Self::new(Cause::Usage, sentence)
    }

    /// The operating system failed.
    pub fn system(sentence: impl Into<String>) -> Box<Self> {
        Self::new(Cause::System, sentence)
    }

    /// Keep the sentence for whoever asks on this thread.
    #[cold]
    pub fn note(&self) {
        let sentence = c_text(&self.sentence);
        // A thread that is ending still gets the number.
        let _ = LAST.try_with(|last| {
            if let Ok(mut last) = last.try_borrow_mut() {
                *last = Some(sentence);
            }
        });
    }
}

impl From<Error> for Box<Failure> {
    #[cold]
    fn from(error: Error) -> Self {
        Failure::new((&error).into(), error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// The sentence that this thread noted last; never NULL, good until it notes another one.
pub fn last_sentence() -> *const c_char {
    let last = LAST.try_with(|last| last.try_borrow().ok()?.as_ref().map(|text| text.as_ptr()));
    // A thread that is ending has no sentences any more.
    last.ok().flatten().unwrap_or(c"".as_ptr())
}

/// A sentence as C reads it.
pub fn c_text(sentence: &str) -> CString {
    CString::new(sentence.replace('\0', " ")).unwrap_or_default()
}

/// The wall: no panic gets through.
#[inline]
pub fn guard<T>(body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

#[cold]
fn panicked(panic: &(dyn Any + Send)) -> Box<Failure> {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words");
    Failure::new(Cause::Internal, format!("a panic inside the library: {text}"))
}
