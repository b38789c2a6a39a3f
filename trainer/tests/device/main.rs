//! Training on a device: a fake one, whose driver and compiler are this project's own, so that it
//! runs everywhere, or a real one with `BRIGADE_FAKE_CUDA=off`.

mod blas;
mod checkpoints;
mod clipped;
mod experts;
mod inputs;
mod operations;
mod pipelines;
mod races;
mod tensor;
mod training;
#[path = "../training/unchecked.rs"]
mod unchecked;
mod world;

use brigade_cuda_fake::has_device;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Tests are threads of one process and share its device: code that one loads waits for everything
/// there, calls of another's ranks among it, which may wait for a rank that is held up by that.
static DEVICE: RwLock<()> = RwLock::new(());

/// For ranks that wait for each other on the device.
fn alone() -> RwLockWriteGuard<'static, ()> {
    DEVICE.write().unwrap_or_else(PoisonError::into_inner)
}

/// For everybody else.
fn beside() -> RwLockReadGuard<'static, ()> {
    DEVICE.read().unwrap_or_else(PoisonError::into_inner)
}
