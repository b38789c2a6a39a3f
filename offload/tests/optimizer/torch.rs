//! Against PyTorch: three steps of its own optimizers, kept in torch_steps.txt.

use super::numbers::{ADAM, ADAMW, NESTEROV, PLAIN, Rule, SGD};
use brigade_offload::optimizer::{Crew, Gradients, Moment, Narrowed, Shard, Weights};

const STEPS: &str = include_str!("torch_steps.txt");

/// The lines of one rule: (what, numbers).
fn lines(name: &str) -> impl Iterator<Item = (&'static str, Vec<f32>)> {
    STEPS.lines().filter_map(move |line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(name)).then_some(())?;
        let what = words.next()?;
        Some((what, words.map(|word| word.parse().expect("a number")).collect()))
    })
}

fn check(name: &str, rule: Rule) {
    let mut crew = Crew::new(1).expect("there are threads");
    let (mut weights, mut gradients) = (Vec::new(), Vec::new());
    let (mut mean, mut square) = ([0.0; 8], [0.0; 8]);
    let [_, _, first, second, _] = rule.formats()[0];
    let mut t = 0;
    for (what, numbers) in lines(name) {
        match what {
            "begin" => weights = numbers,
            "gradient" => gradients = numbers,
            _ => {
                t += 1;
                let none = super::numbers::Format::None;
                let shard = Shard {
                    weights: Weights::F32(&mut weights),
                    gradients: Gradients::F32(&gradients),
                    mean: if first == none { Moment::None } else { Moment::F32(&mut mean) },
                    square: if second == none { Moment::None } else { Moment::F32(&mut square) },
                    narrowed: Narrowed::None,
                };
                rule.at(t, 1.0, None).apply(&mut crew, shard).expect("a good shard");
                for (i, (ours, theirs)) in weights.iter().zip(&numbers).enumerate() {
                    // A few units in the last place of a weight of size 1, each step.
                    let bound = 3e-7 * t as f32 * theirs.abs().max(0.1);
                    assert!((ours - theirs).abs() < bound, "{name} {t} {i}: {ours} {theirs}");
                }
            }
        }
    }
    assert_eq!(t, 3, "{name}: three steps are in the file");
}

#[test]
fn adam_and_its_kin_step_as_in_pytorch() {
    check("adamw", Rule::AdamW(ADAMW));
    check("adam", Rule::Adam(ADAM));
}

#[test]
fn descent_steps_as_in_pytorch() {
    check("sgd", Rule::Sgd(SGD));
    check("nesterov", Rule::Sgd(NESTEROV));
    check("plain", Rule::Sgd(PLAIN));
}
