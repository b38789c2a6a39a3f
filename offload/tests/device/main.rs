//! What crosses between host, files and device arrives, in order and whole, on a fake device.

mod files;

use brigade_cuda::{Context, Cuda, DeviceMemory};
use brigade_offload::device::{Crossing, Download, PinnedArena, Rates, Upload};
use brigade_offload::memory::{Arena, Budget, Category};
use std::time::Duration;

fn context() -> Option<Context> {
    if !brigade_cuda_fake::is_usable() {
        eprintln!("skipped: no C++ compiler for the fake device");
        return None;
    }
    brigade_cuda_fake::install();
    Some(Context::new(&Cuda::load().unwrap().device(0).unwrap()).unwrap())
}

/// A byte for each place, that no slot's length divides.
fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

#[test]
fn numbers_go_up_and_down_through_slots_that_are_shorter() {
    let Some(context) = context() else { return };
    let memory = DeviceMemory::new(&context, 1 << 20).unwrap();
    let mut up = Upload::new(&context, 2, 4096).unwrap();
    let mut down = Download::new(&context, 2, 8192).unwrap();
    for bytes in [0, 1, 4096, 4097, 100_001] {
        let fill = |start: usize, slot: &mut [u8]| {
            slot.iter_mut().enumerate().for_each(|(at, to)| *to = byte(start + at));
        };
        // SAFETY: the memory is longer and outlives both directions, which wait for each other.
        unsafe { up.send(memory.address(), bytes, fill) }.unwrap();
        up.stream().synchronize().unwrap();
        let mut seen = Vec::new();
        let mut take = |down: &mut Download| down.finish(|part| seen.extend_from_slice(part));
        for start in (0..bytes).step_by(8192) {
            if down.is_full() {
                take(&mut down).unwrap();
            }
            let part = 8192.min(bytes - start);
            // SAFETY: as above.
            unsafe { down.begin(memory.address() + start as u64, part) }.unwrap();
        }
        let left = bytes.div_ceil(8192).min(2);
        (0..left).for_each(|_| take(&mut down).unwrap());
        assert_eq!(seen.len(), bytes);
        assert!(seen.iter().enumerate().all(|(at, seen)| *seen == byte(at)), "{bytes} bytes");
    }
}

#[test]
fn buffers_of_the_arena_cross_where_they_lie_and_come_back() {
    let Some(context) = context() else { return };
    let arena = Arena::new(Budget::new(4 << 20)).unwrap();
    let pinned = PinnedArena::new(&context, &arena).unwrap();
    let memory = DeviceMemory::new(&context, 1 << 20).unwrap();
    let [up, down] = [pinned.lane().unwrap(), pinned.lane().unwrap()];
    let mut buffer = arena.take(100_001, Category::Staging).unwrap();
    buffer.iter_mut().enumerate().for_each(|(at, to)| *to = byte(at));
    // SAFETY: the memory is longer and outlives the flights, of which one follows the other.
    let flight = unsafe { up.up(memory.address(), buffer) }.unwrap();
    down.stream().wait(flight.done()).unwrap();
    let empty = arena.take(100_001, Category::Staging).unwrap();
    // SAFETY: as above.
    let landed = unsafe { down.down(memory.address(), empty) }.unwrap().land().unwrap();
    assert!(landed.iter().enumerate().all(|(at, seen)| *seen == byte(at)));
    drop((flight, landed));
    assert_eq!(arena.ledger().free(), arena.capacity(), "buffers went back to the arena");

    let other = Arena::new(Budget::new(2 << 20)).unwrap();
    let foreign = other.take(64, Category::Other).unwrap();
    // SAFETY: as above.
    let refused = unsafe { up.up(memory.address(), foreign) }.err().unwrap();
    assert_eq!(refused.to_string(), "the buffer is of another arena");
}

#[test]
fn rates_are_measured_in_both_directions() {
    if context().is_none() {
        return;
    }
    let mut rates = Rates::new(0, 1 << 16).unwrap();
    for crossing in [Crossing::Up, Crossing::Down, Crossing::Both] {
        let least = Duration::from_millis(2);
        assert!(rates.buffers(crossing, least).unwrap() > 0.0);
        assert!(rates.limit(crossing, least).unwrap() > 0.0);
    }
}
