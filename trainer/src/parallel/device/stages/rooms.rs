//! Everything that a rank's stages have on their device, and where it lies.

use super::hosted::Views;
use super::kept::Kept;
use super::letters::Letters;
use super::post::Direct;
use crate::device::{DeviceInputs, DeviceOwed, DeviceTape, Passes, Scratch};
use crate::error::Error;
use crate::kernels::cuda::Room;
use crate::layout::Layout;
use crate::offload::DiskUse;
use crate::parallel::device::held::Held;
use crate::parallel::device::parts::{self, Share, Wholes};
use crate::parallel::pipeline::{Needs, Places, Plan, stage_units};
use brigade_comm::device::DeviceWindow;
use brigade_cuda::{Context, Event};
use std::ops::Range;

/// What a rank has of a pipeline.
pub(super) struct Part<'p> {
    pub(super) layout: &'p Layout,
    /// The stages, and their units.
    pub(super) stages: Vec<(usize, Range<usize>)>,
    pub(super) needs: &'p Needs,
    /// Micro-batches of a step.
    pub(super) slots: usize,
    /// Who keeps the state.
    pub(super) keeper: Keeper,
    /// Whether the host, if it does, adds up micro-batches, too.
    pub(super) adds_in_order: bool,
    /// Places for letters from other ranks, where these write to them: in a window beside all else.
    pub(super) places: usize,
    ranks: usize,
    /// Whether they do.
    pub(super) is_direct: bool,
}

/// Who keeps the state of a rank's stages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeper {
    /// Its device.
    Device,
    /// The devices of those who share them, in parts: this rank among them, and how many they are.
    Devices(Share, (usize, usize)),
    /// Its host.
    Host,
}

/// One stage: its state, and the micro-batches that are on their way through it.
pub(super) struct Chunk<'a> {
    pub(super) kept: Kept<'a>,
    /// Where what goes into its blocks is kept elsewhere.
    pub(super) inputs: Option<DeviceInputs>,
    /// Of micro-batches that are between forward and backward, or between the backward's parts.
    pub(super) live: Vec<Option<Place>>,
    pub(super) owed: Vec<Option<DeviceOwed>>,
    /// Those that nothing is in.
    pub(super) free: Vec<Place>,
    pub(super) free_owed: Vec<DeviceOwed>,
    /// Backwards of this step.
    pub(super) done: usize,
}

impl Chunk<'_> {
    /// What files have cost so far, and what a step of so many micro-batches costs by formula.
    pub(super) fn disk(&self, slots: usize) -> [DiskUse; 2] {
        let [used, formula] = self.kept.disk();
        let [more, slot] = self.inputs.as_ref().map_or(Default::default(), DeviceInputs::disk);
        [used.plus(more), formula.plus(slot.times(slots as u32))]
    }
}

/// Room for a micro-batch, which of the stage's it is, and the last use of it.
pub(super) struct Place {
    pub(super) at: usize,
    pub(super) tape: DeviceTape,
    pub(super) used: Event,
}

/// What of a stage's state is on the device.
pub(super) enum StateRooms {
    Here(Held),
    Parts(Range<usize>),
    There(Views),
}

/// That, and room for its micro-batches.
type StageRooms = (StateRooms, Vec<DeviceTape>, Vec<DeviceOwed>);

/// All of it.
pub(super) struct Rooms {
    /// By stage of the part.
    pub(super) stages: Vec<StageRooms>,
    /// What all of them have in parts.
    pub(super) divided: Option<parts::Held>,
    pub(super) letters: Letters,
    pub(super) scratch: Scratch,
}

impl<'p> Part<'p> {
    /// That of `rank`.
    ///
    /// Errors: `Setting` for more stages than units.
    pub(super) fn new(
        layout: &'p Layout,
        (plan, rank): (&Plan, usize),
        needs: &'p Needs,
        slots: usize,
    ) -> Result<Part<'p>, Error> {
        let (layers, shape) = (layout.config().layers, &plan.shape);
        let mine = (0..shape.stages()).filter(|stage| shape.rank_of[*stage] == rank);
        let units = |stage| Ok((stage, stage_units(layers, shape.stages(), stage)?));
        let stages = mine.map(units).collect::<Result<_, Error>>()?;
        let (keeper, adds_in_order, is_direct) = (Keeper::Host, false, false);
        let places = Places::of(&plan.schedule, shape).count(rank);
        let ranks = plan.schedule.rows.len();
        Ok(Part { layout, stages, needs, slots, keeper, adds_in_order, places, ranks, is_direct })
    }

    /// Each unit, and numbers of its parameters.
    pub(super) fn lens(&self) -> impl Iterator<Item = (usize, usize)> {
        let units = self.stages.iter().flat_map(|(_, units)| units.clone());
        units.map(|unit| (unit, self.layout.unit(unit).len()))
    }

    /// Numbers that go from stage to stage for each micro-batch.
    pub(super) fn letter(&self, passes: Passes) -> usize {
        passes.rows * self.layout.config().width
    }

    /// Bytes of the device, beside the window.
    pub(super) fn bytes(&self, passes: Passes) -> usize {
        let mut room = Room::default();
        self.take(&mut room, passes);
        room.taken()
    }

    /// Bytes of the window.
    pub(super) fn window_bytes(&self, passes: Passes) -> usize {
        Direct::window_bytes(self.places, self.letter(passes))
    }

    /// Bytes of both, if there is a window among so many ranks.
    pub(super) fn all_bytes(&self, passes: Passes) -> usize {
        let window = || DeviceWindow::allocated(self.window_bytes(passes), self.ranks);
        self.bytes(passes) + if self.is_direct { window() } else { 0 }
    }

    pub(super) fn take(&self, room: &mut Room, passes: Passes) -> Rooms {
        let (layout, config) = (self.layout, self.layout.config());
        let stage = |(stage, units): &(usize, Range<usize>)| {
            let need = self.needs.stages[*stage];
            let (own, slots, inside) = (units.clone(), self.slots, passes.inside);
            let added = if self.adds_in_order { 1 } else { slots };
            let state = match self.keeper {
                Keeper::Host => StateRooms::There(Views::take(room, layout, own, added, inside)),
                Keeper::Device => StateRooms::Here(Held::take(room, layout, own, slots, inside)),
                Keeper::Devices(..) => StateRooms::Parts(own),
            };
            let tape = |_| DeviceTape::take(room, config, units.clone(), passes);
            let tapes = (0..need.live).map(tape).collect();
            let owed = |_| DeviceOwed::take(room, config, units.clone(), passes);
            (state, tapes, (0..need.owed).map(owed).collect())
        };
        let has_head = self.stages.iter().any(|(_, units)| units.end == layout.units());
        let stages = self.stages.iter().map(stage).collect();
        let divided = match self.keeper {
            Keeper::Devices(share, place) => {
                let groups = self.stages.iter().map(|(_, units)| units.clone()).collect();
                let wholes = Wholes { groups, rooms: self.needs.whole };
                Some(parts::Held::take(room, layout, share, passes.inside, place, wholes))
            }
            _ => None,
        };
        Rooms {
            stages,
            divided,
            letters: Letters::take(room, self.letter(passes), self.needs, self.is_direct),
            scratch: Scratch::take(room, config, has_head, passes),
        }
    }

    /// By stage; none where another rank has it. `keep` says where a stage's state is kept, and
    /// what goes into its blocks, given which of the rank's stages it is.
    pub(super) fn chunks<'a>(
        &self,
        rooms: Vec<StageRooms>,
        context: &Context,
        keep: impl Fn(usize, StateRooms) -> Result<(Kept<'a>, Option<DeviceInputs>), Error>,
    ) -> Result<Vec<Option<Chunk<'a>>>, Error> {
        let place = |(at, tape)| Ok(Place { at, tape, used: Event::new(context)? });
        let mut chunks: Vec<_> = self.needs.stages.iter().map(|_| None).collect();
        for (at, ((stage, _), rooms)) in self.stages.iter().zip(rooms).enumerate() {
            let (state, tapes, owed) = rooms;
            let (kept, inputs) = keep(at, state)?;
            chunks[*stage] = Some(Chunk {
                kept,
                inputs,
                live: (0..self.slots).map(|_| None).collect(),
                owed: (0..self.slots).map(|_| None).collect(),
                free: tapes.into_iter().enumerate().map(place).collect::<Result<_, Error>>()?,
                free_owed: owed,
                done: 0,
            });
        }
        Ok(chunks)
    }
}
