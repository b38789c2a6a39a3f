//! Kernels as ThreadSanitizer sees them.

use brigade_cuda_fake::{has_device, races};

/// Every kernel, among ranks that are threads: calls in packets, directly and by schedules,
/// messages by letters and in parcels, what lies in rows, and calls that end in the middle.
#[test]
fn kernels_order_what_they_read_and_write() {
    if !has_device() {
        return;
    }
    let tests = [
        "rows::rows_of",
        "rows::rows_through",
        "calls::messages_go_around_and_keep_their_order",
        "linked::messages_and_calls_share_their_slots",
        "linked::messages_of_different_lengths_are_told_apart",
        "linked::averages_and_factors_are_a_kernel_of_their_own",
        "linked::ranks_in_different_calls_are_told_apart",
        "failures::ranks_in_different_calls_are_told",
    ];
    let Some(reports) = races(&tests) else { return };
    assert_eq!(reports, "");
}
