//! A unit's parts on a rank's device.
//!
//! All of them are equally long and begin where devices move 16 bytes at a time; what is left over
//! behind the last parameter is in nobody's way. So every rank takes as many bytes.

use crate::device::Wire;
use crate::error::Error;
use crate::kernels::cuda::{Device, ProductFormat, Room, View};
use crate::layout::Layout;
use crate::optim::Optimizer;
use crate::parallel::Stage;
use crate::parallel::device::runs;
use crate::parallel::source::Passing;
use crate::state::Array;
use brigade_comm::{Call, Dtype, Op};
use brigade_schedule::Collective;
use std::ops::Range;

/// Parts are multiples of so many numbers, of 16 bits or 32.
const NUMBERS: usize = 8;

/// One unit's parts. Views of a part are as long as the longest that any rank has.
pub(super) struct Unit {
    /// Where the unit lies in the layout, and in it this rank's part.
    pub(super) range: Range<usize>,
    pub(super) own: Range<usize>,
    /// What is updated, f32.
    pub(super) params: View,
    pub(super) mean: View,
    pub(super) square: View,
    /// The sum over all lanes, f32.
    pub(super) grads: View,
    /// What products read of it: the same where that is f32 too.
    pub(super) inside: View,
    /// All ranks' parts of that, where they are kept; this rank's lies in it.
    pub(super) whole: Option<View>,
    /// Gradients of this rank's lanes, where those of all units are there at once.
    pub(super) sum: Option<View>,
}

impl Unit {
    pub(super) fn take(
        room: &mut Room,
        range: Range<usize>,
        stage: Stage,
        inside: ProductFormat,
        (rank, ranks): (usize, usize),
    ) -> Unit {
        let part = part(range.len(), ranks);
        let edge = |rank: usize| range.end.min(range.start + rank * part);
        let own = edge(rank)..edge(rank + 1);
        let whole = (stage < Stage::Fsdp).then(|| room.take(ranks * part, inside.size()));
        let within = whole.map(|whole| whole.part(rank * part..(rank + 1) * part));
        let (params, inside) = match (within, inside.size()) {
            (Some(within), 4) => (within, within),
            (Some(within), _) => (room.take(part, 4), within),
            (None, 4) => [room.take(part, 4); 2].into(),
            (None, size) => (room.take(part, 4), room.take(part, size)),
        };
        let [mean, square, grads] = [0; 3].map(|_| room.take(part, 4));
        let sum = (stage == Stage::Zero1).then(|| room.take(ranks * part, 4));
        Unit { range, own, params, mean, square, grads, inside, whole, sum }
    }

    /// Parameters from all ranks, as products read them.
    pub(super) fn gather(&self) -> Call {
        let dtype = if self.inside.size() == 4 { Dtype::F32 } else { Dtype::I16 };
        Call::moving(Collective::AllGather, dtype, self.inside.len())
    }

    /// Gradients of all ranks, added in their order, or packed to be.
    pub(super) fn scatter(&self, is_packed: bool) -> Call {
        match is_packed {
            false => Call::new(Collective::ReduceScatter, Dtype::F32, Op::Sum, self.grads.len()),
            true => Call::moving(Collective::AllToAll, Dtype::Bf16, self.grads.len()),
        }
    }

    /// This rank's part goes to the device, and what products read.
    pub(super) fn fill(&self, wire: &mut Wire, passing: &mut Passing<'_>) -> Result<(), Error> {
        let Unit { range, own, .. } = self;
        let part = own.start - range.start..own.end - range.start;
        for (array, to) in [(Array::Mean, self.mean), (Array::Square, self.square)] {
            wire.put(to.first(part.len()), &passing.unit(array, range)?[part.clone()])?;
        }
        let params = passing.unit(Array::Params, range)?;
        wire.put(self.params.first(part.len()), &params[part.clone()])?;
        match self.whole {
            Some(whole) => wire.put(whole.first(range.len()), params),
            None if self.inside == self.params => Ok(()),
            None => wire.put(self.inside.first(part.len()), &params[part]),
        }
    }

    /// Move this rank's part against its gradients.
    pub(super) fn update(
        &self,
        device: &Device,
        layout: &Layout,
        (optimizer, lr): (&Optimizer, f32),
    ) -> Result<(), Error> {
        let own = self.own.clone();
        for (run, decays) in runs(layout, own.clone()) {
            let run = run.start - own.start..run.end - own.start;
            let arrays = [self.params, self.mean, self.square, self.grads];
            let arrays = arrays.map(|view| view.part(run.clone()));
            let narrow = (self.inside != self.params).then(|| self.inside.part(run));
            device.adamw(&optimizer.adamw_step(lr, decays), arrays, narrow)?;
        }
        Ok(())
    }
}

/// The longest part of so many numbers among so many ranks.
fn part(len: usize, ranks: usize) -> usize {
    len.div_ceil(ranks).next_multiple_of(NUMBERS)
}
