//! The trainer's kernels as ThreadSanitizer sees them.

use brigade_cuda_fake::{has_device, races};

#[test]
fn kernels_order_what_they_read_and_write() {
    if !has_device() {
        return;
    }
    let Some(reports) = races(&["operations::"]) else { return };
    assert_eq!(reports, "");
}
