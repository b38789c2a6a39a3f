//! Somebody else holds the reins: a collective that brings gradients some elements at a time.

use super::device::{Device, Fault};
use brigade_offload::memory::{Arena, Budget, Category};
use brigade_offload::step::{Doing, Pipeline, Shape, StepError};
use std::error::Error;
use std::ops::Range;
use std::rc::Rc;

const COUNT: usize = 40_000;
const CHUNK: usize = 1000;

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

fn arena() -> Arena {
    Arena::new(Budget::new(16 << 20)).expect("there is memory")
}

fn device() -> Device {
    let bytes = |seed| fastrand::Rng::with_seed(seed);
    let array = |seed, width| {
        let mut random = bytes(seed);
        (0..COUNT * width).map(|_| random.u8(..)).collect()
    };
    Device::new(vec![array(1, 4), array(2, 2)], 1.0, 1.0)
}

/// Add to every byte what depends on its element.
fn update(elements: Range<usize>, arrays: &mut [&mut [u8]]) -> Outcome {
    for (array, width) in arrays.iter_mut().zip([4, 2]) {
        assert_eq!(array.len(), elements.len() * width, "{elements:?}");
        for (element, bytes) in elements.clone().zip(array.chunks_mut(width)) {
            bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(element as u8 | 1));
        }
    }
    Ok(())
}

fn is_updated(device: &Device) -> bool {
    device.old.iter().zip(&device.new).zip([4, 2]).all(|((old, new), width)| {
        let bytes = old.iter().zip(new).enumerate();
        bytes.into_iter().all(|(i, (old, new))| old.wrapping_add((i / width) as u8 | 1) == *new)
    })
}

/// Parts of any length, asked for until they are ready, on a clock that ticks meanwhile.
#[test]
fn parts_of_any_length_are_updated_once_and_the_device_is_never_idle() {
    for (seed, longest) in [(1, 50), (2, 999), (3, 1001), (4, 12_000), (5, COUNT)] {
        let (arena, mut device) = (arena(), device());
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pipeline =
            Pipeline::new(&arena, Shape::cut(COUNT, &[4, 2], CHUNK)).expect("it fits");
        let clock = device.clock.clone();
        let mut running = pipeline.begin(&mut device).expect("there is memory");
        let mut from = 0;
        while from < COUNT {
            let to = (from + random.usize(1..=longest)).min(COUNT);
            loop {
                let before = clock.get();
                let is_ready = running.is_ready(from..to);
                assert_eq!(before, clock.get(), "asking must not wait");
                if is_ready {
                    break;
                }
                clock.set(before + 10);
            }
            running.update(from..to, &mut update).expect("nothing is broken");
            from = to;
        }
        let moved = running.finish().expect("nothing is broken");
        assert_eq!([moved.read_bytes, moved.written_bytes], [6 * COUNT as u64; 2]);
        assert_eq!(device.moved(), [6 * COUNT as u64; 2]);
        assert!(is_updated(&device), "seed {seed}, parts up to {longest}");
        let efficiency = (6 * COUNT) as f64 / clock.get() as f64;
        // Parts that are longer than the memory come late, as no update begins before all is there
        // that can be.
        let wanted = if longest <= CHUNK + 1 { 0.93 } else { 0.5 };
        assert!(efficiency > wanted, "seed {seed}, parts up to {longest}: {efficiency}");
    }
}

#[test]
fn trouble_is_told_by_the_next_update_and_by_every_one_after_it() {
    let (arena, mut device) = (arena(), device());
    let fault = Fault::Failed { is_write: false, array: 1, chunk: 3 };
    device.fault = Some(fault);
    let (clock, under_way) = (device.clock.clone(), Rc::clone(&device.under_way));
    let mut pipeline = Pipeline::new(&arena, Shape::cut(COUNT, &[4, 2], CHUNK)).expect("it fits");
    let mut running = pipeline.begin(&mut device).expect("there is memory");
    clock.set(1 << 30);
    running.update(0..3 * CHUNK, &mut update).expect("these are good");
    assert!(running.is_ready(3 * CHUNK..3 * CHUNK + 1), "an update would not wait");
    let error = running.update(3 * CHUNK..3 * CHUNK + 1, &mut update).expect_err("it is broken");
    let StepError::Stopped { chunk: 3, doing: Doing::Read(1), updated: 3, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(under_way.borrow().now, 0, "a transfer is still under way");
    assert!(running.is_ready(3 * CHUNK..COUNT));
    let error = running.update(3 * CHUNK..COUNT, &mut update).expect_err("it is over");
    assert!(error.to_string().contains("had stopped before"), "{error}");
    assert!(running.finish().is_err());
}

#[test]
fn a_step_that_is_not_finished_waits_and_gives_its_memory_back() {
    let (arena, mut device) = (arena(), device());
    let mut pipeline = Pipeline::new(&arena, Shape::cut(COUNT, &[4, 2], CHUNK)).expect("it fits");
    let mut running = pipeline.begin(&mut device).expect("there is memory");
    running.update(0..1500, &mut update).expect("nothing is broken");
    drop(running);
    assert_eq!(device.under_way.borrow().now, 0, "a transfer is still under way");
    let mut running = pipeline.begin(&mut device).expect("there is memory");
    running.update(0..1500, &mut update).expect("nothing is broken");
    let error = running.finish().expect_err("most of it was never updated");
    assert!(error.to_string().contains("elements from 1500 on"), "{error}");
    drop((pipeline, device));
    assert_eq!(arena.ledger().held(Category::Staging), 0, "memory was lost");
}
