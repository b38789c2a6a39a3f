//! The moments of some parameters, and which tensors they belong to.

use crate::layout::{Layout, Tensor, joined};
use crate::norms::ExactSum;
use brigade_offload::memory::Buffer;
use brigade_offload::optimizer::{Gradients, Moment, Narrowed, Shard, Weights};
use std::ops::{Deref, DerefMut, Range};

/// Numbers, wherever they lie in memory.
pub(crate) enum Numbers {
    /// On the heap.
    Own(Vec<f32>),
    /// In an arena with a budget.
    Arena(Buffer),
}

impl Deref for Numbers {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Numbers::Own(numbers) => numbers,
            Numbers::Arena(buffer) => buffer.view(),
        }
    }
}

impl DerefMut for Numbers {
    fn deref_mut(&mut self) -> &mut [f32] {
        match self {
            Numbers::Own(numbers) => numbers,
            Numbers::Arena(buffer) => buffer.view_mut(),
        }
    }
}

/// The moments of a range of parameters.
pub struct Moments {
    len: usize,
    /// How many there are, one or two.
    count: usize,
    /// Each tensor's part: [(elements of the part, the tensor's number, whether it decays)].
    pub(super) groups: Vec<(Range<usize>, usize, bool)>,
    /// [len], or nothing while they are in a file.
    pub(crate) mean: Numbers,
    pub(crate) square: Numbers,
}

impl Moments {
    /// Of the parameters in `range` of the layout, with these values.
    pub fn new(layout: &Layout, range: Range<usize>, mean: &[f32], square: &[f32]) -> Moments {
        let fits = |values: &[f32]| values.is_empty() || values.len() == range.len();
        assert!(fits(mean) && fits(square), "moments of {range:?}");
        let part = |(number, tensor): (usize, &Tensor)| {
            let here = tensor.range.start.max(range.start)..tensor.range.end.min(range.end);
            let is_here = !here.is_empty();
            is_here.then(|| {
                (here.start - range.start..here.end - range.start, number, tensor.decays())
            })
        };
        let groups = layout.tensors().iter().enumerate().filter_map(part).collect();
        // Of a state that is not there, memory that nobody touches.
        let own = |values: &[f32]| match values.is_empty() {
            true => vec![0.0; range.len()],
            false => values.to_vec(),
        };
        let [mean, square] = [mean, square].map(|moment| Numbers::Own(own(moment)));
        Moments { len: range.len(), count: 2, groups, mean, square }
    }

    /// Keep the first of them, or both.
    pub(crate) fn keep(&mut self, count: usize) {
        self.count = count;
        if count < 2 {
            self.square = Numbers::Own(Vec::new());
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Parameters that they are of.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Both.
    pub(crate) fn arrays_mut(&mut self) -> [&mut Numbers; 2] {
        [&mut self.mean, &mut self.square]
    }

    /// The squares of their parameters' gradients, of those tensors that are counted.
    pub(crate) fn squares(&self, grads: &[f32], counts: impl Fn(usize) -> bool) -> ExactSum {
        let groups = self.groups.iter().filter(|(_, tensor, _)| counts(*tensor));
        let parts = joined(groups.map(|(group, _, _)| group.clone())).into_iter();
        let squares = parts.map(|part| ExactSum::of(part.len(), |at| grads[part.start + at]));
        squares.fold(ExactSum::ZERO, ExactSum::plus)
    }

    /// A part of them, with what else an update of it sees.
    pub(super) fn shard<'a>(
        &'a mut self,
        part: Range<usize>,
        params: &'a mut [f32],
        grads: &'a [f32],
    ) -> Shard<'a> {
        Shard {
            weights: Weights::F32(&mut params[part.clone()]),
            gradients: Gradients::F32(&grads[part.clone()]),
            mean: Moment::F32(&mut self.mean[part.clone()]),
            square: match self.count {
                1 => Moment::None,
                _ => Moment::F32(&mut self.square[part]),
            },
            narrowed: Narrowed::None,
        }
    }

    /// They are somewhere else now.
    pub(crate) fn leave(&mut self) {
        for moment in self.arrays_mut() {
            *moment = Numbers::Own(Vec::new());
        }
    }
}
