//! What a member holds of a group: its area, its seat there, and the windows taken for the group.
//!
//! ```text
//! line 0         how many have left | the chain of the group's windows
//! line 1..       one for each seat: has it left in good order?
//! ...            the rest is laid out by `layout`
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::directory::{ENTRIES, Region};
use super::region::{Bytes, Line, Plain, Shared};
use super::sys::{Mapping, PAGE_BYTES};
use crate::TransportError;

/// What the head of an area takes.
pub(super) const fn area_head_bytes(members: u32) -> usize {
    (1 + members as usize) * size_of::<Line<AtomicU32>>()
}

/// One group's memory, as one member sees it. Dropping it leaves the group; the last to leave
/// gives the memory back.
pub(super) struct Area {
    region: Arc<Region>,
    map: Arc<Mapping>,
    index: usize,
    seat: u32,
    members: u32,
    /// The process that is the member.
    process: u32,
}

impl Region {
    /// The area that all who ask with this key get, as the one in `seat` of `members`: at least
    /// `bytes` long, zeroed for the first. It is given back when all have dropped theirs.
    pub(super) fn area(
        self: &Arc<Self>,
        key: u64,
        bytes: usize,
        (seat, members): (u32, u32),
        deadline: Instant,
    ) -> Result<Area, TransportError> {
        assert!(seat < members && bytes >= area_head_bytes(members));
        let index = self.find(key, bytes, deadline)?;
        let area = |map| Area::new(self.clone(), map, index, (seat, members));
        self.map_alike(index, bytes).map(area).inspect_err(|_| {
            // The last to leave gives the memory back, so who cannot use it leaves as well: what
            // that takes is in the head.
            let head_bytes = area_head_bytes(members);
            if self.area_bytes(index) >= head_bytes as u64
                && let Ok(head) = self.map_area(self.offset(index), head_bytes)
            {
                drop(area(head));
            }
        })
    }
}

impl Area {
    /// Take `seat` of `members` in the area of entry `index`, which is mapped at `map`.
    pub(super) fn new(
        region: Arc<Region>,
        map: Arc<Mapping>,
        index: usize,
        (seat, members): (u32, u32),
    ) -> Self {
        assert!(seat < members && map.bytes() >= area_head_bytes(members));
        Self { region, map, index, seat, members, process: std::process::id() }
    }

    /// Whether this is a copy that a child got by `fork`: the parent is the member still.
    pub(super) fn is_of_parent(&self) -> bool {
        self.process != std::process::id()
    }

    /// A value at `offset` of the area.
    ///
    /// # Panics
    /// When the value does not lie, aligned, within the area.
    pub(super) fn shared<T: Plain>(&self, offset: usize) -> Shared<T> {
        Shared::new(&self.map, offset)
    }

    /// Plain bytes of the area.
    ///
    /// # Panics
    /// When they do not lie within the area.
    pub(super) fn bytes(&self, offset: usize, bytes: usize) -> Bytes {
        Bytes::new(&self.map, offset, bytes)
    }

    /// Whether the member in `seat` has left in good order.
    pub(super) fn has_left(&self, seat: u32) -> bool {
        self.mark(seat).0.load(Ordering::Acquire) != 0
    }

    /// Take zeroed memory for a window, which lives until the last member leaves.
    pub(super) fn expose(self: &Arc<Self>, bytes: usize) -> Result<Stretch, TransportError> {
        let index = self.region.take(bytes)?;
        let chain = |first| {
            self.region.set_link(index, first);
            Some(index as u32 + 1)
        };
        let chained = self.windows().fetch_update(Ordering::AcqRel, Ordering::Relaxed, chain);
        assert!(chained.is_ok(), "the update always has a next value");
        self.import(self.region.offset(index), bytes)
    }

    /// Map memory that another member has taken for a window.
    pub(super) fn import(
        self: &Arc<Self>,
        offset: u64,
        bytes: usize,
    ) -> Result<Stretch, TransportError> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE_BYTES).unwrap_or(usize::MAX);
        let map = self.region.map_area(offset, bytes)?;
        Ok(Stretch { map, offset, _area: self.clone() })
    }

    fn mark(&self, seat: u32) -> Shared<Line<AtomicU32>> {
        assert!(seat < self.members);
        self.shared(area_head_bytes(seat))
    }

    /// The entries of the group's windows, chained: the first one's number plus one.
    fn windows(&self) -> Shared<AtomicU32> {
        self.shared(size_of::<AtomicU32>())
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        if self.is_of_parent() {
            return;
        }
        self.mark(self.seat).0.store(1, Ordering::Release);
        let count: Shared<AtomicU32> = self.shared(0);
        if count.fetch_add(1, Ordering::AcqRel) + 1 != self.members {
            return;
        }
        let mut window = self.windows().load(Ordering::Acquire);
        // Bounded, because a damaged chain could be a circle.
        for _ in 0..ENTRIES {
            let Some(index) = window.checked_sub(1) else { break };
            let Some(next) = self.region.link(index as usize) else { break };
            self.region.give_back(index as usize);
            window = next;
        }
        self.region.give_back(self.index);
    }
}

/// Memory of a window.
pub(super) struct Stretch {
    map: Arc<Mapping>,
    offset: u64,
    /// Keeps us a member while the window is in use, and so the window in place.
    _area: Arc<Area>,
}

impl Stretch {
    /// Where in the region it lies.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Plain bytes; as [`Area::bytes`].
    pub(super) fn bytes(&self, offset: usize, bytes: usize) -> Bytes {
        Bytes::new(&self.map, offset, bytes)
    }
}
