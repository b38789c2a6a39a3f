//! What goes into blocks, with the host or in its files between forward and backward. It goes down
//! while the blocks around it are computed, and comes up again while the block above is.
//!
//! Of what is between blocks there are three rooms in turn, so x of unit u is where those of u + 3
//! and u − 3 are. So the host waits for x of u to be down before it has unit u + 2 computed, which
//! writes there; and has it come up once unit u + 2 is done, which was the last to use the place.
//! It does so when the device has unit u + 1 to compute, as it may wait for pinned room, or a file.

use super::tape::DeviceTape;
use super::wire::Wire;
use crate::error::Error;
use crate::offload::{DiskUse, Inputs, Offload, Scope};
use brigade_cuda::{Event, Stream};
use std::collections::VecDeque;

/// Inputs of blocks on their way, and those that are gone.
pub(crate) struct DeviceInputs {
    inputs: Inputs,
    wire: Wire,
    compute: Stream,
    /// Behind the last of the units.
    end: usize,
    /// On their way down, by slot and unit.
    going: VecDeque<(usize, usize)>,
    /// Before the unit that was computed last: units above it are done.
    free: Event,
}

impl DeviceInputs {
    /// Of the last two blocks they stay on the device, which has three in any case.
    pub(crate) const STAYS: usize = 2;

    /// Beside this stream, for passes of such a scope.
    ///
    /// Errors: those of files, and `Device`.
    pub(crate) fn new(
        compute: &Stream,
        offload: &Offload,
        scope: Scope,
    ) -> Result<DeviceInputs, Error> {
        let (wire, end) = (Wire::new(compute, 4 * scope.len)?, scope.units.end);
        let (going, free) = (VecDeque::new(), Event::new(compute.context())?);
        let compute = compute.clone();
        Ok(DeviceInputs { inputs: Inputs::new(offload, scope)?, wire, compute, end, going, free })
    }

    /// Before the forward of a unit in this slot, whose input is there.
    pub(crate) fn leave(
        &mut self,
        slot: usize,
        unit: usize,
        tape: &DeviceTape,
    ) -> Result<(), Error> {
        while self.going.front().is_some_and(|(of, gone)| *of != slot || gone + 2 <= unit) {
            self.land()?;
        }
        if self.inputs.keeps(unit) {
            self.wire.fetch(tape.input(unit))?;
            self.going.push_back((slot, unit));
        }
        Ok(())
    }

    /// Before the backward of a unit in this slot: its input is there for what is computed next.
    pub(crate) fn come_back(&mut self, slot: usize, unit: usize) -> Result<(), Error> {
        if unit + 1 == self.end {
            while !self.going.is_empty() {
                self.land()?;
            }
            self.inputs.turn(slot)?;
        }
        if self.inputs.keeps(unit) {
            self.wire.arrive()?;
        }
        Ok(self.compute.record(&self.free)?)
    }

    /// After that backward was given to the device: the input of the unit below is on its way.
    pub(crate) fn come_next(
        &mut self,
        slot: usize,
        unit: usize,
        tape: &DeviceTape,
    ) -> Result<(), Error> {
        let DeviceInputs { inputs, wire, free, .. } = self;
        match unit.checked_sub(1).filter(|below| inputs.keeps(*below)) {
            Some(below) => {
                inputs.take(slot, below, |kept| wire.bring(tape.input(below), kept, free))
            }
            None => Ok(()),
        }
    }

    /// What is on its way for longest is down.
    fn land(&mut self) -> Result<(), Error> {
        let DeviceInputs { inputs, wire, going, .. } = self;
        let (slot, unit) = going.pop_front().expect("something is on its way down");
        inputs.put(slot, unit, |room| wire.take(room, 4))
    }

    /// Bytes of the host's memory: pinned, and where inputs are or pass through.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        [self.wire.bytes(), self.inputs.arena_bytes()]
    }

    /// What files have cost so far, and what a slot costs by formula.
    pub(crate) fn disk(&self) -> [DiskUse; 2] {
        [self.inputs.used(), self.inputs.formula()]
    }

    /// Wait for all that is on its way between host and device.
    pub(crate) fn settle(&self) -> Result<(), Error> {
        self.wire.settle()
    }
}
