//! Parameters and gradients on their way between devices whose ranks hold them in parts, beside
//! what computes.
//!
//! All calls go into one stream, in an order that is the same on every rank. What computes and
//! what calls wait for each other by events alone; where the hosts must meet for a call, it is made
//! when the device has something else to compute meanwhile.

use super::held::Held;
use crate::device::Calls;
use crate::error::Error;
use crate::kernels::cuda::{Device, View};
use brigade_cuda::{Context, Event, Stream};

/// Calls, and what they and the computing stream wait for. Units take turns with two rooms of each
/// kind.
pub(super) struct Flow<'a> {
    calls: Calls<'a>,
    compute: Stream,
    /// Whose parameters are in each room, since the last update.
    holds: [Option<usize>; 2],
    /// Parameters: the last use, and the arrival.
    used: [Event; 2],
    gathered: [Event; 2],
    /// Gradients: they are there, and the room is free again.
    computed: [Event; 2],
    scattered: [Event; 2],
    /// A gradient that goes out with the next one: its unit, and the slot.
    next: Option<(usize, usize)>,
}

impl<'a> Flow<'a> {
    /// Beside this stream.
    pub(super) fn new(calls: Calls<'a>, compute: &Stream) -> Result<Flow<'a>, Error> {
        let two = || two(compute.context());
        Ok(Flow {
            calls,
            compute: compute.clone(),
            holds: [None; 2],
            used: two()?,
            gathered: two()?,
            computed: two()?,
            scattered: two()?,
            next: None,
        })
    }

    pub(super) fn calls(&self) -> &Calls<'a> {
        &self.calls
    }

    pub(super) fn calls_mut(&mut self) -> &mut Calls<'a> {
        &mut self.calls
    }

    /// Have a unit's parameters on their way, if they are not here. What is in their room was
    /// used for the last time.
    pub(super) fn ask(&mut self, held: &Held, unit: usize) -> Result<(), Error> {
        let (own, at) = (&held.units[unit], unit % 2);
        if own.whole.is_some() || self.holds[at] == Some(unit) {
            return Ok(());
        }
        self.calls.wait(&self.used[at])?;
        self.calls.make(&own.gather(), own.inside, held.room(unit))?;
        self.calls.mark(&self.gathered[at])?;
        self.holds[at] = Some(unit);
        Ok(())
    }

    /// A unit's parameters, for what is computed next, until `used`.
    pub(super) fn params(&mut self, held: &Held, unit: usize) -> Result<View, Error> {
        if let Some(whole) = held.units[unit].whole {
            return Ok(whole);
        }
        self.ask(held, unit)?;
        self.compute.wait(&self.gathered[unit % 2])?;
        Ok(held.room(unit))
    }

    /// What was computed so far is the last to use the unit's parameters.
    pub(super) fn used(&mut self, unit: usize) -> Result<(), Error> {
        Ok(self.compute.record(&self.used[unit % 2])?)
    }

    /// The gradient of a unit is computed: have it on its way, behind the one before.
    pub(super) fn scatter(
        &mut self,
        held: &Held,
        device: &Device,
        unit: usize,
        slot: usize,
    ) -> Result<(), Error> {
        if let Some([pack, _]) = held.packs(unit) {
            device.to_bf16(pack, held.outgoing(unit))?;
        }
        self.compute.record(&self.computed[unit % 2])?;
        self.flush(held)?;
        self.next = Some((unit, slot));
        Ok(())
    }

    fn flush(&mut self, held: &Held) -> Result<(), Error> {
        let Some((unit, slot)) = self.next.take() else { return Ok(()) };
        self.calls.wait(&self.computed[unit % 2])?;
        let packs = held.packs(unit);
        let plain = || [held.outgoing(unit), held.incoming(unit, slot)];
        let [from, to] = packs.unwrap_or_else(plain);
        self.calls.make(&held.units[unit].scatter(packs.is_some()), from, to)?;
        self.calls.mark(&self.scattered[unit % 2])
    }

    /// What is computed next sees what became of a unit's gradient, whose room is free.
    pub(super) fn settle(
        &mut self,
        held: &Held,
        device: &Device,
        unit: usize,
        slot: usize,
    ) -> Result<(), Error> {
        if self.next == Some((unit, slot)) {
            self.flush(held)?;
        }
        self.compute.wait(&self.scattered[unit % 2])?;
        let sum = held.units[unit].grads;
        if let Some([_, pieces]) = held.packs(unit) {
            return device.add_bf16(sum, pieces, slot == 0 || held.adds_up());
        }
        let incoming = held.incoming(unit, slot);
        if sum == incoming { Ok(()) } else { device.add(sum, incoming) }
    }

    /// This rank's part of a unit is updated: everyone gets it who keeps the unit whole.
    pub(super) fn share(&mut self, held: &Held, unit: usize) -> Result<(), Error> {
        let own = &held.units[unit];
        let Some(whole) = own.whole else { return Ok(()) };
        self.compute.record(&self.computed[unit % 2])?;
        self.calls.wait(&self.computed[unit % 2])?;
        self.calls.make(&own.gather(), own.inside, whole)
    }

    /// All parts are new: whatever is computed or gathered next is of them.
    pub(super) fn renew(&mut self) -> Result<(), Error> {
        self.holds = [None; 2];
        self.compute.record(&self.used[0])?;
        self.calls.wait(&self.used[0])?;
        self.calls.mark(&self.gathered[0])?;
        Ok(self.compute.wait(&self.gathered[0])?)
    }
}

fn two(context: &Context) -> Result<[Event; 2], Error> {
    Ok([Event::new(context)?, Event::new(context)?])
}
