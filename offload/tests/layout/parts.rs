//! A tensor in many parts, as a checkpoint of many ranks has it.

use std::time::{Duration, Instant};

use brigade_offload::layout::{Directory, Dtype, Tensor, Unplaceable};

#[test]
fn a_tensor_in_many_parts_takes_no_more_time_than_many_tensors() {
    let count = 100_000;
    let part = |at| Tensor::flat("all", Dtype::U8, &[count], at, 1);
    let start = Instant::now();
    let directory = Directory::pack((0..count).map(part), 1).unwrap();
    assert_eq!(directory.named("all").count() as u64, count);
    let twice = (0..count).chain([count / 2]).map(part);
    let refused = Directory::pack(twice, 1).unwrap_err();
    assert_eq!(refused, Unplaceable::Twice { name: "all".into() });
    // A tenth of a second; half a minute and more if each part were held against all before it.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}
