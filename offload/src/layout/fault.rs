//! What was wrong with bytes of a state file: where, what was wanted and what was found.

use thiserror::Error;

/// One thing wrong, at one place of one file. Whoever knows the path adds it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("at byte {offset}: {wrong}")]
pub struct Fault {
    /// Where in the file.
    pub offset: u64,
    /// What is wrong there.
    pub wrong: Wrong,
}

/// The ways in which bytes can be wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Wrong {
    /// Nothing was ever written here, or it was erased.
    #[error("wanted a superblock, found only zeros")]
    Empty,
    /// The bytes are not of this format.
    #[error("wanted the mark of a brigade state, found {found:02x?}")]
    Mark {
        /// What stands where the mark should.
        found: [u8; 8],
    },
    /// The sum over the bytes is not the one that was written down.
    #[error("checksum of {what}: wanted {wanted:016x}, found {found:016x}")]
    Checksum {
        /// What was summed.
        what: &'static str,
        /// The sum that was written down.
        wanted: u64,
        /// The sum over what is there.
        found: u64,
    },
    /// A number is out of its bounds.
    #[error("{field}: wanted {least} to {most}, found {found}")]
    Value {
        /// Its name.
        field: &'static str,
        /// The least that is legal.
        least: u64,
        /// The most that is legal.
        most: u64,
        /// What was found.
        found: u64,
    },
    /// A name is not UTF-8.
    #[error("the name of a tensor is not UTF-8")]
    Name,
    /// The bytes end too early.
    #[error("wanted {wanted} bytes, found {found}")]
    Truncated {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// Bytes are left over.
    #[error("{extra} bytes more than wanted")]
    Extra {
        /// How many.
        extra: u64,
    },
    /// The file belongs to another state.
    #[error("wanted state {wanted:032x}, found {found:032x}")]
    State {
        /// The state that the first stripe belongs to.
        wanted: u128,
        /// The state that this file belongs to.
        found: u128,
    },
}

impl Fault {
    pub(super) fn new(offset: u64, wrong: Wrong) -> Self {
        Self { offset, wrong }
    }
}
