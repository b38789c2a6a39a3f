//! What can go wrong, and what to do next.

use thiserror::Error;

use crate::code::Code;
use crate::cufile::FileCode;

/// Why there is no CUDA here: what was looked for, and what would help.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{why}")]
pub struct Missing {
    /// A sentence that says what is missing.
    pub why: String,
    /// What the user can do about it.
    pub next_step: String,
}

/// A call that failed.
#[derive(Clone, Error, PartialEq, Eq)]
pub enum CudaError {
    /// The driver, a device or the compiler is not there.
    #[error("{0}; {next}", next = .0.next_step)]
    Missing(#[from] Missing),
    /// The driver refused a call, or something before it had failed on the device.
    #[error("{what}: {call} said {code}")]
    Call {
        /// The function.
        call: &'static str,
        /// Its result.
        code: Code,
        /// What we were doing.
        what: String,
    },
    /// cuFile refused a call, or could not move bytes.
    #[error("{what}: {call} said {code}")]
    Direct {
        /// The function.
        call: &'static str,
        /// Its result.
        code: FileCode,
        /// What we were doing.
        what: String,
    },
    /// A kernel does not compile.
    #[error("{kernels} does not compile for {arch}: {log}")]
    Compile {
        /// The name of the source.
        kernels: String,
        /// The architecture it was compiled for.
        arch: String,
        /// What the compiler wrote.
        log: String,
    },
    /// What was asked for makes no sense, or the device cannot do it.
    #[error("{why}")]
    Refused {
        /// Why, and what could be asked for instead.
        why: String,
    },
    /// A file could not be read or written.
    #[error("{what}: {error}")]
    File {
        /// What we were doing, with the path.
        what: String,
        /// What the system said.
        error: String,
    },
}

impl std::fmt::Debug for CudaError {
    /// The sentence, as `Display` has it: what a `main` that returns an error prints.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// A result with a [`CudaError`].
pub type Result<T> = std::result::Result<T, CudaError>;

impl CudaError {
    /// Whether the device or the process has no more memory of the kind that was asked for.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Call { code: Code::OUT_OF_MEMORY, .. })
    }

    /// Whether the context is broken, so that every later call of this process fails alike.
    pub fn is_sticky(&self) -> bool {
        let Self::Call { code: Code(code), .. } = self else { return false };
        matches!(code, 214 | 219 | 220 | 226 | 700..=703 | 710 | 714..=719)
    }

    /// Whether a stream that is being captured is why the call was refused. Nothing of it is done
    /// then.
    pub fn is_for_capture(&self) -> bool {
        matches!(self, Self::Call { code: Code(900..=908), .. })
    }

    pub(crate) fn refused(why: impl Into<String>) -> Self {
        Self::Refused { why: why.into() }
    }
}
