//! A step that cannot be finished says why, leaves nothing under way, and can be tried again.

use super::device::{Broken, Device, Fault};
use super::state::{Numbers, bytes};
use brigade_offload::memory::{Arena, Budget, Category};
use brigade_offload::step::{Doing, Pipeline, Shape, StepError};
use std::error::Error;
use std::ops::Range;
use std::time::Duration;

const COUNT: usize = 1000;
const CHUNK: usize = 100;
const CHUNKS: usize = 10;

/// Add one to every byte: easy to see whether it was done, and how often.
fn update(_: Range<usize>, arrays: &mut [&mut [u8]]) -> Result<(), Box<dyn Error + Send + Sync>> {
    for byte in arrays.iter_mut().flat_map(|array| array.iter_mut()) {
        *byte = byte.wrapping_add(1);
    }
    Ok(())
}

fn device() -> Device {
    let numbers = Numbers::new(3, COUNT);
    let arrays = [&numbers.weights, &numbers.mean].map(|array| bytes(array));
    Device::new(arrays.to_vec(), 1.0, 1.0)
}

fn pipeline(arena: &Arena) -> Pipeline {
    let pipeline = Pipeline::new(arena, Shape::cut(COUNT, &[4, 4], CHUNK)).expect("it fits");
    pipeline.limit(Duration::from_secs(1))
}

/// One step with a fault, then one without over the same memory.
fn check(fault: Fault, doing: Doing, chunk: usize) {
    let arena = Arena::new(Budget::new(4 << 20)).expect("there is memory");
    let mut pipeline = pipeline(&arena);
    let mut device = device();
    device.fault = Some(fault);
    let error = pipeline.run(&mut device, &mut update).expect_err("it is broken");
    let StepError::Stopped { chunk: at, chunks, doing: was, updated, cause } = &error else {
        panic!("{fault:?}: {error}");
    };
    assert_eq!((*at, *chunks, *was), (chunk, CHUNKS, doing), "{fault:?}: {error}");
    assert_eq!(cause.downcast_ref(), Some(&Broken(fault)), "{error}");
    assert_eq!(device.under_way.borrow().now, 0, "{fault:?}: a transfer is still under way");
    // Written chunks are whole and were updated; the others were not touched.
    let mut written = [false; CHUNKS];
    for (_, piece) in device.log.iter().filter(|(is_write, _)| *is_write) {
        written[piece.chunk] = true;
        assert!(piece.chunk < *updated, "{fault:?}: chunk {} was written", piece.chunk);
        let range = piece.offset as usize..piece.offset as usize + piece.bytes;
        let (old, new) = (&device.old[piece.array][range.clone()], &device.new[piece.array][range]);
        assert!(old.iter().zip(new).all(|(old, new)| old.wrapping_add(1) == *new), "{fault:?}");
    }
    assert!(written[..chunk.saturating_sub(1)].iter().all(|is| *is) || *updated < chunk);
    device.fault = None;
    device.log.clear();
    let moved = pipeline.run(&mut device, &mut update).expect("nothing is broken any more");
    assert_eq!([moved.read_bytes, moved.written_bytes], device.moved());
    drop((pipeline, device));
    assert_eq!(arena.ledger().held(Category::Staging), 0, "{fault:?}: memory was lost");
}

#[test]
fn every_transfer_that_fails_stops_the_step_and_is_named() {
    for chunk in [0, 1, 4, CHUNKS - 1] {
        for array in [0, 1] {
            for is_write in [false, true] {
                let doing = if is_write { Doing::Write(array) } else { Doing::Read(array) };
                check(Fault::Refused { is_write, array, chunk }, doing, chunk);
                check(Fault::Failed { is_write, array, chunk }, doing, chunk);
                check(Fault::Stuck { is_write, array, chunk }, doing, chunk);
            }
        }
    }
}

#[test]
fn an_update_that_fails_stops_the_step_before_its_chunk_is_written() {
    let arena = Arena::new(Budget::new(4 << 20)).expect("there is memory");
    let (mut pipeline, mut device) = (pipeline(&arena), device());
    let mut bad_update = |elements: Range<usize>, _: &mut [&mut [u8]]| match elements.start {
        600 => Err("gradients did not come".into()),
        _ => Ok(()),
    };
    let error = pipeline.run(&mut device, &mut bad_update).expect_err("chunk 6 is broken");
    let text = "chunk 6 of 10: updating it: gradients did not come; 6 chunks had been updated";
    assert_eq!(error.to_string(), text);
    assert_eq!(device.under_way.borrow().now, 0);
    let written = device.log.iter().filter(|(is_write, _)| *is_write);
    assert!(written.clone().all(|(_, piece)| piece.chunk < 6));
    assert_eq!(written.count(), 2 * 6, "what was updated before was written");
}

#[test]
fn memory_that_is_not_there_is_said_before_anything_moves() {
    let arena = Arena::new(Budget::new(1 << 20)).expect("there is memory");
    let shape = Shape::cut(1 << 20, &[4, 4], 1 << 16);
    let over = Pipeline::new(&arena, shape).expect_err("2.5 MiB do not fit into 1 MiB");
    assert_eq!(over.category, Category::Staging);
    assert_eq!(arena.ledger().held(Category::Staging), 0);
}
