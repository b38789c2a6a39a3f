//! What is trained, element by element, so that only the elements at hand are ever needed; what is
//! planned for it; and the run with everything in memory.
//!
//! ```text
//! loss = sqrt(mean(c · (w - t)²))     gradient = c · (w - t) / loss, times 1 / elements
//! ```
//!
//! Targets `t` and curvatures `c` follow from the element's number. The gradient needs the loss of
//! all elements, so a step passes the weights twice, as a model does: forward and backward. AdamW
//! takes no notice of a constant factor, and so none is applied.

use brigade_offload::optimizer::{
    AdamW, Crew, Gradients, Moment, Narrowed, Shard, Update, Weights,
};
use brigade_offload::plan::{Budgets, Drive, Model, Number, Rate, Rates, Traffic, plan};
use half::bf16;

use crate::child::BLOCK_ELEMENTS;

pub(crate) const STEPS: u64 = 5;
const ADAMW: AdamW = AdamW { lr: 0.05, beta1: 0.9, beta2: 0.999, eps: 1e-8, decay: 0.01 };

pub(crate) fn update(step: u64) -> Update {
    ADAMW.at(step, 1.0)
}

pub(crate) fn start(index: usize) -> f32 {
    0.25 * target(index + 1)
}

/// Between -1 and 1.
fn target(index: usize) -> f32 {
    let mixed = (index as u32).wrapping_mul(0x9E37_79B9);
    (mixed >> 8) as f32 / (1 << 23) as f32 - 1.0
}

fn curvature(index: usize) -> f32 {
    0.5 + (index % 7) as f32 / 8.0
}

/// Forward: add what these weights, the first of which is number `first`, have in the sum.
pub(crate) fn forward(first: usize, weights: &[f32], sum: &mut f64) {
    for (index, weight) in (first..).zip(weights) {
        let distance = f64::from(*weight) - f64::from(target(index));
        *sum += f64::from(curvature(index)) * distance * distance;
    }
}

pub(crate) fn loss(sum: f64, elements: usize) -> f64 {
    (sum / elements as f64).sqrt()
}

/// Backward: the gradients of these weights.
pub(crate) fn backward(first: usize, weights: &[f32], loss: f64, gradients: &mut [bf16]) {
    let scale = (1.0 / loss) as f32;
    for ((index, weight), gradient) in (first..).zip(weights).zip(gradients) {
        *gradient = bf16::from_f32(curvature(index) * (weight - target(index)) * scale);
    }
}

/// The loss before each step and after the last.
pub(crate) fn in_memory(elements: usize) -> Vec<f64> {
    let mut weights: Vec<f32> = (0..elements).map(start).collect();
    let (mut mean, mut square) = (vec![0.0; elements], vec![0.0; elements]);
    let mut gradients = vec![bf16::ZERO; elements];
    let mut crew = Crew::new(2).expect("threads");
    let measure = |weights: &[f32]| {
        let mut sum = 0.0;
        forward(0, weights, &mut sum);
        loss(sum, elements)
    };
    let mut losses = Vec::new();
    for step in 1..=STEPS {
        let loss = measure(&weights);
        losses.push(loss);
        backward(0, &weights, loss, &mut gradients);
        let shard = Shard {
            weights: Weights::F32(&mut weights),
            gradients: Gradients::Bf16(&gradients),
            mean: Moment::F32(&mut mean),
            square: Moment::F32(&mut square),
            narrowed: Narrowed::None,
        };
        update(step).apply(&mut crew, shard).expect("the arrays fit");
    }
    losses.push(measure(&weights));
    losses
}

/// What a step moves, as the planner says: a model of one number between layers, its layers the
/// blocks of the run, trained by a host that has no more than `budget_bytes`.
pub(crate) fn planned(elements: u64, budget_bytes: u64) -> Traffic {
    let model = Model {
        layers: elements / BLOCK_ELEMENTS as u64,
        params: elements,
        tokens: 1,
        weights: Number::F32,
        gradients: Number::Bf16,
        master: None,
        moments: Number::F32,
        ..Model::transformer(1, 1, 1, 1)
    };
    let drive = Drive::new("a drive", Rate::assumed(1.0), Rate::assumed(1.0));
    let budgets = Budgets { device_bytes: 0, host_bytes: budget_bytes, drives: vec![drive] };
    let plan = plan(&model, &budgets, &Rates::assumed(false)).expect("it fits");
    assert!(plan.host_bytes() <= budget_bytes);
    plan.step.traffic
}
