//! What can go wrong with a file, said so that somebody can act on it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// What was being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Open or create a file.
    Open,
    /// Reserve its space.
    Allocate,
    /// Bytes from the file into memory.
    Read,
    /// Bytes from memory to the file.
    Write,
    /// Make everything written so far survive a loss of power.
    Sync,
    /// Remove a file's name.
    Remove,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Open => "open",
            Operation::Allocate => "allocate",
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Sync => "sync",
            Operation::Remove => "remove",
        })
    }
}

/// A request that did not do all that it was asked to.
#[derive(Clone, thiserror::Error)]
pub enum StorageError {
    /// The system refused.
    #[error(
        "{operation} of {} at offset {offset}: {got_bytes} of {wanted_bytes} bytes{} done, \
         then {}{}",
        path.display(), in_mib(*wanted_bytes), system_says(*errno), hint(*errno)
    )]
    Refused {
        /// What was being done.
        operation: Operation,
        /// The file.
        path: Arc<Path>,
        /// Where the request began.
        offset: u64,
        /// Bytes asked for.
        wanted_bytes: u64,
        /// Bytes done, somewhere in the range that was asked for.
        got_bytes: u64,
        /// The system's number for why.
        errno: i32,
    },
    /// The file ends before what was asked for.
    #[error(
        "read of {} at offset {offset}: {got_bytes} of {wanted_bytes} bytes, then the file ends",
        path.display()
    )]
    Truncated {
        /// The file.
        path: Arc<Path>,
        /// Where the request began.
        offset: u64,
        /// Bytes asked for.
        wanted_bytes: u64,
        /// Bytes that were there, somewhere in the range that was asked for.
        got_bytes: u64,
    },
    /// Not complete within the caller's limit. It goes on; its memory is kept until it ends.
    #[error(
        "{operation} of {} at offset {offset}: {wanted_bytes} bytes not done after {waited_ms} ms: \
         the device is stuck, or the limit is too short for it",
        path.display()
    )]
    Late {
        /// What was being done.
        operation: Operation,
        /// The file.
        path: Arc<Path>,
        /// Where the request began.
        offset: u64,
        /// Bytes asked for.
        wanted_bytes: u64,
        /// How long the caller waited.
        waited_ms: u64,
    },
    /// A write before this sync failed, and perhaps nobody looked at its outcome.
    #[error("sync of {}: a write before it failed: {cause}", path.display())]
    WriteFailed {
        /// The file.
        path: Arc<Path>,
        /// The first failure since the last sync.
        cause: Box<StorageError>,
    },
    /// Somebody else writes to this file.
    #[error(
        "{} is being written by {}: one at a time may; wait for it to end, or take another path",
        path.display(), describe_owner(*owner)
    )]
    Owned {
        /// The file.
        path: Arc<Path>,
        /// The process that does, where the system tells.
        owner: Option<u32>,
    },
    /// The engine has ended, or never was.
    #[error("the storage engine has stopped: {why}")]
    Stopped {
        /// Why it did.
        why: String,
    },
}

impl std::fmt::Debug for StorageError {
    /// The sentence, as `Display` has it: what a `main` that returns an error prints.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl StorageError {
    /// The system's number, where it was the system that refused.
    pub fn errno(&self) -> Option<i32> {
        match self {
            StorageError::Refused { errno, .. } => Some(*errno),
            StorageError::WriteFailed { cause, .. } => cause.errno(),
            _ => None,
        }
    }

    /// Whether the device or the quota is full.
    pub fn is_full(&self) -> bool {
        matches!(self.errno(), Some(libc::ENOSPC | libc::EDQUOT))
    }
}

fn describe_owner(owner: Option<u32>) -> String {
    match owner {
        Some(owner) if owner == std::process::id() => String::from("this process"),
        Some(owner) => format!("process {owner}"),
        None => String::from("another process"),
    }
}

/// What many bytes are as memory is told elsewhere; few are told well enough as they are.
pub(super) fn in_mib(bytes: u64) -> String {
    match bytes >> 20 {
        0 => String::new(),
        _ => format!(" ({:.2} MiB)", bytes as f64 / f64::from(1 << 20)),
    }
}

fn system_says(errno: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno)
}

fn hint(errno: i32) -> &'static str {
    match errno {
        libc::ENOSPC | libc::EDQUOT => ": free space or give another path",
        libc::EIO => ": the device reports damage, see the kernel's log",
        libc::EAGAIN => ": the device put it off again and again",
        libc::EFBIG => ": the file system or a limit does not take files of this size",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_place_and_the_numbers() {
        let refused = StorageError::Refused {
            operation: Operation::Write,
            path: Path::new("/scratch/state").into(),
            offset: 4096,
            wanted_bytes: 1 << 20,
            got_bytes: 8192,
            errno: libc::ENOSPC,
        };
        let text = refused.to_string();
        let done = "8192 of 1048576 bytes (1.00 MiB) done";
        for part in ["/scratch/state", "4096", done, "os error 28", "free space"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(refused.is_full());
    }
}
