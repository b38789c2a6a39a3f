//! What a step moves over each link, and how long that takes.
//!
//! A step is two phases, one after the other, since an update that clips by the norm of all
//! gradients cannot begin before the last of them. Each phase is a pipeline of stages that work at
//! the same time; it lasts as long as its longest stage, and a piece of every other stage for
//! filling and draining.

use super::budget::{Budgets, Drive, Rates};
use super::model::Model;
use super::place::Placement;
use super::stripe::{Share, divide, stripe};

/// What a phase waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Computing the model.
    Compute,
    /// The host's update.
    Update,
    /// The link from host to device.
    ToDevice,
    /// The link from device to host.
    FromDevice,
    /// Reads of the drives.
    Read,
    /// Writes to the drives.
    Write,
    /// Reads and writes of the drives, which hinder each other.
    ReadAndWrite,
}

/// Bytes that move in a phase or a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Traffic {
    /// From host to device.
    pub to_device: u64,
    /// From device to host.
    pub from_device: u64,
    /// Read of drives.
    pub read: u64,
    /// Written to drives.
    pub written: u64,
}

/// One phase of a step.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Phase {
    /// How long it lasts.
    pub seconds: f64,
    /// What it waits for.
    pub limit: Limit,
    /// What it moves.
    pub traffic: Traffic,
}

/// The prediction of one step.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Step {
    /// Forward and backward passes over all micro-batches.
    pub passes: Phase,
    /// The update of the weights.
    pub update: Phase,
    /// Operations of the passes.
    pub operations: f64,
    /// Seconds of the passes if nothing were waited for.
    pub compute_s: f64,
    /// Seconds of the host's update if nothing were waited for.
    pub update_s: f64,
    /// What both phases move.
    pub traffic: Traffic,
}

/// A stage of a pipeline: how long all of it takes, and one piece.
struct Stage {
    limit: Limit,
    seconds: f64,
    piece_s: f64,
}

impl Step {
    /// How long the step lasts.
    pub fn seconds(&self) -> f64 {
        self.passes.seconds + self.update.seconds
    }
}

impl Traffic {
    /// All bytes, over whichever link.
    pub fn bytes(&self) -> u64 {
        [self.from_device, self.read, self.written]
            .into_iter()
            .fold(self.to_device, u64::saturating_add)
    }

    fn plus(self, other: Self) -> Self {
        Self {
            to_device: self.to_device.saturating_add(other.to_device),
            from_device: self.from_device.saturating_add(other.from_device),
            read: self.read.saturating_add(other.read),
            written: self.written.saturating_add(other.written),
        }
    }
}

impl Limit {
    /// As tables name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Update => "the host's update",
            Self::ToDevice => "the link to the device",
            Self::FromDevice => "the link from the device",
            Self::Read => "reads of the drives",
            Self::Write => "writes to the drives",
            Self::ReadAndWrite => "reads and writes of the drives together",
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What a step with this placement costs.
pub(super) fn step(model: &Model, budgets: &Budgets, rates: &Rates, at: &Placement) -> Step {
    let files = Files::new(&budgets.drives, at.file_bytes(model));
    let operations = model.operations(at.kept);
    let compute_s = operations / (rates.peak.value * 1e12);
    let has_device = budgets.has_device();
    let passes = passes(model, rates, at, &files, has_device, compute_s);
    let updated = at.state.elsewhere(has_device) + if has_device { 0 } else { at.state.host };
    let update_s = gb_s(updated.saturating_mul(model.update_bytes()), rates.update.value);
    let update = update(model, rates, at, &files, has_device, update_s);
    let traffic = passes.traffic.plus(update.traffic);
    Step { passes, update, operations, compute_s, update_s, traffic }
}

/// What each drive holds and moves.
pub(super) fn shares(model: &Model, budgets: &Budgets, at: &Placement) -> Vec<Share> {
    let has_device = budgets.has_device();
    let parts = stripe(at.file_bytes(model), &budgets.drives).expect("a placement fits");
    let moved = pass_traffic(model, at, has_device).plus(update_traffic(model, at, has_device));
    let (read, written) = (divide(moved.read, &parts), divide(moved.written, &parts));
    let each = budgets.drives.iter().zip(parts).zip(read.into_iter().zip(written));
    each.map(|((drive, bytes), (read, written))| Share {
        path: drive.path.clone(),
        bytes,
        read,
        written,
    })
    .collect()
}

fn passes(
    model: &Model,
    rates: &Rates,
    at: &Placement,
    files: &Files<'_>,
    has_device: bool,
    compute_s: f64,
) -> Phase {
    let traffic = pass_traffic(model, at, has_device);
    let micro_batches = model.tokens.div_ceil(at.micro_tokens) as f64;
    let layers = model.layers as f64;
    let link = rates.link.value;
    let in_s = gb_s(traffic.to_device, link);
    let out_s = gb_s(traffic.from_device, link);
    let read_s = files.read_s(traffic.read);
    // Each layer's weights come twice a micro-batch; its gradients leave once; a forward pass is
    // about a third of the work.
    let (twice, once) = (2.0 * micro_batches * layers, micro_batches * layers);
    pipeline(
        [
            Stage { limit: Limit::Read, seconds: read_s, piece_s: read_s / twice },
            Stage { limit: Limit::ToDevice, seconds: in_s, piece_s: in_s / twice },
            Stage { limit: Limit::Compute, seconds: compute_s, piece_s: compute_s / (3.0 * once) },
            Stage { limit: Limit::FromDevice, seconds: out_s, piece_s: out_s / once },
            Stage { limit: Limit::Write, seconds: 0.0, piece_s: 0.0 },
        ],
        0.0,
        traffic,
    )
}

fn pass_traffic(model: &Model, at: &Placement, has_device: bool) -> Traffic {
    let micro_batches = model.tokens.div_ceil(at.micro_tokens);
    let each = model.weights.bytes().saturating_mul(2 * micro_batches);
    let read = at.weights.file.saturating_mul(each);
    if !has_device {
        return Traffic { read, ..Traffic::default() };
    }
    let layers = at.activations.host.saturating_mul(micro_batches);
    let activations = layers.saturating_mul(at.activation_bytes(model));
    let weights = at.weights.elsewhere(true).saturating_mul(each);
    let gradients = model.gradients.bytes().saturating_mul(micro_batches);
    let gradients = at.gradients.host.saturating_mul(gradients);
    Traffic {
        to_device: weights.saturating_add(activations),
        from_device: gradients.saturating_add(activations),
        read,
        written: 0,
    }
}

fn update(
    model: &Model,
    rates: &Rates,
    at: &Placement,
    files: &Files<'_>,
    has_device: bool,
    update_s: f64,
) -> Phase {
    let traffic = update_traffic(model, at, has_device);
    let chunk = model.chunk_params().min(model.shard_params());
    let piece = |is_used: bool, bytes: u64, rate: f64| match is_used {
        true => gb_s(chunk.saturating_mul(bytes), rate),
        false => 0.0,
    };
    let link = rates.link.value;
    let (uses_read, uses_write) = (traffic.read > 0, traffic.written > 0);
    let (weight, gradient) = (model.weights.bytes(), model.gradients.bytes());
    let (to, from) = (traffic.to_device, traffic.from_device);
    let stored = model.state_bytes() + weight;
    pipeline(
        [
            Stage {
                limit: Limit::Read,
                seconds: files.read_s(traffic.read),
                piece_s: piece(uses_read, stored, files.read_gb_s),
            },
            Stage {
                limit: Limit::FromDevice,
                seconds: gb_s(from, link),
                piece_s: piece(from > 0, gradient, link),
            },
            Stage {
                limit: Limit::Update,
                seconds: update_s,
                piece_s: piece(update_s > 0.0, model.update_bytes(), rates.update.value),
            },
            Stage {
                limit: Limit::ToDevice,
                seconds: gb_s(to, link),
                piece_s: piece(to > 0, weight, link),
            },
            Stage {
                limit: Limit::Write,
                seconds: files.write_s(traffic.written),
                piece_s: piece(uses_write, stored, files.write_gb_s),
            },
        ],
        files.both_s(traffic.read, traffic.written),
        traffic,
    )
}

/// The device holds the first parameters of each kind, so two kinds differ by a range.
fn update_traffic(model: &Model, at: &Placement, has_device: bool) -> Traffic {
    let (weight, gradient) = (model.weights.bytes(), model.gradients.bytes());
    // Without a master copy the weights themselves are read for the update.
    let is_read = model.master.is_none();
    let state = at.state.file.saturating_mul(model.state_bytes());
    let weights = at.weights.file.saturating_mul(weight);
    let read = if is_read { state.saturating_add(weights) } else { state };
    let written = state.saturating_add(weights);
    if !has_device {
        return Traffic { read, written, ..Traffic::default() };
    }
    let new_to = at.weights.device.saturating_sub(at.state.device).saturating_mul(weight);
    let new_from = at.state.device.saturating_sub(at.weights.device).saturating_mul(weight);
    let gradient_to = at.state.device.saturating_sub(at.gradients.device).saturating_mul(gradient);
    let gradient_from =
        at.gradients.device.saturating_sub(at.state.device).saturating_mul(gradient);
    let (old_to, old_from) = if is_read { (new_from, new_to) } else { (0, 0) };
    Traffic {
        to_device: new_to.saturating_add(gradient_to).saturating_add(old_to),
        from_device: new_from.saturating_add(gradient_from).saturating_add(old_from),
        read,
        written,
    }
}

/// The longest way through the stages: all of one, a piece of each other.
fn pipeline(stages: [Stage; 5], both_s: f64, traffic: Traffic) -> Phase {
    let pieces = |is_meant: &dyn Fn(Limit) -> bool| -> f64 {
        stages.iter().filter(|stage| is_meant(stage.limit)).map(|stage| stage.piece_s).sum()
    };
    let beside_drives = pieces(&|limit| !matches!(limit, Limit::Read | Limit::Write));
    let mut longest = (both_s + beside_drives, Limit::ReadAndWrite);
    for stage in &stages {
        let seconds = stage.seconds + pieces(&|limit| limit != stage.limit);
        // On a tie the stage itself says more than both directions together.
        if seconds >= longest.0 {
            longest = (seconds, stage.limit);
        }
    }
    Phase { seconds: longest.0, limit: longest.1, traffic }
}

/// The drives as one: how long bytes take that are striped over them.
struct Files<'a> {
    drives: &'a [Drive],
    parts: Vec<u64>,
    read_gb_s: f64,
    write_gb_s: f64,
}

impl<'a> Files<'a> {
    fn new(drives: &'a [Drive], bytes: u64) -> Self {
        let parts = if bytes == 0 { Some(Vec::new()) } else { stripe(bytes, drives) };
        Self {
            drives,
            parts: parts.expect("a placement fits"),
            read_gb_s: drives.iter().map(|drive| drive.read.value).sum(),
            write_gb_s: drives.iter().map(|drive| drive.write.value).sum(),
        }
    }

    fn read_s(&self, bytes: u64) -> f64 {
        self.slowest_s(bytes, |drive| drive.read.value)
    }

    fn write_s(&self, bytes: u64) -> f64 {
        self.slowest_s(bytes, |drive| drive.write.value)
    }

    fn both_s(&self, read: u64, written: u64) -> f64 {
        let bytes = read.saturating_add(written);
        self.slowest_s(bytes, |drive| drive.both.unwrap_or(f64::INFINITY))
    }

    fn slowest_s(&self, bytes: u64, rate_gb_s: impl Fn(&Drive) -> f64) -> f64 {
        let whole: f64 = self.parts.iter().map(|&part| part as f64).sum();
        let each =
            self.drives.iter().zip(&self.parts).map(|(drive, &part)| {
                bytes as f64 * (part as f64 / whole) / (rate_gb_s(drive) * 1e9)
            });
        each.fold(0.0, f64::max)
    }
}

fn gb_s(bytes: u64, rate_gb_s: f64) -> f64 {
    bytes as f64 / (rate_gb_s * 1e9)
}
