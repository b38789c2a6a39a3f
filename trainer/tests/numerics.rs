//! The hand-written backward against PyTorch: a tiny GPT's loss, every gradient and three AdamW
//! steps.
//!
//! `torch.safetensors` was written by `make_fixture.py`; no Python runs here.

use brigade_trainer::kernels::Cpu;
use brigade_trainer::layout::Config;
use brigade_trainer::model::Gpt;
use brigade_trainer::optim::{Hyper, Moments, Optimizer};
use brigade_trainer::tape::{Scratch, Tape};
use safetensors::SafeTensors;

static FIXTURE: &[u8] = include_bytes!("torch.safetensors");

struct Fixture {
    model: Gpt,
    tape: Tape,
    params: Vec<f32>,
    grads: Vec<f32>,
    tokens: Vec<u32>,
    targets: Vec<u32>,
    losses: Vec<f32>,
}

impl Fixture {
    fn load() -> Fixture {
        let file = SafeTensors::deserialize(FIXTURE).unwrap();
        let (_, header) = SafeTensors::read_metadata(FIXTURE).unwrap();
        let config = &header.metadata().as_ref().unwrap()["config"];
        let config: Config = serde_json::from_str(config).unwrap();
        let floats = |name: &str| -> Vec<f32> {
            let bytes = file.tensor(name).unwrap().data().chunks_exact(4);
            bytes.map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
        };
        let bytes = |name: &str| -> Vec<u32> {
            file.tensor(name).unwrap().data().iter().map(|&b| u32::from(b)).collect()
        };
        let model = Gpt::new(config, Cpu).unwrap();
        let flat = |prefix: &str| -> Vec<f32> {
            let tensors = model.layout().tensors().iter();
            tensors.flat_map(|tensor| floats(&format!("{prefix}/{}", tensor.name))).collect()
        };
        let (params, grads) = (flat("weight"), flat("grad"));
        let tokens = bytes("tokens");
        let tape = Tape::new(&config, tokens.len() / config.context, config.context);
        let (targets, losses) = (bytes("targets"), floats("losses"));
        Fixture { tape, params, grads, tokens, targets, losses, model }
    }

    /// Mean loss at `params`; its gradient goes to `grads`.
    fn pass(&mut self, params: &[f32], grads: &mut [f32]) -> f64 {
        let scale = 1.0 / self.tokens.len() as f32;
        self.model.forward_all(params, &mut self.tape, &self.tokens);
        let loss = self.model.loss(&mut self.tape, &self.targets, scale).unwrap();
        let layout = self.model.layout();
        let context = layout.config().context;
        let mut scratch = Scratch::new(layout.config(), self.tokens.len() / context, context);
        for unit in (0..layout.units()).rev() {
            let (params, grads) = (&params[layout.unit(unit)], &mut grads[layout.unit(unit)]);
            let (tape, scratch) = (&self.tape, &mut scratch);
            self.model.backward(unit, params, grads, tape, scratch, &self.tokens).unwrap();
        }
        loss * f64::from(scale)
    }
}

#[test]
fn loss_and_every_gradient_agree_with_torch() {
    let mut fixture = Fixture::load();
    // Backward must write every element: whatever it leaves alone stays not-a-number.
    let mut grads = vec![f32::NAN; fixture.params.len()];
    let params = fixture.params.clone();
    let loss = fixture.pass(&params, &mut grads);
    let difference = (loss - f64::from(fixture.losses[0])).abs();
    assert!(difference < 1e-5, "loss {loss}, torch has {}", fixture.losses[0]);

    let mut worst = (0.0f32, "");
    for tensor in fixture.model.layout().tensors() {
        let (got, want) = (&grads[tensor.range.clone()], &fixture.grads[tensor.range.clone()]);
        let largest = want.iter().fold(0.0f32, |max, g| max.max(g.abs()));
        let error = got.iter().zip(want).fold(0.0f32, |max, (g, w)| {
            assert!(g.is_finite(), "{} has a gradient that was never written", tensor.name);
            max.max((g - w).abs())
        });
        if error / largest >= worst.0 {
            worst = (error / largest, &tensor.name);
        }
    }
    println!(
        "|loss - torch| = {difference:.1e}, worst gradient error {:.1e} in {}",
        worst.0, worst.1
    );
    assert!(worst.0 < 1e-5, "gradient of {} is off by {:e} of its largest", worst.1, worst.0);
}

#[test]
fn every_tensor_has_a_gradient() {
    let mut fixture = Fixture::load();
    let mut grads = vec![0.0; fixture.params.len()];
    let params = fixture.params.clone();
    fixture.pass(&params, &mut grads);
    for tensor in fixture.model.layout().tensors() {
        let zeros = grads[tensor.range.clone()].iter().filter(|g| **g == 0.0).count();
        assert_eq!(zeros, 0, "{} has elements without a gradient", tensor.name);
    }
}

#[test]
fn three_adamw_steps_agree_with_torch() {
    let mut fixture = Fixture::load();
    let hyper = Hyper { beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.1 };
    let mut params = fixture.params.clone();
    let mut grads = vec![0.0; params.len()];
    let mut optimizer = Optimizer::new(hyper, 1, 0).unwrap();
    let mut moments = Moments::new(fixture.model.layout(), 0..params.len(), &grads, &grads);
    for step in 0..4 {
        let (loss, want) = (fixture.pass(&params, &mut grads), f64::from(fixture.losses[step]));
        assert!((loss - want).abs() < 1e-5, "loss {loss} after {step} steps, torch has {want}");
        optimizer.update(&mut params, &mut moments, &grads, 1e-2);
        optimizer.steps += 1;
    }
    assert!(fixture.losses[3] < fixture.losses[0] - 0.1, "the steps must move the loss to count");
}
