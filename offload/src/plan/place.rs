//! Placements: every way the planner knows to divide state among the tiers that fits the budgets.
//!
//! A placement is a few choices from small sets (tokens at once, keep or recompute, quarters of
//! each kind on the device, what leaves the host for files), and one quantity that follows: how
//! much of the last kind to leave still has room in the host. More memory never takes a choice
//! away and never moves that quantity towards the files, so the best placement is never slower.

use super::budget::Budgets;
use super::model::Model;

/// Where bytes live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// The device's own memory.
    Device,
    /// Host memory that the device or a drive reaches by itself: locked, registered.
    Pinned,
    /// Host memory that only the host's cores touch.
    Host,
    /// Files.
    File,
}

/// What bytes are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// The weights that the passes compute with.
    Weights,
    /// Their gradients.
    Gradients,
    /// What the optimizer keeps: master weights and moments.
    State,
    /// What stays from the forward to the backward pass.
    Activations,
    /// Two layers' weights from elsewhere: the one at work and the next.
    Gathered,
    /// Two layers' gradients: the one being made and the one leaving.
    Leaving,
    /// The inside of the layer at work.
    Layer,
    /// The last layer's output over the vocabulary, and its gradient.
    Logits,
    /// Chunks of state that are being read, updated or written.
    Chunks,
}

/// Bytes of one kind in one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Part {
    /// What they are for.
    pub what: What,
    /// Where they are.
    pub tier: Tier,
    /// How many.
    pub bytes: u64,
}

/// Chunks in flight, as in the streamed step: two being read, one updated, two being written.
pub(super) const SLOTS: u64 = 5;
/// Files keep the state before the step until the state after it is whole.
const GENERATIONS: u64 = 2;
/// The device takes so many parts out of `QUARTERS` of each kind.
const QUARTERS: u64 = 4;

/// Units (parameters or layers) in each tier; the device has the first ones, files the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) device: u64,
    pub(super) host: u64,
    pub(super) file: u64,
}

/// One way that fits.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Placement {
    pub(super) micro_tokens: u64,
    /// Activations of all layers are kept, rather than one input of each.
    pub(super) kept: bool,
    pub(super) weights: Split,
    pub(super) gradients: Split,
    pub(super) state: Split,
    /// In layers.
    pub(super) activations: Split,
    /// Bytes of the chunks in flight.
    pub(super) ring: u64,
}

/// What leaves the host for files. The kind named last leaves as far as it must, others wholly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spill {
    Nothing,
    State,
    Weights,
    StateThenWeights,
    WeightsThenState,
}

#[derive(Clone, Copy, Debug)]
struct Choice {
    micro_tokens: u64,
    kept: bool,
    /// Weights, gradients, state, activations.
    quarters: [u64; 4],
    spill: Spill,
}

const SPILLS: [Spill; 5] = [
    Spill::Nothing,
    Spill::State,
    Spill::Weights,
    Spill::StateThenWeights,
    Spill::WeightsThenState,
];

/// All placements of `model` that fit `budgets`.
pub(super) fn placements<'a>(
    model: &'a Model,
    budgets: &'a Budgets,
) -> impl Iterator<Item = Placement> + 'a {
    choices(model, budgets.has_device()).filter_map(|choice| settle(model, budgets, choice))
}

fn choices(model: &Model, has_device: bool) -> impl Iterator<Item = Choice> + use<> {
    let most = if has_device { QUARTERS } else { 0 };
    let tokens = model.tokens;
    let least = model.context.min(tokens);
    let doubled = std::iter::successors(Some(least), |micro| micro.checked_mul(2));
    let micro = doubled.take_while(move |micro| *micro < tokens).chain([tokens]);
    let quarters = (0..(most + 1).pow(4)).map(move |code| {
        let digit = |place: u32| code / (most + 1).pow(place) % (most + 1);
        [digit(0), digit(1), digit(2), digit(3)]
    });
    micro.flat_map(move |micro_tokens| {
        quarters.clone().flat_map(move |quarters| {
            // What is kept whole is too much to be worth moving: it stays where it is computed.
            let kept = [false, true].into_iter().filter(move |kept| !kept || quarters[3] == most);
            kept.flat_map(move |kept| {
                SPILLS.map(|spill| Choice { micro_tokens, kept, quarters, spill })
            })
        })
    })
}

/// The placement that follows from a choice, if it fits.
fn settle(model: &Model, budgets: &Budgets, choice: Choice) -> Option<Placement> {
    let params = model.shard_params();
    let [weights, gradients, state, activations] = choice.quarters;
    let mut at = Placement {
        micro_tokens: choice.micro_tokens,
        kept: choice.kept,
        weights: Split::resident(params, weights),
        gradients: Split::resident(params, gradients),
        state: Split::resident(params, state),
        activations: Split::resident(model.layers, activations),
        ring: 0,
    };
    match choice.spill {
        Spill::Nothing | Spill::State | Spill::Weights => {}
        Spill::StateThenWeights => at.state.spill_all(),
        Spill::WeightsThenState => at.weights.spill_all(),
    }
    let is_spilling = choice.spill != Spill::Nothing;
    let has_device = budgets.has_device();
    let is_moving = is_spilling || (has_device && at.splits().iter().any(|split| split.host > 0));
    if is_moving {
        let are_weights_moving = has_device || !matches!(choice.spill, Spill::State);
        at.ring = ring_bytes(model, has_device, are_weights_moving);
    }
    // With everything that may leave the host counted out of it, the rest must fit.
    let (split, unit_bytes) = match choice.spill {
        Spill::Nothing => return at.fits(model, budgets).then_some(at),
        Spill::State | Spill::WeightsThenState => (&mut at.state, model.state_bytes()),
        Spill::Weights | Spill::StateThenWeights => (&mut at.weights, model.weights.bytes()),
    };
    let movable = split.host;
    (split.host, split.file) = (0, split.file + movable);
    let room = budgets.host_bytes.checked_sub(at.host_bytes(model, has_device))?;
    let chunk = model.chunk_params();
    let stays = match room.checked_div(unit_bytes) {
        Some(units) if units < movable => units / chunk * chunk,
        _ => movable,
    };
    let split = match choice.spill {
        Spill::State | Spill::WeightsThenState => &mut at.state,
        _ => &mut at.weights,
    };
    (split.host, split.file) = (stays, split.file - stays);
    at.fits(model, budgets).then_some(at)
}

/// Bytes of all chunks in flight: state, and what of gradients and weights comes from or goes to
/// somewhere else.
fn ring_bytes(model: &Model, are_gradients_moving: bool, are_weights_moving: bool) -> u64 {
    let gradients = if are_gradients_moving { model.gradients.bytes() } else { 0 };
    let weights = if are_weights_moving { model.weights.bytes() } else { 0 };
    SLOTS * model.chunk_params() * (model.state_bytes() + gradients + weights)
}

impl Split {
    /// So many quarters on the device, the others in the host.
    fn resident(units: u64, quarters: u64) -> Self {
        let device = units / QUARTERS * quarters + units % QUARTERS * quarters / QUARTERS;
        Self { device, host: units - device, file: 0 }
    }

    fn spill_all(&mut self) {
        (self.host, self.file) = (0, self.host);
    }

    /// Units that are not where the model is computed.
    pub(super) fn elsewhere(self, has_device: bool) -> u64 {
        if has_device { self.host + self.file } else { self.file }
    }
}

impl Placement {
    fn splits(&self) -> [Split; 4] {
        [self.weights, self.gradients, self.state, self.activations]
    }

    fn fits(&self, model: &Model, budgets: &Budgets) -> bool {
        let has_device = budgets.has_device();
        let room = budgets.drives.iter().map(|drive| drive.capacity_bytes);
        self.device_bytes(model, has_device) <= budgets.device_bytes
            && self.host_bytes(model, has_device) <= budgets.host_bytes
            && self.file_bytes(model) <= room.fold(0, u64::saturating_add)
    }

    /// Bytes taken of device and host together.
    pub(super) fn peak(&self) -> u64 {
        // Only an order among equally fast placements: units are near enough.
        self.splits().iter().map(|split| split.device + split.host).sum()
    }

    /// Bytes that files must have room for.
    pub(super) fn file_bytes(&self, model: &Model) -> u64 {
        let state = self.state.file.saturating_mul(model.state_bytes());
        let weights = self.weights.file.saturating_mul(model.weights.bytes());
        state.saturating_add(weights).saturating_mul(GENERATIONS)
    }

    /// Bytes of a layer's activations as they are kept.
    pub(super) fn activation_bytes(&self, model: &Model) -> u64 {
        match self.kept {
            true => model.layer_bytes(self.micro_tokens),
            false => model.checkpoint_bytes(self.micro_tokens),
        }
    }

    /// What computing takes besides the state itself.
    fn working(&self, model: &Model, has_device: bool) -> [(What, u64); 4] {
        let unit = model.unit_params();
        let is_apart = |split: Split| model.shards > 1 || split.elsewhere(has_device) > 0;
        let two_units = |is_needed: bool, bytes: u64| if is_needed { 2 * unit * bytes } else { 0 };
        let layer = if self.kept { 0 } else { model.layer_bytes(self.micro_tokens) };
        [
            (What::Gathered, two_units(is_apart(self.weights), model.weights.bytes())),
            (What::Leaving, two_units(is_apart(self.gradients), model.gradients.bytes())),
            (What::Layer, layer),
            (What::Logits, model.logit_bytes(self.micro_tokens)),
        ]
    }

    fn device_bytes(&self, model: &Model, has_device: bool) -> u64 {
        if !has_device {
            return 0;
        }
        let held = self.held(model).map(|(_, split, bytes)| split.device.saturating_mul(bytes));
        let working = self.working(model, has_device).map(|(_, bytes)| bytes);
        held.into_iter().chain(working).fold(0, u64::saturating_add)
    }

    fn host_bytes(&self, model: &Model, has_device: bool) -> u64 {
        let held = self.held(model).map(|(_, split, bytes)| split.host.saturating_mul(bytes));
        let working = self.working(model, has_device).map(|(_, bytes)| bytes);
        let working = working.into_iter().filter(|_| !has_device);
        held.into_iter().chain(working).fold(self.ring, u64::saturating_add)
    }

    /// What is divided among tiers, with the bytes of a unit.
    fn held(&self, model: &Model) -> [(What, Split, u64); 4] {
        [
            (What::Weights, self.weights, model.weights.bytes()),
            (What::Gradients, self.gradients, model.gradients.bytes()),
            (What::State, self.state, model.state_bytes()),
            (What::Activations, self.activations, self.activation_bytes(model)),
        ]
    }

    /// Everything that takes room, biggest first within each tier.
    pub(super) fn parts(&self, model: &Model, budgets: &Budgets) -> Vec<Part> {
        let has_device = budgets.has_device();
        let mut parts = Vec::new();
        let mut add = |what, tier, bytes| parts.push(Part { what, tier, bytes });
        for (what, split, bytes) in self.held(model) {
            // State is updated by the cores; everything else that a device uses, it fetches.
            let is_fetched = has_device && what != What::State;
            add(what, Tier::Device, split.device * bytes);
            add(what, if is_fetched { Tier::Pinned } else { Tier::Host }, split.host * bytes);
            add(what, Tier::File, split.file * bytes * GENERATIONS);
        }
        for (what, bytes) in self.working(model, has_device) {
            add(what, if has_device { Tier::Device } else { Tier::Host }, bytes);
        }
        add(What::Chunks, Tier::Pinned, self.ring);
        parts.retain(|part| part.bytes > 0);
        parts.sort_by_key(|part| (part.tier as u8, std::cmp::Reverse(part.bytes)));
        parts
    }
}

impl Tier {
    /// All of them, fastest first.
    pub const ALL: [Self; 4] = [Self::Device, Self::Pinned, Self::Host, Self::File];

    /// As tables name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Pinned => "pinned",
            Self::Host => "host",
            Self::File => "file",
        }
    }
}

impl What {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 9] = [
        Self::Weights,
        Self::Gradients,
        Self::State,
        Self::Activations,
        Self::Gathered,
        Self::Leaving,
        Self::Layer,
        Self::Logits,
        Self::Chunks,
    ];

    /// As tables name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Gradients => "gradients",
            Self::State => "optimizer state",
            Self::Activations => "activations kept",
            Self::Gathered => "two layers gathered",
            Self::Leaving => "two layers' gradients",
            Self::Layer => "one layer at work",
            Self::Logits => "logits",
            Self::Chunks => "chunks in flight",
        }
    }
}
