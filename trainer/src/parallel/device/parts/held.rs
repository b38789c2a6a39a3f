//! What a rank has on its device where ranks hold the state in parts, and where it lies.
//!
//! | of each unit | `Zero1` | `Zero2` | `Fsdp` |
//! |---|---|---|---|
//! | parameters as products read them | whole | whole | part; two units' at a time |
//! | what is updated, f32, and both moments | part | part | part |
//! | gradients of this rank's lanes | whole | two units' at a time | two units' at a time |
//! | gradients of all lanes | part | part | part |
//!
//! Gradients may go to their owners in bf16: then those two units' are there once more in that, and
//! what comes of all ranks, before the owner adds it up in f32.
//!
//! All parts of a unit are equally long and begin where devices move 16 bytes at a time; what is
//! left over behind the last parameter is in nobody's way. So every rank takes as many bytes.

use crate::kernels::cuda::{Inside, Room, View};
use crate::layout::Layout;
use crate::parallel::{Memory, Stage};
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
}

impl Unit {
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
}

/// How ranks divide a state.
#[derive(Clone, Copy)]
pub(in super::super) struct Share {
    pub(in super::super) stage: Stage,
    /// Lanes that each rank computes in a step.
    pub(in super::super) slots: usize,
    /// Whether gradients go to their owners in bf16.
    pub(in super::super) is_packed: bool,
}

/// The state, and room for what is on its way.
pub(super) struct Held {
    pub(super) units: Vec<Unit>,
    ranks: usize,
    /// All parameters of two units, in turn, where whole ones are not kept.
    rooms: [View; 2],
    /// Gradients of this rank's lanes, by unit, where all are there at once; else empty.
    sums: Vec<View>,
    /// Gradients of a lane, in turn.
    lanes: [View; 2],
    /// Parts of sums that are to be added to others, in turn.
    incoming: [View; 2],
    /// Gradients of a lane in bf16, and those of this rank's part of all ranks, in turn.
    packs: Option<[[View; 2]; 2]>,
}

impl Held {
    /// For a rank of so many.
    pub(super) fn take(
        room: &mut Room,
        layout: &Layout,
        Share { stage, slots, is_packed }: Share,
        inside: Inside,
        (rank, ranks): (usize, usize),
    ) -> Held {
        let units = (0..layout.units()).map(|unit| {
            let range = layout.unit(unit);
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
            Unit { range, own, params, mean, square, grads, inside, whole }
        });
        let units: Vec<Unit> = units.collect();
        let part = units.iter().map(|unit| unit.params.len()).max().unwrap_or(0);
        let whole = ranks * part;
        let mut two = |is_there: bool, len: usize, size: usize| {
            [0; 2].map(|_| room.take(if is_there { len } else { 0 }, size))
        };
        let rooms = two(stage == Stage::Fsdp, whole, inside.size());
        let is_summed = stage == Stage::Zero1;
        let incoming = two(!is_summed && slots > 1 && !is_packed, part, 4);
        let packs = is_packed.then(|| [0; 2].map(|_| two(true, whole, 2)));
        let mut lanes = two(!is_summed, whole, 4);
        let mut sums = Vec::new();
        if is_summed {
            sums.extend(units.iter().map(|unit| room.take(ranks * unit.params.len(), 4)));
            // What computes adds it before it writes the next.
            lanes = [room.take(if slots > 1 { whole } else { 0 }, 4); 2];
        }
        Held { units, ranks, rooms, sums, lanes, incoming, packs }
    }

    /// Numbers of each unit's part.
    pub(super) fn lens(&self) -> impl Iterator<Item = usize> {
        self.units.iter().map(|unit| unit.grads.len())
    }

    /// Where all parts of a unit's parameters come to that are not kept.
    pub(super) fn room(&self, unit: usize) -> View {
        self.rooms[unit % 2].first(self.whole(unit))
    }

    /// Where a unit's parameters are when they are computed with.
    pub(super) fn params(&self, unit: usize) -> View {
        self.units[unit].whole.unwrap_or_else(|| self.room(unit))
    }

    /// Whether lanes are added up before ranks are.
    pub(super) fn adds_up(&self) -> bool {
        !self.sums.is_empty()
    }

    /// Where backward of a slot leaves a unit's gradient, as parts.
    pub(super) fn lane(&self, unit: usize, slot: usize) -> View {
        match self.sums.get(unit).filter(|_| slot == 0) {
            Some(sum) => *sum,
            None => self.lanes[unit % 2].first(self.whole(unit)),
        }
    }

    /// The parts that go to the other ranks.
    pub(super) fn outgoing(&self, unit: usize) -> View {
        self.lane(unit, 0)
    }

    /// These in bf16, and where those of all ranks come to, if gradients travel so.
    pub(super) fn packs(&self, unit: usize) -> Option<[View; 2]> {
        let whole = self.whole(unit);
        self.packs.map(|packs| packs.map(|of| of[unit % 2].first(whole)))
    }

    /// Where this rank's part of the sum over the ranks comes to, after a slot.
    pub(super) fn incoming(&self, unit: usize, slot: usize) -> View {
        let grads = self.units[unit].grads;
        match slot == 0 || self.adds_up() {
            true => grads,
            false => self.incoming[unit % 2].first(grads.len()),
        }
    }

    /// Numbers of all parts of a unit.
    fn whole(&self, unit: usize) -> usize {
        self.ranks * self.units[unit].params.len()
    }

    /// Bytes by kind, without those of passes.
    pub(super) fn memory(&self) -> Memory {
        let of = |view: &dyn Fn(&Unit) -> usize| self.units.iter().map(view).sum::<usize>() as u64;
        let bytes = |views: &[View]| views.iter().map(|view| view.bytes()).sum::<usize>() as u64;
        let is_narrow = |unit: &Unit| unit.inside != unit.params;
        let params = |unit: &Unit| match unit.whole {
            Some(whole) => whole.bytes() + if is_narrow(unit) { unit.params.bytes() } else { 0 },
            None => unit.params.bytes() + if is_narrow(unit) { unit.inside.bytes() } else { 0 },
        };
        let lanes = if self.adds_up() { &self.lanes[..1] } else { &self.lanes[..] };
        Memory {
            params: of(&params),
            grads: of(&|unit| unit.grads.bytes()) + bytes(&self.sums),
            moments: of(&|unit| unit.mean.bytes() + unit.square.bytes()),
            calls: bytes(&self.rooms)
                + bytes(lanes)
                + bytes(&self.incoming)
                + self.packs.map_or(0, |packs| bytes(packs.as_flattened())),
            ..Memory::default()
        }
    }
}

/// The longest part of so many numbers among so many ranks.
fn part(len: usize, ranks: usize) -> usize {
    len.div_ceil(ranks).next_multiple_of(NUMBERS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Config;

    /// Bytes of the state of a rank of four, in a model whose units are alike or small.
    fn state(stage: Stage, inside: Inside) -> [u64; 3] {
        let share = Share { stage, slots: 2, is_packed: inside == Inside::Bf16 };
        let config =
            Config { vocab: 8, context: 8, layers: 8, heads: 2, width: 32, experts: 0, top: 0 };
        let layout = Layout::new(config);
        let mut room = Room::default();
        let Memory { params, grads, moments, calls, .. } =
            Held::take(&mut room, &layout, share, inside, (1, 4)).memory();
        let all = params + grads + moments + calls;
        // Views begin at round addresses, and nothing else is between them.
        assert!((all..all + 256 * 80).contains(&(room.taken() as u64)), "{stage:?}: {all}");
        [params, grads, moments].map(|bytes| 100 * bytes / (4 * layout.len() as u64))
    }

    #[test]
    fn a_rank_of_four_holds_its_quarter_of_what_its_stage_divides() {
        // Per cent of f32 numbers, one for each parameter.
        assert_eq!(state(Stage::Zero1, Inside::Full), [100, 125, 50]);
        assert_eq!(state(Stage::Zero2, Inside::Full), [100, 25, 50]);
        assert_eq!(state(Stage::Fsdp, Inside::Full), [25, 25, 50]);
        assert_eq!(state(Stage::Zero2, Inside::Bf16), [75, 25, 50]);
        assert_eq!(state(Stage::Fsdp, Inside::Bf16), [37, 25, 50]);
    }
}
