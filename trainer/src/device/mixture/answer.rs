//! What a block's mixture answers, and the way back.

use super::{MixtureRooms, MixtureScratch, RowRooms, lines};
use crate::device::gpt::DeviceGpt;
use crate::error::Error;
use crate::kernels::cuda::View;
use crate::moe::Mixture;

impl DeviceGpt<'_> {
    /// y = mixture(x) + onto, with the layers' weights and biases: the gate is in front of the
    /// first.
    pub(in crate::device) fn answer(
        &mut self,
        [y, x, onto]: [View; 3],
        kept: &mut MixtureRooms,
        layers: [View; 4],
    ) -> Result<(), Error> {
        let DeviceGpt { device: d, mixture, division, .. } = self;
        let mixture = mixture.as_mut().expect("a model with experts");
        let (c, local) = (mixture.shape.width, mixture.shape.local());
        let (gate, layers) = cut_gate(layers, &mixture.shape);
        d.project(kept.probs, x, gate, mixture.shape.experts)?;
        d.choose_experts(kept.probs, kept.routes)?;
        mixture.route(kept)?;

        let travels = mixture.group.is_some();
        let len = kept.travel.rows() * c;
        kept.fit(len, d)?;
        let RowRooms { inputs, hidden, active } = kept.rows();
        let outputs = if travels { mixture.beside(len, d)?[0] } else { kept.answers };
        if travels {
            d.send_rows(kept.answers, x, kept.routes)?;
            mixture.out(division, &kept.travel, [kept.answers, inputs.first(len)])?;
        } else {
            d.send_rows(inputs, x, kept.routes)?;
        }
        for (expert, rows) in kept.travel.parts(false).filter(|(_, rows)| !rows.is_empty()) {
            let [fc_w, fc_b, ..] = of_expert(layers, expert, local);
            d.enter(lines(hidden, &rows, 4 * c), lines(inputs, &rows, c), fc_w, fc_b)?;
        }
        d.gelu(active.first(4 * len), hidden.first(4 * len))?;
        for (expert, rows) in kept.travel.parts(false).filter(|(_, rows)| !rows.is_empty()) {
            let [.., out_w, out_b] = of_expert(layers, expert, local);
            d.enter(lines(outputs, &rows, c), lines(active, &rows, 4 * c), out_w, out_b)?;
        }
        if travels {
            mixture.back(division, &kept.travel, [outputs, kept.answers])?;
        }
        d.combine_answers(y, onto, kept.answers, kept.routes)
    }

    /// Writes dx, of the stream in f32, and the gradients of the layers, from that of the stream.
    pub(in crate::device) fn answer_backward(
        &mut self,
        [dx, x]: [View; 2],
        kept: &MixtureRooms,
        [layers, grads]: [[View; 4]; 2],
    ) -> Result<(), Error> {
        let DeviceGpt { device: d, mixture, division, scratch, .. } = self;
        let mixture = mixture.as_mut().expect("a model with experts");
        let (c, local) = (mixture.shape.width, mixture.shape.local());
        let ((gate, layers), (dgate, grads)) =
            (cut_gate(layers, &mixture.shape), cut_gate(grads, &mixture.shape));
        let MixtureScratch { dshares, dscores } = scratch.mixture;
        let (dy, partials, routes) = (scratch.residual, scratch.partials, kept.routes);
        let travels = mixture.group.is_some();
        let len = kept.travel.rows() * c;
        let RowRooms { inputs, hidden, active } = kept.rows();
        let [douts, dwide] = match travels {
            true => mixture.beside(len, d)?,
            false => [kept.answers, scratch.wide.first(4 * len)],
        };

        d.share_gradients(dshares, dy, kept.answers, routes)?;
        d.send_gradients(kept.answers, dy, routes)?;
        if travels {
            mixture.out(division, &kept.travel, [kept.answers, douts])?;
        }
        for (expert, rows) in kept.travel.parts(false) {
            let [.., out_w, _] = of_expert(layers, expert, local);
            let grads @ [.., dout_w, dout_b] = of_expert(grads, expert, local);
            if rows.is_empty() {
                grads.into_iter().try_for_each(|grads| d.clear(grads))?;
                continue;
            }
            let (dout, wide) = (lines(douts, &rows, c), lines(dwide, &rows, 4 * c));
            d.linear_backward(wide, dout_w, dout, lines(active, &rows, 4 * c), out_w, c)?;
            d.bias_backward(dout_b, dout, partials)?;
        }
        d.gelu_backward(dwide, hidden.first(4 * len))?;
        for (expert, rows) in kept.travel.parts(false).filter(|(_, rows)| !rows.is_empty()) {
            let [fc_w, ..] = of_expert(layers, expert, local);
            let [dfc_w, dfc_b, ..] = of_expert(grads, expert, local);
            let (wide, input) = (lines(dwide, &rows, 4 * c), lines(inputs, &rows, c));
            d.linear_weight(dfc_w, wide, input, 4 * c)?;
            d.bias_backward(dfc_b, wide, partials)?;
            d.linear_input(input, wide, fc_w, 4 * c)?;
        }
        if travels {
            mixture.back(division, &kept.travel, [inputs.first(len), kept.answers])?;
        }
        let came = if travels { kept.answers } else { inputs };
        d.gate_backward(dscores, kept.probs, dshares, routes)?;
        d.linear_backward(dx, dgate, dscores, x, gate, mixture.shape.experts)?;
        d.add_returned(dx, came, routes)
    }
}

/// The gate, and the layers of all experts.
fn cut_gate([fc_w, rest @ ..]: [View; 4], mixture: &Mixture) -> (View, [View; 4]) {
    let gate = mixture.experts * mixture.width;
    let [fc_b, out_w, out_b] = rest;
    (fc_w.first(gate), [fc_w.part(gate..fc_w.len()), fc_b, out_w, out_b])
}

/// One expert's part of the layers of so many.
fn of_expert(layers: [View; 4], expert: usize, experts: usize) -> [View; 4] {
    layers.map(|all| {
        let len = all.len() / experts;
        all.part(expert * len..(expert + 1) * len)
    })
}
