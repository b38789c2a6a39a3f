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
//! Three sides can be exchanged:
//!
//! * a [`Home`] is where arrays of state lie: [`Files`], or whatever else reads and writes pieces
//! * a [`Middle`] is what happens to a chunk: [`Optimize`], or any function over its arrays
//! * an [`Exchange`] is where [`Optimize`] gets gradients and leaves weights: [`InMemory`], or a
//!   collective that delivers the one and takes the other chunk by chunk
//!
//! Gradients are never written to a device. Which arrays are streamed and which stay in memory is
//! chosen one by one ([`State`]). Bytes moved: `elements · width` of each streamed array each way,
//! and not one more ([`Moved`] counts them).
//!
//! This room does not know what a tensor is, nor what makes a state survive a crash.

mod error;
mod exchange;
mod files;
mod home;
mod optimize;
mod pipeline;
mod ring;
mod shape;

pub use error::{Doing, StepError};
pub use exchange::{Exchange, InMemory};
pub use files::{Files, Span};
pub use home::{Arrival, Home, Piece};
pub use optimize::{Format, Optimize, State, Tier};
pub use pipeline::{Middle, Moved, Pipeline};
pub use shape::Shape;
