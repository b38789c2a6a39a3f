//! The trainer's kernels as ThreadSanitizer sees them.

use brigade_cuda_fake::{has_device, races};

#[test]
fn kernels_order_what_they_read_and_write() {
    if !has_device() {
        return;
    }
    // What only has more blocks of a kernel shows nothing more, and takes a minute.
    let Some(reports) = races(&["operations::", "--skip=than_a_grid_is"]) else { return };
    assert_eq!(reports, "");
}
