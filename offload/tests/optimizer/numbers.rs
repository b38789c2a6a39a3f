//! Shards made from a seed, in any formats, and every rule over them.

use brigade_offload::optimizer::{
    Adam, AdamW, Crew, Gradients, Lamb, Lars, Lion, Moment, Narrowed, Sgd, Shard, TensorNorms,
    Update, Weights,
};
use half::{bf16, f16};
use std::ops::Range;

/// How the elements of an array are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    None,
    F32,
    Bf16,
    F16,
}

/// Formats of weights, gradients, mean, square, narrowed.
pub(crate) type Formats = [Format; 5];

/// An array of its own.
#[derive(Clone, Debug)]
pub(crate) enum Array {
    None,
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

/// What a shard borrows.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    pub(crate) weights: Array,
    pub(crate) gradients: Array,
    pub(crate) mean: Array,
    pub(crate) square: Array,
    pub(crate) narrowed: Array,
}

/// An optimizer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    AdamW(AdamW),
    Adam(Adam),
    Sgd(Sgd),
    Lion(Lion),
    Lamb(Lamb),
    Lars(Lars),
}

pub(crate) const ADAMW: AdamW = AdamW { lr: 1e-2, beta1: 0.9, beta2: 0.999, eps: 1e-8, decay: 0.1 };
pub(crate) const ADAM: Adam = Adam { lr: 1e-2, beta1: 0.9, beta2: 0.99, eps: 1e-6, decay: 0.1 };
pub(crate) const SGD: Sgd = Sgd { lr: 0.1, momentum: 0.9, decay: 0.01, is_nesterov: false };
pub(crate) const NESTEROV: Sgd = Sgd { lr: 0.1, momentum: 0.9, decay: 0.0, is_nesterov: true };
pub(crate) const PLAIN: Sgd = Sgd { lr: 0.1, momentum: 0.0, decay: 0.01, is_nesterov: false };
pub(crate) const LION: Lion = Lion { lr: 1e-3, beta1: 0.9, beta2: 0.99, decay: 0.1 };
pub(crate) const LAMB: Lamb = Lamb { lr: 1e-2, beta1: 0.9, beta2: 0.999, eps: 1e-6, decay: 0.01 };
pub(crate) const LARS: Lars = Lars { lr: 0.1, momentum: 0.9, decay: 0.01, trust: 1e-3 };

pub(crate) const RULES: [Rule; 8] = [
    Rule::AdamW(ADAMW),
    Rule::Adam(ADAM),
    Rule::Sgd(SGD),
    Rule::Sgd(NESTEROV),
    Rule::Sgd(PLAIN),
    Rule::Lion(LION),
    Rule::Lamb(LAMB),
    Rule::Lars(LARS),
];

impl Rule {
    /// All formats in which its arrays may come.
    pub(crate) fn formats(self) -> Vec<Formats> {
        use Format::{Bf16, F16, F32, None};
        let moments: &[(Format, Format)] = match self {
            Self::AdamW(_) | Self::Adam(_) | Self::Lamb(_) => {
                &[(F32, F32), (Bf16, F32), (Bf16, Bf16)]
            }
            Self::Sgd(sgd) if sgd.momentum == 0.0 => &[(None, None)],
            Self::Sgd(_) | Self::Lion(_) | Self::Lars(_) => &[(F32, None), (Bf16, None)],
        };
        let mut all = Vec::new();
        for (weights, narrowed) in [(F32, None), (F32, Bf16), (F32, F16), (Bf16, None)] {
            for gradients in [F32, Bf16, F16] {
                for &(mean, square) in moments {
                    all.push([weights, gradients, mean, square, narrowed]);
                }
            }
        }
        all
    }

    /// The update of step `t`, once the norms are known to those that ask for them.
    pub(crate) fn at(self, t: u64, scale: f32, norms: Option<TensorNorms>) -> Update {
        match self {
            Self::AdamW(rule) => rule.at(t, scale),
            Self::Adam(rule) => rule.at(t, scale),
            Self::Sgd(rule) => rule.at(scale),
            Self::Lion(rule) => rule.at(scale),
            Self::Lamb(rule) => rule.at(t, norms.expect("measured")),
            Self::Lars(rule) => rule.at(scale, norms.expect("measured")),
        }
    }

    /// The pass before, where there is one.
    pub(crate) fn measure(
        self,
        crew: &mut Crew,
        (t, scale): (u64, f32),
        shard: Shard<'_>,
    ) -> Option<TensorNorms> {
        match self {
            Self::Lamb(rule) => Some(rule.measure(crew, t, scale, shard).expect("a good shard")),
            Self::Lars(_) => Some(Lars::measure(crew, &shard.weights, shard.gradients)),
            _ => None,
        }
    }

    /// One step over `range` in both passes.
    pub(crate) fn step(
        self,
        crew: &mut Crew,
        numbers: &mut Numbers,
        t: u64,
        scale: f32,
        at: Range<usize>,
    ) {
        let norms = self.measure(crew, (t, scale), numbers.shard(at.clone()));
        self.at(t, scale, norms).apply(crew, numbers.shard(at)).expect("a good shard");
    }
}

impl Numbers {
    /// `count` elements of each array. Wild ones have infinities, subnormals, NaN and signed zeros
    /// among them.
    pub(crate) fn new(seed: u64, count: usize, formats: Formats, is_wild: bool) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut array = |format, scale: f32, is_square: bool| {
            Array::new(format, count, || {
                let number = (random.f32() * 2.0 - 1.0) * scale;
                let number = if is_square { number.abs() } else { number };
                if is_wild && random.u8(..) < 40 { wild(&mut random) } else { number }
            })
        };
        let [weights, gradients, mean, square, narrowed] = formats;
        Self {
            weights: array(weights, 1.0, false),
            gradients: array(gradients, 4.0, false),
            mean: array(mean, 0.1, false),
            square: array(square, 0.01, true),
            narrowed: array(narrowed, 1.0, false),
        }
    }

    /// A part of it.
    pub(crate) fn shard(&mut self, range: Range<usize>) -> Shard<'_> {
        let range = || range.clone();
        let moment = |array| match array {
            &mut Array::None => Moment::None,
            Array::F32(all) => Moment::F32(&mut all[range()]),
            Array::Bf16(all) => Moment::Bf16(&mut all[range()]),
            Array::F16(_) => panic!("no moment is f16"),
        };
        Shard {
            weights: match &mut self.weights {
                Array::F32(all) => Weights::F32(&mut all[range()]),
                Array::Bf16(all) => Weights::Bf16(&mut all[range()]),
                other => panic!("no weights are {other:?}"),
            },
            gradients: match &self.gradients {
                Array::F32(all) => Gradients::F32(&all[range()]),
                Array::Bf16(all) => Gradients::Bf16(&all[range()]),
                Array::F16(all) => Gradients::F16(&all[range()]),
                Array::None => panic!("there are always gradients"),
            },
            mean: moment(&mut self.mean),
            square: moment(&mut self.square),
            narrowed: match &mut self.narrowed {
                Array::None => Narrowed::None,
                Array::Bf16(all) => Narrowed::Bf16(&mut all[range()]),
                Array::F16(all) => Narrowed::F16(&mut all[range()]),
                Array::F32(_) => panic!("f32 is not narrow"),
            },
        }
    }

    /// Every bit of it.
    pub(crate) fn bits(&self) -> Vec<u32> {
        let arrays = [&self.weights, &self.gradients, &self.mean, &self.square, &self.narrowed];
        arrays.into_iter().flat_map(Array::bits).collect()
    }
}

impl Array {
    fn new(format: Format, count: usize, mut number: impl FnMut() -> f32) -> Self {
        let numbers = (0..count).map(|_| number());
        match format {
            Format::None => Self::None,
            Format::F32 => Self::F32(numbers.collect()),
            Format::Bf16 => Self::Bf16(numbers.map(bf16::from_f32).collect()),
            Format::F16 => Self::F16(numbers.map(f16::from_f32).collect()),
        }
    }

    fn bits(&self) -> Vec<u32> {
        match self {
            Self::None => Vec::new(),
            Self::F32(all) => all.iter().map(|number| number.to_bits()).collect(),
            Self::Bf16(all) => all.iter().map(|number| number.to_bits().into()).collect(),
            Self::F16(all) => all.iter().map(|number| number.to_bits().into()).collect(),
        }
    }

    /// The elements, widened.
    pub(crate) fn values(&self) -> Vec<f64> {
        match self {
            Self::None => Vec::new(),
            Self::F32(all) => all.iter().map(|&number| number.into()).collect(),
            Self::Bf16(all) => all.iter().map(|&number| number.into()).collect(),
            Self::F16(all) => all.iter().map(|&number| number.into()).collect(),
        }
    }
}

fn wild(random: &mut fastrand::Rng) -> f32 {
    let bits = [
        0x7f80_0000, // infinity
        0xff80_0000,
        0x7fc0_0001, // NaN of three payloads
        0xffc0_0000,
        0x7f80_0101,
        0x0000_0001, // subnormal
        0x807f_ffff,
        0x0080_0000, // the least normal
        0x7f7f_ffff, // the largest
        0xff7f_ffff,
        0x0000_0000, // zeros
        0x8000_0000,
        0x3380_0000, // subnormal as f16
        0x477f_f000, // rounds to infinity as f16
        random.u32(..),
    ];
    f32::from_bits(bits[random.usize(..bits.len())])
}
