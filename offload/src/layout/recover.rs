//! Recovery: from the two slots of every stripe to the newest generation that all of them have.

use thiserror::Error;

use super::fault::{Fault, Wrong};
use super::geometry::{Geometry, SLOT_BYTES};
use super::step::Step;
use super::superblock::{Superblock, digest};

/// A generation on which all stripes agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    stripes: Vec<Superblock>,
}

impl Candidate {
    /// Its number.
    pub fn number(&self) -> u64 {
        self.stripes[0].generation
    }

    /// The caller's own number for it.
    pub fn label(&self) -> u64 {
        self.stripes[0].label
    }

    /// The sizes.
    pub fn geometry(&self) -> Geometry {
        self.stripes[0].geometry
    }

    /// The superblock of each stripe.
    pub fn stripes(&self) -> &[Superblock] {
        &self.stripes
    }
}

/// What the slots say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The newest first; at least one. An older one may be written over already: the sums tell.
    pub candidates: Vec<Candidate>,
    /// Slots that are not usable, with their stripe. Empty ones are not named.
    pub faults: Vec<(u32, Fault)>,
    /// Every slot that is not empty, with its stripe, and the generation that it names if it is
    /// whole.
    seen: Vec<(u32, usize, Option<u64>)>,
}

/// Why there is no generation to be had.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unrecoverable {
    /// All slots are empty: nothing was ever committed.
    #[error("nothing was ever committed")]
    Empty,
    /// A file is not the one that its place in the list says.
    #[error("file {stripe} of {given} is stripe {found} of {stripes}")]
    Misplaced {
        /// Its place in the list, from 0.
        stripe: u32,
        /// How many files were given.
        given: u32,
        /// What its superblock says.
        found: u32,
        /// How many stripes its superblock knows.
        stripes: u32,
    },
    /// Files of different states, or of different sizes.
    #[error("file {stripe} is part of another state: {fault}")]
    Foreign {
        /// Its place in the list, from 0.
        stripe: u32,
        /// What was wanted and found.
        fault: Fault,
    },
    /// The stripes have no generation in common.
    #[error("no generation is on all stripes; found {found:?}{}", first(faults))]
    Apart {
        /// The generations that each stripe has.
        found: Vec<Vec<u64>>,
        /// Slots that are not usable, with their stripe.
        faults: Vec<(u32, Fault)>,
    },
}

fn first(faults: &[(u32, Fault)]) -> String {
    faults.first().map_or_else(String::new, |(stripe, fault)| format!("; file {stripe} {fault}"))
}

/// Find the generations that all stripes have, the newest first. `slots`: what
/// [`Superblock::parse`] made of the two slots of each stripe.
pub fn recover(slots: &[[Result<Superblock, Fault>; 2]]) -> Result<Recovered, Unrecoverable> {
    let valid = |stripe: usize| slots[stripe].iter().flatten();
    let mut faults = Vec::new();
    for (stripe, pair) in (0..).zip(slots) {
        let broken = pair.iter().filter_map(|slot| slot.as_ref().err());
        let broken = broken.filter(|fault| fault.wrong != Wrong::Empty);
        faults.extend(broken.map(|fault| (stripe, fault.clone())));
    }
    let Some(model) = (0..slots.len()).find_map(|stripe| valid(stripe).next()) else {
        return match faults.is_empty() {
            true => Err(Unrecoverable::Empty),
            false => Err(Unrecoverable::Apart { found: vec![Vec::new(); slots.len()], faults }),
        };
    };
    for stripe in 0..slots.len() {
        for superblock in valid(stripe) {
            belongs(superblock, model, stripe as u32, slots.len() as u32)?;
        }
    }
    let mut candidates: Vec<Candidate> = valid(0)
        .filter_map(|head| {
            let same = |stripe| valid(stripe).find(|other| agree(head, other)).cloned();
            let stripes = (0..slots.len()).map(same).collect::<Option<Vec<_>>>()?;
            is_bound(&stripes).then_some(Candidate { stripes })
        })
        .collect();
    candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.number()));
    if candidates.is_empty() {
        let generations = |stripe| valid(stripe).map(|superblock| superblock.generation).collect();
        let found = (0..slots.len()).map(generations).collect();
        return Err(Unrecoverable::Apart { found, faults });
    }
    let mut seen = Vec::new();
    for (stripe, pair) in (0..).zip(slots) {
        for (number, slot) in pair.iter().enumerate() {
            match slot {
                Ok(superblock) => seen.push((stripe, number, Some(superblock.generation))),
                Err(fault) if fault.wrong == Wrong::Empty => {}
                Err(_) => seen.push((stripe, number, None)),
            }
        }
    }
    Ok(Recovered { candidates, faults, seen })
}

/// What to do with the files of a new state before anything else: nothing they may say counts.
pub fn erase(stripes: u32) -> Vec<Step> {
    let slots = (0..stripes).flat_map(|stripe| [(stripe, 0), (stripe, 1)]);
    erase_slots(slots, stripes)
}

/// What to do when the commit of this generation has failed at an unknown step, before anything
/// else is written: if it became valid on all stripes, it must not stay so while its blocks are
/// written over.
pub fn withdraw(stripes: u32, generation: u64) -> Vec<Step> {
    let slot = (generation % 2) as usize;
    erase_slots((0..stripes).map(|stripe| (stripe, slot)), stripes)
}

impl Recovered {
    /// What to do before anything is written to a state that continues from `chosen`: superblocks
    /// that say anything newer, or are damaged, are erased, and all that was read is made to stay.
    ///
    /// Without the erasing, a superblock that a crash left on one stripe could be taken for part of
    /// a later generation with its number, and one that was misread could be whole after all when
    /// its blocks are written over. Without the sync, a superblock that was seen after the end of
    /// a process could be lost with the power when its predecessor is half written over already.
    pub fn mend(&self, chosen: &Candidate) -> Vec<Step> {
        let is_older = |generation| generation <= Some(chosen.number());
        let doubtful = self
            .seen
            .iter()
            .filter(|(_, _, generation)| generation.is_none() || !is_older(*generation));
        let slots = doubtful.map(|(stripe, slot, _)| (*stripe, *slot));
        erase_slots(slots, chosen.geometry().stripes())
    }
}

fn erase_slots(slots: impl Iterator<Item = (u32, usize)>, stripes: u32) -> Vec<Step> {
    let zeros = |(stripe, slot)| {
        let bytes = vec![0; SLOT_BYTES as usize];
        Step::Write { stripe, offset: Geometry::slot_offset(slot), bytes }
    };
    let mut steps: Vec<Step> = slots.map(zeros).collect();
    steps.extend((0..stripes).map(|stripe| Step::Sync { stripe }));
    steps
}

fn belongs(
    superblock: &Superblock,
    model: &Superblock,
    stripe: u32,
    given: u32,
) -> Result<(), Unrecoverable> {
    let offset = Geometry::slot_offset((superblock.generation % 2) as usize);
    let foreign = |wrong| Unrecoverable::Foreign { stripe, fault: Fault::new(offset, wrong) };
    if superblock.state != model.state {
        return Err(foreign(Wrong::State { wanted: model.state, found: superblock.state }));
    }
    let (ours, theirs) = (superblock.member, model.member);
    if ours != theirs {
        return Err(foreign(Wrong::State { wanted: theirs.set, found: ours.set }));
    }
    let stripes = superblock.geometry.stripes();
    if superblock.stripe != stripe || stripes != given {
        let found = superblock.stripe;
        return Err(Unrecoverable::Misplaced { stripe, given, found, stripes });
    }
    let (ours, theirs) = (superblock.geometry, model.geometry);
    for (field, wanted, found) in [
        ("state bytes", theirs.state_bytes(), ours.state_bytes()),
        ("block bytes", theirs.block_bytes(), ours.block_bytes()),
        ("directory bytes", theirs.directory_bytes(), ours.directory_bytes()),
    ] {
        if wanted != found {
            return Err(foreign(Wrong::Value { field, least: wanted, most: wanted, found }));
        }
    }
    Ok(())
}

fn agree(head: &Superblock, other: &Superblock) -> bool {
    head.generation == other.generation && head.digest == other.digest
}

/// The digest is the one over these stripes.
fn is_bound(stripes: &[Superblock]) -> bool {
    let head = &stripes[0];
    let indices = stripes.iter().map(|superblock| superblock.index);
    digest(head.generation, head.label, &head.note, indices) == head.digest
}
