//! A step takes as long as the slowest of reading, updating and writing.

use super::device::Device;
use brigade_offload::memory::{Arena, Budget};
use brigade_offload::step::{Pipeline, Shape};
use std::ops::Range;

const ELEMENTS: usize = 48 * 4096;
const CHUNKS: usize = 48;

/// Nanoseconds of a step on a device of these rates, by how much it falls short of the slowest of
/// the three.
fn efficiency(slots: usize, chunks: usize, read_ns: f64, write_ns: f64, compute_ns: f64) -> f64 {
    let arena = Arena::new(Budget::new(64 << 20)).expect("there is memory");
    let widths = [4, 4, 4];
    let shape = Shape::cut(ELEMENTS, &widths, ELEMENTS / chunks);
    let mut pipeline = Pipeline::with_slots(&arena, shape, slots).expect("it fits");
    let arrays = widths.map(|width| vec![7; ELEMENTS * width]).to_vec();
    let mut device = Device::new(arrays, read_ns, write_ns);
    let clock = device.clock.clone();
    let mut update = |elements: Range<usize>, _: &mut [&mut [u8]]| {
        let ns = compute_ns * (elements.len() * 12) as f64;
        clock.set(clock.get() + ns as u64);
        Ok(())
    };
    let moved = pipeline.run(&mut device, &mut update).expect("nothing is broken");
    assert_eq!(device.moved(), [moved.read_bytes, moved.written_bytes]);
    assert_eq!(device.under_way.borrow().now, 0, "a transfer was not waited for");
    assert_eq!(device.old, device.new, "nothing was changed, so what was written is what was read");
    assert!(device.under_way.borrow().most >= 3 * 3, "three chunks of three arrays under way");
    let slowest = read_ns.max(write_ns).max(compute_ns) * (ELEMENTS * 12) as f64;
    slowest / device.clock.get() as f64
}

#[test]
fn reading_updating_and_writing_overlap() {
    for (read, write, compute) in [
        (1.0, 1.0, 0.05), // a drive as fast each way
        (1.0, 0.5, 0.05), // reads are slower
        (0.4, 1.0, 0.05), // writes are
        (0.2, 0.3, 1.0),  // the update is
        (1.0, 0.1, 0.9),  // two are nearly even
    ] {
        let efficiency = efficiency(5, CHUNKS, read, write, compute);
        assert!(efficiency >= 0.95, "{read} {write} {compute}: {efficiency}");
    }
}

#[test]
fn three_even_sides_cost_the_filling_and_draining_of_both() {
    // Two chunks more than there are: of 48, that is 4 %.
    let efficiency = efficiency(5, CHUNKS, 1.0, 1.0, 1.0);
    assert!(efficiency >= 0.955, "{efficiency}");
}

#[test]
fn thirty_two_chunks_are_enough() {
    let efficiency = efficiency(5, 32, 1.0, 1.0, 0.05);
    assert!(efficiency >= 0.95, "{efficiency}");
}

#[test]
fn few_chunks_or_slots_cost_what_they_must() {
    // One chunk has nothing to overlap with.
    assert!((efficiency_of_one() - 1.0 / 2.05).abs() < 0.01, "{}", efficiency_of_one());
    // Three slots wait for one write after the other: slower than five, faster than none.
    let three = efficiency(3, CHUNKS, 1.0, 1.0, 0.05);
    assert!((0.6..0.98).contains(&three), "{three}");
}

/// One chunk: read, update and write one after the other.
fn efficiency_of_one() -> f64 {
    let arena = Arena::new(Budget::new(64 << 20)).expect("there is memory");
    let shape = Shape::cut(1000, &[4], 1000);
    let mut pipeline = Pipeline::new(&arena, shape).expect("it fits");
    let mut device = Device::new(vec![vec![0; 4000]], 1.0, 1.0);
    let clock = device.clock.clone();
    let mut update = |_: Range<usize>, _: &mut [&mut [u8]]| {
        clock.set(clock.get() + 200);
        Ok(())
    };
    pipeline.run(&mut device, &mut update).expect("nothing is broken");
    4000.0 / device.clock.get() as f64
}
