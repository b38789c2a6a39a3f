//! Expert parallelism: ranks divide the experts of every mixture, and the samples. All else is
//! replicated, as in data parallelism: each rank's samples give a part of those gradients.
//!
//! Cost of a block beside what `moe` sends: one all-reduce of the gradients of what is no expert.

use super::{Division, Group, Place, Split};
use crate::error::Error;
use crate::extent::Extent;
use crate::kernels::Heads;
use crate::layout::{Config, Layout, Share, block_lens};
use brigade_schedule::Collective;

/// Ranks with some experts and some samples each.
pub struct Expert {
    group: Group,
    gate: usize,
}

impl Expert {
    /// Among these ranks, for passes over so many samples.
    ///
    /// Errors: `Setting` if experts or samples do not divide.
    pub fn new(group: Group, config: &Config, batch: usize) -> Result<Expert, Error> {
        Expert::fits(group.size(), config, batch)?;
        Ok(Expert { group, gate: config.gate_len() })
    }

    /// Refuse what so many ranks cannot divide.
    pub(super) fn fits(ranks: usize, config: &Config, batch: usize) -> Result<(), Error> {
        for (name, value) in [("experts", config.experts), ("batch", batch)] {
            if value == 0 || !value.is_multiple_of(ranks) {
                let of_a_pass = if name == "batch" { " samples of a pass" } else { "" };
                let problem = format!("{ranks} ranks cannot share {value}{of_a_pass} evenly");
                return Err(Error::setting(name, problem));
            }
        }
        Ok(())
    }

    /// Elements of a block in front of its experts.
    fn shared(&self, block: &[usize; 12]) -> usize {
        in_front_of_experts(block, self.gate)
    }
}

/// Elements of a block in front of its experts, with so many of a gate.
pub(crate) fn in_front_of_experts(block: &[usize; 12], gate: usize) -> usize {
    block[..8].iter().sum::<usize>() + gate
}

impl Division for Expert {
    fn groups(&self) -> &[Group] {
        std::slice::from_ref(&self.group)
    }

    fn split(&self) -> Option<Split> {
        Some(Split::Experts)
    }

    fn place(&self, rank: usize) -> Place {
        let share = Share { experts: self.group.size(), ..Share::WHOLE };
        Place { share, expert: rank, ..Place::WHOLE }
    }

    fn extent(&self, config: &Config, batch: usize, time: usize) -> Extent {
        let (rank, samples) = (self.group.rank(), batch / self.group.size());
        let first = rank * samples * time;
        let rows = (first..first + samples * time).map(|row| row as u32).collect();
        let heads = Heads { time, heads: config.heads, width: config.width };
        Extent::inside(rows, samples, heads)
    }

    fn complete(&self, grads: &mut [f32], block: Option<&[usize; 12]>) -> Result<(), Error> {
        let len = block.map_or(grads.len(), |block| self.shared(block));
        self.group.all_reduce(&mut grads[..len])
    }

    fn sum_loss(&self, mine: f64) -> Result<f64, Error> {
        self.group.sum(mine)
    }

    fn formula_bytes(
        &self,
        layout: &Layout,
        unit: usize,
        _tokens: usize,
    ) -> Result<[u64; 2], Error> {
        let is_head = unit + 1 == layout.units();
        let len = match unit == 0 || is_head {
            true => layout.unit(unit).len(),
            false => self.shared(&block_lens(layout)),
        };
        let loss = if is_head { self.group.sum_bytes()? } else { 0 };
        Ok([loss, self.group.bytes(Collective::AllReduce, len)?])
    }
}
