//! The arrays that an update works on, in one of a few formats.

use std::hint::black_box;
use std::time::Duration;

use brigade_offload::memory::{Arena, Buffer, Category, OverBudget};
use brigade_offload::optimizer::{Gradients, Moment, Narrowed, Shard, Weights};
use half::bf16;

use super::limit;

/// What the arrays are stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Everything in f32.
    F32,
    /// Gradients and new weights in bf16 around f32.
    Mixed,
    /// The same, and moments in bf16.
    Bf16Moments,
}

/// Weights, moments, gradients and new weights of so many parameters.
pub(super) struct State {
    format: Format,
    params: usize,
    weights: Buffer,
    gradients: Buffer,
    moments: Vec<Buffer>,
    narrowed: Buffer,
}

impl Format {
    pub(in crate::offload) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Mixed => "mixed",
            Self::Bf16Moments => "bf16-moments",
        }
    }

    pub(in crate::offload) fn gradient_bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    fn moment_bytes(self) -> usize {
        if self == Self::Bf16Moments { 2 } else { 4 }
    }

    pub(in crate::offload) fn narrowed_bytes(self) -> usize {
        if self == Self::F32 { 0 } else { 2 }
    }

    /// Ordinary numbers everywhere: zeros, infinities and subnormals take other times.
    pub(in crate::offload) fn fill_gradients(self, gradients: &mut Buffer) {
        let gradient = |at: usize| (at % 251) as f32 * 1e-3 - 0.125;
        match self {
            Self::F32 => {
                let all = gradients.view_mut::<f32>().iter_mut().enumerate();
                all.for_each(|(at, value)| *value = gradient(at));
            }
            Self::Mixed | Self::Bf16Moments => {
                let all = gradients.view_mut::<bf16>().iter_mut().enumerate();
                all.for_each(|(at, value)| *value = bf16::from_f32(gradient(at)));
            }
        }
    }
}

impl State {
    /// Bytes of an arena that holds the widest format of so many parameters.
    pub(super) fn memory(params: usize) -> usize {
        (params * 18 + (4 << 20)).next_multiple_of(2 << 20)
    }

    pub(super) fn new(
        arena: &Arena,
        format: Format,
        moments: usize,
        params: usize,
    ) -> Result<Self, OverBudget> {
        let take = |bytes: usize, category| arena.take(params * bytes, category);
        let mut state = Self {
            format,
            params,
            weights: take(4, Category::Parameters)?,
            gradients: take(format.gradient_bytes(), Category::Gradients)?,
            moments: (0..moments)
                .map(|_| take(format.moment_bytes(), Category::Optimizer))
                .collect::<Result<_, _>>()?,
            narrowed: take(format.narrowed_bytes(), Category::Parameters)?,
        };
        state.weights.view_mut::<f32>().fill(0.5);
        state.moments.iter_mut().for_each(|moment| moment.fill(0));
        state.narrowed.fill(0);
        format.fill_gradients(&mut state.gradients);
        Ok(state)
    }

    pub(super) fn format(&self) -> Format {
        self.format
    }

    pub(super) fn params(&self) -> usize {
        self.params
    }

    /// What an update reads and writes.
    pub(super) fn bytes_per_param(&self) -> usize {
        let state = 4 + self.moments.len() * self.format.moment_bytes();
        self.format.gradient_bytes() + 2 * state + self.format.narrowed_bytes()
    }

    /// The arrays as an update wants them.
    pub(super) fn shard(&mut self) -> Shard<'_> {
        let format = self.format;
        let mut moments = self.moments.iter_mut().map(|moment| match format {
            Format::Bf16Moments => Moment::Bf16(moment.view_mut()),
            Format::F32 | Format::Mixed => Moment::F32(moment.view_mut()),
        });
        let mut next = || moments.next().unwrap_or(Moment::None);
        let (mean, square) = (next(), next());
        let (gradients, narrowed) = match format {
            Format::F32 => (Gradients::F32(self.gradients.view()), Narrowed::None),
            Format::Mixed | Format::Bf16Moments => {
                (Gradients::Bf16(self.gradients.view()), Narrowed::Bf16(self.narrowed.view_mut()))
            }
        };
        let weights = Weights::F32(self.weights.view_mut());
        Shard { weights, gradients, mean, square, narrowed }
    }

    /// Read and write the same arrays without arithmetic; the time it takes. All but the new
    /// weights are as they were after it, though the compiler cannot know.
    pub(super) fn limit(&mut self, threads: usize) -> Duration {
        let mut updated: Vec<&mut [u8]> = vec![&mut self.weights];
        updated.extend(self.moments.iter_mut().map(|moment| &mut moment[..]));
        limit::pass(threads, black_box(0), &mut updated, &self.gradients, &mut self.narrowed)
    }
}
