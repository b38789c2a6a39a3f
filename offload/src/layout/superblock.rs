//! The superblock: which state, stripe and generation a file holds, in one sector-sized write.

use super::bytes::{Reader, Writer};
use super::checksum::{Checksum, checksum, checksum_of};
use super::fault::{Fault, Wrong};
use super::geometry::{Geometry, SLOT_BYTES};

/// Most bytes of a caller's own note in a generation. \[bytes\]
pub const NOTE_BYTES_MAX: usize = 3 << 10;

const MARK: [u8; 8] = *b"brigade\n";
const VERSION: u32 = 2;
const SUM_OFFSET: usize = SLOT_BYTES as usize - 8;

/// Which of some states that are committed together this one is: they are of use only together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// A number that no other such set has.
    pub set: u128,
    /// Its place among them, from 0.
    pub place: u32,
    /// How many there are.
    pub of: u32,
}

impl Member {
    /// A state that is committed for itself.
    pub fn alone(state: u128) -> Self {
        Self { set: state, place: 0, of: 1 }
    }
}

/// What one superblock says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The state that the file belongs to.
    pub state: u128,
    /// The states that are committed together with it.
    pub member: Member,
    /// Sizes, the same on all stripes.
    pub geometry: Geometry,
    /// Which of the stripes this file is.
    pub stripe: u32,
    /// Which generation this superblock makes valid.
    pub generation: u64,
    /// The caller's own number for it, such as a training step.
    pub label: u64,
    /// The caller's own bytes.
    pub note: Vec<u8>,
    /// The sum over this stripe's index.
    pub index: Checksum,
    /// The sum over all stripes' indices, and over the label and the note.
    pub digest: Checksum,
}

/// What binds the stripes of one generation: the sums over their indices, and what else it says.
pub(super) fn digest(
    generation: u64,
    label: u64,
    note: &[u8],
    indices: impl IntoIterator<Item = Checksum>,
) -> Checksum {
    let mut sums = Writer::default();
    sums.u64(generation);
    sums.u64(label);
    indices.into_iter().for_each(|index| sums.u64(index.0));
    checksum_of([sums.0.as_slice(), note])
}

impl Superblock {
    /// The bytes to write into slot `generation % 2`.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.note.len() <= NOTE_BYTES_MAX, "a note of {} bytes", self.note.len());
        let mut bytes = Writer::default();
        bytes.bytes(&MARK);
        bytes.u32(VERSION);
        bytes.u32(self.stripe);
        bytes.u128(self.state);
        bytes.u128(self.member.set);
        bytes.u32(self.member.place);
        bytes.u32(self.member.of);
        bytes.u64(self.geometry.state_bytes());
        bytes.u64(self.geometry.block_bytes());
        bytes.u64(self.geometry.directory_bytes());
        bytes.u64(u64::from(self.geometry.stripes()));
        bytes.u64(self.generation);
        bytes.u64(self.label);
        bytes.u64(self.index.0);
        bytes.u64(self.digest.0);
        bytes.u64(self.note.len() as u64);
        bytes.bytes(&self.note);
        assert!(bytes.0.len() <= SUM_OFFSET, "fields and the longest note leave room for the sum");
        bytes.0.resize(SUM_OFFSET, 0);
        let sum = checksum(&bytes.0);
        bytes.u64(sum.0);
        bytes.0
    }

    /// Parse the bytes of slot 0 or 1. Errors: whatever is wrong with them.
    pub fn parse(bytes: &[u8], slot: usize) -> Result<Self, Fault> {
        let start = Geometry::slot_offset(slot);
        if bytes.len() as u64 != SLOT_BYTES {
            let found = bytes.len() as u64;
            return Err(Fault::new(start, Wrong::Truncated { wanted: SLOT_BYTES, found }));
        }
        if bytes.iter().all(|byte| *byte == 0) {
            return Err(Fault::new(start, Wrong::Empty));
        }
        let mut reader = Reader::new(bytes, start);
        let found = reader.array()?;
        if found != MARK {
            return Err(Fault::new(start, Wrong::Mark { found }));
        }
        let (summed, sum) = bytes.split_at(SUM_OFFSET);
        let wanted = Reader::new(sum, start + SUM_OFFSET as u64).u64()?;
        let Checksum(found) = checksum(summed);
        if wanted != found {
            let wrong = Wrong::Checksum { what: "the superblock", wanted, found };
            return Err(Fault::new(start, wrong));
        }
        Self::fields(reader, slot)
    }

    /// What is behind the mark. The sum is right, so what is wrong was written like that.
    fn fields(mut reader: Reader, slot: usize) -> Result<Self, Fault> {
        let start = Geometry::slot_offset(slot);
        let at_version = reader.offset();
        let version = reader.u32()?;
        if version != VERSION {
            let known = u64::from(VERSION);
            let found = u64::from(version);
            let wrong = Wrong::Value { field: "version", least: known, most: known, found };
            return Err(Fault::new(at_version, wrong));
        }
        let at_stripe = reader.offset();
        let stripe = reader.u32()?;
        let state = reader.u128()?;
        let member = Self::member(&mut reader)?;
        let at_sizes = reader.offset();
        let (state_bytes, block_bytes) = (reader.u64()?, reader.u64()?);
        let directory_bytes = reader.u64()?;
        let stripes = reader.within("stripes", (1, u64::from(u32::MAX)))? as u32;
        let geometry = Geometry::new(state_bytes, block_bytes, directory_bytes, stripes)
            .map_err(|bad| bad.at(at_sizes))?;
        if stripe >= stripes {
            let (most, found) = (u64::from(stripes) - 1, u64::from(stripe));
            let wrong = Wrong::Value { field: "stripe", least: 0, most, found };
            return Err(Fault::new(at_stripe, wrong));
        }
        let at_generation = reader.offset();
        let generation = reader.within("generation", (1, u64::MAX >> 1))?;
        if generation % 2 != slot as u64 {
            let (field, wanted) = ("parity of the generation in this slot", slot as u64);
            let found = generation % 2;
            let wrong = Wrong::Value { field, least: wanted, most: wanted, found };
            return Err(Fault::new(at_generation, wrong));
        }
        let label = reader.u64()?;
        let (index, digest) = (Checksum(reader.u64()?), Checksum(reader.u64()?));
        let note_bytes = reader.within("bytes of the note", (0, NOTE_BYTES_MAX as u64))?;
        let note = reader.take(note_bytes)?.to_vec();
        let at_rest = reader.offset();
        let rest = reader.take(start + SUM_OFFSET as u64 - at_rest)?;
        let extra = rest.iter().filter(|byte| **byte != 0).count() as u64;
        if extra > 0 {
            return Err(Fault::new(at_rest, Wrong::Extra { extra }));
        }
        Ok(Self { state, member, geometry, stripe, generation, label, note, index, digest })
    }

    fn member(reader: &mut Reader) -> Result<Member, Fault> {
        let set = reader.u128()?;
        let at_place = reader.offset();
        let (place, of) = (reader.u32()?, reader.u32()?);
        if place >= of {
            let (most, found) = (u64::from(of.saturating_sub(1)), u64::from(place));
            let wrong = Wrong::Value { field: "place in its store", least: 0, most, found };
            return Err(Fault::new(at_place, wrong));
        }
        Ok(Member { set, place, of })
    }
}
