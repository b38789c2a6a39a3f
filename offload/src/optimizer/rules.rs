//! The optimizers: what a user may choose, and the constants of one step made from it.
//!
//! Formulas with g the gradient times `scale`, w the weight, m and v its moments, and at step t
//! m̂ = m/(1−β₁ᵗ), v̂ = v/(1−β₂ᵗ):
//!
//! | rule | update |
//! |---|---|
//! | [`AdamW`] | m = β₁m + (1−β₁)g; v = β₂v + (1−β₂)g²; w = w(1−lr·λ) − lr · m̂ / (√v̂ + ε) |
//! | [`Adam`] | the same with g + λw for g, and no λ elsewhere |
//! | [`Sgd`] | g += λw; m = μm + g; w −= lr·m, or lr(g + μm) with Nesterov's momentum |
//! | [`Lion`] | w = w(1−lr·λ) − lr·sign(β₁m + (1−β₁)g); m = β₂m + (1−β₂)g |
//! | [`Lamb`] | Adam's moments; u = m̂/(√v̂+ε) + λw; w −= lr · ‖w‖/‖u‖ · u, norms over the tensor |
//! | [`Lars`] | m = μm + lr · η‖w‖/(‖g‖+λ‖w‖) · (g + λw); w −= m, norms over the tensor |
//!
//! Sources: Kingma and Ba 2015; Loshchilov and Hutter 2019; Sutskever et al. 2013; Chen et al. 2023
//! (Lion); You et al. 2020 (LAMB, with φ the identity) and 2017 (LARS).

use super::apply;
use super::kernels::{AdamStep, Crew, LambMoments, LambStep, LarsStep, LionStep, SgdStep};
use super::norm::{SquareSum, square_sum};
use super::shard::{Gradients, Shard, ShardError, Weights};

/// Adam with decoupled weight decay. Two moments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f32,
    /// Memory of the mean gradient.
    pub beta1: f32,
    /// Memory of the mean squared gradient.
    pub beta2: f32,
    /// Keeps the division finite.
    pub eps: f32,
    /// Weight decay.
    pub decay: f32,
}

/// Adam; its weight decay goes through the moments. Two moments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Learning rate.
    pub lr: f32,
    /// Memory of the mean gradient.
    pub beta1: f32,
    /// Memory of the mean squared gradient.
    pub beta2: f32,
    /// Keeps the division finite.
    pub eps: f32,
    /// Weight decay.
    pub decay: f32,
}

/// Gradient descent. One moment, or none if `momentum` is 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Learning rate.
    pub lr: f32,
    /// How much of the last update is kept.
    pub momentum: f32,
    /// Weight decay.
    pub decay: f32,
    /// Whether the step looks ahead by the momentum.
    pub is_nesterov: bool,
}

/// Steps of one length, in the direction of a sign. One moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lion {
    /// Learning rate.
    pub lr: f32,
    /// Memory that decides the sign.
    pub beta1: f32,
    /// Memory that is kept.
    pub beta2: f32,
    /// Weight decay.
    pub decay: f32,
}

/// Adam whose step is as long, against each tensor, as the learning rate says. Two moments.
///
/// Two passes for each tensor: [`measure`](Self::measure) moves the moments and finds the norms
/// (ranks that share a tensor add theirs), [`at`](Self::at) makes of them the update to apply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lamb {
    /// Learning rate.
    pub lr: f32,
    /// Memory of the mean gradient.
    pub beta1: f32,
    /// Memory of the mean squared gradient.
    pub beta2: f32,
    /// Keeps the division finite.
    pub eps: f32,
    /// Weight decay.
    pub decay: f32,
}

/// Momentum whose step is as long, against each tensor, as `trust` says; where the weights or the
/// gradients of a tensor are all zero, as the learning rate says. One moment.
///
/// Two passes for each tensor: [`measure`](Self::measure) reads weights and gradients (ranks that
/// share a tensor add theirs), [`at`](Self::at) makes of the norms the update to apply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lars {
    /// Learning rate.
    pub lr: f32,
    /// How much of the last update is kept.
    pub momentum: f32,
    /// Weight decay.
    pub decay: f32,
    /// η, mostly 0.001.
    pub trust: f32,
}

/// Two norms of a tensor, or of a part of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorNorms {
    /// Of its weights.
    pub weights: SquareSum,
    /// Of the update it is about to get (LAMB), or of its gradients as they are (LARS).
    pub updates: SquareSum,
}

/// One step of one rule: apply it to as many shards as there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update(Kind);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Adam(&'static str, AdamStep),
    Sgd(SgdStep),
    Lion(LionStep),
    Lamb(LambStep),
    Lars(LarsStep),
}

impl Update {
    /// Update a shard in one pass, on all threads of `crew`.
    ///
    /// # Errors
    /// [`ShardError`] when the arrays do not fit together or the rule; nothing is written then.
    pub fn apply(&self, crew: &mut Crew, shard: Shard<'_>) -> Result<(), ShardError> {
        let (name, moments) = match &self.0 {
            Kind::Adam(name, _) => (*name, 2),
            Kind::Sgd(step) => ("Sgd", usize::from(step.momentum != 0.0)),
            Kind::Lion(_) => ("Lion", 1),
            Kind::Lamb(_) => ("Lamb", 2),
            Kind::Lars(_) => ("Lars", 1),
        };
        shard.check(name, moments)?;
        match &self.0 {
            Kind::Adam(_, rule) => apply::update(crew, rule, shard),
            Kind::Sgd(rule) => apply::update(crew, rule, shard),
            Kind::Lion(rule) => apply::update(crew, rule, shard),
            Kind::Lamb(rule) => apply::update(crew, rule, shard),
            Kind::Lars(rule) => apply::update(crew, rule, shard),
        }
        Ok(())
    }
}

impl AdamW {
    /// The update of step `t`, counted from 1; each gradient is multiplied by `scale` first.
    pub fn at(&self, t: u64, scale: f32) -> Update {
        let &Self { lr, beta1, beta2, eps, decay } = self;
        let (rate, root) = (lr / bias(beta1, t), 1.0 / bias(beta2, t).sqrt());
        let shrink = 1.0 - lr * decay;
        let step = AdamStep { scale, beta1, beta2, eps, rate, root, shrink, coupled: None };
        Update(Kind::Adam("AdamW", step))
    }
}

impl Adam {
    /// The update of step `t`, counted from 1; each gradient is multiplied by `scale` first.
    pub fn at(&self, t: u64, scale: f32) -> Update {
        let &Self { lr, beta1, beta2, eps, decay } = self;
        let (rate, root) = (lr / bias(beta1, t), 1.0 / bias(beta2, t).sqrt());
        let coupled = coupled(decay);
        let step = AdamStep { scale, beta1, beta2, eps, rate, root, shrink: 1.0, coupled };
        Update(Kind::Adam("Adam", step))
    }
}

impl Sgd {
    /// The update of any step; each gradient is multiplied by `scale` first.
    pub fn at(&self, scale: f32) -> Update {
        let &Self { lr, momentum, decay, is_nesterov } = self;
        let coupled = coupled(decay);
        Update(Kind::Sgd(SgdStep { scale, lr, momentum, coupled, is_nesterov }))
    }
}

impl Lion {
    /// The update of any step; each gradient is multiplied by `scale` first.
    pub fn at(&self, scale: f32) -> Update {
        let &Self { lr, beta1, beta2, decay } = self;
        Update(Kind::Lion(LionStep { scale, lr, beta1, beta2, shrink: 1.0 - lr * decay }))
    }
}

impl Lamb {
    /// Move the moments of one tensor, or of a shard of it, and sum up squares. `shard.narrowed` is
    /// not written: the weights stay as they are.
    ///
    /// Cost: one pass that reads everything and writes the moments.
    ///
    /// # Errors
    /// [`ShardError`] when the arrays do not fit together; nothing is written then.
    pub fn measure(
        &self,
        crew: &mut Crew,
        t: u64,
        scale: f32,
        shard: Shard<'_>,
    ) -> Result<TensorNorms, ShardError> {
        shard.check("Lamb", 2)?;
        let sums = apply::measure(crew, &self.moments(t, scale), shard);
        let (weights, updates) = (sums.weights, sums.updates);
        let [weights, updates] = [weights, updates].map(SquareSum::canonical);
        Ok(TensorNorms { weights, updates })
    }

    /// The update of step `t` for a tensor of these norms. It reads no gradients, and leaves the
    /// moments as [`measure`](Self::measure) has made them.
    pub fn at(&self, t: u64, norms: TensorNorms) -> Update {
        let (weights, updates) = (norms.weights.norm(1.0), norms.updates.norm(1.0));
        let ratio = if weights > 0.0 && updates > 0.0 { weights / updates } else { 1.0 };
        let lr = (f64::from(self.lr) * ratio) as f32;
        Update(Kind::Lamb(LambStep { first: self.moments(t, 1.0), lr }))
    }

    fn moments(&self, t: u64, scale: f32) -> LambMoments {
        let &Self { beta1, beta2, eps, decay, .. } = self;
        let (rate, root) = (1.0 / bias(beta1, t), 1.0 / bias(beta2, t).sqrt());
        LambMoments { scale, beta1, beta2, eps, rate, root, decay }
    }
}

impl Lars {
    /// The norms of one tensor, or of a shard of it.
    ///
    /// Cost: one pass that reads weights and gradients.
    pub fn measure(
        crew: &mut Crew,
        weights: &Weights<'_>,
        gradients: Gradients<'_>,
    ) -> TensorNorms {
        let weights = match weights {
            Weights::F32(weights) => Gradients::F32(weights),
            Weights::Bf16(weights) => Gradients::Bf16(weights),
        };
        let [weights, updates] = [weights, gradients].map(|values| square_sum(crew, values));
        TensorNorms { weights, updates }
    }

    /// The update of any step for a tensor of these norms; each gradient is multiplied by `scale`
    /// first.
    pub fn at(&self, scale: f32, norms: TensorNorms) -> Update {
        let (weights, gradients) = (norms.weights.norm(1.0), norms.updates.norm(1.0));
        let whole = gradients * f64::from(scale) + f64::from(self.decay) * weights;
        let is_known = weights > 0.0 && gradients > 0.0;
        let ratio = if is_known { f64::from(self.trust) * weights / whole } else { 1.0 };
        let lr = (f64::from(self.lr) * ratio) as f32;
        let &Self { momentum, decay, .. } = self;
        Update(Kind::Lars(LarsStep { scale, lr, momentum, decay }))
    }
}

impl TensorNorms {
    /// Of a tensor whose parts have these norms.
    pub fn plus(self, other: Self) -> Self {
        let (weights, updates) =
            (self.weights.plus(other.weights), self.updates.plus(other.updates));
        Self { weights, updates }
    }
}

/// 1 − betaᵗ, in f64 until it is done: f32 would round 1 − 0.999ᵗ visibly.
fn bias(beta: f32, t: u64) -> f32 {
    let t = i32::try_from(t).unwrap_or(i32::MAX);
    debug_assert!(t > 0, "steps count from 1");
    (1.0 - f64::from(beta).powi(t)) as f32
}

fn coupled(decay: f32) -> Option<f32> {
    (decay != 0.0).then_some(decay)
}
