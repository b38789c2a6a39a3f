//! State in files: generations that are whole or not there, tensors by name, and tiers.
//!
//! * [`StateFile`]: the tensors of one rank over one or more files; reading checks every block, and
//!   a [`Draft`] becomes the next generation or leaves no trace
//! * [`Checkpoint`]: the states of all ranks of a job, read at any other number of ranks
//! * [`export`] and [`import`]: the same in the safetensors format, a few blocks at a time
//! * [`Store`]: tensors by name in host memory and files, fetched before they are needed
//!
//! ```
//! use brigade_offload::layout::{Directory, Dtype, Tensor};
//! use brigade_offload::memory::{Arena, Budget};
//! use brigade_offload::storage::{Settings, Storage};
//! use brigade_offload::store::{Carrier, Checkpoint, StateFile, rank_paths};
//!
//! # let folder = std::env::temp_dir().join(format!("brigade-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! let arena = Arena::new(Budget::new(16 << 20))?;
//! let carrier = Carrier::new(&Storage::new(&arena, Settings::default())?, &arena);
//!
//! // Two ranks save half of a tensor each, and wait for nobody.
//! let paths: Vec<_> = (0..2).map(|rank| rank_paths(&[&folder], rank, 2)).collect();
//! for (rank, paths) in paths.iter().enumerate() {
//!     let half = Tensor::flat("weights", Dtype::F32, &[1000], rank as u64 * 500, 500);
//!     let directory = Directory::pack([half], 64)?;
//!     let mut state = StateFile::create(&carrier, paths, directory, 1 << 20)?;
//!     state.save(7, b"step 7", |_tensor, _from, target| Ok(target.fill(rank as u8)))?;
//! }
//! // One rank loads the whole.
//! let mut weights = vec![0; 4000];
//! let checkpoint = Checkpoint::open(&carrier, &paths)?;
//! checkpoint.load(&Tensor::whole("weights", Dtype::F32, &[1000]), &mut weights)?;
//! assert_eq!((checkpoint.label(), weights[1999], weights[2000]), (7, 0, 1));
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What lies where is known to `layout`, and how bytes move to `storage`; here the one is carried
//! out with the other. Files that are swapped to are checkpoints: there is no other format. Nothing
//! here waits without a limit, and no two ranks ever wait for each other.

mod carrier;
mod checkpoint;
mod commits;
mod draft;
mod error;
mod gather;
mod held;
mod mending;
mod moves;
mod opening;
mod order;
mod run;
mod safetensors;
mod shared;
mod slot;
mod state;
mod tiers;
mod work;

pub use carrier::Carrier;
pub use checkpoint::{Checkpoint, rank_paths};
pub use draft::Draft;
pub use error::StoreError;
pub use held::Held;
pub use opening::Which;
pub use order::Order;
pub use run::{Broken, Run};
pub use safetensors::{export, import};
pub use shared::PendingBlock;
pub use state::StateFile;
pub use tiers::{Loan, Store, Tally};
pub use work::Work;
