//! Where things lie in a file: arithmetic on a few sizes, all of them checked once.

use thiserror::Error;

use super::fault::{Fault, Wrong};

/// Everything that is written begins and ends at a multiple of this, so that O_DIRECT takes it.
/// \[bytes\]
pub const ALIGNMENT: u64 = 4096;
/// A superblock. \[bytes\]
pub const SLOT_BYTES: u64 = ALIGNMENT;

/// The two slots are this far apart: a drive that rewrites a larger unit when it writes one sector
/// must not tear both. \[bytes\]
const SLOT_STRIDE: u64 = 64 << 10;
const INDEX_OFFSET: u64 = 2 * SLOT_STRIDE;
/// Blocks begin at multiples of this or of their own size, whichever is less. \[bytes\]
const DATA_ALIGNMENT: u64 = 1 << 20;

const BLOCK_BYTES_MAX: u64 = 64 << 20;
const STATE_BYTES_MAX: u64 = 1 << 56;
const DIRECTORY_BYTES_MAX: u64 = 1 << 32;
const STRIPES_MAX: u64 = 256;
/// Of one block in the table: checksum, and side with generation.
pub(super) const ENTRY_BYTES: u64 = 16;

const _: () = assert!(SLOT_BYTES <= SLOT_STRIDE && SLOT_STRIDE.is_multiple_of(ALIGNMENT));
// The largest state at the smallest block, on one stripe: every offset stays far below 2^63.
const _: () = assert!(STATE_BYTES_MAX / ALIGNMENT * ENTRY_BYTES < 1 << 62);

/// One of the two homes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The lower half of the data.
    Even,
    /// The upper half.
    Odd,
}

impl Side {
    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Side::Even => Side::Odd,
            Side::Odd => Side::Even,
        }
    }

    pub(super) fn of(number: u64) -> Self {
        if number.is_multiple_of(2) { Side::Even } else { Side::Odd }
    }
}

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which file.
    pub stripe: u32,
    /// Where in it. \[bytes\]
    pub offset: u64,
}

/// The sizes that decide where everything lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    state_bytes: u64,
    block_bytes: u64,
    directory_bytes: u64,
    stripes: u32,
}

/// A size out of its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{field}: wanted {wanted}, got {got}")]
pub struct BadGeometry {
    /// Which size.
    pub field: &'static str,
    /// What is legal.
    pub wanted: &'static str,
    /// What was asked for.
    pub got: u64,
}

impl Geometry {
    /// Check the sizes. `block_bytes`: a power of two from 4 KiB to 64 MiB.
    pub fn new(
        state_bytes: u64,
        block_bytes: u64,
        directory_bytes: u64,
        stripes: u32,
    ) -> Result<Self, BadGeometry> {
        let check = |is_legal: bool, field, wanted, got| match is_legal {
            true => Ok(()),
            false => Err(BadGeometry { field, wanted, got }),
        };
        let is_block =
            block_bytes.is_power_of_two() && (ALIGNMENT..=BLOCK_BYTES_MAX).contains(&block_bytes);
        check(is_block, "block bytes", "a power of two from 4 KiB to 64 MiB", block_bytes)?;
        check(state_bytes <= STATE_BYTES_MAX, "state bytes", "at most 2^56", state_bytes)?;
        let is_directory = directory_bytes <= DIRECTORY_BYTES_MAX;
        check(is_directory, "directory bytes", "at most 2^32", directory_bytes)?;
        let is_stripes = (1..=STRIPES_MAX).contains(&u64::from(stripes));
        check(is_stripes, "stripes", "1 to 256", u64::from(stripes))?;
        Ok(Self { state_bytes, block_bytes, directory_bytes, stripes })
    }

    /// Of all tensors, with the gaps between them. \[bytes\]
    pub fn state_bytes(&self) -> u64 {
        self.state_bytes
    }

    /// Of one block, the last one included: it is filled up with zeros. \[bytes\]
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Of the encoded directory. \[bytes\]
    pub fn directory_bytes(&self) -> u64 {
        self.directory_bytes
    }

    /// How many files.
    pub fn stripes(&self) -> u32 {
        self.stripes
    }

    /// How many blocks, over all stripes.
    pub fn blocks(&self) -> u64 {
        self.state_bytes.div_ceil(self.block_bytes)
    }

    /// How many of them lie on this stripe.
    pub fn blocks_of(&self, stripe: u32) -> u64 {
        let (stripe, stripes) = (u64::from(stripe), u64::from(self.stripes));
        (self.blocks() + stripes - 1 - stripe) / stripes
    }

    /// Where the copy of `block` on this side lies.
    pub fn place(&self, block: u64, side: Side) -> Place {
        assert!(block < self.blocks(), "block {block} of {}", self.blocks());
        let stripes = u64::from(self.stripes);
        let stripe = (block % stripes) as u32;
        let first = match side {
            Side::Even => self.data_offset(),
            Side::Odd => self.data_offset() + self.blocks_of(stripe) * self.block_bytes,
        };
        Place { stripe, offset: first + block / stripes * self.block_bytes }
    }

    /// Where the superblock of a generation with this parity lies. \[bytes\]
    pub fn slot_offset(slot: usize) -> u64 {
        assert!(slot < 2, "slot {slot} of 2");
        slot as u64 * SLOT_STRIDE
    }

    /// Where the index of this generation lies, on every stripe. \[bytes\]
    pub fn index_offset(&self, generation: u64) -> u64 {
        INDEX_OFFSET + generation % 2 * self.index_capacity()
    }

    /// Of the index of this stripe, without what fills it up. \[bytes\]
    pub fn index_bytes(&self, stripe: u32) -> u64 {
        self.directory_bytes + self.blocks_of(stripe) * ENTRY_BYTES
    }

    /// How long the file of this stripe is. \[bytes\]
    pub fn file_bytes(&self, stripe: u32) -> u64 {
        self.data_offset() + 2 * self.blocks_of(stripe) * self.block_bytes
    }

    /// Room for an index: the same on all stripes, so that one look at any superblock tells.
    fn index_capacity(&self) -> u64 {
        self.index_bytes(0).next_multiple_of(ALIGNMENT)
    }

    fn data_offset(&self) -> u64 {
        let index_end = INDEX_OFFSET + 2 * self.index_capacity();
        index_end.next_multiple_of(DATA_ALIGNMENT.min(self.block_bytes))
    }
}

impl BadGeometry {
    /// The same, found in a file.
    pub(super) fn at(self, offset: u64) -> Fault {
        let (least, most) = match self.field {
            "block bytes" => (ALIGNMENT, BLOCK_BYTES_MAX),
            "state bytes" => (0, STATE_BYTES_MAX),
            "directory bytes" => (0, DIRECTORY_BYTES_MAX),
            _ => (1, STRIPES_MAX),
        };
        Fault::new(offset, Wrong::Value { field: self.field, least, most, found: self.got })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing overlaps, everything is aligned and inside its file, each block has two homes.
    #[test]
    fn places_are_apart_and_aligned() {
        for stripes in 1..=5 {
            for blocks in 0..=11_u64 {
                for block_bytes in [4096, 1 << 20] {
                    let state_bytes = (blocks * block_bytes).saturating_sub(5);
                    let geometry = Geometry::new(state_bytes, block_bytes, 4000, stripes).unwrap();
                    assert_eq!(geometry.blocks(), blocks);
                    check_apart(&geometry);
                }
            }
        }
    }

    fn check_apart(geometry: &Geometry) {
        let mut ranges = vec![Vec::new(); geometry.stripes() as usize];
        for (stripe, ranges) in ranges.iter_mut().enumerate() {
            let index_bytes = geometry.index_bytes(stripe as u32).next_multiple_of(ALIGNMENT);
            for parity in 0..2 {
                ranges.push((Geometry::slot_offset(parity), SLOT_BYTES));
                ranges.push((geometry.index_offset(parity as u64), index_bytes));
            }
        }
        for block in 0..geometry.blocks() {
            for side in [Side::Even, Side::Odd] {
                let place = geometry.place(block, side);
                ranges[place.stripe as usize].push((place.offset, geometry.block_bytes()));
            }
        }
        for (stripe, mut ranges) in ranges.into_iter().enumerate() {
            ranges.sort_unstable();
            let mut end = 0;
            for (offset, bytes) in ranges {
                assert!(offset >= end, "{geometry:?} stripe {stripe} at {offset}");
                assert!(offset.is_multiple_of(ALIGNMENT) && bytes.is_multiple_of(ALIGNMENT));
                end = offset + bytes;
            }
            assert!(end <= geometry.file_bytes(stripe as u32));
        }
    }

    #[test]
    fn sizes_have_bounds() {
        assert!(Geometry::new(1, 4095, 0, 1).is_err());
        assert!(Geometry::new(1, 2048, 0, 1).is_err());
        assert!(Geometry::new(1, 128 << 20, 0, 1).is_err());
        assert!(Geometry::new((1 << 56) + 1, 4096, 0, 1).is_err());
        assert!(Geometry::new(1, 4096, 1 << 33, 1).is_err());
        assert!(Geometry::new(1, 4096, 0, 0).is_err());
        assert!(Geometry::new(1 << 56, 4096, 1 << 32, 256).is_ok());
    }
}
