//! The norm of the whole gradient, of which ranks have parts, for an optimizer that clips it.
//!
//! Each rank adds up the squares of what it has, where of several ranks with the same part one
//! counts it; then the sums are added over all groups whose ranks have different parts. They are
//! exact (`norms`), so the norm, and what it does to the digits, is the same however many ranks
//! there are and whatever each of them has.

use super::formula::call_bytes;
use crate::error::Error;
use crate::model::Gpt;
use crate::norms::ExactSum;
use crate::optim::Optimizer;
use crate::parallel::tensor::Group;
use crate::trace::{self, Lane};
use brigade_comm::{Call, Communicator, Dtype, Op};
use brigade_schedule::Collective;
use std::time::{Duration, Instant};

/// Who must be asked for the norm.
pub(super) struct Clip<'a> {
    /// Of each tensor, whether this rank counts its part.
    counts: Vec<bool>,
    groups: Vec<&'a Communicator>,
}

impl<'a> Clip<'a> {
    /// What `optimizer` wants for `model`, if it clips: `parts` are groups whose ranks have other
    /// parameters, beside those who divide the model.
    pub(super) fn new(
        optimizer: &Optimizer,
        model: &'a Gpt,
        parts: impl IntoIterator<Item = Option<&'a Communicator>>,
    ) -> Option<Clip<'a>> {
        let dividers = model.dividers().map(Group::comm);
        let groups = || parts.into_iter().chain([dividers]).flatten().collect();
        optimizer.clips().then(|| Clip { counts: model.counted(), groups: groups() })
    }

    /// Whether this rank counts its part of a tensor.
    pub(super) fn counts(&self, tensor: usize) -> bool {
        self.counts[tensor]
    }

    /// Bytes that a step makes this rank send.
    pub(super) fn formula_bytes(&self) -> Result<u64, Error> {
        self.groups.iter().map(|group| norm_bytes(group)).sum()
    }

    /// Tell the optimizer the norm of the whole gradient, of which this rank has added up `mine`.
    /// Returns it, and how long other ranks were waited for. Collective.
    pub(super) fn tell(
        &self,
        optimizer: &mut Optimizer,
        mine: ExactSum,
    ) -> Result<(f64, Duration), Error> {
        let from = Instant::now();
        let _waiting = trace::span(Lane::Waiting, "norm of step", optimizer.steps + 1);
        let all = self.groups.iter().try_fold(mine, |sum, group| add_up(group, sum))?;
        Ok((optimizer.clip(all), from.elapsed()))
    }
}

/// The sum over all ranks of a group.
pub(super) fn add_up(group: &Communicator, mut mine: ExactSum) -> Result<ExactSum, Error> {
    group.all_reduce(mine.numbers_mut(), Op::Sum)?;
    Ok(mine)
}

/// What that makes a rank send.
pub(super) fn norm_bytes(group: &Communicator) -> Result<u64, Error> {
    call_bytes(group, &Call::new(Collective::AllReduce, Dtype::U64, Op::Sum, ExactSum::NUMBERS))
}
