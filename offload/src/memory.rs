//! One arena for each process: huge pages where there are any, exact sizes, a hard budget.
//!
//! What decides the speed of transfers is whether a block of memory is contiguous in the machine:
//! the same disk reads two to three times faster into pages of 2 MiB than into scattered pages of
//! 4 KiB. So the whole budget is mapped once, with the best pages that the machine gives, and
//! buffers are handed out of it. Nothing here has seen a file.

mod arena;
mod buffer;
mod ledger;
mod pool;
mod ranges;
mod region;
mod sys;

pub use arena::{Arena, ArenaError, Budget, OverBudget, available_bytes};
pub use buffer::Buffer;
pub use ledger::{Category, Ledger};
pub use ranges::span_bytes;
pub(crate) use region::Window;
pub use region::{ALIGNMENT, Pages};
