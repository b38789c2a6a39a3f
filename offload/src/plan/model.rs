//! A model as the planner sees it: how many numbers of which width, and how they are used.

/// What the numbers of one kind are stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Number {
    /// Four bytes.
    F32,
    /// Two bytes, eight of its bits exponent.
    Bf16,
    /// Two bytes, five of its bits exponent.
    F16,
}

/// How weights are updated, as far as memory goes: the moments each parameter keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Optimizer {
    /// Two moments.
    AdamW,
    /// Two moments.
    Adam,
    /// Two moments.
    Lamb,
    /// One moment.
    Lion,
    /// One moment.
    Lars,
    /// One moment: SGD with momentum.
    Momentum,
    /// None.
    Sgd,
}

/// What is trained, and over how many shards its state is divided.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Model {
    /// Parameters of the whole model.
    pub params: u64,
    /// Transformer layers, which pass through the device one after the other.
    pub layers: u64,
    /// Numbers that stand for a token between layers.
    pub width: u64,
    /// Different tokens.
    pub vocab: u64,
    /// Tokens of a sequence: the least that passes through the model at once.
    pub context: u64,
    /// Tokens that this shard's process takes part with in each step.
    pub tokens: u64,
    /// Processes that divide the state among them.
    pub shards: u64,
    /// How weights are updated.
    pub optimizer: Optimizer,
    /// What the passes compute with; activations are stored so too.
    pub weights: Number,
    /// What gradients are kept as.
    pub gradients: Number,
    /// The exact weights beside narrow ones; `None`: the weights themselves are updated.
    pub master: Option<Number>,
    /// What the optimizer's moments are kept as.
    pub moments: Number,
}

/// As the streamed step cuts: chunks of at most so many parameters, 4 MiB of f32.
const CHUNK_PARAMS_MAX: u64 = 1 << 20;
/// Chunks begin at multiples of this.
const CHUNK_GRAIN: u64 = 4096;
/// Filling and draining the pipeline costs about one chunk: less than 2 % with so many.
const CHUNKS: u64 = 64;

/// Width over depth of most published transformers that were trained at their best size.
const ASPECT: u64 = 128;

impl Number {
    /// Bytes of one.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// As tables name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

impl Optimizer {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::AdamW, Self::Adam, Self::Lamb, Self::Lion, Self::Lars, Self::Momentum, Self::Sgd];

    /// Moments that each parameter keeps.
    pub const fn moments(self) -> u64 {
        match self {
            Self::AdamW | Self::Adam | Self::Lamb => 2,
            Self::Lion | Self::Lars | Self::Momentum => 1,
            Self::Sgd => 0,
        }
    }

    /// As tables and flags name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AdamW => "adamw",
            Self::Adam => "adam",
            Self::Lamb => "lamb",
            Self::Lion => "lion",
            Self::Lars => "lars",
            Self::Momentum => "momentum",
            Self::Sgd => "sgd",
        }
    }
}

impl Model {
    /// A transformer of the usual proportions with so many parameters: 128 times as wide as deep.
    ///
    /// bf16 weights and gradients, f32 master and moments, AdamW, one shard, 16384 tokens a step.
    pub fn of_size(params: u64) -> Self {
        let cube = params as f64 / (12 * ASPECT * ASPECT) as f64;
        let layers = (cube.cbrt().round() as u64).max(1);
        Self { params, ..Self::transformer(layers, ASPECT * layers, 32_768, 2048) }
    }

    /// A GPT with learnt positions and tied embeddings; GPT-2's smallest is
    /// `transformer(12, 768, 50257, 1024)`. The rest is as for [`of_size`](Self::of_size).
    pub fn transformer(layers: u64, width: u64, vocab: u64, context: u64) -> Self {
        let matrix = width.saturating_mul(width);
        let layer = matrix.saturating_mul(12).saturating_add(13 * width.min(1 << 40));
        let embeddings = vocab.saturating_add(context).saturating_mul(width);
        Self {
            params: layers
                .saturating_mul(layer)
                .saturating_add(embeddings)
                .saturating_add(width)
                .saturating_add(width),
            layers,
            width,
            vocab,
            context,
            tokens: 16_384,
            shards: 1,
            optimizer: Optimizer::AdamW,
            weights: Number::Bf16,
            gradients: Number::Bf16,
            master: Some(Number::F32),
            moments: Number::F32,
        }
    }

    /// Parameters whose state this process keeps: the largest shard.
    pub fn shard_params(&self) -> u64 {
        self.params.div_ceil(self.shards)
    }

    /// Bytes that the optimizer keeps for each parameter, the master weight among them.
    pub fn state_bytes(&self) -> u64 {
        self.master.map_or(0, Number::bytes) + self.optimizer.moments() * self.moments.bytes()
    }

    /// Bytes of memory that the update of one parameter reads and writes.
    pub fn update_bytes(&self) -> u64 {
        let weight = if self.master.is_some() { 1 } else { 2 } * self.weights.bytes();
        self.gradients.bytes() + 2 * self.state_bytes() + weight
    }

    /// Parameters in one chunk of the streamed update.
    pub fn chunk_params(&self) -> u64 {
        let wanted = self.shard_params().div_ceil(CHUNKS).next_multiple_of(CHUNK_GRAIN);
        wanted.clamp(CHUNK_GRAIN, CHUNK_PARAMS_MAX)
    }

    /// Parameters that are needed together: a layer, or the embeddings where those are more.
    pub(super) fn unit_params(&self) -> u64 {
        let embeddings = self.vocab.saturating_mul(self.width).min(self.params);
        let rest = self.params - embeddings;
        rest.div_ceil(self.layers).max(embeddings)
    }

    /// Bytes of what stays between a layer's forward and backward pass, for so many tokens.
    ///
    /// 34 bytes a token and number at two bytes each, where the attention matrix is not stored.
    /// Korthikanti et al. 2022, Reducing activation recomputation in large transformer models.
    pub(super) fn layer_bytes(&self, tokens: u64) -> u64 {
        let each = 16 * self.weights.bytes() + 2;
        tokens.saturating_mul(self.width).saturating_mul(each)
    }

    /// Bytes of one layer's input, all that is kept of a layer which is computed again.
    pub(super) fn checkpoint_bytes(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(self.width).saturating_mul(self.weights.bytes())
    }

    /// Bytes of the last layer's output over the vocabulary, in f32, and of its gradient.
    pub(super) fn logit_bytes(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(self.vocab).saturating_mul(4 + self.weights.bytes())
    }

    /// Floating-point operations of one step's passes: two a parameter and token forward, four
    /// backward, two more where layers are computed again.
    pub(super) fn operations(&self, kept: bool) -> f64 {
        let each = if kept { 6.0 } else { 8.0 };
        each * self.params as f64 * self.tokens as f64
    }

    /// What is wrong with it, if anything is.
    pub(super) fn problem(&self) -> Option<String> {
        let limits = [
            ("parameters", self.params, 1 << 50),
            ("layers", self.layers, 1 << 16),
            ("width", self.width, 1 << 24),
            ("vocabulary", self.vocab, 1 << 32),
            ("context", self.context, 1 << 32),
            ("tokens a step", self.tokens, 1 << 40),
            ("shards", self.shards, 1 << 24),
        ];
        let wrong = limits.into_iter().find(|(_, value, most)| !(1..=*most).contains(value));
        wrong.map(|(name, value, most)| format!("{name}: {value} is not between 1 and {most}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_known_models() {
        assert_eq!(Model::transformer(12, 768, 50_257, 1024).params, 124_439_808);
        // GPT-3 and Llama 7B have the proportions that are assumed.
        let shape = |params| {
            let model = Model::of_size(params);
            (model.layers, model.width)
        };
        assert_eq!(shape(175_000_000_000), (96, 12_288));
        assert_eq!(shape(6_740_000_000), (32, 4096));
    }

    #[test]
    fn bytes_of_an_update_are_those_of_a_single_pass() {
        let mixed = Model::of_size(1 << 30);
        assert_eq!((mixed.state_bytes(), mixed.update_bytes()), (12, 28));
        let plain = Model { weights: Number::F32, gradients: Number::F32, master: None, ..mixed };
        assert_eq!((plain.state_bytes(), plain.update_bytes()), (8, 28));
    }
}
