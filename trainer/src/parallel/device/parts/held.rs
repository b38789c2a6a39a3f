//! What a rank has on its device where ranks hold the state in parts, and where it lies.
//!
//! | of each unit | `Zero1` | `Zero2` | `Fsdp` |
//! |---|---|---|---|
//! | parameters as products read them | whole | whole | part; whole in `Wholes`'s rooms |
//! | what is updated, f32, and both moments | part | part | part |
//! | gradients of this rank's lanes | whole | two units' at a time | two units' at a time |
//! | gradients of all lanes | part | part | part |
//!
//! Gradients may go to their owners in bf16: then those two units' are there once more in that, and
//! what comes of all ranks, before the owner adds it up in f32.

use super::unit::Unit;
use crate::device::Wire;
use crate::error::Error;
use crate::kernels::cuda::{Device, ProductFormat, Room, View};
use crate::layout::Layout;
use crate::optim::Optimizer;
use crate::parallel::device::counted;
use crate::parallel::source::Passing;
use crate::parallel::{Memory, Stage, Take};
use crate::state::Array;
use brigade_comm::Communicator;
use std::ops::Range;

/// How ranks divide a state.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Share {
    pub(in super::super) stage: Stage,
    /// Lanes that each rank computes in a step.
    pub(in super::super) slots: usize,
    /// Whether gradients go to their owners in bf16.
    pub(in super::super) is_packed: bool,
}

/// Which units' parameters are made whole together, of those that are kept in parts, and of how
/// many such groups they are at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Wholes {
    pub(in super::super) groups: Vec<Range<usize>>,
    pub(in super::super) rooms: usize,
}

impl Wholes {
    /// All of these units, one by one: while one is computed the next is on its way.
    pub(in super::super) fn singly(units: usize) -> Wholes {
        Wholes { groups: (0..units).map(|unit| unit..unit + 1).collect(), rooms: 2 }
    }
}

/// A gradient on its way to the owners of its parts: its unit, the slot, and in which of two rooms
/// it is if it has none of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) unit: usize,
    pub(super) slot: usize,
    pub(super) room: usize,
}

/// The state, and room for what is on its way.
pub(in super::super) struct Held {
    /// By the layout's numbers; none where a unit is not this rank's.
    units: Vec<Option<Unit>>,
    wholes: Wholes,
    ranks: usize,
    /// All parameters of groups of units, where whole ones are not kept.
    rooms: Vec<View>,
    /// Gradients of a lane, in turn.
    lanes: [View; 2],
    /// Parts of sums that are to be added to others, in turn.
    incoming: [View; 2],
    /// Gradients of a lane in bf16, and those of this rank's part of all ranks, in turn.
    packs: Option<[[View; 2]; 2]>,
}

impl Held {
    /// The units of these groups, for a rank of so many.
    pub(in super::super) fn take(
        room: &mut Room,
        layout: &Layout,
        share: Share,
        inside: ProductFormat,
        (rank, ranks): (usize, usize),
        wholes: Wholes,
    ) -> Held {
        let Share { stage, slots, is_packed } = share;
        let mut units: Vec<Option<Unit>> = (0..layout.units()).map(|_| None).collect();
        for unit in wholes.groups.iter().cloned().flatten() {
            let range = layout.unit(unit);
            units[unit] = Some(Unit::take(room, range, stage, inside, (rank, ranks)));
        }
        let all = || units.iter().flatten();
        let part = all().map(|unit| unit.params.len()).max().unwrap_or(0);
        let whole = ranks * part;
        let mut two = |is_there: bool, len: usize, size: usize| {
            [0; 2].map(|_| room.take(if is_there { len } else { 0 }, size))
        };
        let is_summed = stage == Stage::Zero1;
        let incoming = two(!is_summed && slots > 1 && !is_packed, part, 4);
        let packs = is_packed.then(|| [0; 2].map(|_| two(true, whole, 2)));
        let mut lanes = two(!is_summed, whole, 4);
        if is_summed {
            // What computes adds it before it writes the next.
            lanes = [room.take(if slots > 1 { whole } else { 0 }, 4); 2];
        }
        let mut held = Held { units, wholes, ranks, rooms: Vec::new(), lanes, incoming, packs };
        if stage == Stage::Fsdp {
            let lens = held.wholes.groups.iter().map(|group| held.before(group, group.end));
            let longest = lens.max().unwrap_or(0);
            held.rooms.extend((0..held.wholes.rooms).map(|_| room.take(longest, inside.size())));
        }
        held
    }

    /// One of this rank's.
    pub(super) fn unit(&self, unit: usize) -> &Unit {
        self.units[unit].as_ref().expect("a unit of this rank")
    }

    /// All of them, with their numbers.
    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = (usize, &Unit)> {
        let all = self.units.iter().enumerate();
        all.filter_map(|(number, unit)| Some((number, unit.as_ref()?)))
    }

    /// Each unit, and numbers of its part.
    pub(super) fn lens(&self) -> impl Iterator<Item = (usize, usize)> {
        self.all().map(|(number, unit)| (number, unit.grads.len()))
    }

    /// This rank's part of the sum of a unit's gradients.
    pub(in super::super) fn grads(&self, unit: usize) -> View {
        self.unit(unit).grads
    }

    /// How many groups may be whole at a time, and how many units the longest has.
    pub(super) fn rooms(&self) -> [usize; 2] {
        let most = self.wholes.groups.iter().map(Range::len).max().unwrap_or(0);
        [self.rooms.len(), most]
    }

    /// The group that a unit is in.
    pub(super) fn group(&self, unit: usize) -> (usize, Range<usize>) {
        let mut groups = self.wholes.groups.iter().cloned().enumerate();
        groups.find(|(_, group)| group.contains(&unit)).expect("a unit of this rank")
    }

    /// Where all parts of a unit's parameters come to that are not kept, in this room.
    pub(super) fn room(&self, room: usize, unit: usize) -> View {
        let (_, group) = self.group(unit);
        let before = self.before(&group, unit);
        self.rooms[room].part(before..before + self.whole(unit))
    }

    /// Where a unit's parameters may be when they are computed with, whatever is there.
    pub(in super::super) fn params(&self, unit: usize) -> View {
        self.unit(unit).whole.unwrap_or_else(|| self.room(0, unit))
    }

    /// Whether lanes are added up before ranks are.
    pub(super) fn adds_up(&self) -> bool {
        self.all().next().is_some_and(|(_, unit)| unit.sum.is_some())
    }

    /// Whether gradients of a slot, which is the last or is not, go to the other ranks.
    pub(super) fn sends(&self, is_last: bool) -> bool {
        !self.adds_up() || is_last
    }

    /// Whether gradients share two rooms.
    pub(super) fn has_rooms(&self) -> bool {
        !self.adds_up() || self.packs.is_some()
    }

    /// Where backward of a slot leaves a unit's gradient, as parts.
    pub(super) fn lane(&self, Turn { unit, slot, room }: Turn) -> View {
        match self.unit(unit).sum.filter(|_| slot == 0) {
            Some(sum) => sum,
            None => self.lanes[room].first(self.whole(unit)),
        }
    }

    /// The same, whatever is there.
    pub(in super::super) fn any_lane(&self, unit: usize) -> View {
        self.lane(Turn { unit, slot: 0, room: 0 })
    }

    /// The parts that go to the other ranks.
    pub(super) fn outgoing(&self, turn: Turn) -> View {
        self.lane(Turn { slot: 0, ..turn })
    }

    /// These in bf16, and where those of all ranks come to, if gradients travel so.
    pub(super) fn packs(&self, Turn { unit, room, .. }: Turn) -> Option<[View; 2]> {
        let whole = self.whole(unit);
        self.packs.map(|packs| packs.map(|of| of[room].first(whole)))
    }

    /// Where this rank's part of the sum over the ranks comes to, after a slot.
    pub(super) fn incoming(&self, Turn { unit, slot, room }: Turn) -> View {
        let grads = self.unit(unit).grads;
        match slot == 0 || self.adds_up() {
            true => grads,
            false => self.incoming[room].first(grads.len()),
        }
    }

    /// Numbers of all parts of the units of a group in front of this one.
    fn before(&self, group: &Range<usize>, unit: usize) -> usize {
        (group.start..unit).map(|unit| self.whole(unit)).sum()
    }

    /// Numbers of all parts of a unit.
    fn whole(&self, unit: usize) -> usize {
        self.ranks * self.unit(unit).params.len()
    }

    /// A rank's parts of these units go to the device, and what products read.
    pub(in super::super) fn fill(
        &self,
        mut units: Range<usize>,
        wire: &mut Wire,
        passing: &mut Passing<'_>,
    ) -> Result<(), Error> {
        units.try_for_each(|unit| self.unit(unit).fill(wire, passing))
    }

    /// This rank's part of the gradients of a unit's tensors that are counted.
    pub(in super::super) fn counted(
        &self,
        layout: &Layout,
        unit: usize,
        counts: impl Fn(usize) -> bool,
    ) -> impl Iterator<Item = View> {
        let (own, grads) = (self.unit(unit).own.clone(), self.unit(unit).grads);
        let start = own.start;
        counted(layout, own, counts).map(move |run| grads.part(run.start - start..run.end - start))
    }

    /// Move this rank's part of a unit against its gradients.
    pub(in super::super) fn update(
        &self,
        device: &Device,
        layout: &Layout,
        unit: usize,
        how: (&Optimizer, f32),
    ) -> Result<(), Error> {
        self.unit(unit).update(device, layout, how)
    }

    /// Hand over what these ranks have of every tensor together, unit by unit.
    pub(in super::super) fn tell(
        &self,
        group: &Communicator,
        wire: &mut Wire,
        has_moments: bool,
        take: &mut Take<'_>,
    ) -> Result<(), Error> {
        let (mut part, mut whole) = (Vec::new(), Vec::new());
        for (_, Unit { range, params, mean, square, .. }) in self.all() {
            part.resize(params.len(), 0.0);
            whole.resize(group.size() * params.len(), 0.0);
            let arrays = [(Array::Params, params), (Array::Mean, mean), (Array::Square, square)];
            for (array, view) in &arrays[..if has_moments { 3 } else { 1 }] {
                wire.read(**view, &mut part)?;
                group.all_gather(&part, &mut whole)?;
                take(*array, range.start, &whole[..range.len()])?;
            }
        }
        Ok(())
    }

    /// Bytes by kind, without those of passes.
    pub(in super::super) fn memory(&self) -> Memory {
        let of = |view: &dyn Fn(&Unit) -> usize| {
            self.all().map(|(_, unit)| view(unit)).sum::<usize>() as u64
        };
        let bytes = |views: &[View]| views.iter().map(|view| view.bytes()).sum::<usize>() as u64;
        let is_narrow = |unit: &Unit| unit.inside != unit.params;
        let params = |unit: &Unit| match unit.whole {
            Some(whole) => whole.bytes() + if is_narrow(unit) { unit.params.bytes() } else { 0 },
            None => unit.params.bytes() + if is_narrow(unit) { unit.inside.bytes() } else { 0 },
        };
        let lanes = if self.adds_up() { &self.lanes[..1] } else { &self.lanes[..] };
        Memory {
            params: of(&params),
            grads: of(&|unit| unit.grads.bytes() + unit.sum.map_or(0, |sum| sum.bytes())),
            moments: of(&|unit| unit.mean.bytes() + unit.square.bytes()),
            calls: bytes(&self.rooms)
                + bytes(lanes)
                + bytes(&self.incoming)
                + self.packs.map_or(0, |packs| bytes(packs.as_flattened())),
            ..Memory::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Config;

    /// Bytes of the state of a rank of four, in a model whose units are alike or small.
    fn state(stage: Stage, inside: ProductFormat) -> [u64; 3] {
        let share = Share { stage, slots: 2, is_packed: inside == ProductFormat::Bf16 };
        let config =
            Config { vocab: 8, context: 8, layers: 8, heads: 2, width: 32, experts: 0, top: 0 };
        let layout = Layout::new(config);
        let mut room = Room::default();
        let Memory { params, grads, moments, calls, .. } =
            Held::take(&mut room, &layout, share, inside, (1, 4), Wholes::singly(layout.units()))
                .memory();
        let all = params + grads + moments + calls;
        // Views begin at round addresses, and nothing else is between them.
        assert!((all..all + 256 * 80).contains(&(room.taken() as u64)), "{stage:?}: {all}");
        [params, grads, moments].map(|bytes| 100 * bytes / (4 * layout.len() as u64))
    }

    #[test]
    fn a_rank_of_four_holds_its_quarter_of_what_its_stage_divides() {
        // Per cent of f32 numbers, one for each parameter.
        assert_eq!(state(Stage::Zero1, ProductFormat::Full), [100, 125, 50]);
        assert_eq!(state(Stage::Zero2, ProductFormat::Full), [100, 25, 50]);
        assert_eq!(state(Stage::Fsdp, ProductFormat::Full), [25, 25, 50]);
        assert_eq!(state(Stage::Zero2, ProductFormat::Bf16), [75, 25, 50]);
        assert_eq!(state(Stage::Fsdp, ProductFormat::Bf16), [37, 25, 50]);
    }
}
