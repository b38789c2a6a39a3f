//! The limits of a device are measured on the fake one: that every row comes and is right, for the
//! numbers mean nothing there.

use brigade_bench::cuda::{Effort, Row, measure};
use brigade_cuda::Cuda;

#[test]
fn every_limit_is_measured_and_right() {
    if !brigade_cuda_fake::is_usable() {
        return eprintln!("skipped: no C++ compiler for the fake device");
    }
    brigade_cuda_fake::install();
    let device = Cuda::load().expect("the fake driver").device(0).expect("a device");
    let mut rows: Vec<Row> = Vec::new();
    measure(&device, Effort::QUICK, None, &mut |row| rows.push(row.clone())).expect("limits");
    let of = |what: &str| rows.iter().filter(|row| row.what == what).count();
    assert_eq!(of("copy on the device"), 2, "{rows:?}");
    assert_eq!(of("device to pinned host"), 2);
    for what in
        ["launches in a row, each", "a launch that is waited for", "both directions at once"]
    {
        assert_eq!(of(what), 1, "{what}");
    }
    let checked: Vec<_> = rows.iter().filter_map(|row| row.right).collect();
    assert_eq!(checked, [true; 5], "{rows:?}");
    let line = rows[0].json().expect("JSON");
    assert!(line.starts_with("{\"what\":\"copy on the device\",\"bytes\":4096,\"us\":"), "{line}");
}
