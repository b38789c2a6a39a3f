//! On a simulated device, by way of the storage engine: as fast as it, and whole whatever happens.

use super::state::{Numbers, bytes, numbers};
use brigade_offload::layout::{Directory, Dtype, Placed, Tensor};
use brigade_offload::memory::{Arena, Budget, Buffer};
use brigade_offload::optimizer::{Crew, Gradients, Narrowed};
use brigade_offload::step::{
    Arrival, Drafted, Files, Format, Home, Optimize, Piece, Pipeline, Shape, Span, State,
    StepError, Tier, Whole,
};
use brigade_offload::storage::simulated::{Clock, Faults, Rates, SimulatedDevice};
use brigade_offload::storage::{Pending, Settings, Storage, StorageError};
use brigade_offload::store::{Carrier, StateFile, StoreError, Which};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

const BLOCK: u64 = 4096;
/// Some elements less than whole blocks.
const COUNT: usize = 40 * 1024 - 7;

fn arena() -> Arena {
    Arena::new(Budget::new(32 << 20)).expect("there is memory")
}

fn streamed() -> State<'static> {
    State {
        weights: Tier::Streamed(Format::F32),
        mean: Tier::Streamed(Format::F32),
        square: Tier::Streamed(Format::F32),
    }
}

/// Files on a device whose time passes only while somebody waits for a transfer.
struct Stepwise {
    files: Files,
    device: SimulatedDevice,
}

/// A transfer of such a file.
struct Stepped {
    pending: Pending,
    device: SimulatedDevice,
}

impl Home for Stepwise {
    type Error = StorageError;
    type Read = Stepped;
    type Write = Stepped;

    fn read(&mut self, piece: Piece, memory: Buffer) -> Result<Stepped, StorageError> {
        let pending = self.files.read(piece, memory)?;
        Ok(Stepped { pending, device: self.device.clone() })
    }

    fn write(&mut self, piece: Piece, memory: Buffer) -> Result<Stepped, StorageError> {
        let pending = self.files.write(piece, memory)?;
        Ok(Stepped { pending, device: self.device.clone() })
    }
}

impl Arrival for Stepped {
    type Error = StorageError;

    fn is_done(&self) -> bool {
        self.pending.is_done()
    }

    fn wait(self, limit: Duration) -> (Option<Buffer>, Result<(), StorageError>) {
        while !self.pending.is_done() {
            self.device.step();
        }
        Arrival::wait(self.pending, limit)
    }
}

/// How long a step over 64 chunks takes by the device's clock, against what it needs one way.
fn efficiency<H: Home>(
    rate: f64,
    clock: Clock,
    home: impl FnOnce(Files, &SimulatedDevice) -> H,
) -> f64 {
    let rates = Rates { read_bytes_s: rate, write_bytes_s: rate, clock, ..<_>::default() };
    let (arena, device) = (arena(), SimulatedDevice::new(rates));
    let settings = Settings { block_bytes: 256 << 10, ..Settings::default() };
    let storage = Storage::simulated(&device, settings).expect("an engine");
    let shape = Shape::cut(64 * 32768, &[4, 4, 4], 32768);
    let array_bytes = shape.bytes() / 3;
    let file = storage.create(Path::new("state"), 3 * array_bytes).expect("there is room");
    let span = |array| {
        let at = array * array_bytes;
        Span { file: file.clone(), read_at: at, write_at: at }
    };
    let mut home = home(Files::new(&storage, (0..3).map(span).collect()), &device);
    let mut pipeline = Pipeline::new(&arena, shape.clone()).expect("it fits");
    let mut update = |_: Range<usize>, _: &mut [&mut [u8]]| Ok(());
    let before = device.elapsed();
    let moved = pipeline.run(&mut home, &mut update).expect("nothing is broken");
    let took = (device.elapsed() - before).as_secs_f64();
    let (done, want) = (device.moved(), shape.bytes());
    assert_eq!([moved.read_bytes, moved.written_bytes], [want; 2]);
    assert_eq!([done.read_bytes, done.write_bytes], [want; 2]);
    want as f64 / rate / took
}

#[test]
fn a_step_takes_as_long_as_the_device_needs_one_way() {
    // All of it but a chunk in front and one behind.
    let stepwise = |files, device: &SimulatedDevice| Stepwise { files, device: device.clone() };
    let reached = efficiency(20e6, Clock::Stepped, stepwise);
    assert!((0.98..1.0).contains(&reached), "{reached} of the device's rate");
}

#[test]
fn a_step_overlaps_in_real_time_too() {
    // On a busy machine threads are late by what others take. On slower devices that is less and
    // less of a chunk's time; but reading and then writing would reach a half on any.
    let mut reached = Vec::new();
    for rate in [20e6, 20e6, 10e6, 5e6, 2.5e6] {
        reached.push(efficiency(rate, Clock::Real, |files, _| files));
        if reached.last() >= Some(&0.6) {
            return;
        }
    }
    panic!("{reached:?} of the device's rate");
}

/// A state of three tensors on a simulated device, and the numbers it should hold.
struct Scene {
    arena: Arena,
    carrier: Carrier,
    state: StateFile,
    numbers: Numbers,
    crew: Crew,
}

fn directory() -> Directory {
    let tensor = |name| Tensor::whole(name, Dtype::F32, &[COUNT as u64]);
    let tensors = ["weights", "mean", "square"].map(tensor);
    Directory::pack(tensors, BLOCK).expect("three good tensors")
}

impl Scene {
    fn new(device: &SimulatedDevice, seed: u64) -> Self {
        let arena = arena();
        let storage = Storage::simulated(device, Settings::default()).expect("an engine");
        let carrier = Carrier::new(&storage, &arena);
        let mut state = StateFile::create(&carrier, &["a", "b"], directory(), BLOCK).expect("room");
        let numbers = Numbers::new(seed, COUNT);
        let arrays = [&numbers.weights, &numbers.mean, &numbers.square].map(|all| bytes(all));
        let fill = |placed: &Placed, from: u64, target: &mut [u8]| {
            let names = ["weights", "mean", "square"];
            let at = names.iter().position(|name| *name == placed.tensor.name);
            let array = &arrays[at.expect("one of three")];
            target.copy_from_slice(&array[from as usize..from as usize + target.len()]);
            Ok::<_, StoreError>(())
        };
        state.save(0, b"", fill).expect("nothing is broken");
        Self { arena, carrier, state, numbers, crew: Crew::new(2).expect("there are threads") }
    }

    /// Step in the file, and commit. The numbers of the scene become those of the step in memory.
    fn step(&mut self, t: u64) -> Result<(), Box<dyn std::error::Error>> {
        let groups = self.numbers.groups(t);
        let tensors: Vec<Placed> = self.state.directory().tensors().to_vec();
        let mut draft = self.state.begin()?;
        let tensors: Vec<&Placed> = tensors.iter().collect();
        let mut home = Drafted::new(&self.carrier, &self.state, &mut draft, &tensors)?;
        let mut pipeline = Pipeline::new(&self.arena, home.shape())?;
        let mut narrowed = self.numbers.narrowed.clone();
        let mut middle = Whole {
            optimize: Optimize { crew: &mut self.crew, groups: &groups, state: streamed() },
            gradients: Gradients::Bf16(&self.numbers.gradients),
            narrowed: Narrowed::Bf16(&mut narrowed),
        };
        pipeline.run(&mut home, &mut middle)?;
        self.state.commit(draft, t, b"")?;
        Ok(())
    }

    /// Whether the state, opened anew, holds these numbers.
    fn holds(&self, wanted: &Numbers) -> bool {
        let opened =
            StateFile::open(&self.carrier, &["a", "b"], Which::Newest).expect("it is whole");
        let wanted = [&wanted.weights, &wanted.mean, &wanted.square];
        opened.directory().tensors().iter().zip(wanted).all(|(placed, wanted)| {
            let mut bytes = vec![0; placed.tensor.bytes() as usize];
            opened.read_tensor(placed, 0, &mut bytes).expect("it can be read");
            numbers(&bytes) == *wanted
        })
    }
}

#[test]
fn a_state_file_is_stepped_and_committed() {
    let mut scene = Scene::new(&SimulatedDevice::new(Rates::default()), 1);
    for t in 1..=4 {
        scene.step(t).expect("nothing is broken");
        scene.numbers.step(t);
        assert!(scene.holds(&scene.numbers), "step {t}");
    }
    let generation = scene.state.generation().expect("four steps");
    assert_eq!((generation.number, generation.label), (5, 4));
    assert_eq!(scene.arena.ledger().total(), 0, "all memory came back");
}

/// Any step under any fault ends as a step that was, or as none.
#[test]
fn under_faults_a_state_is_the_old_one_or_the_new_one() {
    let (mut failed, mut done) = (0, 0);
    for seed in 0..200 {
        let device = SimulatedDevice::new(Rates::default());
        let mut scene = Scene::new(&device, seed);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut faults = Faults { seed, ..Faults::default() };
        match seed % 5 {
            0 => faults.read_refused = random.u32(..20_000),
            1 => faults.write_refused = random.u32(..20_000),
            2 => faults.read_flipped = random.u32(..20_000),
            3 => faults.short = random.u32(..500_000),
            _ => faults.full_after_bytes = Some(random.u64(..2 * 12 * COUNT as u64)),
        }
        device.set_faults(faults);
        let outcome = scene.step(1);
        device.set_faults(Faults::default());
        let old = scene.numbers.clone();
        scene.numbers.step(1);
        let (is_old, is_new) = (scene.holds(&old), scene.holds(&scene.numbers));
        assert!(is_old != is_new, "seed {seed}: a mixture");
        match &outcome {
            Ok(()) => assert!(is_new, "seed {seed}: reported, and not there"),
            Err(error) => assert!(!error.to_string().is_empty() && is_old, "seed {seed}: {error}"),
        }
        *if outcome.is_ok() { &mut done } else { &mut failed } += 1;
        if is_old {
            scene.numbers = old;
            scene.step(1).expect("nothing is broken any more");
            scene.numbers.step(1);
            assert!(scene.holds(&scene.numbers), "seed {seed}: the second try");
        }
    }
    assert!(failed > 40 && done > 40, "faults that always or never strike test nothing");
}

#[test]
fn a_flipped_bit_is_named_by_the_step_that_reads_it() {
    let device = SimulatedDevice::new(Rates::default());
    let mut scene = Scene::new(&device, 3);
    device.set_faults(Faults { read_flipped: 1_000_000, ..Faults::default() });
    let error = scene.step(1).expect_err("every block is damaged");
    let error = error.downcast_ref().expect("an error of the step");
    assert!(matches!(error, StepError::Stopped { chunk: 0, updated: 0, .. }), "{error}");
}

#[test]
fn tensors_that_do_not_begin_with_a_block_are_refused() {
    let (arena, device) = (arena(), SimulatedDevice::new(Rates::default()));
    let storage = Storage::simulated(&device, Settings::default()).expect("an engine");
    let carrier = Carrier::new(&storage, &arena);
    let tensors = ["a", "b"].map(|name| Tensor::whole(name, Dtype::F32, &[100]));
    let directory = Directory::pack(tensors, 64).expect("two good tensors");
    let mut state = StateFile::create(&carrier, &["a"], directory, BLOCK).expect("room");
    let tensors = state.directory().tensors().to_vec();
    let tensors: Vec<&Placed> = tensors.iter().collect();
    let mut draft = state.begin().expect("nothing is broken");
    let error = Drafted::new(&carrier, &state, &mut draft, &tensors).expect_err("b begins at 448");
    assert_eq!(error.to_string(), "b begins at byte 448, which is no multiple of a block's 4096");
}
