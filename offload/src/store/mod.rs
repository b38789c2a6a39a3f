//! State in files: generations that are whole or not there, tensors by name, and tiers.
//!
//! * [`StateFile`]: the tensors of one rank over one or more files; reading checks every block, and a
//!   [`Draft`] becomes the next generation or leaves no trace
//! * [`Checkpoint`]: the states of all ranks of a job, read at any other number of ranks
//! * [`export`] and [`import`]: the same in the safetensors format, a few blocks at a time
//! * [`Store`]: tensors by name in host memory and files, fetched before they are needed
//!
//! What lies where is known to `layout`, and how bytes move to `storage`; here the one is carried out
//! with the other. Files that are swapped to are checkpoints: there is no other format. Nothing here
//! waits without a limit, and no two ranks ever wait for each other.

mod carrier;
mod checkpoint;
mod draft;
mod error;
mod gather;
mod moves;
mod opening;
mod order;
mod run;
mod safetensors;
mod state;
mod tiers;

pub use carrier::Carrier;
pub use checkpoint::{Checkpoint, rank_paths};
pub use draft::Draft;
pub use error::StoreError;
pub use order::Order;
pub use run::{Broken, Run};
pub use safetensors::{export, import};
pub use state::{PendingBlock, StateFile, Which};
pub use tiers::{Held, Loan, Store, Tally};
