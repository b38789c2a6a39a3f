//! The update of a chunk by an optimizer.

use std::error::Error;
use std::ops::Range;

use half::{bf16, f16};

use super::pipeline::Middle;
use crate::optimizer::{Crew, Gradients, Moment, Narrowed, Shard, ShardError, Update, Weights};

/// An optimizer over state of which some arrays are streamed.
#[derive(Debug)]
pub struct Optimize<'a> {
    /// The threads that update.
    pub crew: &'a mut Crew,
    /// Which elements get which update, in order and without gaps: rules may differ in weight
    /// decay, or, where norms of tensors matter, from tensor to tensor.
    pub groups: &'a [(Range<usize>, Update)],
    /// Weights and moments.
    pub state: State<'a>,
}

/// A [`Middle`] with gradients that are all there, and memory for all narrowed weights.
#[derive(Debug)]
pub struct Whole<'a> {
    /// What updates.
    pub optimize: Optimize<'a>,
    /// Of all elements.
    pub gradients: Gradients<'a>,
    /// For all elements, or none.
    pub narrowed: Narrowed<'a>,
}

/// A [`Middle`] with gradients that are all there, whose narrowed weights are streamed as well: the
/// last array of the shape, which is only written ([`super::Shape::and_written`]). So master
/// weights, moments and what the passes compute with can all be in files, and a step passes over
/// them once.
#[derive(Debug)]
pub struct Copying<'a> {
    /// What updates.
    pub optimize: Optimize<'a>,
    /// Of all elements.
    pub gradients: Gradients<'a>,
    /// What the weights are narrowed to.
    pub copy: Narrow,
}

/// What weights are narrowed to, in the byte order of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Narrow {
    /// Rounded to bf16.
    Bf16,
    /// Rounded to f16; what is too large becomes infinite.
    F16,
}

/// Elements that could not be updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptimizeError {
    /// The arrays do not fit together or the rule.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The groups leave elements out.
    #[error("element {element} is in no group, or the groups are not in order")]
    NoGroup {
        /// The first such.
        element: usize,
    },
}

/// Where each array of the state is. The arrays that are streamed are those of the pipeline's
/// shape, in this order.
#[derive(Debug)]
pub struct State<'a> {
    /// The weights that are updated.
    pub weights: Tier<Weights<'a>>,
    /// Mean of the gradients, or the momentum.
    pub mean: Tier<Moment<'a>>,
    /// Mean of their squares.
    pub square: Tier<Moment<'a>>,
}

/// Where an array is.
#[derive(Debug)]
pub enum Tier<T> {
    /// Here, all of it.
    Memory(T),
    /// It comes and goes chunk by chunk.
    Streamed(Format),
}

/// How a streamed array is stored, in the byte order of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Four bytes an element.
    F32,
    /// Two.
    Bf16,
}

impl State<'_> {
    /// Bytes of an element in each streamed array: what a [`super::Shape`] is made from.
    pub fn widths(&self) -> Vec<usize> {
        let width = |format: &Format| match format {
            Format::F32 => 4,
            Format::Bf16 => 2,
        };
        self.streamed().map(|format| width(&format)).collect()
    }

    /// The arrays that come and go.
    fn streamed(&self) -> impl Iterator<Item = Format> {
        let all = [self.weights.format(), self.mean.format(), self.square.format()];
        all.into_iter().flatten()
    }

    /// The arrays of some elements; `streamed` are those that come and go.
    fn part<'b>(
        &'b mut self,
        elements: Range<usize>,
        streamed: &'b mut [&mut [u8]],
    ) -> (Weights<'b>, Moment<'b>, Moment<'b>) {
        let mut streamed = streamed.iter_mut().map(|bytes| &mut **bytes);
        let mut next = || streamed.next().expect("a streamed array for each of the shape");
        let weights = match &mut self.weights {
            Tier::Memory(weights) => weights.part(elements.clone()),
            Tier::Streamed(Format::F32) => Weights::F32(bytemuck::cast_slice_mut(next())),
            Tier::Streamed(Format::Bf16) => Weights::Bf16(bytemuck::cast_slice_mut(next())),
        };
        let mut moment = |tier: &'b mut Tier<Moment<'_>>| match tier {
            Tier::Memory(moment) => moment.part(elements.clone()),
            Tier::Streamed(Format::F32) => Moment::F32(bytemuck::cast_slice_mut(next())),
            Tier::Streamed(Format::Bf16) => Moment::Bf16(bytemuck::cast_slice_mut(next())),
        };
        (weights, moment(&mut self.mean), moment(&mut self.square))
    }
}

impl<T> Tier<T> {
    fn format(&self) -> Option<Format> {
        match self {
            Self::Memory(_) => None,
            Self::Streamed(format) => Some(*format),
        }
    }
}

impl Optimize<'_> {
    /// Update some elements: `arrays` are what is streamed of them, `gradients` theirs, and
    /// `narrowed` is where their narrowed weights go.
    ///
    /// # Errors
    /// The arrays do not fit, or elements are in no group; those before them have been updated.
    ///
    /// # Panics
    /// With another number of arrays than are streamed, or an array in memory that ends before the
    /// elements.
    pub fn part(
        &mut self,
        elements: Range<usize>,
        arrays: &mut [&mut [u8]],
        gradients: Gradients<'_>,
        narrowed: Narrowed<'_>,
    ) -> Result<(), OptimizeError> {
        // Of one too many nothing would be updated, and it would be written as it was read.
        assert_eq!(arrays.len(), self.state.streamed().count(), "arrays that are streamed");
        let (weights, mean, square) = self.state.part(elements.clone(), arrays);
        let mut rest = Shard { weights, gradients, mean, square, narrowed };
        rest.check_lengths()?;
        let mut begin = elements.start;
        let first = self.groups.partition_point(|(group, _)| group.end <= begin);
        for (group, update) in &self.groups[first..] {
            if group.is_empty() {
                continue;
            }
            if begin == elements.end || !group.contains(&begin) {
                break;
            }
            let end = group.end.min(elements.end);
            let (part, after) = rest.split_at(end - begin);
            update.apply(self.crew, part)?;
            (rest, begin) = (after, end);
        }
        match begin < elements.end {
            true => Err(OptimizeError::NoGroup { element: begin }),
            false => Ok(()),
        }
    }
}

impl Narrow {
    /// Bytes of an element.
    pub const fn width(self) -> usize {
        2
    }

    fn of(self, bytes: &mut [u8]) -> Narrowed<'_> {
        match self {
            Self::Bf16 => Narrowed::Bf16(bytemuck::cast_slice_mut::<u8, bf16>(bytes)),
            Self::F16 => Narrowed::F16(bytemuck::cast_slice_mut::<u8, f16>(bytes)),
        }
    }
}

impl Middle for Copying<'_> {
    fn update(
        &mut self,
        elements: Range<usize>,
        arrays: &mut [&mut [u8]],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let (last, arrays) = arrays.split_last_mut().expect("the copy is the last array");
        let gradients = self.gradients.part(elements.clone());
        Ok(self.optimize.part(elements, arrays, gradients, self.copy.of(last))?)
    }
}

impl Middle for Whole<'_> {
    fn update(
        &mut self,
        elements: Range<usize>,
        arrays: &mut [&mut [u8]],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let gradients = self.gradients.part(elements.clone());
        let narrowed = self.narrowed.part(elements.clone());
        Ok(self.optimize.part(elements, arrays, gradients, narrowed)?)
    }
}
