//! What lives where, what moves in a step, and how long that takes: arithmetic, before any I/O.
//!
//! [`plan`] takes a [`Model`], three [`Budgets`] (bytes of the device, bytes of the host, drives)
//! and the [`Rates`] of what is between them. It tries every placement of a small set, predicts the
//! step of each, and keeps the fastest; it refuses, with the arithmetic, when none fits. Since more
//! memory only ever adds placements to that set, more memory is never slower. (Where several drives
//! differ and some are full, what does not fit on one goes to the others, fast or slow.)
//!
//! The room opens no file and asks no machine: rates are measured elsewhere, or assumed and said to
//! be so.

mod bound;
mod budget;
mod model;
mod place;
mod predict;
mod refuse;
mod show;
mod stripe;

pub use bound::{bandwidth_for, efficiency};
pub use budget::{Budgets, Drive, Rate, Rates, Source};
pub use model::{Model, Number, Optimizer};
pub use place::{Part, Tier, What};
pub use predict::{Limit, Phase, Step, Traffic};
pub use refuse::{Refusal, Row, Shortage};
pub use show::bytes as show_bytes;
pub use stripe::Share;

use place::Placement;

/// Where everything lives, and what a step of it costs, for the one shard that a process holds.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Plan {
    /// What is planned for.
    pub model: Model,
    /// What it must fit into.
    pub budgets: Budgets,
    /// How fast things are.
    pub rates: Rates,
    /// Tokens that pass through the model at once.
    pub micro_tokens: u64,
    /// Whether the inside of a layer is computed again in the backward pass.
    pub recomputed: bool,
    /// Everything that takes memory or room in files, biggest first within each tier.
    pub parts: Vec<Part>,
    /// What each drive holds, reads and writes.
    pub shares: Vec<Share>,
    /// Parameters in one chunk of the streamed update.
    pub chunk_params: u64,
    /// Chunks that are being read, updated or written at any time; 0: nothing is streamed.
    pub chunks_in_flight: u64,
    /// What a step is predicted to move, and how long it takes.
    pub step: Step,
}

/// The fastest placement of `model` in `budgets`.
///
/// Cost: some ten thousand placements are priced, in milliseconds. Errors: [`Refusal::Input`] when
/// a number makes no sense, [`Refusal::DoesNotFit`] with what is missing and what makes it fit.
pub fn plan(model: &Model, budgets: &Budgets, rates: &Rates) -> Result<Plan, Refusal> {
    check(model, budgets, rates)?;
    let priced = place::placements(model, budgets)
        .map(|placement| (predict::step(model, budgets, rates, &placement), placement));
    let best = priced.min_by(|(one, at), (two, other)| {
        let tie = (one.traffic.bytes(), at.peak()).cmp(&(two.traffic.bytes(), other.peak()));
        one.seconds().total_cmp(&two.seconds()).then(tie)
    });
    match best {
        Some((step, placement)) => Ok(finish(model, budgets, rates, step, placement)),
        None => Err(Refusal::DoesNotFit(Box::new(refuse::shortage(model, budgets)))),
    }
}

impl Plan {
    /// The parts of one kind in one tier together, in bytes.
    pub fn bytes(&self, what: What, tier: Tier) -> u64 {
        let parts = self.parts.iter().filter(|part| part.what == what && part.tier == tier);
        parts.map(|part| part.bytes).sum()
    }

    /// Everything in one tier, in bytes.
    pub fn tier_bytes(&self, tier: Tier) -> u64 {
        self.parts.iter().filter(|part| part.tier == tier).map(|part| part.bytes).sum()
    }

    /// The most that is ever taken of the host's budget, pinned or not.
    pub fn host_bytes(&self) -> u64 {
        self.tier_bytes(Tier::Pinned) + self.tier_bytes(Tier::Host)
    }

    /// How often a step passes the model.
    pub fn micro_batches(&self) -> u64 {
        self.model.tokens.div_ceil(self.micro_tokens)
    }

    /// Bytes written to all drives in a day of steps without a pause.
    pub fn written_per_day(&self) -> f64 {
        self.step.traffic.written as f64 * 86_400.0 / self.step.seconds()
    }

    /// Years of such days until the drive that wears fastest has written what its maker stands
    /// for; `None` when nothing is written or no drive's endurance is known.
    pub fn years(&self) -> Option<f64> {
        let days = self.budgets.drives.iter().zip(&self.shares).filter_map(|(drive, share)| {
            let per_day = share.written as f64 * 86_400.0 / self.step.seconds();
            (per_day > 0.0).then_some(drive.endurance_tb? * 1e12 / per_day)
        });
        days.min_by(f64::total_cmp).map(|days| days / 365.0)
    }

    /// The part of a step in which the device (or the host, without one) computes the model.
    pub fn efficiency(&self) -> f64 {
        self.step.compute_s / self.step.seconds()
    }

    /// Tokens a step from which on that part is at least `efficiency`; `None` where no number of
    /// tokens helps, since the model's passes wait for a link themselves.
    pub fn tokens_for(&self, efficiency: f64) -> Option<u64> {
        if self.step.passes.limit != Limit::Compute {
            return None;
        }
        let waits = self.step.seconds() - self.step.compute_s;
        let per_token = self.step.compute_s / self.model.tokens as f64;
        Some((efficiency / (1.0 - efficiency) * waits / per_token).ceil() as u64)
    }
}

fn finish(
    model: &Model,
    budgets: &Budgets,
    rates: &Rates,
    step: Step,
    placement: Placement,
) -> Plan {
    let plan = Plan {
        model: model.clone(),
        budgets: budgets.clone(),
        rates: rates.clone(),
        micro_tokens: placement.micro_tokens,
        recomputed: !placement.kept,
        parts: placement.parts(model, budgets),
        shares: predict::shares(model, budgets, &placement),
        chunk_params: model.chunk_params(),
        chunks_in_flight: if placement.ring > 0 { place::SLOTS } else { 0 },
        step,
    };
    assert!(plan.tier_bytes(Tier::Device) <= budgets.device_bytes, "the device's budget holds");
    assert!(plan.host_bytes() <= budgets.host_bytes, "the host's budget holds");
    plan
}

fn check(model: &Model, budgets: &Budgets, rates: &Rates) -> Result<(), Refusal> {
    let problem = model.problem().or_else(|| budgets.problem()).or_else(|| rates.problem());
    problem.map_or(Ok(()), |problem| Err(Refusal::Input(problem)))
}
