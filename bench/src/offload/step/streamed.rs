//! State in a file, gradients and new weights in memory, and the step that brings them together.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use brigade_offload::memory::{Buffer, Category, span_bytes};
use brigade_offload::optimizer::{Crew, Gradients, Moment, Narrowed};
use brigade_offload::step::{
    Files, Format as Stored, Middle, Moved, Optimize, Pipeline, Shape, Span, State, Tier, Whole,
};
use brigade_offload::storage::{File, Storage};
use half::bf16;

use crate::offload::Failure;
use crate::offload::optimizer::{Format, Rule};
use crate::offload::rig::{Rig, create};

/// Chunks of memory that the update by itself goes through, as many as a step has in flight.
const SLOTS: usize = 5;
/// Arrays begin at pages, as the storage wants them.
const PAGE: u64 = 4096;

/// What is stepped.
pub(super) struct Streamed {
    rule: Rule,
    format: Format,
    pipeline: Pipeline,
    storage: Storage,
    file: File,
    /// Steps so far; the state before an even one is in the file's first half.
    steps: u64,
    moved: Moved,
    gradients: Buffer,
    narrowed: Buffer,
    /// [slot × array], for updates without a drive.
    alone: Vec<Vec<Buffer>>,
}

impl Streamed {
    /// Bytes that a step reads, and writes.
    pub(super) fn state_bytes(rule: Rule, format: Format, params: usize) -> u64 {
        Shape::new(params, &widths(rule, format)).bytes()
    }

    /// Bytes of an arena that holds it.
    pub(super) fn memory(rule: Rule, format: Format, params: usize) -> usize {
        let shape = Shape::new(params, &widths(rule, format));
        let chunk: usize =
            shape.widths().iter().map(|width| span_bytes(width * shape.chunk_elements())).sum();
        let gradients = span_bytes(params * format.gradient_bytes());
        2 * SLOTS * chunk + gradients + span_bytes(params * format.narrowed_bytes())
    }

    /// Make the state, in `folder` or on the rig's simulated device.
    pub(super) fn new(
        rig: &Rig,
        folder: Option<&Path>,
        rule: Rule,
        format: Format,
        params: usize,
    ) -> Result<Self, Failure> {
        let arena = &rig.arena;
        let shape = Shape::new(params, &widths(rule, format));
        let half = spans(&shape).1;
        let file = match folder {
            Some(folder) => create(&rig.storage, folder, 2 * half)?.0,
            None => rig.storage.create(Path::new("state"), 2 * half)?,
        };
        let chunk = |width: &usize| arena.take(width * shape.chunk_elements(), Category::Optimizer);
        let slot = || shape.widths().iter().map(chunk).collect::<Result<Vec<_>, _>>();
        let alone = (0..SLOTS).map(|_| slot()).collect::<Result<Vec<_>, _>>()?;
        let mut gradients = arena.take(params * format.gradient_bytes(), Category::Gradients)?;
        format.fill_gradients(&mut gradients);
        let narrowed = arena.take(params * format.narrowed_bytes(), Category::Parameters)?;
        let pipeline = Pipeline::new(arena, shape)?;
        let storage = rig.storage.clone();
        let (steps, moved) = (0, Moved::default());
        let mut streamed = Self {
            rule,
            format,
            pipeline,
            storage,
            file,
            steps,
            moved,
            gradients,
            narrowed,
            alone,
        };
        streamed.begin()?;
        Ok(streamed)
    }

    pub(super) fn chunks(&self) -> usize {
        self.pipeline.shape().chunks()
    }

    /// What the last step has moved.
    pub(super) fn moved(&self) -> Moved {
        self.moved
    }

    /// One step; how long it took.
    pub(super) fn step(&mut self, crew: &mut Crew) -> Result<Duration, Failure> {
        let mut files = self.files();
        let groups = [(0..usize::MAX, self.rule.at(self.steps))];
        let state = state(self.rule, self.format);
        let optimize = Optimize { crew, groups: &groups, state };
        let mut middle = whole(optimize, self.format, &self.gradients, &mut self.narrowed);
        let start = Instant::now();
        self.moved = self.pipeline.run(&mut files, &mut middle)?;
        let elapsed = start.elapsed();
        self.steps += 1;
        Ok(elapsed)
    }

    /// The same update of as many chunks, of memory that no drive touches; how long it took.
    pub(super) fn update_alone(&mut self, crew: &mut Crew) -> Result<Duration, Failure> {
        let groups = [(0..usize::MAX, self.rule.at(self.steps.max(1)))];
        let state = state(self.rule, self.format);
        let optimize = Optimize { crew, groups: &groups, state };
        let mut middle = whole(optimize, self.format, &self.gradients, &mut self.narrowed);
        let shape = self.pipeline.shape();
        let start = Instant::now();
        for chunk in 0..shape.chunks() {
            let elements = shape.range(chunk);
            let slot = self.alone[chunk % SLOTS].iter_mut().zip(shape.widths());
            let mut arrays: Vec<&mut [u8]> =
                slot.map(|(array, width)| &mut array[..width * elements.len()]).collect();
            let updated = middle.update(elements, &mut arrays);
            updated.map_err(|error| Failure::Usage(format!("the update: {error}")))?;
        }
        Ok(start.elapsed())
    }

    /// Write the first state: ordinary weights, moments of zero. The first step also gives the file
    /// its blocks.
    fn begin(&mut self) -> Result<(), Failure> {
        for slot in &mut self.alone {
            slot.iter_mut().enumerate().for_each(|(array, bytes)| first_values(array, bytes));
        }
        for _ in 0..2 {
            let mut files = self.files();
            let mut first = |_: Range<usize>, arrays: &mut [&mut [u8]]| {
                arrays.iter_mut().enumerate().for_each(|(array, bytes)| first_values(array, bytes));
                Ok(())
            };
            self.pipeline.run(&mut files, &mut first)?;
            self.steps += 1;
        }
        Ok(())
    }

    /// Where the arrays are before this step and after it, by turns.
    fn files(&self) -> Files {
        let (starts, half) = spans(self.pipeline.shape());
        let (old, new) = if self.steps.is_multiple_of(2) { (0, half) } else { (half, 0) };
        let span = |start: u64| Span {
            file: self.file.clone(),
            read_at: old + start,
            write_at: new + start,
        };
        Files::new(&self.storage, starts.into_iter().map(span).collect())
    }
}

/// Where each array begins, and where the last one ends.
fn spans(shape: &Shape) -> (Vec<u64>, u64) {
    let mut end = 0;
    let starts = shape.widths().iter().map(|width| {
        let start = end;
        end += ((shape.elements() * width) as u64).next_multiple_of(PAGE);
        start
    });
    (starts.collect(), end)
}

fn widths(rule: Rule, format: Format) -> Vec<usize> {
    state(rule, format).widths()
}

/// All arrays are streamed that the rule has.
fn state(rule: Rule, format: Format) -> State<'static> {
    let stored = if format == Format::Bf16Moments { Stored::Bf16 } else { Stored::F32 };
    let square = match rule.moments() {
        2 => Tier::Streamed(stored),
        _ => Tier::Memory(Moment::None),
    };
    State { weights: Tier::Streamed(Stored::F32), mean: Tier::Streamed(stored), square }
}

fn whole<'a>(
    optimize: Optimize<'a>,
    format: Format,
    gradients: &'a Buffer,
    narrowed: &'a mut Buffer,
) -> Whole<'a> {
    let (gradients, narrowed) = match format {
        Format::F32 => (Gradients::F32(gradients.view()), Narrowed::None),
        Format::Mixed | Format::Bf16Moments => {
            (Gradients::Bf16(gradients.view::<bf16>()), Narrowed::Bf16(narrowed.view_mut()))
        }
    };
    Whole { optimize, gradients, narrowed }
}

/// The first array is the weights, in f32 always; zeros are a moment in any format.
fn first_values(array: usize, bytes: &mut [u8]) {
    match array {
        0 => bytes.chunks_exact_mut(4).for_each(|one| one.copy_from_slice(&0.5_f32.to_ne_bytes())),
        _ => bytes.fill(0),
    }
}
