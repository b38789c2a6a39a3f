//! The streamed optimizer step: state that lies in files passes through memory once.
//!
//! The flat state is cut into chunks, whatever tensors there are. Each chunk is read, updated and
//! written, and the three overlap: while one chunk is updated the next ones are being read and the
//! last ones written, so that a step takes as long as the slowest of the three.
//!
//! ```text
//! chunk 0   read | update | write
//! chunk 1          read   | update | write          a ring of slots, each the memory of one chunk:
//! chunk 2                   read   | update | write   chunk c uses slot c mod slots
//! ```
//!
//! Two sides can be exchanged. A [`Home`] is where arrays of state lie: [`Files`], a generation
//! of a state file in the making ([`Drafted`]), or whatever else reads and writes pieces. A
//! [`Middle`] is what happens to a chunk: [`Whole`] runs an optimizer over gradients that are all
//! there, [`Copying`] writes the narrowed weights out in the same pass, and any function over the
//! arrays is one.
//!
//! [`Pipeline::run`] goes through all chunks and waits where it must. Somebody else may hold the
//! reins instead, such as a collective that brings gradients and takes weights some elements at a
//! time: [`Pipeline::begin`] starts the reads, [`Running::is_ready`] never waits, and
//! [`Running::update`] lends the arrays of any elements in order ([`Optimize::part`] updates them).
//!
//! Gradients are never written to a device. Which arrays are streamed and which stay in memory is
//! chosen one by one ([`State`]). Bytes moved: `elements · width` of each streamed array each way,
//! or one way where it is only written, and not one more ([`Moved`] counts them).
//!
//! This room does not know what a tensor is to a model, nor what makes a state survive a crash.

mod drafted;
mod error;
mod files;
mod home;
mod optimize;
mod pipeline;
mod ring;
mod running;
mod shape;

pub use drafted::{Drafted, Misplaced};
pub use error::{Doing, StepError};
pub use files::{Files, Span};
pub use home::{Arrival, Home, Piece};
pub use optimize::{Copying, Format, Narrow, Optimize, OptimizeError, State, Tier, Whole};
pub use pipeline::{Middle, Moved, Pipeline};
pub use running::Running;
pub use shape::Shape;
