//! What lies where in the files of a state, so that a crash leaves the old state or the new one.
//!
//! A *state* is the bytes of some tensors, cut into blocks and dealt out to 1..N files (*stripes*),
//! block by block. Each block has two homes, one on either *side* of its file, and a *generation*
//! is a table that names one home and one checksum for every block. A new generation writes into
//! the homes that the newest one does not use, so the newest stays whole until its successor is:
//!
//! ```text
//! file    slot 0 | slot 1 | index 0 | index 1 | side 0: blocks s, s+N, s+2N .. | side 1: the same
//! slot    superblock: which state, stripe and generation, and the checksum of its index
//! index   directory of tensors, then checksum and side of each block of this stripe
//! commit  write blocks and index -> sync -> write superblock -> sync
//! ```
//!
//! States that are of use only together, as those of a store with several paths, say so in their
//! superblocks ([`Member`]): none of them is opened without the others.
//!
//! Generation g uses slot and index g mod 2. A superblock binds all stripes: it holds a digest over
//! the indices of every stripe, and [`recover`] takes the newest generation on which all stripes
//! agree. Before a state is written to again, slots that lost are erased and everything is synced
//! ([`Recovered::mend`]): what was only *seen* to be written may not be there after the next power
//! cut.
//!
//! The commit is data ([`Step`]s), so tests cut it anywhere. This room does no I/O, knows no path
//! and no rank; bytes that it parses are hostile until every bound is checked.
#![forbid(unsafe_code)]

mod bytes;
mod checksum;
mod commit;
mod directory;
mod fault;
mod geometry;
mod index;
mod overlap;
mod recover;
mod step;
mod superblock;
mod tensor;

pub use checksum::{Checksum, checksum, checksum_padded};
pub use commit::{Commit, Sealed, Unsealable};
pub use directory::{Directory, Placed, Unplaceable};
pub use fault::{Fault, Wrong};
pub use geometry::{ALIGNMENT, BadGeometry, Geometry, Place, SLOT_BYTES, Side};
pub use index::{Blueprint, Entry, Generation};
pub use overlap::{Held, Missing, Piece, pieces};
pub use recover::{Candidate, Recovered, Unrecoverable, erase, recover, withdraw};
pub use step::Step;
pub use superblock::{Member, NOTE_BYTES_MAX, Superblock};
pub use tensor::{BadHold, Dtype, Hold, Tensor};
