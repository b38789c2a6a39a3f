//! Errors: a number for the caller, a sentence for its log.

use std::ffi::{CString, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use brigade_transports::TransportError;
use brigade_transports::plugin::sys::{
    Code, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, LOG_WARN, Logger, REMOTE_ERROR, SUCCESS,
    SYSTEM_ERROR,
};

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) code: Code,
    pub(crate) why: String,
}

/// What a function comes to.
pub(crate) type Outcome<T = ()> = Result<T, Fault>;

impl Fault {
    /// The caller gave something that makes no sense.
    pub(crate) fn argument(why: impl Into<String>) -> Fault {
        Fault { code: INVALID_ARGUMENT, why: why.into() }
    }

    /// The user asked for what cannot be had.
    pub(crate) fn usage(why: impl Into<String>) -> Fault {
        Fault { code: INVALID_USAGE, why: why.into() }
    }

    /// The system or the network failed.
    pub(crate) fn system(why: impl Into<String>) -> Fault {
        Fault { code: SYSTEM_ERROR, why: why.into() }
    }

    /// The other end broke the protocol, or is gone.
    pub(crate) fn remote(why: impl Into<String>) -> Fault {
        Fault { code: REMOTE_ERROR, why: why.into() }
    }
}

impl From<TransportError> for Fault {
    fn from(error: TransportError) -> Fault {
        match error {
            TransportError::PeerGone { how, .. } => {
                Fault::remote(format!("the other end is gone: {how}"))
            }
            TransportError::Corrupt { .. } => Fault::remote(error.to_string()),
            _ => Fault::system(error.to_string()),
        }
    }
}

static LOGGER: Mutex<Option<Logger>> = Mutex::new(None);

/// From now on sentences go there.
pub(crate) fn log_to(logger: Option<Logger>) {
    if logger.is_some() {
        *LOGGER.lock().unwrap_or_else(PoisonError::into_inner) = logger;
    }
}

/// Run the body of a function of the table: errors and panics become numbers and sentences.
pub(crate) fn enter(name: &str, body: impl FnOnce() -> Outcome) -> Code {
    let caught = catch_unwind(AssertUnwindSafe(body));
    let fault = match caught {
        Ok(Ok(())) => return SUCCESS,
        Ok(Err(fault)) => fault,
        Err(_) => Fault { code: INTERNAL_ERROR, why: "a mistake in Brigade: a panic".into() },
    };
    say(&format!("NET/Brigade: {name}: {}", fault.why));
    fault.code
}

/// Log a sentence, as a warning.
fn say(text: &str) {
    let Some(logger) = *LOGGER.lock().unwrap_or_else(PoisonError::into_inner) else { return };
    // Text from the network may hold what a C string cannot.
    let Ok(text) = CString::new(text.replace('\0', " ")) else { return };
    let (file, format) = (c"brigade".as_ptr(), c"%s".as_ptr());
    let line: c_int = 0;
    // SAFETY: the caller of init gave a function of this form, for as long as the plugin is loaded;
    // the format takes one string, which ends with a zero and lives through the call.
    unsafe { logger(LOG_WARN, !0, file, line, format, text.as_ptr()) };
}
