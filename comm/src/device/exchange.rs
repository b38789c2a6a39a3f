//! What the ranks of a group tell each other on their hosts.

use brigade_cuda::CudaError;
use brigade_schedule::Collective;
use brigade_transports::TransportError;

use crate::call::{Buffers, Call};
use crate::communicator::Shared;
use crate::{Dtype, Error};

/// Everybody's bytes, in the order of ranks; the same number of each. Ranks have met when it ends.
pub(super) fn exchange(shared: &Shared, mine: &[u8]) -> Result<Vec<u8>, Error> {
    let mut all = vec![0; mine.len() * shared.ranks as usize];
    let call = Call::moving(Collective::AllGather, Dtype::U8, mine.len());
    let buffers = Buffers::OutOfPlace { input: mine, output: &mut all };
    shared.progress.drain();
    shared.run_now(&call, buffers).map_err(|error| *error)?;
    Ok(all)
}

/// Whether it went well on all ranks.
pub(super) fn agree(shared: &Shared, went_well: bool) -> Result<bool, Error> {
    Ok(exchange(shared, &[u8::from(went_well)])?.iter().all(|&byte| byte == 1))
}

/// A failure of CUDA as the error of a call.
pub(super) fn trouble(during: &str, error: &CudaError) -> Error {
    let source = TransportError::Refused { why: error.to_string() };
    Error::Transport { source, during: during.to_owned() }
}
