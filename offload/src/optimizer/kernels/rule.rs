//! What happens to one element: the arithmetic of each optimizer, in f32, in the order written.

/// Mean and mean square of the gradients of one element.
pub(in crate::optimizer) type Pair = (f32, f32);

/// An update that needs nothing but the element's own numbers.
pub(in crate::optimizer) trait Rule: Copy + Send + Sync {
    /// Whether moments are written.
    const MOVES_MOMENTS: bool = true;
    /// Whether gradients are read.
    const READS_GRADIENTS: bool = true;
    /// How many moments it has.
    const MOMENTS: usize;
    /// The new weight and moments.
    fn step(&self, weight: f32, gradient: f32, moments: Pair) -> (f32, Pair);
}

/// A rule in two passes, with norms over the tensor between them.
pub(in crate::optimizer) trait Measure: Copy + Send + Sync {
    fn moments(&self, gradient: f32, moments: Pair) -> Pair;
    /// The update without learning rate and trust.
    fn update(&self, weight: f32, moments: Pair) -> f32;
}

/// Adam with its constants made for one step; also AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::optimizer) struct AdamStep {
    /// Of each gradient: loss scale undone, and clipped.
    pub(in crate::optimizer) scale: f32,
    pub(in crate::optimizer) beta1: f32,
    pub(in crate::optimizer) beta2: f32,
    pub(in crate::optimizer) eps: f32,
    /// lr / (1 − beta1ᵗ)
    pub(in crate::optimizer) rate: f32,
    /// 1 / √(1 − beta2ᵗ)
    pub(in crate::optimizer) root: f32,
    /// 1 − lr · decay for AdamW, 1 for Adam.
    pub(in crate::optimizer) shrink: f32,
    /// The decay that Adam adds to the gradient; `None` for AdamW.
    pub(in crate::optimizer) coupled: Option<f32>,
}

impl Rule for AdamStep {
    const MOMENTS: usize = 2;

    #[inline(always)]
    fn step(&self, weight: f32, gradient: f32, (mean, square): Pair) -> (f32, Pair) {
        let gradient = with_decay(gradient * self.scale, self.coupled, weight);
        let mean = self.beta1 * mean + (1.0 - self.beta1) * gradient;
        let square = self.beta2 * square + (1.0 - self.beta2) * gradient * gradient;
        let update = self.rate * mean / (square.sqrt() * self.root + self.eps);
        (weight * self.shrink - update, (mean, square))
    }
}

/// Gradient descent, with or without momentum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::optimizer) struct SgdStep {
    pub(in crate::optimizer) scale: f32,
    pub(in crate::optimizer) lr: f32,
    pub(in crate::optimizer) momentum: f32,
    pub(in crate::optimizer) coupled: Option<f32>,
    pub(in crate::optimizer) is_nesterov: bool,
}

impl Rule for SgdStep {
    const MOMENTS: usize = 1;

    #[inline(always)]
    fn step(&self, weight: f32, gradient: f32, (mean, _): Pair) -> (f32, Pair) {
        let gradient = with_decay(gradient * self.scale, self.coupled, weight);
        let mean = self.momentum * mean + gradient;
        let update = if self.is_nesterov { gradient + self.momentum * mean } else { mean };
        (weight - self.lr * update, (mean, 0.0))
    }
}

/// Lion: the sign of an interpolation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::optimizer) struct LionStep {
    pub(in crate::optimizer) scale: f32,
    pub(in crate::optimizer) lr: f32,
    pub(in crate::optimizer) beta1: f32,
    pub(in crate::optimizer) beta2: f32,
    pub(in crate::optimizer) shrink: f32,
}

impl Rule for LionStep {
    const MOMENTS: usize = 1;

    #[inline(always)]
    fn step(&self, weight: f32, gradient: f32, (mean, _): Pair) -> (f32, Pair) {
        let gradient = gradient * self.scale;
        let direction = self.beta1 * mean + (1.0 - self.beta1) * gradient;
        let mean = self.beta2 * mean + (1.0 - self.beta2) * gradient;
        // Zero and NaN are their own sign.
        let size = if direction == 0.0 { 0.0 } else { self.lr };
        let size = if direction.is_nan() { direction } else { size };
        (weight * self.shrink - size.copysign(direction), (mean, 0.0))
    }
}

/// LAMB's first pass: moments and norms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::optimizer) struct LambMoments {
    pub(in crate::optimizer) scale: f32,
    pub(in crate::optimizer) beta1: f32,
    pub(in crate::optimizer) beta2: f32,
    pub(in crate::optimizer) eps: f32,
    /// 1 / (1 − beta1ᵗ)
    pub(in crate::optimizer) rate: f32,
    /// 1 / √(1 − beta2ᵗ)
    pub(in crate::optimizer) root: f32,
    pub(in crate::optimizer) decay: f32,
}

impl Measure for LambMoments {
    #[inline(always)]
    fn moments(&self, gradient: f32, (mean, square): Pair) -> Pair {
        let gradient = gradient * self.scale;
        let mean = self.beta1 * mean + (1.0 - self.beta1) * gradient;
        (mean, self.beta2 * square + (1.0 - self.beta2) * gradient * gradient)
    }

    #[inline(always)]
    fn update(&self, weight: f32, (mean, square): Pair) -> f32 {
        self.rate * mean / (square.sqrt() * self.root + self.eps) + self.decay * weight
    }
}

/// LAMB's second pass: the update again, now that its length is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::optimizer) struct LambStep {
    pub(in crate::optimizer) first: LambMoments,
    /// Learning rate times trust ratio.
    pub(in crate::optimizer) lr: f32,
}

impl Rule for LambStep {
    const MOVES_MOMENTS: bool = false;
    const READS_GRADIENTS: bool = false;
    const MOMENTS: usize = 2;

    #[inline(always)]
    fn step(&self, weight: f32, _: f32, moments: Pair) -> (f32, Pair) {
        (weight - self.lr * self.first.update(weight, moments), moments)
    }
}

/// LARS once the norms are known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::optimizer) struct LarsStep {
    pub(in crate::optimizer) scale: f32,
    /// Learning rate times trust ratio.
    pub(in crate::optimizer) lr: f32,
    pub(in crate::optimizer) momentum: f32,
    pub(in crate::optimizer) decay: f32,
}

impl Rule for LarsStep {
    const MOMENTS: usize = 1;

    #[inline(always)]
    fn step(&self, weight: f32, gradient: f32, (mean, _): Pair) -> (f32, Pair) {
        let gradient = gradient * self.scale + self.decay * weight;
        let mean = self.momentum * mean + self.lr * gradient;
        (weight - mean, (mean, 0.0))
    }
}

/// A decay of `None` adds nothing, not even zero times an infinite weight.
#[inline(always)]
fn with_decay(gradient: f32, coupled: Option<f32>, weight: f32) -> f32 {
    match coupled {
        Some(decay) => gradient + decay * weight,
        None => gradient,
    }
}
