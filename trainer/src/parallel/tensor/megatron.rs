//! Megatron-LM's split (Shoeybi et al. 2019): matrices that enter by their outputs, so that each
//! rank has some heads and some hidden numbers; matrices that leave by their inputs, so that each
//! rank has a part of a sum. And its sequence parallelism (Korthikanti et al. 2022), in which ranks
//! also divide the rows of the stream: an all-reduce becomes a reduce-scatter and an all-gather.
//!
//! Cost of a block, forward and backward, of n·c elements each: 4 all-reduces; or 4 reduce-scatters
//! and 6 all-gathers, of which two fetch again what the norms gave, so that a rank keeps only its
//! own rows.

use super::{At, Division, Group, Linear, LinearGrads, Place, Split};
use crate::error::Error;
use crate::extent::Extent;
use crate::kernels::{Heads, Kernels};
use crate::layout::{Config, Layout, Share, block_lens};
use brigade_schedule::Collective;
use std::cell::RefCell;

/// `tp`, or with divided rows `sp`.
pub struct Megatron {
    group: Group,
    divides_rows: bool,
    /// [2][n × c]: rows of all ranks, where rows are divided.
    rooms: RefCell<[Vec<f32>; 2]>,
}

impl Megatron {
    /// Among these ranks, for passes of so many tokens.
    ///
    /// Errors: `Setting` if heads, or rows that are to be divided, do not divide.
    pub fn new(
        group: Group,
        divides_rows: bool,
        config: &Config,
        tokens: usize,
    ) -> Result<Megatron, Error> {
        Megatron::fits(group.size(), divides_rows, config, tokens)?;
        let room = vec![0.0; if divides_rows { tokens * config.width } else { 0 }];
        Ok(Megatron { group, divides_rows, rooms: RefCell::new([room.clone(), room]) })
    }

    /// Refuse what so many ranks cannot divide.
    pub(super) fn fits(
        ranks: usize,
        divides_rows: bool,
        config: &Config,
        tokens: usize,
    ) -> Result<(), Error> {
        let heads = config.heads;
        if !heads.is_multiple_of(ranks) {
            let problem = format!("{ranks} ranks cannot share {heads} heads evenly");
            return Err(Error::setting("heads", problem));
        }
        if divides_rows && !tokens.is_multiple_of(ranks) {
            let problem =
                format!("{ranks} ranks cannot share the {tokens} tokens of a pass evenly");
            return Err(Error::setting("context", problem));
        }
        Ok(())
    }

    /// A bias is added once.
    fn once<'a>(&self, values: &'a [f32]) -> &'a [f32] {
        if self.group.rank() == 0 { values } else { &[] }
    }
}

impl Division for Megatron {
    fn groups(&self) -> &[Group] {
        std::slice::from_ref(&self.group)
    }

    fn split(&self) -> Option<Split> {
        Some(if self.divides_rows { Split::Sequence } else { Split::Heads })
    }

    fn place(&self, rank: usize) -> Place {
        let at = At { inside: rank, ..At::default() };
        let share = Share { inside: self.group.size(), ..Share::WHOLE };
        Place { share, enter: at, leave: at, expert: 0 }
    }

    fn extent(&self, config: &Config, batch: usize, time: usize) -> Extent {
        let (rank, ranks) = (self.group.rank(), self.group.size());
        let heads = Heads { time, heads: config.heads / ranks, width: config.width / ranks };
        let rows = match self.divides_rows {
            true => batch * time * rank / ranks..batch * time * (rank + 1) / ranks,
            false => 0..batch * time,
        };
        Extent::inside(rows.map(|row| row as u32).collect(), batch, heads)
    }

    fn enter(
        &self,
        k: &dyn Kernels,
        y: &mut [f32],
        x: &[f32],
        linear: Linear<'_>,
    ) -> Result<(), Error> {
        let [all, _] = &mut *self.rooms.borrow_mut();
        let x = match self.divides_rows {
            true => {
                self.group.all_gather(x, all)?;
                all
            }
            false => x,
        };
        k.linear(y, x, linear.weight, linear.bias, linear.inputs(), None);
        Ok(())
    }

    fn enter_backward(
        &self,
        k: &dyn Kernels,
        dx: &mut [f32],
        grads: LinearGrads<'_>,
        dy: &[f32],
        x: &[f32],
        linear: Linear<'_>,
    ) -> Result<(), Error> {
        let LinearGrads { weight, bias } = grads;
        if !self.divides_rows {
            k.linear_backward(dx, weight, bias, dy, x, linear.weight, linear.inputs());
            return self.group.all_reduce(dx);
        }
        let [all, sum] = &mut *self.rooms.borrow_mut();
        self.group.all_gather(x, all)?;
        k.linear_backward(sum, weight, bias, dy, all, linear.weight, linear.inputs());
        self.group.reduce_scatter(sum, dx)
    }

    fn leave(
        &self,
        k: &dyn Kernels,
        y: &mut [f32],
        x: &[f32],
        linear: Linear<'_>,
        onto: &[f32],
    ) -> Result<(), Error> {
        let inputs = linear.weight.len() / linear.bias.len();
        let bias = self.once(linear.bias);
        if !self.divides_rows {
            let onto = Some(self.once(onto)).filter(|onto| !onto.is_empty());
            k.linear(y, x, linear.weight, bias, inputs, onto);
            return self.group.all_reduce(y);
        }
        let [sum, _] = &mut *self.rooms.borrow_mut();
        k.linear(sum, x, linear.weight, bias, inputs, None);
        self.group.reduce_scatter(sum, y)?;
        k.add(y, onto);
        Ok(())
    }

    fn leave_backward(
        &self,
        k: &dyn Kernels,
        dx: &mut [f32],
        grads: LinearGrads<'_>,
        dy: &[f32],
        x: &[f32],
        linear: Linear<'_>,
    ) -> Result<(), Error> {
        let [all, _] = &mut *self.rooms.borrow_mut();
        let dy = match self.divides_rows {
            true => {
                self.group.all_gather(dy, all)?;
                all
            }
            false => dy,
        };
        k.linear_backward(dx, grads.weight, grads.bias, dy, x, linear.weight, linear.inputs());
        Ok(())
    }

    fn complete(&self, grads: &mut [f32], block: Option<&[usize; 12]>) -> Result<(), Error> {
        if !self.divides_rows {
            return Ok(());
        }
        let Some(lens) = block else { return self.group.all_reduce(grads) };
        // Only the norms saw this rank's rows alone; they are the first two and two in the middle.
        for first in [0, 6] {
            let start: usize = lens[..first].iter().sum();
            self.group.all_reduce(&mut grads[start..start + lens[first] + lens[first + 1]])?;
        }
        Ok(())
    }

    fn sum_loss(&self, mine: f64) -> Result<f64, Error> {
        if self.divides_rows { self.group.sum(mine) } else { Ok(mine) }
    }

    fn room_bytes(&self) -> u64 {
        4 * self.rooms.borrow().iter().map(|room| room.len() as u64).sum::<u64>()
    }

    fn formula_bytes(
        &self,
        layout: &Layout,
        unit: usize,
        tokens: usize,
    ) -> Result<[u64; 2], Error> {
        let stream = tokens * layout.config().width;
        let all_reduce = |elems| self.group.bytes(Collective::AllReduce, elems);
        let is_head = unit + 1 == layout.units();
        match (unit == 0 || is_head, self.divides_rows) {
            (true, false) => Ok([0, 0]),
            (true, true) => {
                let loss = if is_head { self.group.sum_bytes()? } else { 0 };
                Ok([loss, all_reduce(layout.unit(unit).len())?])
            }
            (false, false) => Ok([2 * all_reduce(stream)?; 2]),
            (false, true) => {
                let (part, lens) = (stream / self.group.size(), block_lens(layout));
                let scatter = self.group.bytes(Collective::ReduceScatter, part)?;
                let gather = self.group.bytes(Collective::AllGather, part)?;
                let norms = all_reduce(lens[0] + lens[1])?;
                Ok([2 * (scatter + gather), 2 * (scatter + 2 * gather + norms)])
            }
        }
    }
}
