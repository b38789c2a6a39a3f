//! The streamed step has the same bits as the step in memory, wherever the state lies.

use super::device::Device;
use super::state::{Numbers, bytes, numbers};
use brigade_offload::memory::{Arena, Budget, Category};
use brigade_offload::optimizer::{Crew, Gradients, Moment, Narrowed, Weights};
use brigade_offload::step::{
    Copying, Doing, Files, Format, Narrow, Optimize, Pipeline, Shape, Span, State, StepError, Tier,
    Whole,
};
use brigade_offload::storage::{File, Priority, Settings, Storage};
use std::path::PathBuf;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

fn arena() -> Arena {
    Arena::new(Budget::new(64 << 20)).expect("there is memory")
}

/// Three steps through a device in virtual time, with some of the arrays in memory.
fn check_streamed(is_streamed: [bool; 3], count: usize, chunk: usize, slots: usize) {
    let (mut want, mut crew) = (Numbers::new(5, count), Crew::new(2).expect("there are threads"));
    let mut got = want.clone();
    for t in 1..=3 {
        want.step(t);
        let all = [&got.weights, &got.mean, &got.square].map(|array| bytes(array));
        let streamed = all.into_iter().zip(is_streamed).filter(|(_, is)| *is);
        let mut device = Device::new(streamed.map(|(array, _)| array).collect(), 1.0, 1.0);
        let groups = got.groups(t);
        let (weights, mean, square) = (&mut got.weights, &mut got.mean, &mut got.square);
        let [weights_go, mean_goes, square_goes] = is_streamed;
        let moment = |moment, goes: bool| match goes {
            true => Tier::Streamed(Format::F32),
            false => Tier::Memory(Moment::F32(moment)),
        };
        let state = State {
            weights: match weights_go {
                true => Tier::Streamed(Format::F32),
                false => Tier::Memory(Weights::F32(weights)),
            },
            mean: moment(mean, mean_goes),
            square: moment(square, square_goes),
        };
        let shape = Shape::cut(count, &state.widths(), chunk);
        let mut pipeline = Pipeline::with_slots(&arena(), shape, slots).expect("it fits");
        let mut middle = Whole {
            optimize: Optimize { crew: &mut crew, groups: &groups, state },
            gradients: Gradients::Bf16(&got.gradients),
            narrowed: Narrowed::Bf16(&mut got.narrowed),
        };
        let moved = pipeline.run(&mut device, &mut middle).expect("nothing is broken");
        let bytes_each_way = 4 * count as u64 * device.old.len() as u64;
        assert_eq!([moved.read_bytes, moved.written_bytes], [bytes_each_way; 2]);
        assert_eq!(device.moved(), [bytes_each_way; 2]);
        let mut written = device.new.iter().map(|array| numbers(array));
        for (array, _) in [&mut got.weights, &mut got.mean, &mut got.square]
            .into_iter()
            .zip(is_streamed)
            .filter(|(_, is)| *is)
        {
            *array = written.next().expect("as many as are streamed");
        }
        assert!(got == want, "{is_streamed:?}, {count} in chunks of {chunk}, step {t}");
    }
}

#[test]
fn any_array_may_be_streamed_or_stay() {
    for bits in 0..8 {
        check_streamed([bits & 1 != 0, bits & 2 != 0, bits & 4 != 0], 20_000, 1700, 5);
    }
}

#[test]
fn any_size_in_any_chunks_with_any_number_of_slots() {
    for (count, chunk) in [(0, 5), (1, 5), (5, 5), (6, 5), (999, 100), (1000, 1), (1000, 2000)] {
        for slots in [3, 4, 9] {
            check_streamed([true; 3], count, chunk, slots);
        }
    }
}

#[test]
fn groups_with_gaps_stop_the_step() {
    let mut crew = Crew::new(1).expect("there are threads");
    let mut got = Numbers::new(1, 1000);
    let mut groups = got.groups(1);
    groups[0].0.end -= 1;
    let state = || State {
        weights: Tier::Streamed(Format::F32),
        mean: Tier::Streamed(Format::F32),
        square: Tier::Streamed(Format::F32),
    };
    let arrays = [&got.weights, &got.mean, &got.square].map(|array| bytes(array)).to_vec();
    let mut device = Device::new(arrays, 1.0, 1.0);
    let mut pipeline =
        Pipeline::new(&arena(), Shape::cut(1000, &state().widths(), 64)).expect("it fits");
    let mut middle = Whole {
        optimize: Optimize { crew: &mut crew, groups: &groups, state: state() },
        gradients: Gradients::Bf16(&got.gradients),
        narrowed: Narrowed::Bf16(&mut got.narrowed),
    };
    let error = pipeline.run(&mut device, &mut middle).expect_err("element 399 is in no group");
    assert!(error.to_string().contains("element 399 is in no group"), "{error}");
    assert!(matches!(error, StepError::Stopped { doing: Doing::Update, chunk: 6, .. }), "{error}");
}

/// Nothing of it would be updated, and it would be written as it was read.
#[test]
#[should_panic(expected = "arrays that are streamed")]
fn an_array_too_many_is_not_passed_over() {
    let (mut crew, got) = (Crew::new(1).expect("there are threads"), Numbers::new(7, 8));
    let groups = got.groups(1);
    let (weights, mean) = (Tier::Streamed(Format::F32), Tier::Streamed(Format::F32));
    let state = State { weights, mean, square: Tier::Memory(Moment::None) };
    let mut arrays = [[0_f32; 8]; 3];
    let [one, two, three] = arrays.each_mut().map(|it| bytemuck::cast_slice_mut::<f32, u8>(it));
    let mut optimize = Optimize { crew: &mut crew, groups: &groups, state };
    let gradients = Gradients::Bf16(&got.gradients);
    let _ = optimize.part(0..8, &mut [one, two, three], gradients, Narrowed::None);
}

/// A folder that goes when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("brigade-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for temporary files");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is the system's to clean up.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn put(storage: &Storage, arena: &Arena, file: &File, offset: u64, bytes: &[u8]) {
    let mut buffer = arena.take(bytes.len(), Category::Other).expect("it fits");
    buffer.copy_from_slice(bytes);
    let range = 0..bytes.len();
    let pending = storage.write(file, offset, buffer, range, Priority::Urgent);
    pending.wait(LIMIT).result.expect("it can be written");
}

fn read(storage: &Storage, arena: &Arena, file: &File, offset: u64, bytes: usize) -> Vec<u8> {
    let buffer = arena.take(bytes, Category::Other).expect("it fits");
    let pending = storage.read(file, offset, buffer, 0..bytes, Priority::Urgent);
    pending.wait(LIMIT).into_buffer().expect("it can be read").to_vec()
}

/// In a file, from one home to the other and back, with an odd number of elements.
#[test]
fn files_give_the_same_bits_too() {
    let (count, arena, folder) = (100_003, arena(), Folder::new("step-files"));
    let storage = Storage::new(&arena, Settings::default()).expect("an engine");
    let home_bytes = (4 * count as u64).next_multiple_of(4096);
    let file = storage.create(&folder.0.join("state"), 6 * home_bytes).expect("there is room");
    let mut want = Numbers::new(9, count);
    let mut got = want.clone();
    for (array, all) in [&got.weights, &got.mean, &got.square].into_iter().enumerate() {
        put(&storage, &arena, &file, array as u64 * home_bytes, &bytes(all));
    }
    let shape = Shape::cut(count, &[4, 4, 4], 3 * 4096);
    let mut pipeline = Pipeline::new(&arena, shape).expect("it fits");
    let mut crew = Crew::new(2).expect("there are threads");
    for t in 1..=4_u64 {
        want.step(t);
        let groups = got.groups(t);
        // Odd steps read the first three homes and write the last three; even ones the reverse.
        let (from, to) = if t % 2 == 1 { (0, 3) } else { (3, 0) };
        let span = |array: u64| Span {
            file: file.clone(),
            read_at: (from + array) * home_bytes,
            write_at: (to + array) * home_bytes,
        };
        let mut files = Files::new(&storage, (0..3).map(span).collect());
        let state = State {
            weights: Tier::Streamed(Format::F32),
            mean: Tier::Streamed(Format::F32),
            square: Tier::Streamed(Format::F32),
        };
        let mut middle = Whole {
            optimize: Optimize { crew: &mut crew, groups: &groups, state },
            gradients: Gradients::Bf16(&got.gradients),
            narrowed: Narrowed::Bf16(&mut got.narrowed),
        };
        let moved = pipeline.run(&mut files, &mut middle).expect("nothing is broken");
        assert_eq!(moved.read_bytes, 12 * count as u64);
        let all = [0, 1, 2].map(|array| {
            numbers(&read(&storage, &arena, &file, (to + array) * home_bytes, 4 * count))
        });
        [got.weights, got.mean, got.square] = all;
        assert!(got == want, "step {t}");
    }
}

/// Masters and moments come and go, and the narrowed weights go with them.
#[test]
fn copies_go_out_in_the_same_pass() {
    for (count, chunk) in [(0, 5), (999, 100), (20_000, 1700)] {
        let mut crew = Crew::new(2).expect("there are threads");
        let mut want = Numbers::new(11, count);
        let arrays = [&want.weights, &want.mean, &want.square].map(|array| bytes(array)).to_vec();
        let mut device = Device::new([arrays, vec![vec![0; 2 * count]]].concat(), 1.0, 1.0);
        let groups = want.groups(1);
        let state = State {
            weights: Tier::Streamed(Format::F32),
            mean: Tier::Streamed(Format::F32),
            square: Tier::Streamed(Format::F32),
        };
        let shape = Shape::cut(count, &state.widths(), chunk).and_written(&[Narrow::Bf16.width()]);
        let mut pipeline = Pipeline::new(&arena(), shape).expect("it fits");
        let gradients = want.gradients.clone();
        let mut middle = Copying {
            optimize: Optimize { crew: &mut crew, groups: &groups, state },
            gradients: Gradients::Bf16(&gradients),
            copy: Narrow::Bf16,
        };
        let moved = pipeline.run(&mut device, &mut middle).expect("nothing is broken");
        let bytes_moved = [12 * count as u64, 14 * count as u64];
        assert_eq!([moved.read_bytes, moved.written_bytes], bytes_moved);
        assert_eq!(device.moved(), bytes_moved, "no more than that on the device");
        want.step(1);
        let all = [&want.weights, &want.mean, &want.square].map(|array| bytes(array));
        assert!(device.new[..3] == all, "{count} in chunks of {chunk}");
        let narrowed: Vec<u8> = want.narrowed.iter().flat_map(|w| w.to_ne_bytes()).collect();
        assert!(device.new[3] == narrowed, "{count} in chunks of {chunk}");
    }
}
