//! The commit protocol, as data: what is written and synced, in which order.
//!
//! A write waits for every sync before it, and a sync waits for every write before it on its
//! stripe; everything between two syncs may go at once and in any order. Blocks come first and are
//! the caller's ([`Commit::place`], [`Commit::written`]); the rest follows from them
//! ([`Commit::seal`]).

use std::sync::Arc;

use thiserror::Error;

use super::checksum::{Checksum, checksum};
use super::geometry::{ALIGNMENT, Geometry, Place, Side};
use super::index::{Blueprint, Entry, Generation};
use super::step::Step;
use super::superblock::{NOTE_BYTES_MAX, Superblock, digest};

/// A generation in the making. Blocks that are not written keep their old copy.
#[derive(Clone, Debug)]
pub struct Commit {
    blueprint: Arc<Blueprint>,
    number: u64,
    entries: Vec<Option<Entry>>,
}

/// A generation whose blocks are written, and the steps that make it the newest.
#[derive(Clone, Debug)]
pub struct Sealed {
    /// What holds once the steps are done.
    pub generation: Generation,
    /// What is left to do, in order.
    pub steps: Vec<Step>,
}

/// Why a generation cannot be made the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unsealable {
    /// A block of a first generation was never written.
    #[error("block {block} of {blocks} was never written")]
    Unwritten {
        /// The first such block.
        block: u64,
        /// How many there are.
        blocks: u64,
    },
    /// The note does not fit into a superblock.
    #[error("a note of {bytes} bytes; at most {NOTE_BYTES_MAX}")]
    Note {
        /// Its length.
        bytes: usize,
    },
}

impl Commit {
    /// Begin the generation after `newest`, or the first one.
    pub fn begin(blueprint: &Arc<Blueprint>, newest: Option<&Generation>) -> Self {
        let blocks = blueprint.geometry.blocks() as usize;
        let (number, entries) = match newest {
            None => (1, vec![None; blocks]),
            Some(newest) => {
                assert_eq!(newest.entries.len(), blocks, "a generation of this state");
                (newest.number + 1, newest.entries.iter().copied().map(Some).collect())
            }
        };
        Self { blueprint: blueprint.clone(), number, entries }
    }

    /// The number of the generation in the making.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Where to write `block`: the home that the newest generation does not use.
    pub fn place(&self, block: u64) -> Place {
        self.blueprint.geometry.place(block, self.side(block))
    }

    /// Note that `block` is written, and what it sums to.
    pub fn written(&mut self, block: u64, checksum: Checksum) {
        let entry = Entry { checksum, side: self.side(block), written: self.number };
        self.entries[block as usize] = Some(entry);
    }

    /// The copy of `block` that this generation has so far, if any.
    pub fn entry(&self, block: u64) -> Option<Entry> {
        self.entries[block as usize]
    }

    /// All blocks are written: what is left is index -> sync -> superblock -> sync, on all stripes.
    pub fn seal(self, label: u64, note: &[u8]) -> Result<Sealed, Unsealable> {
        if note.len() > NOTE_BYTES_MAX {
            return Err(Unsealable::Note { bytes: note.len() });
        }
        let blocks = self.entries.len() as u64;
        let checked = (0..)
            .zip(&self.entries)
            .map(|(block, entry)| entry.ok_or(Unsealable::Unwritten { block, blocks }));
        let entries = checked.collect::<Result<Vec<_>, _>>()?;
        let generation = Generation { number: self.number, label, note: note.to_vec(), entries };
        let steps = steps(&self.blueprint, &generation);
        Ok(Sealed { generation, steps })
    }

    fn side(&self, block: u64) -> Side {
        match self.entries[block as usize] {
            None => Side::of(self.number),
            Some(entry) if entry.written == self.number => entry.side,
            Some(entry) => entry.side.other(),
        }
    }
}

fn steps(blueprint: &Blueprint, generation: &Generation) -> Vec<Step> {
    let geometry = blueprint.geometry;
    let stripes = 0..geometry.stripes();
    let indices: Vec<Vec<u8>> =
        stripes.clone().map(|stripe| blueprint.encode_index(generation, stripe)).collect();
    let sums: Vec<Checksum> = indices.iter().map(|index| checksum(index)).collect();
    let Generation { number, label, ref note, .. } = *generation;
    let digest = digest(number, label, note, sums.iter().copied());
    let superblock = |stripe: u32| Superblock {
        state: blueprint.state,
        member: blueprint.member,
        geometry,
        stripe,
        generation: number,
        label,
        note: note.clone(),
        index: sums[stripe as usize],
        digest,
    };
    let slot = Geometry::slot_offset((number % 2) as usize);
    let mut steps = Vec::new();
    for (stripe, mut bytes) in stripes.clone().zip(indices) {
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT as usize), 0);
        steps.push(Step::Write { stripe, offset: geometry.index_offset(number), bytes });
    }
    steps.extend(stripes.clone().map(|stripe| Step::Sync { stripe }));
    steps.extend(stripes.clone().map(|stripe| {
        let bytes = superblock(stripe).encode();
        Step::Write { stripe, offset: slot, bytes }
    }));
    steps.extend(stripes.map(|stripe| Step::Sync { stripe }));
    steps
}
