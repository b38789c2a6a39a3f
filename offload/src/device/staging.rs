//! Numbers that lie anywhere on the host, through a few pinned slots: while one slot crosses, the
//! next is filled or emptied by the caller, who may change the numbers on the way (a cast, say).

use brigade_cuda::{Context, Event, Pinned, Result, Stream};
use std::collections::VecDeque;

/// Pinned memory, and when its last copy is done.
struct Slot {
    pinned: Pinned,
    copied: Event,
}

impl Slot {
    fn ring(context: &Context, slots: usize, slot_bytes: usize) -> Result<Vec<Slot>> {
        assert!(slots > 0 && slot_bytes > 0, "{slots} slots of {slot_bytes} bytes");
        let slot = |_| {
            let pinned = Pinned::new(context, slot_bytes)?;
            Ok(Slot { pinned, copied: Event::new(context)? })
        };
        (0..slots).map(slot).collect()
    }
}

/// From the host to a device.
pub struct Upload {
    stream: Stream,
    slots: Vec<Slot>,
    next: usize,
}

impl Upload {
    /// With so much pinned memory. Two slots keep the link busy if filling one is faster than a
    /// copy.
    ///
    /// # Errors
    ///
    /// What the driver says: mostly that so much memory cannot be pinned.
    pub fn new(context: &Context, slots: usize, slot_bytes: usize) -> Result<Upload> {
        let slots = Slot::ring(context, slots, slot_bytes)?;
        Ok(Upload { stream: Stream::new(context)?, slots, next: 0 })
    }

    /// The stream of its copies: others wait for events that are recorded here, and this one for
    /// those of whoever uses a target before it is overwritten.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Bytes of pinned memory.
    pub fn bytes(&self) -> usize {
        self.slots.iter().map(|slot| slot.pinned.bytes()).sum()
    }

    /// Copy `bytes` bytes to `target`, slot by slot; `fill` writes those from its first argument
    /// on. Returns when all are on their way; waits only for slots.
    ///
    /// # Errors
    ///
    /// What the driver says.
    ///
    /// # Safety
    ///
    /// The target is memory of the stream's device, which stays until the copies are done, and
    /// which nobody else uses meanwhile.
    pub unsafe fn send(
        &mut self,
        target: u64,
        bytes: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<()> {
        let slot_bytes = self.slots[0].pinned.bytes();
        for start in (0..bytes).step_by(slot_bytes) {
            let Slot { pinned, copied } = &mut self.slots[self.next];
            copied.synchronize()?;
            let part = slot_bytes.min(bytes - start);
            fill(start, &mut pinned.as_mut_slice()[..part]);
            // SAFETY: the caller answers for the target; the slot is ours and is not touched again
            // before `copied`.
            unsafe { self.stream.copy(target + start as u64, pinned.as_ptr() as u64, part) }?;
            self.stream.record(copied)?;
            self.next = (self.next + 1) % self.slots.len();
        }
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // The slots are freed next. A stream that fails has nothing on its way any more.
        let _ = self.stream.synchronize();
    }
}

/// From a device to the host.
pub struct Download {
    stream: Stream,
    slots: Vec<Slot>,
    next: usize,
    /// What is on its way, oldest first: slot and bytes.
    flying: VecDeque<(usize, usize)>,
}

impl Download {
    /// With so much pinned memory.
    ///
    /// # Errors
    ///
    /// What the driver says: mostly that so much memory cannot be pinned.
    pub fn new(context: &Context, slots: usize, slot_bytes: usize) -> Result<Download> {
        let slots = Slot::ring(context, slots, slot_bytes)?;
        Ok(Download { stream: Stream::new(context)?, slots, next: 0, flying: VecDeque::new() })
    }

    /// The stream of its copies.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Bytes of pinned memory.
    pub fn bytes(&self) -> usize {
        self.slots.iter().map(|slot| slot.pinned.bytes()).sum()
    }

    /// Whether nothing more can be begun before something is finished.
    pub fn is_full(&self) -> bool {
        self.flying.len() == self.slots.len()
    }

    /// Have some bytes on their way into a slot.
    ///
    /// Panics: when it is full, or they are more than a slot has.
    ///
    /// # Errors
    ///
    /// What the driver says.
    ///
    /// # Safety
    ///
    /// The source is memory of the stream's device, which stays and is not written until the copy
    /// is done.
    pub unsafe fn begin(&mut self, source: u64, bytes: usize) -> Result<()> {
        assert!(!self.is_full(), "all {} slots are on their way", self.slots.len());
        let at = self.next;
        let Slot { pinned, copied } = &mut self.slots[at];
        assert!(bytes <= pinned.bytes(), "{bytes} bytes in a slot of {}", pinned.bytes());
        // SAFETY: the caller answers for the source; the slot is ours and free until `finish`.
        unsafe { self.stream.copy(pinned.as_mut_ptr() as u64, source, bytes) }?;
        self.stream.record(copied)?;
        self.flying.push_back((at, bytes));
        self.next = (at + 1) % self.slots.len();
        Ok(())
    }

    /// Wait for what was begun first, and see it.
    ///
    /// Panics: when nothing is on its way.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn finish<T>(&mut self, see: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let &(at, bytes) = self.flying.front().expect("something is on its way");
        let Slot { pinned, copied } = &self.slots[at];
        copied.synchronize()?;
        let seen = see(&pinned.as_slice()[..bytes]);
        self.flying.pop_front();
        Ok(seen)
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        // The slots are freed next. A stream that fails has nothing on its way any more.
        let _ = self.stream.synchronize();
    }
}
