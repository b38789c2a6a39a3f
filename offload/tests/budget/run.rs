//! The run with its state in a file: weights and both moments of every element, a new generation of
//! them for each step. All of its arrays are in an arena.

use std::path::Path;

use brigade_offload::layout::{ALIGNMENT, Directory, Dtype, Placed, SLOT_BYTES, Tensor};
use brigade_offload::memory::{Arena, Budget, Buffer, Category, Pages};
use brigade_offload::optimizer::{Crew, Gradients, Narrowed};
use brigade_offload::step::{
    Drafted, Format, Moved, Optimize, Pipeline, Shape, State, Tier, Whole,
};
use brigade_offload::storage::{Priority, Settings, Storage};
use brigade_offload::store::{Carrier, StateFile, StoreError};
use half::bf16;

use crate::child::BLOCK_ELEMENTS;
use crate::problem::{backward, forward, loss, start, update};

const BLOCK_BYTES: u64 = 4 * BLOCK_ELEMENTS as u64;
/// The weights are the first, so their blocks are too.
const ARRAYS: [&str; 3] = ["weights", "mean", "square"];

/// Everything that the run has.
pub(crate) struct Run {
    elements: usize,
    arena: Arena,
    storage: Storage,
    weights: Passed,
    state: StateFile,
    pipeline: Pipeline,
    /// Of all elements: the only array that is in memory as a whole.
    gradients: Buffer,
    crew: Crew,
    moved: Moved,
}

/// Weights on their way through memory, forward and backward.
struct Passed {
    carrier: Carrier,
    /// One block at work, one on its way.
    buffers: Vec<Buffer>,
    read_bytes: u64,
}

impl Run {
    /// Write the first generation, and take all memory there is to take.
    pub(crate) fn new(folder: &Path, elements: usize, arena_bytes: usize, slots: usize) -> Self {
        // Huge pages that the system has set aside are in no group's books.
        let budget = Budget::new(arena_bytes).at_best(Pages::Transparent);
        let arena = Arena::new(budget).expect("an arena");
        let storage = Storage::new(&arena, Settings::default()).expect("an engine");
        let carrier = Carrier::new(&storage, &arena);
        let tensors = ARRAYS.map(|name| Tensor::whole(name, Dtype::F32, &[elements as u64]));
        let directory = Directory::pack(tensors, BLOCK_BYTES).expect("three tensors");
        let path = folder.join("state");
        let mut state =
            StateFile::create(&carrier, &[path], directory, BLOCK_BYTES).expect("there is room");
        state.save(0, b"", first_values).expect("it can be written");
        let gradients = arena.take(2 * elements, Category::Gradients).expect("it fits");
        let block = || arena.take(BLOCK_BYTES as usize, Category::Parameters).expect("it fits");
        let weights = Passed { carrier, buffers: vec![block(), block()], read_bytes: 0 };
        let shape = Shape::cut(elements, &[4; 3], BLOCK_ELEMENTS);
        let pipeline = Pipeline::with_slots(&arena, shape, slots).expect("it fits");
        let (crew, moved) = (Crew::new(2).expect("threads"), Moved::default());
        Self { elements, arena, storage, weights, state, pipeline, gradients, crew, moved }
    }

    /// Forward, backward, update, commit; the loss before the update.
    pub(crate) fn step(&mut self, step: u64) -> f64 {
        let loss = self.loss();
        let gradients = self.gradients.view_mut::<bf16>();
        self.weights.pass(&self.state, self.elements, |first, weights| {
            backward(first, weights, loss, &mut gradients[first..first + weights.len()]);
        });
        let mut draft = self.state.begin().expect("nothing is broken");
        let tensors: Vec<&Placed> = self.state.directory().tensors().iter().collect();
        let carrier = &self.weights.carrier;
        let mut home = Drafted::new(carrier, &self.state, &mut draft, &tensors).expect("blocks");
        let streamed = || Tier::Streamed(Format::F32);
        let optimize = Optimize {
            crew: &mut self.crew,
            groups: &[(0..self.elements, update(step))],
            state: State {
                weights: Tier::Streamed(Format::F32),
                mean: streamed(),
                square: streamed(),
            },
        };
        let gradients = Gradients::Bf16(self.gradients.view());
        let mut middle = Whole { optimize, gradients, narrowed: Narrowed::None };
        let moved = self.pipeline.run(&mut home, &mut middle).expect("nothing is broken");
        self.state.commit(draft, step, b"").expect("nothing is broken");
        self.moved.read_bytes += moved.read_bytes;
        self.moved.written_bytes += moved.written_bytes;
        loss
    }

    /// The forward pass.
    pub(crate) fn loss(&mut self) -> f64 {
        let mut sum = 0.0;
        self.weights.pass(&self.state, self.elements, |first, weights| {
            forward(first, weights, &mut sum);
        });
        loss(sum, self.elements)
    }

    /// Bytes read by passes and updates, and bytes written by updates.
    pub(crate) fn moved(&self) -> [u64; 2] {
        [self.weights.read_bytes + self.moved.read_bytes, self.moved.written_bytes]
    }

    /// Bytes that a commit writes besides the blocks: an index and a superblock.
    pub(crate) fn commit_bytes(&self) -> u64 {
        self.state.geometry().index_bytes(0).next_multiple_of(ALIGNMENT) + SLOT_BYTES
    }

    /// The most that was ever taken of the arena, as its books say.
    pub(crate) fn ledger_peak(&self) -> usize {
        self.arena.ledger().peak()
    }

    /// What the run lies on.
    pub(crate) fn facts(&self) -> String {
        format!("{}; {}", self.arena.describe(), self.storage.describe())
    }
}

impl Passed {
    /// See every weight once, in order: a function gets the number of the first of some, and them.
    fn pass(&mut self, state: &StateFile, elements: usize, mut see: impl FnMut(usize, &[f32])) {
        let blocks = (elements / BLOCK_ELEMENTS) as u64;
        let mut begin = |buffers: &mut Vec<Buffer>, block: u64| {
            let buffer = (block < blocks).then(|| buffers.pop().expect("two blocks of memory"))?;
            self.read_bytes += BLOCK_BYTES;
            Some(state.read_block(block, buffer, Priority::Urgent))
        };
        let mut coming = begin(&mut self.buffers, 0);
        for block in 0..blocks {
            let next = begin(&mut self.buffers, block + 1);
            let pending = std::mem::replace(&mut coming, next).expect("it is on its way");
            let buffer = pending.wait(&self.carrier).expect("it can be read");
            see(block as usize * BLOCK_ELEMENTS, buffer.view());
            self.buffers.push(buffer);
        }
    }
}

fn first_values(placed: &Placed, from: u64, target: &mut [u8]) -> Result<(), StoreError> {
    target.fill(0);
    if placed.tensor.name == ARRAYS[0] {
        for (index, weight) in (from as usize / 4..).zip(target.chunks_exact_mut(4)) {
            weight.copy_from_slice(&start(index).to_ne_bytes());
        }
    }
    Ok(())
}
