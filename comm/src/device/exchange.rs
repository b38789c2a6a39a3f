//! What the ranks of a group tell each other on their hosts.

use brigade_cuda::CudaError;
use brigade_transports::TransportError;

use crate::Error;
use crate::communicator::Shared;
use crate::purpose::Purpose;

/// Everybody's bytes, in the order of ranks; the same number of each. Ranks have met when it ends.
pub(super) fn exchange(shared: &Shared, mine: &[u8]) -> Result<Vec<u8>, Error> {
    shared.exchange(Purpose::Devices, mine)
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
