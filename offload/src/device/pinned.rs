//! The arena's memory, pinned where it lies: buffers cross to a device and back without a copy
//! between, and belong to the crossing until it is done.

use crate::memory::{Arena, Buffer};
use brigade_cuda::{Context, CudaError, Event, Registered, Result, Stream};

/// An arena that a device reaches.
pub struct PinnedArena {
    /// Dropped before the arena, which it is part of.
    _registered: Registered,
    arena: Arena,
    context: Context,
}

impl PinnedArena {
    /// Pin all of an arena. Cost: some 100 ns a page, of which huge ones are fewer.
    ///
    /// # Errors
    ///
    /// What the driver says: it is pinned already, or so much cannot be.
    pub fn new(context: &Context, arena: &Arena) -> Result<PinnedArena> {
        let base = arena.base().as_ptr();
        // SAFETY: the arena is kept beside this, and stays mapped for as long as a clone is there.
        let registered = unsafe { Registered::new(context, base, arena.capacity()) }?;
        let (arena, context) = (arena.clone(), context.clone());
        Ok(PinnedArena { _registered: registered, arena, context })
    }

    /// The memory.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// One direction between this memory and its device.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn lane(&self) -> Result<Lane<'_>> {
        Ok(Lane { arena: self, stream: Stream::new(&self.context)? })
    }
}

/// Crossings in one direction, one after the other.
pub struct Lane<'a> {
    arena: &'a PinnedArena,
    stream: Stream,
}

impl Lane<'_> {
    /// The stream of its copies.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Copy all of a buffer to the device.
    ///
    /// # Errors
    ///
    /// [`CudaError::Refused`] for a buffer of another arena, and what the driver says.
    ///
    /// # Safety
    ///
    /// The target is memory of the device that stays until the flight has ended, and that nobody
    /// else uses meanwhile.
    pub unsafe fn up(&self, target: u64, buffer: Buffer) -> Result<Flight> {
        let bytes = buffer.len();
        // SAFETY: handed on to our caller.
        unsafe { self.up_first(target, buffer, bytes) }
    }

    /// Copy the first `bytes` of a buffer to the device; else as [`Lane::up`].
    ///
    /// Panics: when it has not so many.
    pub(super) unsafe fn up_first(
        &self,
        target: u64,
        buffer: Buffer,
        bytes: usize,
    ) -> Result<Flight> {
        self.check(&buffer)?;
        let source = buffer[..bytes].as_ptr() as u64;
        let done = Event::new(self.stream.context())?;
        // SAFETY: the caller answers for the target; the flight keeps the buffer.
        unsafe { self.stream.copy(target, source, bytes) }?;
        self.depart(buffer, done)
    }

    /// Fill all of a buffer from the device.
    ///
    /// # Errors
    ///
    /// [`CudaError::Refused`] for a buffer of another arena, and what the driver says.
    ///
    /// # Safety
    ///
    /// The source is memory of the device that stays, and is not written, until the flight has
    /// ended.
    pub unsafe fn down(&self, source: u64, buffer: Buffer) -> Result<Flight> {
        let bytes = buffer.len();
        // SAFETY: handed on to our caller.
        unsafe { self.down_first(source, buffer, bytes) }
    }

    /// Fill the first `bytes` of a buffer from the device; else as [`Lane::down`].
    ///
    /// Panics: when it has not so many.
    pub(super) unsafe fn down_first(
        &self,
        source: u64,
        mut buffer: Buffer,
        bytes: usize,
    ) -> Result<Flight> {
        self.check(&buffer)?;
        let target = buffer[..bytes].as_mut_ptr() as u64;
        let done = Event::new(self.stream.context())?;
        // SAFETY: the caller answers for the source; the flight keeps the buffer.
        unsafe { self.stream.copy(target, source, bytes) }?;
        self.depart(buffer, done)
    }

    fn check(&self, buffer: &Buffer) -> Result<()> {
        let (arena, start) = (&self.arena.arena, buffer.as_ptr().addr());
        let base = arena.base().as_ptr().addr();
        match (base..base + arena.capacity()).contains(&start) {
            true => Ok(()),
            false => Err(CudaError::Refused { why: "the buffer is of another arena".to_string() }),
        }
    }

    /// The flight of a buffer whose copy is under way. `done` was made before the copy: there is no
    /// way back once it is begun.
    fn depart(&self, buffer: Buffer, done: Event) -> Result<Flight> {
        if let Err(why) = self.stream.record(&done) {
            // Nothing tells when the copy has ended, so all of the stream is waited for before the
            // arena has the buffer again. A device that fails copies no more.
            let _ = self.stream.synchronize();
            return Err(why);
        }
        Ok(Flight { done, buffer: Some(buffer) })
    }
}

/// A buffer on its way, or being filled.
#[must_use = "whoever drops it waits"]
pub struct Flight {
    done: Event,
    buffer: Option<Buffer>,
}

impl Flight {
    /// What others wait for.
    pub fn done(&self) -> &Event {
        &self.done
    }

    /// Wait, and have the buffer back.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn land(mut self) -> Result<Buffer> {
        self.done.synchronize()?;
        Ok(self.buffer.take().expect("it lands once"))
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.buffer.is_some() {
            // The buffer is given back to the arena next. A device that fails copies no more.
            let _ = self.done.synchronize();
        }
    }
}
