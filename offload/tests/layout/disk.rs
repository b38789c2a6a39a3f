//! A disk that loses what was not synced, and a reader that believes nothing.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use brigade_offload::layout::{
    Blueprint, Candidate, Commit, Directory, Dtype, Generation, Geometry, Member, Recovered,
    SLOT_BYTES, Sealed, Step, Superblock, Tensor, Unrecoverable, checksum, recover,
};

/// What a disk writes whole or not at all, unless it tears. [bytes]
pub(crate) const UNIT: usize = 4096;

/// What becomes of a unit that was written and not synced when the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost,
    Kept,
    /// The first half is new, the second is old.
    Torn,
}

type Unit = Rc<[u8]>;
type File = BTreeMap<u64, Unit>;

/// Files, sparse. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    durable: Rc<Vec<File>>,
    /// Laid over it by a power cut.
    over: BTreeMap<(usize, u64), Unit>,
    /// Not synced, in order.
    pending: Vec<(usize, u64, Unit)>,
}

impl Disk {
    pub(crate) fn new(stripes: u32) -> Self {
        let durable = Rc::new(vec![File::new(); stripes as usize]);
        Self { durable, over: BTreeMap::new(), pending: Vec::new() }
    }

    pub(crate) fn apply(&mut self, step: &Step) {
        match step {
            Step::Write { stripe, offset, bytes } => {
                assert!(offset.is_multiple_of(UNIT as u64) && bytes.len().is_multiple_of(UNIT));
                for (index, unit) in (0..).zip(bytes.chunks(UNIT)) {
                    self.pending.push((
                        *stripe as usize,
                        offset / UNIT as u64 + index,
                        unit.into(),
                    ));
                }
            }
            Step::Sync { stripe } => {
                let stripe = *stripe as usize;
                let (synced, rest) = std::mem::take(&mut self.pending)
                    .into_iter()
                    .partition(|(other, ..)| *other == stripe);
                self.pending = rest;
                let synced: Vec<(usize, u64, Unit)> = synced;
                assert!(self.over.is_empty(), "what a power cut left is only read");
                let file = &mut Rc::make_mut(&mut self.durable)[stripe];
                file.extend(synced.into_iter().map(|(_, at, unit)| (at, unit)));
            }
        }
    }

    pub(crate) fn unsynced(&self) -> usize {
        self.pending.len()
    }

    /// What is there after a power cut.
    pub(crate) fn cut(&self, mut fate: impl FnMut(usize) -> Fate) -> Disk {
        let mut after = Disk { pending: Vec::new(), ..self.clone() };
        for (index, (stripe, at, unit)) in self.pending.iter().enumerate() {
            match fate(index) {
                Fate::Lost => {}
                Fate::Kept => {
                    after.over.insert((*stripe, *at), unit.clone());
                }
                Fate::Torn => {
                    let old = after.unit(*stripe, *at).cloned();
                    let old = old.unwrap_or_else(|| vec![0; UNIT].into());
                    let torn = [&unit[..UNIT / 2], &old[UNIT / 2..]].concat();
                    after.over.insert((*stripe, *at), torn.into());
                }
            }
        }
        after
    }

    fn unit(&self, stripe: usize, at: u64) -> Option<&Unit> {
        self.over.get(&(stripe, at)).or_else(|| self.durable[stripe].get(&at))
    }

    /// What a process that starts now sees: everything written, synced or not.
    pub(crate) fn seen(&self) -> Disk {
        self.cut(|_| Fate::Kept)
    }

    /// Read what is durable.
    pub(crate) fn read(&self, stripe: u32, offset: u64, bytes: u64) -> Vec<u8> {
        let (first, last) = (offset / UNIT as u64, (offset + bytes).div_ceil(UNIT as u64));
        let mut read = Vec::new();
        for at in first..last {
            match self.unit(stripe as usize, at) {
                Some(unit) => read.extend_from_slice(unit),
                None => read.resize(read.len() + UNIT, 0),
            }
        }
        let skip = (offset % UNIT as u64) as usize;
        read[skip..skip + bytes as usize].to_vec()
    }

    /// Change durable bytes, as a bad cell would.
    pub(crate) fn change(&mut self, stripe: u32, offset: u64, change: impl FnOnce(&mut u8)) {
        let at = offset / UNIT as u64;
        let mut unit = self.read(stripe, at * UNIT as u64, UNIT as u64);
        change(&mut unit[(offset % UNIT as u64) as usize]);
        self.over.insert((stripe as usize, at), unit.into());
    }
}

pub(crate) fn recover_from(disk: &Disk) -> Result<Recovered, Unrecoverable> {
    let slot = |stripe, slot| {
        Superblock::parse(&disk.read(stripe, Geometry::slot_offset(slot), SLOT_BYTES), slot)
    };
    let stripes = 0..disk.durable.len() as u32;
    let slots: Vec<_> = stripes.map(|stripe| [slot(stripe, 0), slot(stripe, 1)]).collect();
    recover(&slots)
}

pub(crate) fn parse(
    disk: &Disk,
    candidate: &Candidate,
) -> Result<(Arc<Blueprint>, Generation), String> {
    let geometry = candidate.geometry();
    let at = geometry.index_offset(candidate.number());
    let read = |stripe| disk.read(stripe, at, geometry.index_bytes(stripe));
    let indices: Vec<_> = (0..geometry.stripes()).map(read).collect();
    Generation::parse(candidate, &indices).map_err(|(stripe, fault)| format!("{stripe}: {fault}"))
}

/// All bytes of a generation, each block checked.
pub(crate) fn load(
    disk: &Disk,
    candidate: &Candidate,
) -> Result<(Arc<Blueprint>, Generation, Vec<u8>), String> {
    let (blueprint, generation) = parse(disk, candidate)?;
    let geometry = blueprint.geometry;
    let mut state = Vec::new();
    for block in 0..geometry.blocks() {
        let place = generation.place(&geometry, block);
        let bytes = disk.read(place.stripe, place.offset, geometry.block_bytes());
        let (found, entry) = (checksum(&bytes), generation.entries[block as usize]);
        if found != entry.checksum {
            return Err(format!("block {block}: wanted {:?}, found {found:?}", entry.checksum));
        }
        state.extend(bytes);
    }
    Ok((blueprint, generation, state))
}

/// A state of one tensor that fills so many blocks of one unit.
pub(crate) fn blueprint(blocks: u64, stripes: u32) -> Arc<Blueprint> {
    let tensor = Tensor::whole("weights", Dtype::U8, &[blocks * UNIT as u64]);
    let directory = Directory::pack([tensor], 64).unwrap();
    Blueprint::new(0x5eed, Member::alone(0x5eed), directory, UNIT as u64, stripes).unwrap()
}

/// The byte that fills block `block` of the generation with this label.
pub(crate) fn filling(label: u64, block: u64) -> u8 {
    (1 + label * 16 + block) as u8
}

/// The steps of a commit in which the blocks of `changed` get new bytes.
pub(crate) fn commit_steps(
    blueprint: &Arc<Blueprint>,
    newest: Option<&Generation>,
    label: u64,
    changed: &[u64],
) -> (Generation, Vec<Step>) {
    let mut commit = Commit::begin(blueprint, newest);
    let mut steps = Vec::new();
    for block in changed {
        let place = commit.place(*block);
        let bytes = vec![filling(label, *block); UNIT];
        commit.written(*block, checksum(&bytes));
        steps.push(Step::Write { stripe: place.stripe, offset: place.offset, bytes });
    }
    let Sealed { generation, steps: rest } = commit.seal(label, b"note").unwrap();
    steps.extend(rest);
    (generation, steps)
}
