//! Windows: stretches of the region that peers write directly.
//!
//! A window lies in an area of its own: a line per counter, then the memory. Its descriptor says
//! where in the region that is; the importer maps it and checks every number first.

use std::sync::atomic::{AtomicU64, Ordering};

use super::area::Stretch;
use super::bell::Ringer;
use super::region::{Bytes, Line, Stores};
use crate::{RemoteWindow, TransportError, WindowMemory};

const MAGIC: u32 = u32::from_le_bytes(*b"BWIN");
const DESCRIPTOR_BYTES: usize = 4 + 4 + 8 + 8;
/// A counter has a line of its own.
const COUNTER_BYTES: usize = size_of::<Line<AtomicU64>>();

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
        let lines = (self.signals as usize).checked_mul(COUNTER_BYTES)?;
        usize::try_from(self.bytes).ok()?.checked_add(lines)?.checked_next_multiple_of(64)
    }
}

/// A window as its owner or an importer sees it. It takes no memory for what its descriptor says:
/// nobody has compared that with anything yet.
pub(super) struct View {
    counters: Bytes,
    memory: Bytes,
    _stretch: Stretch,
}

impl View {
    pub(super) fn new(stretch: Stretch, place: Place) -> Self {
        let counters_bytes = place.signals as usize * COUNTER_BYTES;
        let counters = stretch.bytes(0, counters_bytes);
        let bytes = usize::try_from(place.bytes).expect("mapped, so it fits");
        let memory = stretch.bytes(counters_bytes, bytes);
        Self { counters, memory, _stretch: stretch }
    }

    /// How many counters it has.
    fn signals(&self) -> usize {
        self.counters.len() / COUNTER_BYTES
    }

    fn counter(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.signals(), "signal {index} of {}", self.signals());
        let Line(counter) = self.counters.value(index * COUNTER_BYTES);
        counter
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
        self.counter(index).load(Ordering::Acquire)
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
        (self.view.memory.len(), self.view.signals())
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
        self.view.counter(index).fetch_add(add, Ordering::Release);
        self.bell.ring();
        Ok(())
    }
}
