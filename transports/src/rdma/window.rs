//! Windows: memory that peers write, read and signal with their devices, on their own.
//!
//! A window is its counters, eight bytes each, and then its memory. Its descriptor says where that
//! is and what the key is for each of the owner's devices. Whoever imports it gets a queue pair of
//! its own, whose other end nobody at the owner looks at. Operations of one importer take effect in
//! their order. A signal also knocks at the owner, over the connection of the exchange: only a
//! sleeper needs that, so it may take its time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_verbs::{Access, Completion, Limits, Memory, MemoryRegion, Remote};

use super::card::Address;
use super::failed;
use super::hand::{Hand, Request};
use super::local::Local;
use super::path::End;
use crate::{LocalWindow, RemoteWindow, TransportError, WindowMemory};

const MAGIC: [u8; 4] = *b"BRW1";
const COUNTER_BYTES: usize = 8;
/// Memory begins at a multiple of this after the counters.
const LINE_BYTES: usize = 64;
/// What is copied and not written yet, or asked for and not read yet, in two halves.
const STAGING_BYTES: usize = 256 << 10;
const PART_BYTES: usize = STAGING_BYTES / 4;
/// Beyond the last part: where a counter's old value goes.
const OLD_VALUE: usize = STAGING_BYTES;
/// How long an operation may take before its device is given up: devices do so earlier.
const PATIENCE: Duration = Duration::from_secs(30);

/// The importer's end of a queue pair.
pub(super) const LIMITS: Limits =
    Limits { sends: 16, receives: 1, inline_bytes: 220, access: Access::Local };

/// What a descriptor says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    signals: u32,
    bytes: u64,
    address: u64,
    /// One for each device of the owner; 0 for one that nobody reaches.
    keys: Vec<u32>,
}

impl Descriptor {
    fn serialise(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.signals.to_le_bytes());
        bytes.extend(self.bytes.to_le_bytes());
        bytes.extend(self.address.to_le_bytes());
        bytes.push(self.keys.len() as u8);
        self.keys.iter().for_each(|key| bytes.extend(key.to_le_bytes()));
        bytes
    }

    /// Read a descriptor that came from somewhere. `None` when it makes no sense.
    pub(super) fn parse(bytes: &[u8]) -> Option<Descriptor> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (signals, rest) = rest.split_first_chunk()?;
        let (bytes, rest) = rest.split_first_chunk()?;
        let (address, rest) = rest.split_first_chunk()?;
        let (&[count], rest) = rest.split_first_chunk()?;
        let (keys, []) = rest.as_chunks::<4>() else { return None };
        let keys: Vec<u32> = keys.iter().map(|key| u32::from_le_bytes(*key)).collect();
        let descriptor = Descriptor {
            signals: u32::from_le_bytes(*signals),
            bytes: u64::from_le_bytes(*bytes),
            address: u64::from_le_bytes(*address),
            keys,
        };
        let whole = (descriptor.memory_at() as u64).checked_add(descriptor.bytes)?;
        let fits = descriptor.address.checked_add(whole).is_some();
        (fits && descriptor.keys.len() == usize::from(count) && count > 0).then_some(descriptor)
    }

    /// Where the memory begins, behind the counters.
    fn memory_at(&self) -> usize {
        (self.signals as usize * COUNTER_BYTES).next_multiple_of(LINE_BYTES)
    }

    /// The key for the owner's device with this number.
    pub(super) fn key(&self, device: u8) -> Option<u32> {
        self.keys.get(usize::from(device)).copied()
    }
}

/// Expose so much memory to all who get its descriptor.
pub(super) fn expose(
    local: &Local,
    bytes: usize,
    signals: usize,
) -> Result<LocalWindow, TransportError> {
    let signals = u32::try_from(signals).expect("the caller has checked lengths");
    let mut descriptor = Descriptor { signals, bytes: bytes as u64, address: 0, keys: Vec::new() };
    let memory_at = descriptor.memory_at();
    let memory = Memory::zeroed(memory_at + bytes);
    let mut regions = Vec::with_capacity(local.domains.len());
    for (device, domain) in local.domains.iter().enumerate() {
        // It may be one that could not do this.
        if !local.places.iter().any(|place| usize::from(place.address.device) == device) {
            descriptor.keys.push(0);
            continue;
        }
        let region = MemoryRegion::new(domain, &memory, Access::Everything).map_err(failed)?;
        descriptor.keys.push(region.remote_key());
        descriptor.address = region.address();
        regions.push(region);
    }
    let view = Exposed { memory, memory_at, bytes, signals: signals as usize, _regions: regions };
    Ok(LocalWindow { descriptor: descriptor.serialise(), memory: Box::new(view) })
}

/// A window as its owner sees it.
struct Exposed {
    memory: Arc<Memory>,
    memory_at: usize,
    bytes: usize,
    signals: usize,
    /// Keep the memory known to the devices.
    _regions: Vec<MemoryRegion>,
}

impl WindowMemory for Exposed {
    fn read(&self, offset: usize, target: &mut [u8]) {
        within(offset, target.len(), self.bytes);
        self.memory.read(self.memory_at + offset, target);
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        within(offset, bytes.len(), self.bytes);
        self.memory.write(self.memory_at + offset, bytes);
    }

    fn signal(&self, index: usize) -> u64 {
        assert!(index < self.signals, "signal {index} of {}", self.signals);
        self.memory.counter(index * COUNTER_BYTES)
    }
}

fn within(offset: usize, bytes: usize, whole: usize) {
    assert!(offset <= whole && bytes <= whole - offset, "{bytes} at {offset} of {whole}");
}

/// A peer's window.
pub(super) struct Imported {
    pub(super) local: Arc<Local>,
    pub(super) peer: usize,
    pub(super) theirs: Address,
    pub(super) descriptor: Descriptor,
    pub(super) key: u32,
    pub(super) end: End,
    pub(super) staging: MemoryRegion,
    pub(super) hand: Hand,
    /// Operations that were posted, and completed, in all.
    posted: u64,
    completed: u64,
    fault: Option<TransportError>,
}

impl Imported {
    /// What is copied on its way to and from windows.
    pub(super) fn staging() -> Arc<Memory> {
        Memory::zeroed(STAGING_BYTES + COUNTER_BYTES)
    }

    pub(super) fn new(
        (local, peer, theirs): (Arc<Local>, usize, Address),
        (descriptor, key): (Descriptor, u32),
        (end, staging, hand): (End, MemoryRegion, Hand),
    ) -> Imported {
        let (posted, completed, fault) = (0, 0, None);
        Imported {
            local,
            peer,
            theirs,
            descriptor,
            key,
            end,
            staging,
            hand,
            posted,
            completed,
            fault,
        }
    }

    fn remote(&self, offset: usize) -> Remote {
        Remote { address: self.descriptor.address + offset as u64, key: self.key }
    }

    /// Wait until at most so many operations are on their way.
    fn settle(&mut self, most: u64) -> Result<(), TransportError> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let started = Instant::now();
        let mut looks = 0_u32;
        while self.posted - self.completed > most {
            let mut batch = [Completion::default(); 8];
            let polled = self.end.sends.poll(&mut batch).map_err(failed);
            let count = polled.map_err(|error| self.fault.insert(error).clone())?;
            for completion in &batch[..count] {
                self.completed += 1;
                if !completion.status().is_success() {
                    let (local, theirs) = (&self.local, &self.theirs);
                    let fault = self.end.blame(local, theirs, self.peer, completion.status());
                    return Err(self.fault.get_or_insert(fault).clone());
                }
            }
            looks += 1;
            if count == 0 && looks > 100 {
                // Devices that are programs need the processor.
                std::thread::yield_now();
            }
            if looks.is_multiple_of(1024) && started.elapsed() > PATIENCE {
                let what = format!("an operation on a window of member {}", self.peer);
                let waited_ms = started.elapsed().as_millis() as u64;
                // It may still come: no part of the staging memory can be used again.
                let late = TransportError::Timeout { what, waited_ms };
                return Err(self.fault.insert(late).clone());
            }
        }
        Ok(())
    }

    /// The next part of the staging memory, free to be used.
    fn part(&mut self) -> Result<usize, TransportError> {
        const PARTS: u64 = (STAGING_BYTES / PART_BYTES) as u64;
        self.settle(PARTS - 1)?;
        Ok((self.posted % PARTS) as usize * PART_BYTES)
    }
}

impl RemoteWindow for Imported {
    fn size(&self) -> (usize, usize) {
        (self.descriptor.bytes as usize, self.descriptor.signals as usize)
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) -> Result<(), TransportError> {
        within(offset, bytes.len(), self.descriptor.bytes as usize);
        let mut at = self.descriptor.memory_at() + offset;
        for piece in bytes.chunks(PART_BYTES) {
            let part = self.part()?;
            self.staging.memory().write(part, piece);
            let (from, remote) = ((&self.staging, part, piece.len()), self.remote(at));
            self.end.pair.post_write(0, from, remote, None).map_err(failed)?;
            self.posted += 1;
            at += piece.len();
        }
        Ok(())
    }

    fn get(&mut self, offset: usize, target: &mut [u8]) -> Result<(), TransportError> {
        within(offset, target.len(), self.descriptor.bytes as usize);
        let mut at = self.descriptor.memory_at() + offset;
        for piece in target.chunks_mut(PART_BYTES) {
            let part = self.part()?;
            let (to, remote) = ((&self.staging, part, piece.len()), self.remote(at));
            self.end.pair.post_read(0, to, remote).map_err(failed)?;
            self.posted += 1;
            self.settle(0)?;
            self.staging.memory().read(part, piece);
            at += piece.len();
        }
        Ok(())
    }

    fn signal(&mut self, index: usize, add: u64) -> Result<(), TransportError> {
        let signals = self.descriptor.signals as usize;
        assert!(index < signals, "signal {index} of {signals}");
        // Its place in the turn of the parts is taken as well, so that counting stays simple.
        self.part()?;
        let (to, remote) = ((&self.staging, OLD_VALUE), self.remote(index * COUNTER_BYTES));
        self.end.pair.post_add(0, to, remote, add).map_err(failed)?;
        self.posted += 1;
        self.settle(0)?;
        self.hand.ask(Request::Knock { peer: self.peer });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_reads_back_and_its_parts_do_not() {
        let descriptor = Descriptor { signals: 3, bytes: 100, address: 1 << 40, keys: vec![1, 2] };
        let bytes = descriptor.serialise();
        assert_eq!(Descriptor::parse(&bytes), Some(descriptor));
        for length in 0..bytes.len() {
            assert_eq!(Descriptor::parse(&bytes[..length]), None, "{length} bytes");
        }
        let hostile = Descriptor { signals: 3, bytes: u64::MAX, address: 1, keys: vec![1] };
        assert_eq!(Descriptor::parse(&hostile.serialise()), None);
    }
}
