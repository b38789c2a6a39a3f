//! The layers between the stream and the inside of a block, of all who divide a model: entering and
//! leaving are where ranks talk, as `parallel/tensor` has it.

use super::division::DeviceDivision;
use super::gpt::DeviceGpt;
use super::grid::LinearGrads;
use super::tape::Scratch;
use crate::error::Error;
use crate::kernels::cuda::View;
use crate::layout::block_lens;
use crate::parallel::tensor::{Split, in_front_of_experts};

impl DeviceGpt<'_> {
    /// From the stream to the inside: y = x · weightᵀ + bias.
    pub(super) fn enter(&mut self, y: View, x: View, layer: [View; 2]) -> Result<(), Error> {
        if self.is_on_grid() {
            return self.enter_grid(y, x, layer);
        }
        let (x, [weight, bias]) = (self.all_rows(x)?, layer);
        self.device.enter(y, x, weight, bias)
    }

    /// Writes `dx`, of the stream in f32, and the gradients of the layer. What ranks send each
    /// other is on its way while the other product is made.
    pub(super) fn enter_backward(
        &mut self,
        dx: View,
        [dweight, dbias]: LinearGrads,
        dy: View,
        x: View,
        weight: View,
    ) -> Result<(), Error> {
        if self.is_on_grid() {
            return self.enter_grid_backward(dx, [dweight, dbias], [dy, x, weight]);
        }
        let DeviceGpt { device: d, division, scratch: Scratch { partials, sum, all, .. }, .. } =
            self;
        let outputs = dbias.len();
        let of_weight = |x: View| {
            d.linear_weight(dweight, dy, x, outputs)?;
            d.bias_backward(dbias, dy, *partials)
        };
        let Some(division) = division.as_mut().filter(|it| it.divides_heads()) else {
            d.linear_input(dx, dy, weight, outputs)?;
            return of_weight(x);
        };
        if division.split() == Split::Heads {
            d.linear_input(dx, dy, weight, outputs)?;
            division.reduce_beside(dx)?;
            of_weight(x)?;
            return division.arrive();
        }
        division.gather_beside(x, *all)?;
        d.linear_input(*sum, dy, weight, outputs)?;
        division.arrive()?;
        division.scatter_beside(*sum, dx)?;
        of_weight(*all)?;
        division.arrive()
    }

    /// From the inside back to the stream: y = x · weightᵀ + bias + onto.
    pub(super) fn leave(
        &mut self,
        y: View,
        x: View,
        [weight, bias]: [View; 2],
        onto: View,
    ) -> Result<(), Error> {
        if self.is_on_grid() {
            return self.leave_grid(y, x, [weight, bias], onto);
        }
        let DeviceGpt { device: d, division, scratch, .. } = self;
        let Some(division) = division.as_mut().filter(|it| it.divides_heads()) else {
            return d.leave(y, x, [weight, bias], Some(onto));
        };
        let is_in_parts = division.split() == Split::Sequence;
        let (sum, onto_sum) = if is_in_parts { (scratch.sum, None) } else { (y, Some(onto)) };
        match division.is_first() {
            true => d.leave(sum, x, [weight, bias], onto_sum)?,
            false => d.project(sum, x, weight, bias.len())?,
        }
        if !is_in_parts {
            return division.all_reduce(sum);
        }
        division.scatter_beside(sum, y)?;
        division.arrive()?;
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
        if self.is_on_grid() {
            return self.leave_grid_backward(dx, [dweight, dbias], [self.scratch.dy, x, weight]);
        }
        let dy = self.all_rows(self.scratch.dy)?;
        self.device.linear_backward(dx, dweight, dy, x, weight, dbias.len())?;
        self.device.bias_backward(dbias, dy, self.scratch.partials)
    }

    /// After a unit's backward: make gradients whole that this rank's rows gave a part of.
    pub(super) fn complete(&mut self, grads: View, is_block: bool) -> Result<(), Error> {
        let DeviceGpt { layout, division, .. } = self;
        let Some(division) = division else { return Ok(()) };
        match division.split() {
            Split::Sequence if is_block => {
                // Only the norms saw this rank's rows alone.
                let lens = block_lens(layout);
                [0, 6].into_iter().try_for_each(|norm| {
                    let start = lens[..norm].iter().sum();
                    let end = start + lens[norm] + lens[norm + 1];
                    division.all_reduce(grads.part(start..end))
                })
            }
            Split::Experts if is_block => {
                let gate = layout.config().gate_len();
                let shared = in_front_of_experts(&block_lens(layout), gate);
                division.all_reduce(grads.first(shared))
            }
            _ if division.divides_rows() => division.all_reduce(grads),
            _ => Ok(()),
        }
    }

    fn is_on_grid(&self) -> bool {
        self.division.as_ref().is_some_and(DeviceDivision::is_grid)
    }

    /// What the inside reads of the stream: rows of all, where each rank has some.
    fn all_rows(&mut self, mine: View) -> Result<View, Error> {
        match &mut self.division {
            Some(division) if division.split() == Split::Sequence => {
                division.gather_beside(mine, self.scratch.all)?;
                division.arrive()?;
                Ok(self.scratch.all)
            }
            _ => Ok(mine),
        }
    }
}
