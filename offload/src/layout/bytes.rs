//! Little-endian numbers in and out of bytes; reading checks every bound.

use super::fault::{Fault, Wrong};

/// Takes numbers from the front of hostile bytes.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    /// Where `rest` begins in the file, for errors.
    offset: u64,
}

impl<'a> Reader<'a> {
    /// `offset`: where `bytes` begin in their file.
    pub(super) fn new(bytes: &'a [u8], offset: u64) -> Self {
        Self { rest: bytes, offset }
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn take(&mut self, bytes: u64) -> Result<&'a [u8], Fault> {
        let found = self.rest.len() as u64;
        if bytes > found {
            return Err(Fault::new(self.offset, Wrong::Truncated { wanted: bytes, found }));
        }
        let (taken, rest) = self.rest.split_at(bytes as usize);
        self.rest = rest;
        self.offset += bytes;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        Ok(self.take(N as u64)?.try_into().expect("as many as were taken"))
    }

    pub(super) fn u8(&mut self) -> Result<u8, Fault> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u32(&mut self) -> Result<u32, Fault> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Fault> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn u128(&mut self) -> Result<u128, Fault> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    /// A number within bounds, both included.
    pub(super) fn within(
        &mut self,
        field: &'static str,
        (least, most): (u64, u64),
    ) -> Result<u64, Fault> {
        let offset = self.offset;
        let found = self.u64()?;
        match (least..=most).contains(&found) {
            true => Ok(found),
            false => Err(Fault::new(offset, Wrong::Value { field, least, most, found })),
        }
    }

    pub(super) fn end(&self) -> Result<(), Fault> {
        match self.rest.len() as u64 {
            0 => Ok(()),
            extra => Err(Fault::new(self.offset, Wrong::Extra { extra })),
        }
    }
}

/// Puts numbers behind one another.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn u128(&mut self, value: u128) {
        self.bytes(&value.to_le_bytes());
    }
}
