//! How fast buffers cross, beside what one long pinned copy does on the same link: up, down, and
//! both at once.

use super::{Flight, Lane, PinnedArena};
use crate::memory::{Arena, Budget, Buffer, Category};
use brigade_cuda::{Context, Cuda, CudaError, DeviceMemory, Pinned, Result, Stream};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crossing {
    /// To the device.
    Up,
    /// From the device.
    Down,
    /// Both at once; rates are sums.
    Both,
}

impl Crossing {
    fn lanes(self) -> &'static [Crossing] {
        match self {
            Crossing::Up => &[Crossing::Up],
            Crossing::Down => &[Crossing::Down],
            Crossing::Both => &[Crossing::Up, Crossing::Down],
        }
    }
}

/// Buffers on their way in each direction.
const BUFFERS: usize = 3;
/// Bytes of the long copies.
const LONG_BYTES: usize = 64 << 20;

/// A device, an arena that it reaches, and memory to copy from and to.
pub struct Rates {
    arena: PinnedArena,
    memory: [DeviceMemory; 2],
    pinned: [Pinned; 2],
    streams: [Stream; 2],
    buffer_bytes: usize,
}

impl Rates {
    /// With buffers of so many bytes, on the device with this number.
    ///
    /// # Errors
    ///
    /// What is missing of CUDA, or of memory that can be pinned.
    pub fn new(device: u32, buffer_bytes: usize) -> Result<Rates> {
        let context = Context::new(&Cuda::load()?.device(device)?)?;
        // Buffers begin on pages, and the arena keeps some between them.
        let room = (buffer_bytes + (64 << 10)).next_multiple_of(2 << 20);
        let arena = Arena::new(Budget::new(2 * BUFFERS * room));
        let arena = arena.map_err(|problem| CudaError::Refused { why: problem.to_string() })?;
        let bytes = LONG_BYTES.max(BUFFERS * buffer_bytes);
        let memory = || DeviceMemory::new(&context, bytes);
        let pinned = || Pinned::new(&context, LONG_BYTES);
        Ok(Rates {
            arena: PinnedArena::new(&context, &arena)?,
            memory: [memory()?, memory()?],
            pinned: [pinned()?, pinned()?],
            streams: [Stream::new(&context)?, Stream::new(&context)?],
            buffer_bytes,
        })
    }

    /// One line: the device, and what the buffers lie on.
    pub fn describe(&self) -> String {
        let device = &self.memory[0].context().device().name;
        format!("{device}; {}", self.arena.arena().describe())
    }

    /// GB/s of buffers that cross one after the other, three on their way in each direction.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn buffers(&self, crossing: Crossing, least: Duration) -> Result<f64> {
        let mut lanes = Vec::new();
        for &way in crossing.lanes() {
            let lane = self.arena.lane()?;
            let take = |_| self.arena.arena().take(self.buffer_bytes, Category::Staging);
            let buffers: std::result::Result<Vec<Buffer>, _> = (0..BUFFERS).map(take).collect();
            let buffers =
                buffers.map_err(|problem| CudaError::Refused { why: problem.to_string() })?;
            let mut ring = Ring { lane, way, target: self.target(way), flights: VecDeque::new() };
            buffers.into_iter().try_for_each(|buffer| ring.depart(buffer))?;
            lanes.push(ring);
        }
        let (begun, mut crossed) = (Instant::now(), 0);
        while crossed == 0 || begun.elapsed() < least {
            for ring in &mut lanes {
                let flight = ring.flights.pop_front().expect("buffers are on their way");
                ring.depart(flight.land()?)?;
                crossed += self.buffer_bytes;
            }
        }
        Ok(crossed as f64 / begun.elapsed().as_secs_f64() / 1e9)
    }

    /// GB/s of long copies, each waited for before the next of its direction.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn limit(&mut self, crossing: Crossing, least: Duration) -> Result<f64> {
        let (begun, mut crossed) = (Instant::now(), 0);
        while crossed == 0 || begun.elapsed() < least {
            // Two copies behind each other hide how long starting one takes.
            for way in crossing.lanes().repeat(2) {
                let at = usize::from(way == Crossing::Down);
                let there = self.memory[at].address();
                let here = self.pinned[at].as_mut_ptr() as u64;
                let [to, from] = if way == Crossing::Up { [there, here] } else { [here, there] };
                // SAFETY: both ranges are ours and this long, and the streams are waited for below.
                unsafe { self.streams[at].copy(to, from, LONG_BYTES) }?;
                crossed += LONG_BYTES;
            }
            self.streams.iter().try_for_each(Stream::synchronize)?;
        }
        Ok(crossed as f64 / begun.elapsed().as_secs_f64() / 1e9)
    }

    fn target(&self, way: Crossing) -> u64 {
        self.memory[usize::from(way == Crossing::Down)].address()
    }
}

impl Drop for Rates {
    fn drop(&mut self) {
        // Copies that an error left behind end before their memory does.
        let _ = self.streams.iter().try_for_each(Stream::synchronize);
    }
}

struct Ring<'a> {
    lane: Lane<'a>,
    way: Crossing,
    target: u64,
    flights: VecDeque<Flight>,
}

impl Ring<'_> {
    fn depart(&mut self, buffer: Buffer) -> Result<()> {
        // SAFETY: the device's memory is as long as a buffer and outlives the ring, whose flights
        // wait when they are dropped. What is in it does not matter.
        let flight = unsafe {
            match self.way {
                Crossing::Down => self.lane.down(self.target, buffer),
                _ => self.lane.up(self.target, buffer),
            }
        }?;
        self.flights.push_back(flight);
        Ok(())
    }
}
