//! The stages of one rank, which the host has and computes.

mod home;

use super::needs::{Needs, StageNeeds};
use super::{Plan, stage_units};
use crate::error::Error;
use crate::layout::Config;
use crate::model::{Gpt, Owed};
use crate::offload::{DiskUse, Inputs, Offload, Scope, all_within};
use crate::optim::Rule;
use crate::parallel::{Lanes, Shards, Sharing, Thrift};
use crate::state::State;
use crate::tape::{Scratch, Tape};
use brigade_comm::Communicator;
use std::ops::Range;
use std::time::Duration;

/// One stage: some units, and the micro-batches that are on their way through them.
pub(super) struct Chunk<'a> {
    pub(super) units: Range<usize>,
    pub(super) shards: Shards<'a>,
    /// What goes into its blocks, if that is kept in a file.
    pub(super) inputs: Option<Inputs>,
    /// How long files had been waited for when this was asked last.
    files_waited: Duration,
    /// Whether all its parameters are here, where they are held in parts.
    is_whole: bool,
    /// Of micro-batches that are between forward and backward, or between the backward's parts.
    pub(super) live: Vec<Option<Tape>>,
    pub(super) owed: Vec<Option<Owed>>,
    /// Those that nothing is in.
    pub(super) free_tapes: Vec<Tape>,
    pub(super) free_owed: Vec<Owed>,
    /// Backwards of this step.
    pub(super) done: usize,
    /// What a step sends and moves, by formula.
    pub(super) formula_bytes: u64,
    pub(super) disk_formula: DiskUse,
}

/// All that a rank computes with.
pub(super) struct Chunks<'a> {
    pub(super) model: &'a Gpt,
    pub(super) lanes: Lanes,
    /// By stage; none where another rank has it.
    pub(super) chunks: Vec<Option<Chunk<'a>>>,
    pub(super) scratch: Scratch,
    /// [samples of a micro-batch × context], and the byte after each.
    pub(super) tokens: Vec<u32>,
    pub(super) targets: Vec<u32>,
    /// Summed loss of each micro-batch, on the rank that has the last stage.
    pub(super) losses: Vec<f64>,
}

/// What all stages of a rank are made with.
pub(super) struct Site<'a, 's> {
    pub(super) model: &'a Gpt,
    pub(super) group: Option<&'a Communicator>,
    pub(super) lanes: Lanes,
    pub(super) sharing: Sharing,
    pub(super) rule: Rule,
    pub(super) thrift: &'s Thrift,
    /// Of the whole model, or of this rank's part of every tensor.
    pub(super) state: &'s State,
}

impl<'a> Site<'a, '_> {
    /// A stage that is one of so many parts of what the rank has.
    pub(super) fn chunk(
        &self,
        units: Range<usize>,
        needs: StageNeeds,
        (part, parts): (usize, usize),
    ) -> Result<Chunk<'a>, Error> {
        let Site { model, group, lanes, sharing, rule, thrift, state } = self;
        let (layout, slots, samples) = (model.layout(), lanes.slots(), lanes.samples());
        let (config, gathers) = (layout.config(), needs.gathers as u64);
        let file = |offload: &Option<Offload>| offload.as_ref().map(|it| it.part(part, parts));
        let mut shards =
            Shards::new(model.kernels(), *group, *sharing, layout, units.clone(), state);
        shards.begin(&thrift.source, layout, *group)?;
        let offload = file(&thrift.offload);
        shards.suit(*rule, offload.as_ref())?;
        offload.map_or(Ok(()), |offload| shards.offload(&offload))?;
        shards.widen();
        let tape = || model.tape_that_keeps(thrift.keep, units.clone(), samples, config.context);
        let free_tapes: Vec<Tape> = (0..needs.live).map(|_| tape()).collect();
        let rows = samples * config.context;
        let owed = || Owed::of_units(config, units.clone(), rows);
        let len = free_tapes.iter().flat_map(|tape| &tape.stream).map(Vec::len).max();
        let (layers, len, own) = (config.layers, len.unwrap_or(0), units.clone());
        let scope = Scope { layers, units: own, slots, len, stays: 1 };
        let inputs = file(&thrift.inputs).map(|offload| Inputs::new(&offload, scope));
        let inputs = inputs.transpose()?;
        let inside = slots as u64 * model.formula_bytes(thrift.keep, units.clone(), samples)?;
        let moved = inputs.as_ref().map_or(DiskUse::default(), Inputs::formula);
        Ok(Chunk {
            is_whole: false,
            live: (0..slots).map(|_| None).collect(),
            owed: (0..slots).map(|_| None).collect(),
            free_owed: (0..needs.owed).map(|_| owed()).collect(),
            done: 0,
            formula_bytes: shards.formula_bytes_with(|_| gathers)? + inside,
            disk_formula: shards.disk_formula_with(|_| gathers).plus(moved.times(slots as u32)),
            files_waited: Duration::ZERO,
            free_tapes,
            inputs,
            units,
            shards,
        })
    }
}

impl Chunk<'_> {
    /// What files have cost so far.
    pub(super) fn disk_use(&self) -> DiskUse {
        let inputs = self.inputs.as_ref().map_or(DiskUse::default(), Inputs::used);
        self.shards.disk_use().plus(inputs)
    }

    /// How long they were waited for since this was asked last.
    pub(super) fn take_files_waited(&mut self) -> Duration {
        let waited = self.disk_use().waited;
        waited - std::mem::replace(&mut self.files_waited, waited)
    }

    /// Memory with a budget. \[bytes\]
    pub(super) fn inputs_bytes(&self) -> u64 {
        self.inputs.as_ref().map_or(0, Inputs::arena_bytes)
    }

    /// Bytes of what is kept from forward to backward. Ask when nothing is on its way.
    pub(super) fn bytes(&self) -> u64 {
        let tapes: u64 = self.free_tapes.iter().map(Tape::bytes).sum();
        tapes + self.free_owed.iter().map(Owed::bytes).sum::<u64>()
    }

    /// Before the update, which may want parameters in parts.
    fn finish(&mut self) -> Result<(), Error> {
        self.done = 0;
        self.reshard()
    }

    pub(super) fn unshard(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.is_whole, true) { Ok(()) } else { self.shards.summon() }
    }

    pub(super) fn reshard(&mut self) -> Result<(), Error> {
        if std::mem::take(&mut self.is_whole) {
            for unit in self.units.clone() {
                // What is let go of has arrived, or else nobody can be sure that it was asked for.
                self.shards.fetch(unit)?;
                self.shards.release(unit);
            }
        }
        Ok(())
    }
}

impl<'a> Chunks<'a> {
    /// Those of `rank`, which needs so much.
    pub(super) fn new(
        site: &Site<'a, '_>,
        plan: &Plan,
        rank: usize,
        needs: &Needs,
    ) -> Result<Chunks<'a>, Error> {
        let Site { model, lanes, .. } = *site;
        let Config { layers, context: time, .. } = *model.layout().config();
        let shape = &plan.shape;
        let mine: Vec<bool> = shape.rank_of.iter().map(|home| *home == rank).collect();
        let parts = mine.iter().filter(|is_mine| **is_mine).count();
        let chunk = |(stage, is_mine): (usize, &bool)| -> Result<Option<Chunk<'a>>, Error> {
            let units = stage_units(layers, shape.stages(), stage)?;
            let part = mine[..stage].iter().filter(|is_mine| **is_mine).count();
            let chunk = is_mine.then(|| site.chunk(units, needs.stages[stage], (part, parts)));
            chunk.transpose()
        };
        let chunks = all_within(mine.iter().enumerate().map(chunk))?;
        let tokens = vec![0; lanes.samples() * time];
        Ok(Chunks {
            scratch: model.scratch(lanes.samples(), time),
            targets: tokens.clone(),
            losses: vec![0.0; lanes.slots()],
            tokens,
            model,
            lanes,
            chunks,
        })
    }

    /// Bytes of what all stages of this rank share.
    fn bytes(&self) -> u64 {
        let text = 4 * (self.tokens.len() + self.targets.len()) as u64;
        self.scratch.bytes() + self.model.gated_bytes() + text
    }

    /// This rank's stages.
    pub(super) fn mine(&mut self) -> impl DoubleEndedIterator<Item = &mut Chunk<'a>> {
        self.chunks.iter_mut().flatten()
    }
}
