//! What ranks do with a step: who computes what, and who holds which part of the state.
//!
//! `lanes` says which samples are whose, `shards` who holds what among ranks that share their data,
//! `sums` how their gradients become one, `data` computes a step with all of these. `formula`
//! predicts every byte that is sent.

mod clip;
mod compress;
mod cut;
mod data;
pub mod device;
mod formula;
mod fusion;
mod gradients;
mod lane_sums;
mod lanes;
mod mesh;
mod narrow;
mod pace;
mod packing;
mod peers;
pub mod pipeline;
mod server;
mod shards;
mod sharing;
mod source;
mod stage;
mod sums;
pub mod tensor;
mod travel;
mod way;

pub use data::{DataParallel, Thrift};
pub use lanes::Lanes;
pub use mesh::{Axis, Groups, Mesh};
pub use pace::Pace;
pub use packing::Packing;
pub use peers::Peers;
pub use server::{Eventual, Together};
pub use shards::Shards;
pub use sharing::Sharing;
pub use source::Source;
pub use stage::Stage;
pub use travel::{Compress, Travel};
pub use way::{Way, Ways};

use crate::data::Corpus;
use crate::error::Error;
use crate::layout::Layout;
use crate::offload::DiskUse;
use crate::precision::LossScale;
use crate::state::{Array, State};
use brigade_comm::{Call, Communicator, Dtype};
use brigade_schedule::Collective;
use std::time::Duration;

/// A way to train one model on all ranks of a world. Every call is collective.
pub trait Strategy {
    /// One update from one global batch.
    fn step(&mut self, batch: &Batch<'_>, lr: f32) -> Result<Spent, Error>;

    /// The whole training state, on every rank.
    fn gather(&mut self) -> Result<State, Error>;

    /// That state, without its counts, handed over piece by piece on every rank: parameters, and
    /// moments if they are asked for. Whoever has it in parts never has all of it.
    fn tell(&mut self, has_moments: bool, take: &mut Take<'_>) -> Result<(), Error> {
        tell_whole(self.gather()?, has_moments, take)
    }

    /// Updates made.
    fn steps(&self) -> usize;

    /// Payload bytes that one step makes this rank send, by the formulas of its calls.
    fn formula_bytes(&self) -> u64;

    /// Payload bytes that this rank has sent since it started.
    fn sent_bytes(&self) -> u64;

    /// What this rank holds.
    fn memory(&self) -> Memory;

    /// The end of all steps, on every rank: nothing of this one's is used by another any more.
    fn close(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// The last step as a picture, SVG, on every rank; none of a way that has nothing to show.
    fn draw(&mut self) -> Result<Option<String>, Error> {
        Ok(None)
    }

    /// How many samples `evaluate` takes at once, where that is not for the host to compute.
    fn evaluates(&self) -> Option<usize> {
        None
    }

    /// The loss of each token of some text, of no more samples than that.
    fn evaluate(
        &mut self,
        _tokens: &[u32],
        _targets: &[u32],
        _losses: &mut [f32],
    ) -> Result<(), Error> {
        unreachable!("asked of who evaluates")
    }

    /// What computes, if it is not the host: one line.
    fn device(&self) -> Option<String> {
        None
    }

    /// What losses are multiplied by, if that changes by what happens.
    fn loss_scale(&self) -> Option<LossScale> {
        None
    }

    /// Make what is in files the newest generation there, with a note: a checkpoint.
    fn commit(&mut self, _note: &str) -> Result<(), Error> {
        unreachable!("a run that keeps its files has a strategy with files: `Args::check_keep`")
    }

    /// What one step reads from files and writes to them, by the formulas of what it keeps there.
    fn disk_formula(&self) -> DiskUse {
        DiskUse::default()
    }
}

/// Takes numbers of an array of a state, from one of them on.
pub type Take<'t> = dyn FnMut(Array, usize, &[f32]) -> Result<(), Error> + 't;

/// Hand over a state that is whole.
fn tell_whole(state: State, has_moments: bool, take: &mut Take<'_>) -> Result<(), Error> {
    take(Array::Params, 0, &state.params)?;
    if has_moments {
        take(Array::Mean, 0, &state.mean)?;
        take(Array::Square, 0, &state.square)?;
    }
    Ok(())
}

/// Hand over what lies in this layout, unit by unit, where a model without tiles has it: what takes
/// a state does not know of them.
fn out_of_tiles<'t, 'w>(
    layout: &Layout,
    take: &'t mut Take<'w>,
) -> impl FnMut(Array, usize, &[f32]) -> Result<(), Error> + use<'t, 'w> {
    let pieces = layout.pieces();
    move |array, first, values| {
        // A unit is whole tensors, or tiles of them.
        let end = first + values.len();
        let mut here = pieces.iter().filter(|(_, here)| here.start >= first && here.end <= end);
        here.try_for_each(|(there, here)| {
            take(array, there.start, &values[here.start - first..here.end - first])
        })
    }
}

/// The samples of one step.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// Where they come from.
    pub corpus: &'a Corpus,
    /// Chooses them.
    pub seed: u64,
    /// Counts from 0.
    pub step: usize,
    /// In all.
    pub samples: usize,
    /// Bytes of each.
    pub context: usize,
}

impl Batch<'_> {
    /// What makes sums over all tokens means.
    pub(crate) fn scale(&self) -> f32 {
        1.0 / (self.samples * self.context) as f32
    }
}

/// What a step came to on this rank, and where its time went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// Mean over the global batch, before the update; the same bits on every rank.
    pub loss: f64,
    /// Forward and loss.
    pub forward: Duration,
    /// Backward.
    pub backward: Duration,
    /// Waiting for other ranks, wherever it fell.
    pub exposed: Duration,
    /// The update.
    pub optimizer: Duration,
    /// Files, waiting for which is in no other number.
    pub disk: DiskUse,
    /// The norm of the whole gradient, before it was clipped, if it was.
    pub norm: Option<f64>,
    /// What the loss was multiplied by for its gradient.
    pub loss_scale: f32,
    /// Whether a gradient has overflowed, so that no rank has updated anything.
    pub is_skipped: bool,
}

/// Bytes that a rank holds in every step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Parameters.
    pub params: u64,
    /// Gradients of all lanes.
    pub grads: u64,
    /// The optimizer's moments.
    pub moments: u64,
    /// Memory of calls on their way.
    pub calls: u64,
    /// What forward keeps for backward, and backward's scratch.
    pub activations: u64,
    /// Memory with a budget: what is kept there, or what comes from files and goes there.
    pub arena: u64,
}

impl Memory {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.kinds().iter().map(|(_, bytes)| bytes).sum()
    }

    /// Both.
    pub fn plus(self, other: Memory) -> Memory {
        Memory {
            params: self.params + other.params,
            grads: self.grads + other.grads,
            moments: self.moments + other.moments,
            calls: self.calls + other.calls,
            activations: self.activations + other.activations,
            arena: self.arena + other.arena,
        }
    }

    /// Each kind by its name.
    pub fn kinds(&self) -> [(&'static str, u64); 6] {
        let Memory { params, grads, moments, calls, activations, arena } = *self;
        [
            ("parameters", params),
            ("gradients", grads),
            ("moments", moments),
            ("calls", calls),
            ("activations", activations),
            ("arena", arena),
        ]
    }
}

/// Sum over all ranks and slots in lane order, the same bits on every rank. mine: `[slots]`.
fn gather_losses(group: Option<&Communicator>, mine: &[f64]) -> Result<f64, Error> {
    let Some(group) = group else { return Ok(mine.iter().sum()) };
    let mut all = vec![0.0; group.size() * mine.len()];
    group.all_gather(mine, &mut all)?;
    let lane = |lane: usize| all[lane % group.size() * mine.len() + lane / group.size()];
    Ok((0..all.len()).map(lane).sum())
}

/// What `gather_losses` makes this rank send.
fn loss_bytes(group: Option<&Communicator>, slots: usize) -> Result<u64, Error> {
    let call = Call::moving(Collective::AllGather, Dtype::F64, slots);
    group.map_or(Ok(0), |group| formula::call_bytes(group, &call))
}
