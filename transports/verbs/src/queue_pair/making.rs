//! Making queue pairs, on devices of which each has other limits.

use std::ptr::NonNull;

use super::Limits;
use crate::sys::{IBV_QPT_RC, ibv_qp, ibv_qp_cap, ibv_qp_init_attr};
use crate::{CompletionQueue, ProtectionDomain, Result, VerbsError};

/// What is tried where a device takes less with a request than was asked for.
const INLINE_BYTES: [u32; 2] = [96, 0];

/// Make one that is connected to nothing, and say how many bytes it takes with a request: fewer
/// than asked for where the device takes no more.
pub(super) fn make(
    domain: &ProtectionDomain,
    queues: [&CompletionQueue; 2],
    limits: Limits,
) -> Result<(NonNull<ibv_qp>, u32)> {
    let mut made = create(domain, queues, limits);
    for inline_bytes in INLINE_BYTES.into_iter().filter(|bytes| *bytes < limits.inline_bytes) {
        // Devices do not say how much fits into a request.
        if made.as_ref().is_err_and(is_of_limits) {
            made = create(domain, queues, Limits { inline_bytes, ..limits }).or(made);
        }
    }
    made
}

fn create(
    domain: &ProtectionDomain,
    [sends, receives]: [&CompletionQueue; 2],
    limits: Limits,
) -> Result<(NonNull<ibv_qp>, u32)> {
    let mut wanted = ibv_qp_init_attr {
        qp_context: std::ptr::null_mut(),
        send_cq: sends.raw.as_ptr(),
        recv_cq: receives.raw.as_ptr(),
        srq: std::ptr::null_mut(),
        cap: ibv_qp_cap {
            max_send_wr: limits.sends,
            max_recv_wr: limits.receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: limits.inline_bytes,
        },
        qp_type: IBV_QPT_RC,
        sq_sig_all: 0,
    };
    let library = domain.device.library;
    // SAFETY: a live domain, live queues, and a structure that the call reads and updates.
    let raw = NonNull::new(unsafe { (library.create_qp)(domain.raw.as_ptr(), &mut wanted) });
    let raw = raw.ok_or_else(|| {
        let what = format!("{limits:?} of {}", domain.device.name());
        VerbsError::last("ibv_create_qp", what)
    })?;
    Ok((raw, wanted.cap.max_inline_data))
}

/// Whether a device has refused what was asked of it, and might take less.
fn is_of_limits(error: &VerbsError) -> bool {
    let of_limits = [libc::EINVAL, libc::ENOMEM, libc::EOPNOTSUPP, libc::ENOSYS];
    matches!(error, VerbsError::Call { errno, .. } if of_limits.contains(errno))
}
