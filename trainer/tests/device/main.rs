//! Training on a device: a fake one, whose driver and compiler are this project's own, so that it
//! runs everywhere, or a real one with `BRIGADE_FAKE_CUDA=off`.

mod operations;
mod training;

use brigade_cuda_fake::has_device;
