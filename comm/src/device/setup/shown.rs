//! What ranks show each other on their devices: memory, and patterns by which they prove that they
//! see it.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use brigade_cuda::{Context, CudaError, DeviceMemory, Stream};

use super::card::Card;

/// The boards, inboxes and windows of this process.
static SHOWN: Mutex<Vec<Weak<DeviceMemory>>> = Mutex::new(Vec::new());

/// Let other ranks of this process keep it.
pub(in crate::device) fn show(memory: &Arc<DeviceMemory>) {
    let mut shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    shown.retain(|memory| memory.strong_count() > 0);
    shown.push(Arc::downgrade(memory));
}

/// What a rank of this process has shown.
pub(super) fn shown(address: u64) -> Option<Arc<DeviceMemory>> {
    let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    shown.iter().filter_map(Weak::upgrade).find(|memory| memory.address() == address)
}

/// As new: memory that no kernel uses.
pub(in crate::device) fn clear(stream: &Stream, memory: &DeviceMemory) -> Result<(), CudaError> {
    // SAFETY: the range is the memory, which nobody looks at now, and we wait.
    unsafe { stream.fill(memory.address(), 0, memory.bytes()) }?;
    stream.synchronize()
}

/// Let kernels of this device reach the memory of another rank's of this process.
pub(super) fn reach(context: &Context, card: &Card) -> Result<(), CudaError> {
    if card.uuid == context.device().uuid {
        return Ok(());
    }
    let devices = context.device().cuda.devices()?;
    let device = devices.iter().find(|device| device.ordinal == card.ordinal);
    let device = device.ok_or_else(|| CudaError::Refused { why: "no such device".into() })?;
    if !context.device().link_to(device)?.reaches {
        let why = format!("device {} is out of reach", device.ordinal);
        return Err(CudaError::Refused { why });
    }
    context.reach(&Context::new(device)?)
}

/// The bytes that `rank` shows in a proof.
pub(in crate::device) fn pattern(rank: u32, bytes: usize) -> Vec<u8> {
    let number = |at: usize| (at as u32).wrapping_mul(2_654_435_761) ^ rank.wrapping_mul(40_503);
    (0..bytes).map(|at| (number(at) >> 7) as u8).collect()
}
