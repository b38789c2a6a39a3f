//! Where a stage's state is kept: on the device, or with the host.

use super::hosted::Hosted;
use crate::device::Wire;
use crate::error::Error;
use crate::kernels::cuda::{Device, View};
use crate::layout::Layout;
use crate::offload::DiskUse;
use crate::optim::Optimizer;
use crate::parallel::Memory;
use crate::parallel::device::held::Held;
use crate::parallel::device::sums::Sums;
use crate::state::State;
use std::ops::Range;
use std::time::Duration;

/// One stage's.
pub(super) enum Kept<'a> {
    /// The device updates it.
    Here(Held),
    /// The host does.
    There(Box<Hosted<'a>>),
}

/// What the stages of a rank have in common.
pub(super) struct Common<'c, 'a> {
    pub(super) layout: &'a Layout,
    pub(super) device: &'c Device,
    pub(super) sums: &'c mut Sums<'a>,
    pub(super) wire: &'c mut Wire,
}

impl Kept<'_> {
    pub(super) fn units(&self) -> Range<usize> {
        match self {
            Kept::Here(held) => held.units.clone(),
            Kept::There(hosted) => hosted.units(),
        }
    }

    /// A unit's parameters and room for its gradient, whatever is there.
    pub(super) fn views(&self, layout: &Layout, unit: usize) -> [View; 2] {
        match self {
            Kept::Here(held) => [held.params(layout, unit), held.grads(layout, unit)],
            Kept::There(hosted) => hosted.views(layout, unit),
        }
    }

    /// A unit's parameters, as products read them.
    pub(super) fn params(&mut self, layout: &Layout, unit: usize) -> Result<View, Error> {
        match self {
            Kept::Here(held) => Ok(held.params(layout, unit)),
            Kept::There(hosted) => hosted.params(layout, unit),
        }
    }

    /// Where backward leaves a unit's gradient, when so many micro-batches are done.
    pub(super) fn lane(
        &mut self,
        layout: &Layout,
        unit: usize,
        done: usize,
    ) -> Result<View, Error> {
        match self {
            Kept::Here(held) => Ok(held.lane(layout, unit, done)),
            Kept::There(hosted) => hosted.lane(layout, unit, done),
        }
    }

    /// It is there, of so many micro-batches that are done, or of the last.
    pub(super) fn close(
        &mut self,
        unit: usize,
        (done, is_last): (usize, bool),
        common: &mut Common<'_, '_>,
    ) -> Result<(), Error> {
        let Common { layout, device, sums, wire } = common;
        match self {
            Kept::There(hosted) => hosted.close(layout, unit, (done, is_last), device),
            Kept::Here(held) => {
                let sum = held.grads(layout, unit);
                if done > 0 {
                    device.add(sum, held.lane(layout, unit, done))?;
                }
                if is_last { sums.sum(sum, wire) } else { Ok(()) }
            }
        }
    }

    /// Move the state against the gradients. How long this waited for other ranks, and for files.
    pub(super) fn update(
        &mut self,
        (optimizer, lr): (&mut Optimizer, f32),
        common: &mut Common<'_, '_>,
    ) -> Result<[Duration; 2], Error> {
        let Common { layout, device, sums, wire } = common;
        let held = match self {
            Kept::There(hosted) => return hosted.update(device, (optimizer, lr)),
            Kept::Here(held) => held,
        };
        let mut waited = Duration::ZERO;
        sums.flush(wire)?;
        for unit in held.units.clone().rev() {
            waited += sums.take(unit, held.grads(layout, unit), wire)?;
            held.update(device, layout, unit, (optimizer, lr))?;
        }
        device.stream().synchronize()?;
        Ok([waited, Duration::ZERO])
    }

    /// How long this waited for other ranks, and for files, since this was asked last.
    pub(super) fn take_waited(&mut self) -> [Duration; 2] {
        match self {
            Kept::Here(_) => [Duration::ZERO; 2],
            Kept::There(hosted) => hosted.take_waited(),
        }
    }

    /// The state goes to its place. Collective over ranks with other samples.
    pub(super) fn gather(
        &mut self,
        layout: &Layout,
        wire: &mut Wire,
        state: &mut State,
    ) -> Result<(), Error> {
        match self {
            Kept::There(hosted) => hosted.gather(state),
            Kept::Here(held) => held.tell(wire, layout, true, &mut |array, first, values| {
                state.put(array, first, values);
                Ok(())
            }),
        }
    }

    /// Bytes by kind: of the device, or of the host.
    pub(super) fn memory(&self) -> Memory {
        match self {
            Kept::Here(held) => held.memory(),
            Kept::There(hosted) => hosted.memory(),
        }
    }

    /// Payload bytes that a step sends for it, beside `Sums`.
    pub(super) fn formula_bytes(&self) -> Result<u64, Error> {
        match self {
            Kept::Here(_) => Ok(0),
            Kept::There(hosted) => hosted.formula_bytes(),
        }
    }

    /// What files have cost so far, and what a step costs by formula.
    pub(super) fn disk(&self) -> [DiskUse; 2] {
        match self {
            Kept::Here(_) => [DiskUse::default(); 2],
            Kept::There(hosted) => hosted.disk(),
        }
    }

    /// Wait for all that is on its way between host and device.
    pub(super) fn settle(&self) -> Result<(), Error> {
        match self {
            Kept::Here(_) => Ok(()),
            Kept::There(hosted) => hosted.settle(),
        }
    }
}
