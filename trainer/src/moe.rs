//! A mixture of experts in place of the perceptron (Shazeer et al. 2017; top-1: Fedus et al. 2021;
//! top-2: Lepikhin et al. 2020), with experts divided among ranks.
//!
//! y = Σ p_e(x) · expert_e(x) over the experts that a token's gate likes best. Each rank has some
//! rows of the stream and some experts: rows travel to the ranks of their experts and back, forward
//! and backward, in all-to-alls whose lengths the gate decides. A rank whose experts get no token
//! takes part with nothing. No token is ever dropped, and rows of an expert are in the order of
//! ranks and tokens, so everything is decided by the numbers alone.
//!
//! Cost, with r the rows that leave a rank: 4 all-to-alls of r · c elements, and one of a count for
//! each expert.
//!
//! Not here: which rows are whose, and the norms around (`parallel::tensor::Expert`).

mod gate;
mod travel;

pub use gate::Gate;
pub use travel::Travel;

use crate::error::Error;
use crate::kernels::Kernels;
use crate::layout::cut_mut;
use crate::parallel::tensor::Group;

/// Shape of a mixture on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mixture {
    /// Numbers per token.
    pub width: usize,
    /// Over all ranks.
    pub experts: usize,
    /// How many of them a token goes to.
    pub top: usize,
    /// Ranks that divide them evenly.
    pub ranks: usize,
    /// An expert computes the rows of each rank by themselves, and adds up what they give in the
    /// order of ranks: the sums are those of one process that takes as many lanes.
    pub is_apart: bool,
}

/// Elements of the five tensors of a rank, in order: gate, and of its experts one after the other
/// fc's weights, biases, out's weights, biases.
pub type Lens = [usize; 5];

impl Mixture {
    /// Experts of one rank.
    pub fn local(&self) -> usize {
        self.experts / self.ranks
    }

    /// How long the tensors are.
    pub fn lens(&self) -> Lens {
        let (c, n) = (self.width, self.local());
        [self.experts * c, n * 4 * c * c, n * 4 * c, n * 4 * c * c, n * c]
    }

    /// Elements of an expert's gradients, where those of one rank's rows wait to be added.
    fn part(&self) -> usize {
        if self.is_apart && self.ranks > 1 { expert_lens(self.width).iter().sum() } else { 0 }
    }
}

/// What forward keeps for backward.
#[derive(Default)]
pub struct MixtureTape {
    gate: Gate,
    travel: Travel,
    /// Rows that came to this rank's experts, expert by expert: [rows × c].
    inputs: Vec<f32>,
    /// [rows × 4c], before and after GELU.
    hidden: Vec<f32>,
    active: Vec<f32>,
    /// What the experts of this rank's tokens answered: [tokens · top × c].
    answers: Vec<f32>,
}

impl MixtureTape {
    /// Bytes that this rank sends to others in forward and in backward over these tokens.
    pub fn formula_bytes(&self, mixture: &Mixture, rank: usize) -> [u64; 2] {
        let rows = self.travel.row_bytes(mixture, rank);
        [rows + Travel::count_bytes(mixture), rows]
    }

    /// Tokens that came to each of this rank's experts.
    pub fn loads(&self) -> Vec<usize> {
        self.travel.loads()
    }

    /// Bytes of it, after a forward.
    pub fn bytes(&self) -> u64 {
        let MixtureTape { gate, travel, inputs, hidden, active, answers } = self;
        let rows = inputs.len() + hidden.len() + active.len() + answers.len();
        gate.bytes() + travel.bytes() + 4 * rows as u64
    }

    /// Bytes that its forward and its backward had beside it at most: rows that came or will go,
    /// and what they become.
    pub fn passing_bytes(&self, mixture: &Mixture) -> [u64; 2] {
        let (came, sent) = (self.inputs.len(), self.answers.len());
        // Outputs, until they are on their way back as answers; and in backward gradients of
        // outputs, inputs and hidden numbers.
        let forward = (2 * came).max(came + sent) - sent;
        let inside = 6 * came + mixture.part();
        let backward = inside.max(came + sent).max(sent + self.gate.scores());
        [4 * forward as u64, 4 * backward as u64]
    }
}

/// y = mixture(x) + onto. x, y: [tokens × c]; params: the five tensors. Collective over the group.
pub fn forward(
    (k, group, mixture): (&dyn Kernels, Option<&Group>, &Mixture),
    y: &mut [f32],
    x: &[f32],
    params: [&[f32]; 5],
    tape: &mut MixtureTape,
    onto: &[f32],
) -> Result<(), Error> {
    let c = mixture.width;
    // What was kept before is another step's: it makes room.
    *tape = MixtureTape::default();
    tape.gate.choose(k, x, params[0], mixture);
    tape.travel.plan(group, mixture, &tape.gate.chosen)?;
    let sent = tape.travel.collect(x, c, mixture.top);
    tape.inputs = tape.travel.out(group, sent, c)?;
    tape.hidden.resize(4 * tape.inputs.len(), 0.0);
    tape.active.resize(4 * tape.inputs.len(), 0.0);
    let mut outputs = vec![0.0; tape.inputs.len()];
    for (expert, rows) in tape.travel.parts(mixture.is_apart) {
        let [_, fc_w, fc_b, out_w, out_b] = of_expert(params, expert, c);
        let (narrow, wide) = (rows.start * c..rows.end * c, rows.start * 4 * c..rows.end * 4 * c);
        let hidden = &mut tape.hidden[wide.clone()];
        k.linear(hidden, &tape.inputs[narrow.clone()], fc_w, fc_b, c, None);
        let active = &mut tape.active[wide];
        k.gelu(active, hidden);
        k.linear(&mut outputs[narrow], active, out_w, out_b, 4 * c, None);
    }
    tape.answers = tape.travel.back(group, outputs, c)?;
    y.copy_from_slice(onto);
    for (choice, &place) in tape.travel.places().iter().enumerate() {
        let share = tape.gate.shares[choice];
        let y = &mut y[choice / mixture.top * c..][..c];
        for (y, answer) in y.iter_mut().zip(&tape.answers[place * c..]) {
            *y += share * answer;
        }
    }
    Ok(())
}

/// Writes `dx` and the gradients of the five tensors. Collective over the group.
pub fn backward(
    (k, group, mixture): (&dyn Kernels, Option<&Group>, &Mixture),
    (dx, grads): (&mut [f32], [&mut [f32]; 5]),
    dy: &[f32],
    x: &[f32],
    params: [&[f32]; 5],
    tape: &MixtureTape,
) -> Result<(), Error> {
    let (c, top) = (mixture.width, mixture.top);
    let [dgate, dfc_w, dfc_b, dout_w, dout_b] = grads;
    // How much each choice's share matters, and what its answer's gradient is.
    let mut dshares = vec![0.0; tape.gate.shares.len()];
    let mut sent = vec![0.0; tape.answers.len()];
    for (choice, &place) in tape.travel.places().iter().enumerate() {
        let (dy, share) = (&dy[choice / top * c..][..c], tape.gate.shares[choice]);
        let answer = &tape.answers[place * c..][..c];
        dshares[choice] = dy.iter().zip(answer).map(|(dy, answer)| dy * answer).sum();
        for (sent, dy) in sent[place * c..][..c].iter_mut().zip(dy) {
            *sent = share * dy;
        }
    }
    let douts = tape.travel.out(group, sent, c)?;
    let mut dinputs = vec![0.0; tape.inputs.len()];
    let mut dwide = vec![0.0; tape.hidden.len()];
    let mut part = vec![0.0; mixture.part()];
    let mut last = None;
    for (expert, rows) in tape.travel.parts(mixture.is_apart) {
        let is_first = last.replace(expert) != Some(expert);
        let grads = [&mut [][..], &mut *dfc_w, &mut *dfc_b, &mut *dout_w, &mut *dout_b];
        let [_, grads @ ..] = of_expert_mut(grads, expert, c);
        if rows.is_empty() {
            if is_first {
                grads.into_iter().for_each(|grads| grads.fill(0.0));
            }
            continue;
        }
        let [_, fc_w, _, out_w, _] = of_expert(params, expert, c);
        let (narrow, wide) = (rows.start * c..rows.end * c, rows.start * 4 * c..rows.end * 4 * c);
        let mut compute = |[dfc_w, dfc_b, dout_w, dout_b]: [&mut [f32]; 4]| {
            let (dout, dwide) = (&douts[narrow.clone()], &mut dwide[wide.clone()]);
            let active = &tape.active[wide.clone()];
            k.linear_backward(dwide, dout_w, dout_b, dout, active, out_w, 4 * c);
            k.gelu_backward(dwide, &tape.hidden[wide.clone()]);
            let (dinput, input) = (&mut dinputs[narrow.clone()], &tape.inputs[narrow.clone()]);
            k.linear_backward(dinput, dfc_w, dfc_b, dwide, input, fc_w, c);
        };
        if is_first {
            compute(grads);
            continue;
        }
        compute(cut_mut(&mut part, expert_lens(c)));
        let sums = grads.into_iter().zip(cut_mut(&mut part, expert_lens(c)));
        sums.for_each(|(sum, part)| k.add(sum, part));
    }
    drop((douts, dwide, part));
    let came = tape.travel.back(group, dinputs, c)?;
    tape.gate.backward(k, (dx, dgate), &dshares, x, params[0], mixture);
    for (choice, &place) in tape.travel.places().iter().enumerate() {
        k.add(&mut dx[choice / top * c..][..c], &came[place * c..][..c]);
    }
    Ok(())
}

/// One expert's part of the five tensors; all of the gate.
fn of_expert<'a>(params: [&'a [f32]; 5], expert: usize, c: usize) -> [&'a [f32]; 5] {
    let [gate, fc_w, fc_b, out_w, out_b] = params;
    let part = |flat: &'a [f32], len: usize| &flat[expert * len..(expert + 1) * len];
    let square = 4 * c * c;
    [gate, part(fc_w, square), part(fc_b, 4 * c), part(out_w, square), part(out_b, c)]
}

fn of_expert_mut(grads: [&mut [f32]; 5], expert: usize, c: usize) -> [&mut [f32]; 5] {
    let mut lens = [0].into_iter().chain(expert_lens(c));
    grads.map(|flat| {
        let len = lens.next().expect("five lengths");
        &mut flat[expert * len..(expert + 1) * len]
    })
}

/// Elements of one expert's four tensors.
fn expert_lens(c: usize) -> [usize; 4] {
    [4 * c * c, 4 * c, 4 * c * c, c]
}
