//! Windows: stretches of the region that peers write directly.
//!
//! A window lies in an area of its own: a line per counter, then the memory. Its descriptor says
//! where in the region that is; the importer maps it and checks every number first.

use std::sync::atomic::{AtomicU64, Ordering};

use super::area::Stretch;
use super::bell::Ringer;
use super::region::{Bytes, Line, Shared, Stores};
use crate::{RemoteWindow, TransportError, WindowMemory};

const MAGIC: u32 = u32::from_le_bytes(*b"BWIN");
const DESCRIPTOR_BYTES: usize = 4 + 4 + 8 + 8;

/// What a descriptor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) signals: u32,
}

impl Place {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(DESCRIPTOR_BYTES);
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend(self.signals.to_le_bytes());
        bytes.extend(self.offset.to_le_bytes());
        bytes.extend(self.bytes.to_le_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; DESCRIPTOR_BYTES] = bytes.try_into().ok()?;
        let (magic, rest) = bytes.split_first_chunk()?;
        let (signals, rest) = rest.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        if u32::from_le_bytes(*magic) != MAGIC {
            return None;
        }
        Some(Self {
            signals: u32::from_le_bytes(*signals),
            offset: u64::from_le_bytes(*offset),
            bytes: u64::from_le_bytes(rest.try_into().ok()?),
        })
    }

    /// The length of the whole stretch, if it can be a length.
    pub(super) fn stretch_bytes(self) -> Option<usize> {
        let lines = (self.signals as usize).checked_mul(size_of::<Line<AtomicU64>>())?;
        usize::try_from(self.bytes).ok()?.checked_add(lines)?.checked_next_multiple_of(64)
    }
}

/// A window as its owner or an importer sees it.
pub(super) struct View {
    counters: Vec<Shared<Line<AtomicU64>>>,
    memory: Bytes,
    _stretch: Stretch,
}

impl View {
    pub(super) fn new(stretch: Stretch, place: Place) -> Self {
        let line = size_of::<Line<AtomicU64>>();
        let signals = place.signals as usize;
        let counters = (0..signals).map(|index| stretch.shared(index * line)).collect();
        let bytes = usize::try_from(place.bytes).expect("mapped, so it fits");
        let memory = stretch.bytes(signals * line, bytes);
        Self { counters, memory, _stretch: stretch }
    }
}

impl WindowMemory for View {
    fn read(&self, offset: usize, target: &mut [u8]) {
        self.memory.read(offset, target);
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.memory.write(offset, bytes, Stores::Through);
    }

    fn signal(&self, index: usize) -> u64 {
        self.counters[index].0.load(Ordering::Acquire)
    }
}

/// A peer's window.
pub(super) struct Imported {
    pub(super) view: View,
    /// The owner's bell.
    pub(super) bell: Ringer,
}

impl RemoteWindow for Imported {
    fn size(&self) -> (usize, usize) {
        (self.view.memory.len(), self.view.counters.len())
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) -> Result<(), TransportError> {
        self.view.memory.write(offset, bytes, Stores::Through);
        Ok(())
    }

    fn get(&mut self, offset: usize, target: &mut [u8]) -> Result<(), TransportError> {
        self.view.memory.read(offset, target);
        Ok(())
    }

    fn signal(&mut self, index: usize, add: u64) -> Result<(), TransportError> {
        self.view.counters[index].0.fetch_add(add, Ordering::Release);
        self.bell.ring();
        Ok(())
    }
}
