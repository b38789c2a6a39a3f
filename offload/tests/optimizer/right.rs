//! Against the formulas in f64, from the same state, element by element.
//!
//! An f32 result may be off by the roundings of its own expression: each sum by a few units of its
//! largest term (in 2⁻²⁴ of it, half an ulp). The bounds are stated where they are checked.

use super::numbers::{ADAM, ADAMW, Format, LAMB, LARS, LION, NESTEROV, Numbers, PLAIN, Rule, SGD};
use brigade_offload::optimizer::Crew;

const HALF_ULP: f64 = 1.0 / (1 << 24) as f64;
const T: u64 = 7;
const SCALE: f32 = 0.25;
const COUNT: usize = 3000;

/// What one element becomes, with the largest terms of the sums on the way.
struct Exact {
    weight: f64,
    mean: f64,
    square: f64,
    /// Size of the mean's largest term.
    mean_terms: f64,
    /// How much an error of one in the mean moves the weight.
    lever: f64,
    /// Size of the weight's terms other than the mean.
    weight_terms: f64,
}

/// Step once, and compare every element with `exact(weight, gradient, mean, square)`.
fn check(rule: Rule, exact: impl Fn(f64, f64, f64, f64) -> Exact) {
    let formats = rule.formats()[0];
    let mut crew = Crew::new(2).expect("there are threads");
    let before = Numbers::new(21, COUNT, formats, false);
    let mut after = before.clone();
    rule.step(&mut crew, &mut after, T, SCALE, 0..COUNT);
    let or_zeros = |values: Vec<f64>| if values.is_empty() { vec![0.0; COUNT] } else { values };
    let old = [&before.weights, &before.gradients, &before.mean, &before.square];
    let old = old.map(|array| or_zeros(array.values()));
    let new = [&after.weights, &after.mean, &after.square].map(|array| or_zeros(array.values()));
    for i in 0..COUNT {
        let want = exact(old[0][i], old[1][i] * f64::from(SCALE), old[2][i], old[3][i]);
        let (weight, mean, square) = (new[0][i], new[1][i], new[2][i]);
        // Three roundings of the terms, one of the sum: 2 ulps of the largest term.
        let of_mean = 4.0 * HALF_ULP * want.mean_terms;
        assert!((mean - want.mean).abs() <= of_mean, "{rule:?} {i}: {mean} {}", want.mean);
        // A sum of positive terms: 3 ulps of itself.
        let of_square = 6.0 * HALF_ULP * want.square;
        assert!((square - want.square).abs() <= of_square, "{rule:?} {i}: {square}");
        // Rate, root, quotient and their product: 6 ulps of what the mean contributes; 2 ulps of
        // the other terms.
        let of_weight = 12.0 * HALF_ULP * want.mean_terms * want.lever.abs()
            + 4.0 * HALF_ULP * want.weight_terms;
        let off = (weight - want.weight).abs();
        assert!(off <= of_weight, "{rule:?} {i}: {weight} {} off by {off:e}", want.weight);
    }
}

fn adam_like(
    (lr, beta1, beta2, eps): (f32, f32, f32, f32),
    shrink: f64,
) -> impl Fn(f64, f64, f64, f64) -> Exact {
    let [lr, beta1, beta2, eps] = [lr, beta1, beta2, eps].map(f64::from);
    move |w, g, m, v| {
        let (mean, square) = (beta1 * m + (1.0 - beta1) * g, beta2 * v + (1.0 - beta2) * g * g);
        let root = (square / (1.0 - beta2.powi(T as i32))).sqrt() + eps;
        let lever = lr / (1.0 - beta1.powi(T as i32)) / root;
        let mean_terms = (beta1 * m).abs() + (1.0 - beta1) * g.abs();
        let weight_terms = w.abs() + (lever * mean).abs();
        Exact { weight: w * shrink - lever * mean, mean, square, mean_terms, lever, weight_terms }
    }
}

#[test]
fn adamw_is_right() {
    let rule = ADAMW;
    let shrink = 1.0 - f64::from(rule.lr) * f64::from(rule.decay);
    let exact = adam_like((rule.lr, rule.beta1, rule.beta2, rule.eps), shrink);
    check(Rule::AdamW(rule), exact);
}

#[test]
fn adam_is_right() {
    // Without decay: with it, cancellation in the gradient would need a bound of its own, and
    // PyTorch's numbers are compared with it.
    let rule = brigade_offload::optimizer::Adam { decay: 0.0, ..ADAM };
    check(Rule::Adam(rule), adam_like((rule.lr, rule.beta1, rule.beta2, rule.eps), 1.0));
}

#[test]
fn descent_is_right() {
    for rule in [SGD, NESTEROV, PLAIN] {
        let [lr, momentum, decay] = [rule.lr, rule.momentum, rule.decay].map(f64::from);
        check(Rule::Sgd(rule), |w, g, m, _| {
            let g = g + decay * w;
            let mean = momentum * m + g;
            let update = if rule.is_nesterov { g + momentum * mean } else { mean };
            let mean_terms = (momentum * m).abs() + g.abs() + 2.0 * (decay * w).abs();
            let weight = w - lr * update;
            let stored = if rule.momentum == 0.0 { 0.0 } else { mean };
            let weight_terms = w.abs() + lr * mean_terms;
            Exact { weight, mean: stored, square: 0.0, mean_terms, lever: lr, weight_terms }
        });
    }
}

#[test]
fn lion_is_right() {
    let [lr, beta1, beta2, decay] = [LION.lr, LION.beta1, LION.beta2, LION.decay].map(f64::from);
    check(Rule::Lion(LION), |w, g, m, _| {
        let direction = beta1 * m + (1.0 - beta1) * g;
        let mean = beta2 * m + (1.0 - beta2) * g;
        let weight = w * (1.0 - lr * decay) - lr * direction.signum();
        let mean_terms = (beta2 * m).abs() + (1.0 - beta2) * g.abs();
        Exact { weight, mean, square: 0.0, mean_terms, lever: 0.0, weight_terms: w.abs() + lr }
    });
}

#[test]
fn lamb_is_right() {
    let rule = LAMB;
    let [lr, beta1, beta2, eps, decay] =
        [rule.lr, rule.beta1, rule.beta2, rule.eps, rule.decay].map(f64::from);
    let moments =
        |g: f64, m: f64, v: f64| (beta1 * m + (1.0 - beta1) * g, beta2 * v + (1.0 - beta2) * g * g);
    let lever = |square: f64| {
        let root = (square / (1.0 - beta2.powi(T as i32))).sqrt() + eps;
        1.0 / (1.0 - beta1.powi(T as i32)) / root
    };
    let numbers = Numbers::new(21, COUNT, Rule::Lamb(rule).formats()[0], false);
    let gradients = numbers.gradients.values().into_iter().zip(numbers.mean.values());
    let states = numbers.weights.values().into_iter().zip(numbers.square.values());
    let (mut weights, mut updates) = (0.0, 0.0);
    for ((g, m), (w, v)) in gradients.zip(states) {
        let (mean, square) = moments(g * f64::from(SCALE), m, v);
        weights += w * w;
        updates += (mean * lever(square) + decay * w).powi(2);
    }
    let lr = lr * (weights / updates).sqrt();
    check(Rule::Lamb(rule), |w, g, m, v| {
        let (mean, square) = moments(g, m, v);
        let lever = lr * lever(square);
        let mean_terms = (beta1 * m).abs() + (1.0 - beta1) * g.abs();
        let weight = w - lever * mean - lr * decay * w;
        let weight_terms = w.abs() + (lever * mean).abs();
        Exact { weight, mean, square, mean_terms, lever, weight_terms }
    });
}

#[test]
fn lars_is_right() {
    let [lr, momentum, decay, trust] =
        [LARS.lr, LARS.momentum, LARS.decay, LARS.trust].map(f64::from);
    let numbers = Numbers::new(21, COUNT, Rule::Lars(LARS).formats()[0], false);
    let norm = |values: Vec<f64>| values.iter().map(|value| value * value).sum::<f64>().sqrt();
    let weights = norm(numbers.weights.values());
    let gradients = norm(numbers.gradients.values()) * f64::from(SCALE);
    let lr = lr * trust * weights / (gradients + decay * weights);
    check(Rule::Lars(LARS), |w, g, m, _| {
        let mean = momentum * m + lr * (g + decay * w);
        let mean_terms = (momentum * m).abs() + 2.0 * lr * (g.abs() + (decay * w).abs());
        let weight_terms = w.abs();
        Exact { weight: w - mean, mean, square: 0.0, mean_terms, lever: 1.0, weight_terms }
    });
}

#[test]
fn narrowed_weights_are_the_weights_rounded() {
    let mut crew = Crew::new(1).expect("there are threads");
    for (narrowed, digits) in [(Format::Bf16, 8), (Format::F16, 11)] {
        let formats = [Format::F32, Format::F32, Format::F32, Format::F32, narrowed];
        let mut numbers = Numbers::new(9, COUNT, formats, false);
        Rule::AdamW(ADAMW).step(&mut crew, &mut numbers, T, SCALE, 0..COUNT);
        let pairs = numbers.weights.values().into_iter().zip(numbers.narrowed.values());
        for (weight, narrow) in pairs {
            let unit = 2.0_f64.powi(weight.abs().log2().floor() as i32 - digits);
            assert!((weight - narrow).abs() <= unit.max(2.0_f64.powi(-25)), "{weight} {narrow}");
        }
    }
}

#[test]
fn broken_numbers_stay_where_they_are() {
    let formats = [Format::F32, Format::F32, Format::F32, Format::F32, Format::Bf16];
    let mut crew = Crew::new(1).expect("there are threads");
    let mut numbers = Numbers::new(13, 100, formats, false);
    if let super::numbers::Array::F32(gradients) = &mut numbers.gradients {
        gradients[40] = f32::NAN;
        gradients[41] = f32::INFINITY;
        gradients[42] = 1e-40;
    }
    Rule::AdamW(ADAMW).step(&mut crew, &mut numbers, T, SCALE, 0..100);
    for (i, weight) in numbers.weights.values().into_iter().enumerate() {
        assert_eq!(weight.is_nan(), i == 40 || i == 41, "element {i}: {weight}");
    }
    for (i, narrow) in numbers.narrowed.values().into_iter().enumerate() {
        assert_eq!(narrow.is_nan(), i == 40 || i == 41, "element {i}: {narrow}");
    }
}

#[test]
fn subnormal_moments_are_kept() {
    let formats = [Format::F32, Format::F32, Format::F32, Format::F32, Format::None];
    for isa in brigade_offload::optimizer::Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let mut crew = Crew::with_isa(1, isa).expect("it is available");
        let mut numbers = Numbers::new(13, 64, formats, false);
        let zeros = || super::numbers::Array::F32(vec![0.0; 64]);
        (numbers.mean, numbers.square) = (zeros(), zeros());
        numbers.gradients = super::numbers::Array::F32(vec![1e-39; 64]);
        Rule::AdamW(ADAMW).step(&mut crew, &mut numbers, 1, 1.0, 0..64);
        let mean = numbers.mean.values();
        assert!(mean.iter().all(|mean| (mean - 1e-40).abs() < 1e-44), "{isa:?} {mean:?}");
    }
}
