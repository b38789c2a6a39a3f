//! The layers between the stream and the inside of a block, of all who divide a model: entering and
//! leaving are where ranks talk, as `parallel/tensor` has it.

use super::gpt::DeviceGpt;
use crate::error::Error;
use crate::kernels::cuda::View;
use crate::layout::block_lens;
use crate::parallel::tensor::{Inside, in_front_of_experts};

/// What a linear layer's backward writes: the gradients of its weight and bias.
pub(super) type LinearGrads = [View; 2];

impl DeviceGpt<'_> {
    /// How ranks divide the model, if they do.
    fn way(&self) -> Option<Inside> {
        self.division.as_ref().map(|division| division.way())
    }

    /// From the stream to the inside: y = x · weightᵀ + bias.
    pub(super) fn enter(&mut self, y: View, x: View, layer: [View; 2]) -> Result<(), Error> {
        let (x, [weight, bias]) = (self.all_rows(x)?, layer);
        self.device.enter(y, x, weight, bias)
    }

    /// Writes `dx`, of the stream in f32, and the gradients of the layer.
    pub(super) fn enter_backward(
        &mut self,
        dx: View,
        [dweight, dbias]: LinearGrads,
        dy: View,
        x: View,
        weight: View,
    ) -> Result<(), Error> {
        // In this order, since the rows of all and the sum of all may be in one place.
        let x = self.all_rows(x)?;
        let (d, outputs, partials) = (&self.device, dbias.len(), self.scratch.partials);
        let is_in_parts = self.way() == Some(Inside::Sequence);
        let sum = if is_in_parts { self.scratch.sum } else { dx };
        d.linear_weight(dweight, dy, x, outputs)?;
        d.bias_backward(dbias, dy, partials)?;
        d.linear_input(sum, dy, weight, outputs)?;
        match &mut self.division {
            Some(division) if is_in_parts => division.reduce_scatter(sum, dx),
            Some(division) if division.way() == Inside::Heads => division.all_reduce(dx),
            _ => Ok(()),
        }
    }

    /// From the inside back to the stream: y = x · weightᵀ + bias + onto.
    pub(super) fn leave(
        &mut self,
        y: View,
        x: View,
        [weight, bias]: [View; 2],
        onto: View,
    ) -> Result<(), Error> {
        let DeviceGpt { device: d, division, scratch, .. } = self;
        let Some(division) = division.as_mut().filter(|it| it.divides_heads()) else {
            return d.leave(y, x, [weight, bias], Some(onto));
        };
        let is_in_parts = division.way() == Inside::Sequence;
        let (sum, onto_sum) = if is_in_parts { (scratch.sum, None) } else { (y, Some(onto)) };
        match division.is_first() {
            true => d.leave(sum, x, [weight, bias], onto_sum)?,
            false => d.project(sum, x, weight, bias.len())?,
        }
        if !is_in_parts {
            return division.all_reduce(sum);
        }
        division.reduce_scatter(sum, y)?;
        d.add(y, onto)
    }

    /// Writes `dx`, of the inside, and the gradients of the layer, from those of the stream.
    pub(super) fn leave_backward(
        &mut self,
        dx: View,
        [dweight, dbias]: LinearGrads,
        x: View,
        weight: View,
    ) -> Result<(), Error> {
        self.scratch.narrow_residual(&self.device)?;
        let dy = self.all_rows(self.scratch.dy)?;
        self.device.linear_backward(dx, dweight, dy, x, weight, dbias.len())?;
        self.device.bias_backward(dbias, dy, self.scratch.partials)
    }

    /// After a unit's backward: make gradients whole that this rank's rows gave a part of.
    pub(super) fn complete(&mut self, grads: View, is_block: bool) -> Result<(), Error> {
        let DeviceGpt { layout, division, .. } = self;
        let Some(division) = division else { return Ok(()) };
        match division.way() {
            Inside::Sequence if is_block => {
                // Only the norms saw this rank's rows alone.
                let lens = block_lens(layout);
                [0, 6].into_iter().try_for_each(|norm| {
                    let start = lens[..norm].iter().sum();
                    let end = start + lens[norm] + lens[norm + 1];
                    division.all_reduce(grads.part(start..end))
                })
            }
            Inside::Experts if is_block => {
                let gate = layout.config().gate_len();
                let shared = in_front_of_experts(&block_lens(layout), gate);
                division.all_reduce(grads.first(shared))
            }
            _ if division.divides_rows() => division.all_reduce(grads),
            _ => Ok(()),
        }
    }

    /// What the inside reads of the stream: rows of all, where each rank has some.
    fn all_rows(&mut self, mine: View) -> Result<View, Error> {
        match &mut self.division {
            Some(division) if division.way() == Inside::Sequence => {
                let all = self.scratch.all_rows(self.device.inside());
                division.all_gather(mine, all)?;
                Ok(all)
            }
            _ => Ok(mine),
        }
    }
}
