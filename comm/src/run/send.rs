//! The sending side of a turn: what a wire takes, and what it gives back of that.

use brigade_transports::{Lending, SendWire};

use super::{COMPLETE, JOINED_BYTES, Position, Stop, Turn};
use crate::header::HEADER_BYTES;

impl Turn<'_, '_> {
    /// Push as much as dependencies and credit allow.
    ///
    /// # Safety
    ///
    /// As for [`Run::poll`].
    pub(super) unsafe fn send(&mut self, wire: &mut dyn SendWire) -> Result<bool, Stop> {
        let mut moved = self.position.holds && self.settle(wire)?;
        while self.position.step != self.pump.last {
            let step = self.plan.steps[self.position.step as usize];
            let allowed = self.allowed(&step);
            let Some(allowed) = allowed else { return Ok(moved) };
            let done = self.position.taken;
            // SAFETY: the step's source is `bytes` long, and dependencies have settled the first
            // `allowed` of them; nothing writes them meanwhile.
            let ready = unsafe {
                let from = self.memory.at(step.source).add(done as usize);
                std::slice::from_raw_parts(from, (allowed - done) as usize)
            };
            // Partial pushes stay on cache lines.
            let whole = allowed == step.bytes;
            let ready = if whole { ready } else { &ready[..ready.len() & !63] };
            // SAFETY: nothing writes what the wire holds either, for whoever might waits until it
            // counts as progress; and the caller has the memory until the run is done, or recalls.
            let (taken, all) = unsafe { self.push(wire, ready, whole)? };
            moved |= taken > 0 || (all && whole);
            self.position.taken += taken as u64;
            if !self.position.holds {
                self.progress[self.position.step as usize] = self.position.taken;
            }
            if !(all && whole) {
                return Ok(moved);
            }
            if self.position.holds {
                self.begin_next();
            } else {
                self.complete();
            }
        }
        Ok(moved)
    }

    /// Count as progress what the wire has let go of. What it still holds are the last bytes that
    /// it took; headers among them are counted as if they were ours, which only errs towards later.
    #[cold]
    fn settle(&mut self, wire: &mut dyn SendWire) -> Result<bool, Stop> {
        let held = wire.held()? as u64;
        let mut heads = HEADER_BYTES as u64;
        let Position { step: current, taken, settled, .. } = *self.position;
        let mut moved = held == 0;
        let mut left = held;
        for step in (settled..=current).rev() {
            if step == self.pump.last {
                continue;
            }
            let taken = if step == current { taken } else { self.plan.steps[step as usize].bytes };
            let free = taken - taken.min(left);
            left -= taken - free;
            heads += HEADER_BYTES as u64;
            let is_settled = step != current && free == taken;
            let progress = &mut self.progress[step as usize];
            moved |= *progress < free;
            *progress = if is_settled { COMPLETE } else { free.max(*progress) };
        }
        assert!(left <= heads, "a wire holds no more than it has taken");
        let is_settled = |step: &u32| self.progress[*step as usize] == COMPLETE;
        let done = (settled..current).take_while(is_settled).count() as u32;
        (self.position.settled, self.position.holds) = (settled + done, held > 0);
        Ok(moved)
    }

    /// Push the header if it is still due, then lend `body`; how much of the body went, and whether
    /// all of it did.
    ///
    /// # Safety
    ///
    /// As for [`SendWire::lend`].
    unsafe fn push(
        &mut self,
        wire: &mut dyn SendWire,
        body: &[u8],
        whole: bool,
    ) -> Result<(usize, bool), Stop> {
        let head = usize::from(self.position.head);
        if head == HEADER_BYTES {
            // SAFETY: the caller's promise.
            let taken = if body.is_empty() { 0 } else { unsafe { self.lend(wire, body)? } };
            return Ok((taken, taken == body.len()));
        }
        let joined = &mut self.joined.0;
        let rest = HEADER_BYTES - head;
        joined[..rest].copy_from_slice(&self.position.header.bytes()[head..]);
        // A body goes along only if it is the whole of a step: what is pushed apart must keep to
        // cache lines, which the header would shift.
        let along = if whole && body.len() <= JOINED_BYTES - rest { body.len() } else { 0 };
        joined[rest..rest + along].copy_from_slice(&body[..along]);
        let taken = of_offered(wire.push(&joined[..rest + along])?, rest + along);
        self.position.head += taken.min(rest) as u8;
        let taken = taken.saturating_sub(rest);
        if usize::from(self.position.head) < HEADER_BYTES || along > 0 || body.is_empty() {
            return Ok((
                taken,
                usize::from(self.position.head) == HEADER_BYTES && taken == body.len(),
            ));
        }
        // SAFETY: the caller's promise.
        let taken = unsafe { self.lend(wire, body)? };
        Ok((taken, taken == body.len()))
    }

    /// # Safety
    ///
    /// As for [`SendWire::lend`].
    unsafe fn lend(&mut self, wire: &mut dyn SendWire, body: &[u8]) -> Result<usize, Stop> {
        // SAFETY: the caller's promise.
        let Lending { taken, is_held } = unsafe { wire.lend(body)? };
        if is_held && !self.position.holds {
            (self.position.holds, self.position.settled) = (true, self.position.step);
        }
        Ok(of_offered(taken, body.len()))
    }
}

/// How many of the bytes that it was offered a wire has taken. Wires may be anybody's; what one
/// claims beyond the end would be memory that is not there.
fn of_offered(taken: usize, offered: usize) -> usize {
    assert!(taken <= offered, "a wire takes no more than it was offered");
    taken
}
