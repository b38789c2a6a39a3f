//! Training on a device: a fake one, whose driver and compiler are this project's own, so that it
//! runs everywhere, or a real one with `BRIGADE_FAKE_CUDA=off`.

mod operations;
mod training;

/// Whether there is a device; the fake one is put in place first.
fn has_device() -> bool {
    if !brigade_cuda_fake::is_usable() {
        eprintln!("skipped: no C++ compiler for the fake device");
        return false;
    }
    brigade_cuda_fake::install();
    true
}
