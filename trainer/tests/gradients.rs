//! Every operation's backward against its own forward, by finite differences.
//!
//! For an operation y(x) and a random cotangent dy, the gradient of L = Σ dy · y is what backward
//! must return. Forward runs in f32; L is added up in f64, and two central differences are combined
//! so that errors of the order of the step squared cancel (Richardson 1911). What is left is the
//! rounding of forward, some 1e-5 of a gradient; a term that is missing is a thousand times that.
//!
//! Not here: how a model puts the operations together. `numerics.rs` compares that with PyTorch.

use brigade_trainer::kernels::{Cpu, Heads, Kernels};

const SEED: u64 = 1851;
/// Distance of the inner two of the four points.
const STEP: f32 = 0.02;
/// Of the largest gradient of an input, or of the gradient's length along a direction.
const TOLERANCE: f64 = 5e-4;

type Tensors = Vec<Vec<f32>>;
type Forward<'a> = dyn Fn(&[Vec<f32>]) -> Vec<f32> + 'a;
type Backward<'a> = dyn Fn(&[Vec<f32>], &[f32]) -> Tensors + 'a;

/// An operation: its inputs, `y(inputs)`, and `dy -> gradient of each input`.
struct Operation<'a> {
    name: &'a str,
    inputs: Tensors,
    forward: &'a Forward<'a>,
    backward: &'a Backward<'a>,
}

/// How closely to look: every element costs four forward passes.
#[derive(Clone, Copy)]
enum Look {
    /// At every element of every gradient.
    Everywhere,
    /// Along some random directions of each input, for operations that are large enough to be cut
    /// up between threads.
    AlongDirections,
}

impl Operation<'_> {
    fn check(&self, look: Look) {
        match look {
            Look::Everywhere => self.check_elements(),
            Look::AlongDirections => self.check_directions(),
        }
    }

    fn check_elements(&self) {
        let (dy, gradients) = self.gradients();
        for (input, gradient) in gradients.iter().enumerate() {
            let largest = gradient.iter().fold(0.0f64, |most, g| most.max(f64::from(*g).abs()));
            assert!(largest > 0.0, "{}: input {input} has no gradient at all", self.name);
            for element in 0..gradient.len() {
                let along = |inputs: &mut Tensors, by: f32| inputs[input][element] += by;
                let want = self.slope(&dy, along);
                let off = (f64::from(gradient[element]) - want).abs() / largest;
                assert!(
                    off < TOLERANCE,
                    "{} (seed {SEED}): gradient of input {input}, element {element} is {}, by \
                     differences {want}",
                    self.name,
                    gradient[element],
                );
            }
        }
    }

    fn check_directions(&self) {
        let (dy, gradients) = self.gradients();
        let mut rng = fastrand::Rng::with_seed(SEED ^ 1);
        for (input, gradient) in gradients.iter().enumerate() {
            let length = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            for _ in 0..4 {
                let direction = normal(gradient.len(), &mut rng);
                let along = |inputs: &mut Tensors, by: f32| {
                    inputs[input].iter_mut().zip(&direction).for_each(|(x, d)| *x += by * d);
                };
                let (got, want) = (dot(gradient, &direction), self.slope(&dy, along));
                assert!(
                    (got - want).abs() < TOLERANCE * length,
                    "{} (seed {SEED}): slope along input {input} is {got}, by differences {want}, \
                     where the gradient has length {length}",
                    self.name,
                );
            }
        }
    }

    /// A random dy, and what backward makes of it.
    fn gradients(&self) -> (Vec<f32>, Tensors) {
        let outputs = (self.forward)(&self.inputs).len();
        let dy = normal(outputs, &mut fastrand::Rng::with_seed(SEED ^ 2));
        let gradients = (self.backward)(&self.inputs, &dy);
        assert_eq!(gradients.len(), self.inputs.len());
        (dy, gradients)
    }

    /// dL/dt where `along(inputs, t)` moves the inputs by t.
    fn slope(&self, dy: &[f32], along: impl Fn(&mut Tensors, f32)) -> f64 {
        let difference = |by: f32| {
            let moved = |by: f32| {
                let mut inputs = self.inputs.clone();
                along(&mut inputs, by);
                (self.forward)(&inputs)
            };
            let (after, before) = (moved(by), moved(-by));
            (dot(&after, dy) - dot(&before, dy)) / (2.0 * f64::from(by))
        };
        (4.0 * difference(STEP) - difference(2.0 * STEP)) / 3.0
    }
}

fn normal(len: usize, rng: &mut fastrand::Rng) -> Vec<f32> {
    // Twelve uniform numbers: normal enough, and none is far out.
    (0..len).map(|_| (0..12).map(|_| rng.f32()).sum::<f32>() - 6.0).collect()
}

fn inputs(lens: &[usize]) -> Tensors {
    let mut rng = fastrand::Rng::with_seed(SEED);
    lens.iter().map(|&len| normal(len, &mut rng)).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// What a kernel that writes must overwrite: an element it leaves alone fails every comparison.
fn unwritten(len: usize) -> Vec<f32> {
    vec![f32::NAN; len]
}

fn linear(rows: usize, inputs_each: usize, outputs: usize, look: Look) {
    let biased = inputs(&[rows * inputs_each, outputs * inputs_each, outputs]);
    let mut plain = biased.clone();
    plain.pop();
    for (name, inputs) in [("linear with bias", biased), ("linear", plain)] {
        let bias = |x: &[Vec<f32>]| x.get(2).cloned().unwrap_or_default();
        Operation {
            name,
            inputs,
            forward: &|x| {
                let mut y = unwritten(rows * outputs);
                Cpu.linear(&mut y, &x[0], &x[1], &bias(x), inputs_each, None);
                y
            },
            backward: &|x, dy| {
                let [mut dx, mut dw] = [unwritten(x[0].len()), unwritten(x[1].len())];
                let mut db = unwritten(bias(x).len());
                Cpu.linear_backward(&mut dx, &mut dw, &mut db, dy, &x[0], &x[1], inputs_each);
                [dx, dw, db].into_iter().take(x.len()).collect()
            },
        }
        .check(look);
    }
}

#[test]
fn linear_agrees() {
    linear(5, 7, 3, Look::Everywhere);
    // Three panels of 128 rows, and more outputs than one thread sums at a time.
    linear(300, 20, 130, Look::AlongDirections);
}

#[test]
fn linear_adds_onto_the_residual_stream() {
    let (rows, each, outputs) = (5, 7, 3);
    let x = inputs(&[rows * each, outputs * each, outputs, rows * outputs]);
    let [mut alone, mut onto] = [unwritten(rows * outputs), unwritten(rows * outputs)];
    Cpu.linear(&mut alone, &x[0], &x[1], &x[2], each, None);
    Cpu.linear(&mut onto, &x[0], &x[1], &x[2], each, Some(&x[3]));
    for ((onto, alone), stream) in onto.iter().zip(&alone).zip(&x[3]) {
        assert!((onto - alone - stream).abs() < 1e-5, "{onto} is not {alone} + {stream}");
    }
}

fn layernorm(rows: usize, width: usize, look: Look) {
    let forward = |x: &[Vec<f32>]| {
        let (mut y, mut stats) = (unwritten(rows * width), unwritten(rows * 2));
        Cpu.layernorm(&mut y, &mut stats, &x[0], &x[1], &x[2]);
        (y, stats)
    };
    Operation {
        name: "layernorm",
        inputs: inputs(&[rows * width, width, width]),
        forward: &|x| forward(x).0,
        backward: &|x, dy| {
            let (_, stats) = forward(x);
            // The residual stream's gradient is there before: dx is added to it.
            let mut dx = vec![1.0; x[0].len()];
            let [mut dgain, mut dbias] = [unwritten(width), unwritten(width)];
            Cpu.layernorm_backward(&mut dx, &mut dgain, &mut dbias, dy, &x[0], &stats, &x[1]);
            dx.iter_mut().for_each(|dx| *dx -= 1.0);
            vec![dx, dgain, dbias]
        },
    }
    .check(look);
}

#[test]
fn layernorm_agrees() {
    layernorm(3, 7, Look::Everywhere);
    // A row longer than sixteen lanes, with a tail; more rows and columns than one thread takes.
    layernorm(600, 70, Look::AlongDirections);
}

fn attention(samples: usize, shape: Heads, look: Look) {
    let Heads { time, heads, width } = shape;
    let forward = |x: &[Vec<f32>]| {
        let mut y = unwritten(samples * time * width);
        let mut probs = unwritten(samples * heads * time * time);
        Cpu.attention(&mut y, &mut probs, &x[0], shape);
        (y, probs)
    };
    Operation {
        name: "attention",
        inputs: inputs(&[samples * time * 3 * width]),
        forward: &|x| forward(x).0,
        backward: &|x, dy| {
            let (_, probs) = forward(x);
            let mut dqkv = unwritten(x[0].len());
            let mut scratch = unwritten(samples * time.min(64) * time);
            Cpu.attention_backward(&mut dqkv, &mut scratch, dy, &x[0], &probs, shape);
            vec![dqkv]
        },
    }
    .check(look);
}

#[test]
fn attention_agrees() {
    attention(2, Heads { time: 5, heads: 2, width: 6 }, Look::Everywhere);
    // Three blocks of rows, the last of them short.
    let long = Heads { time: 130, heads: 3, width: 12 };
    attention(2, long, Look::AlongDirections);
}

#[test]
fn attention_does_not_look_ahead() {
    let shape = Heads { time: 70, heads: 1, width: 4 };
    let mut qkv = inputs(&[shape.time * 3 * shape.width]).remove(0);
    let pass = |qkv: &[f32]| {
        let (mut y, mut probs) = (unwritten(qkv.len() / 3), unwritten(shape.time * shape.time));
        Cpu.attention(&mut y, &mut probs, qkv, shape);
        y
    };
    let before = pass(&qkv);
    let seen = 66;
    qkv[seen * 3 * shape.width..].iter_mut().for_each(|x| *x = 9.0 - *x);
    let after = pass(&qkv);
    let split = seen * shape.width;
    assert_eq!(before[..split], after[..split], "tokens before the change saw it");
    assert_ne!(before[split..], after[split..], "tokens after the change did not");
}

fn gelu(len: usize, look: Look) {
    Operation {
        name: "gelu",
        inputs: inputs(&[len]),
        forward: &|x| {
            let mut y = unwritten(len);
            Cpu.gelu(&mut y, &x[0]);
            y
        },
        backward: &|x, dy| {
            let mut dx = dy.to_vec();
            Cpu.gelu_backward(&mut dx, &x[0]);
            vec![dx]
        },
    }
    .check(look);
}

#[test]
fn gelu_agrees() {
    gelu(200, Look::Everywhere);
    gelu((1 << 15) + 7, Look::AlongDirections);
}

#[test]
fn embedding_agrees() {
    let shape = Heads { time: 3, heads: 1, width: 5 };
    // Tokens repeat within a sample and between samples; token 3 is never seen.
    let tokens = [4, 1, 1, 2, 4, 0];
    // Some rows of them are here, in an order of their own.
    let rows = [5, 0, 1, 3, 4];
    let (vocab, width) = (5, shape.width);
    Operation {
        name: "embedding",
        inputs: inputs(&[vocab * width, shape.time * width]),
        forward: &|x| {
            let mut y = unwritten(rows.len() * width);
            Cpu.embed(&mut y, &rows, &tokens, [&x[0], &x[1]], shape);
            y
        },
        backward: &|x, dy| {
            let [mut dwte, mut dwpe] = [unwritten(x[0].len()), unwritten(x[1].len())];
            Cpu.embed_backward([&mut dwte, &mut dwpe], dy, &rows, &tokens, shape);
            vec![dwte, dwpe]
        },
    }
    .check(Look::Everywhere);
}

fn cross_entropy(rows: usize, vocab: usize, look: Look) {
    let mut rng = fastrand::Rng::with_seed(SEED ^ 3);
    let targets: Vec<u32> = (0..rows).map(|_| rng.u32(0..vocab as u32)).collect();
    let pass = |x: &[Vec<f32>], scale: f32| {
        let (mut logits, mut losses) = (x[0].clone(), unwritten(rows));
        Cpu.cross_entropy(&mut logits, &mut losses, &targets, scale);
        (logits, losses)
    };
    Operation {
        name: "cross-entropy",
        inputs: inputs(&[rows * vocab]),
        forward: &|x| pass(x, 1.0).1,
        // Each row's loss has the cotangent dy[row]: the kernel knows one scale for all rows.
        backward: &|x, dy| {
            let mut gradient = pass(x, 0.5).0;
            for (row, dy) in gradient.chunks_exact_mut(vocab).zip(dy) {
                row.iter_mut().for_each(|g| *g *= 2.0 * dy);
            }
            vec![gradient]
        },
    }
    .check(look);
}

#[test]
fn cross_entropy_agrees() {
    cross_entropy(4, 9, Look::Everywhere);
    cross_entropy(300, 256, Look::AlongDirections);
}
