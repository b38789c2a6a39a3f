//! The index of a generation: the directory, and for each block its checksum and its side.

use std::sync::Arc;

use super::bytes::{Reader, Writer};
use super::checksum::{Checksum, checksum};
use super::directory::Directory;
use super::fault::{Fault, Wrong};
use super::geometry::{BadGeometry, Geometry, Place, Side};
use super::recover::Candidate;
use super::superblock::Member;

/// What never changes in the life of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blueprint {
    /// A number that no other state has.
    pub state: u128,
    /// The states that are committed together with it.
    pub member: Member,
    /// Where things lie.
    pub geometry: Geometry,
    /// Its tensors.
    pub directory: Directory,
    encoded: Vec<u8>,
}

/// Where the newest copy of a block lies, and what it sums to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The sum over the block.
    pub checksum: Checksum,
    /// Its home.
    pub side: Side,
    /// The generation that wrote it.
    pub written: u64,
}

/// A generation: a home and a sum for every block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// From 1; each commit makes the next one.
    pub number: u64,
    /// The caller's own number for it, such as a training step.
    pub label: u64,
    /// The caller's own bytes.
    pub note: Vec<u8>,
    /// One for each block of the state.
    pub entries: Vec<Entry>,
}

impl Blueprint {
    /// A new state. `state`: random, so that files of two states are never taken for one.
    pub fn new(
        state: u128,
        member: Member,
        directory: Directory,
        block_bytes: u64,
        stripes: u32,
    ) -> Result<Arc<Self>, BadGeometry> {
        let encoded = directory.encode();
        let directory_bytes = encoded.len() as u64;
        let geometry =
            Geometry::new(directory.state_bytes(), block_bytes, directory_bytes, stripes)?;
        Ok(Arc::new(Self { state, member, geometry, directory, encoded }))
    }

    /// The index of one stripe, as it is written: filled up to the alignment behind its end.
    pub(super) fn encode_index(&self, generation: &Generation, stripe: u32) -> Vec<u8> {
        let mut bytes = Writer::default();
        bytes.bytes(&self.encoded);
        let stripes = self.geometry.stripes() as usize;
        for entry in generation.entries.iter().skip(stripe as usize).step_by(stripes) {
            bytes.u64(entry.checksum.0);
            bytes.u64(entry.written << 1 | u64::from(entry.side == Side::Odd));
        }
        assert_eq!(bytes.0.len() as u64, self.geometry.index_bytes(stripe));
        bytes.0
    }
}

impl Generation {
    /// Where this generation's copy of `block` lies.
    pub fn place(&self, geometry: &Geometry, block: u64) -> Place {
        geometry.place(block, self.entries[block as usize].side)
    }

    /// Parse what recovery has chosen. `indices`: the index of each stripe, as long as
    /// [`Geometry::index_bytes`] says, read at [`Geometry::index_offset`].
    ///
    /// Errors: the stripe, and what is wrong with its index.
    pub fn parse(
        candidate: &Candidate,
        indices: &[impl AsRef<[u8]>],
    ) -> Result<(Arc<Blueprint>, Generation), (u32, Fault)> {
        let geometry = candidate.geometry();
        assert_eq!(indices.len(), geometry.stripes() as usize, "an index for each stripe");
        let at = geometry.index_offset(candidate.number());
        for (stripe, bytes) in (0_u32..).zip(indices) {
            let (wanted, found) = (geometry.index_bytes(stripe), bytes.as_ref().len() as u64);
            if wanted != found {
                return Err((stripe, Fault::new(at, Wrong::Truncated { wanted, found })));
            }
        }
        // Only now is the number of blocks known to be no larger than the bytes that came.
        let mut entries = vec![None; geometry.blocks() as usize];
        let mut directory = None;
        for (stripe, bytes) in (0_u32..).zip(indices) {
            let fail = |fault| (stripe, fault);
            let bytes = bytes.as_ref();
            let (wanted, found) = (candidate.stripes()[stripe as usize].index, checksum(bytes));
            if wanted != found {
                let (wanted, found) = (wanted.0, found.0);
                let wrong = Wrong::Checksum { what: "the index", wanted, found };
                return Err(fail(Fault::new(at, wrong)));
            }
            let mut reader = Reader::new(bytes, at);
            let encoded = reader.take(geometry.directory_bytes()).map_err(fail)?;
            if directory.is_none() {
                let state_bytes = geometry.state_bytes();
                let parsed = Directory::parse(encoded, at, state_bytes).map_err(fail)?;
                directory = Some((parsed, encoded.to_vec()));
            }
            let slots = entries.iter_mut().skip(stripe as usize);
            for slot in slots.step_by(geometry.stripes() as usize) {
                *slot = Some(parse_entry(&mut reader, candidate.number()).map_err(fail)?);
            }
            reader.end().map_err(fail)?;
        }
        let (directory, encoded) = directory.expect("a state has at least one stripe");
        let head = &candidate.stripes()[0];
        let (state, member) = (head.state, head.member);
        let blueprint = Blueprint { state, member, geometry, directory, encoded };
        let entries = entries.into_iter().map(|entry| entry.expect("blocks are dealt to stripes"));
        let generation = Generation {
            number: head.generation,
            label: head.label,
            note: head.note.clone(),
            entries: entries.collect(),
        };
        Ok((Arc::new(blueprint), generation))
    }
}

fn parse_entry(reader: &mut Reader, generation: u64) -> Result<Entry, Fault> {
    let checksum = Checksum(reader.u64()?);
    let at = reader.offset();
    let stamp = reader.u64()?;
    let written = stamp >> 1;
    if !(1..=generation).contains(&written) {
        let field = "generation that wrote a block";
        let wrong = Wrong::Value { field, least: 1, most: generation, found: written };
        return Err(Fault::new(at, wrong));
    }
    let side = if stamp & 1 == 1 { Side::Odd } else { Side::Even };
    Ok(Entry { checksum, side, written })
}
