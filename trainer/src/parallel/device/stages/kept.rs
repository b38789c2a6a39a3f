//! Where a stage's state is kept: on the device, in parts on those of several ranks, or with the
//! host.

use super::divided::Divided;
use super::hosted::Hosted;
use crate::device::{Calls, DeviceGpt, Wire};
use crate::error::Error;
use crate::kernels::cuda::{Device, View};
use crate::layout::Layout;
use crate::norms::ExactSum;
use crate::offload::DiskUse;
use crate::optim::Optimizer;
use crate::parallel::Memory;
use crate::parallel::device::held::Held;
use crate::parallel::device::sums::Sums;
use crate::parallel::source::Passing;
use crate::state::State;
use std::ops::Range;
use std::time::Duration;

/// One stage's.
pub(super) enum Kept<'a> {
    /// The device updates it.
    Here(Held),
    /// The devices of several ranks have its parts: of these units.
    Parts(Range<usize>),
    /// The host does.
    There(Box<Hosted<'a>>),
}

/// What the stages of a rank have in common.
pub(super) struct Common<'a> {
    pub(super) layout: &'a Layout,
    /// Of gradients, where each of several ranks has the whole state.
    pub(super) sums: Sums<'a>,
    /// The state, where they have it in parts.
    pub(super) divided: Option<Divided<'a>>,
    /// For state, text, and gradients that the hosts sum.
    pub(super) wire: Wire,
}

impl<'a> Common<'a> {
    /// Calls of the devices.
    pub(super) fn calls(&self) -> impl Iterator<Item = &Calls<'a>> {
        self.sums.calls().into_iter().chain(self.divided.as_ref().map(Divided::calls))
    }

    fn divided(&mut self) -> &mut Divided<'a> {
        self.divided.as_mut().expect("a state in parts")
    }

    fn parts(&self) -> &Divided<'a> {
        self.divided.as_ref().expect("a state in parts")
    }
}

impl<'a> Kept<'a> {
    pub(super) fn units(&self) -> Range<usize> {
        match self {
            Kept::Here(held) => held.units.clone(),
            Kept::Parts(units) => units.clone(),
            Kept::There(hosted) => hosted.units(),
        }
    }

    /// What this rank starts from goes to the device, if it has the state.
    pub(super) fn fill(
        &self,
        common: &mut Common<'a>,
        passing: &mut Passing<'_>,
    ) -> Result<(), Error> {
        let Common { layout, divided, wire, .. } = common;
        match (self, divided) {
            (Kept::Here(held), _) => held.fill(wire, layout, passing),
            (Kept::Parts(units), Some(divided)) => divided.fill(units.clone(), wire, passing),
            _ => Ok(()),
        }
    }

    /// A unit's parameters and room for its gradient, whatever is there.
    pub(super) fn views(&self, common: &Common<'a>, unit: usize) -> [View; 2] {
        let layout = common.layout;
        match self {
            Kept::Here(held) => [held.params(layout, unit), held.grads(layout, unit)],
            Kept::Parts(_) => common.parts().views(layout, unit),
            Kept::There(hosted) => hosted.views(layout, unit),
        }
    }

    /// The schedule wants the parameters of all units whole from here on, or not any more.
    pub(super) fn make_whole(&self, is_wanted: bool, common: &mut Common<'a>) -> Result<(), Error> {
        match self {
            Kept::Parts(units) if is_wanted => common.divided().ask(units.start),
            Kept::Parts(units) => common.divided().used(units.start),
            // They stay for all of a step.
            _ => Ok(()),
        }
    }

    /// A unit's parameters, as products read them.
    pub(super) fn params(&mut self, unit: usize, common: &mut Common<'a>) -> Result<View, Error> {
        let layout = common.layout;
        match self {
            Kept::Here(held) => Ok(held.params(layout, unit)),
            Kept::Parts(_) => common.divided().params(layout, unit),
            Kept::There(hosted) => hosted.params(layout, unit),
        }
    }

    /// Where backward leaves a unit's gradient, of the micro-batch behind so many that are done,
    /// which is the last or is not.
    pub(super) fn lane(
        &mut self,
        unit: usize,
        (done, is_last): (usize, bool),
        common: &mut Common<'a>,
        device: &Device,
    ) -> Result<View, Error> {
        let layout = common.layout;
        match self {
            Kept::Here(held) => Ok(held.lane(layout, unit, done)),
            Kept::Parts(_) => common.divided().lane(layout, unit, (done, is_last), device),
            Kept::There(hosted) => hosted.lane(layout, unit, done),
        }
    }

    /// It is there, of that micro-batch.
    pub(super) fn close(
        &mut self,
        unit: usize,
        (done, is_last): (usize, bool),
        common: &mut Common<'a>,
        device: &Device,
    ) -> Result<(), Error> {
        let Common { layout, sums, wire, .. } = common;
        match self {
            Kept::There(hosted) => hosted.close(layout, unit, (done, is_last), device),
            Kept::Parts(_) => common.divided().close(unit, (done, is_last), device),
            Kept::Here(held) => {
                let sum = held.grads(layout, unit);
                if done > 0 {
                    device.add(sum, held.lane(layout, unit, done))?;
                }
                if is_last { sums.sum(unit, sum, wire) } else { Ok(()) }
            }
        }
    }

    /// Before the update: the squares of the gradients of the tensors that are counted, and how
    /// long this waited for other ranks.
    pub(super) fn squares(
        &mut self,
        counts: &dyn Fn(usize) -> bool,
        common: &mut Common<'a>,
        gpt: &DeviceGpt<'a>,
    ) -> Result<(ExactSum, Duration), Error> {
        let Common { layout, sums, divided, wire } = common;
        match (self, divided) {
            (Kept::There(hosted), _) => hosted.squares(counts),
            (Kept::Parts(units), divided) => {
                let divided = divided.as_ref().expect("a state in parts");
                let grads = divided.counted(units.clone(), layout, counts);
                Ok((gpt.squares(wire, grads)?, Duration::ZERO))
            }
            (Kept::Here(held), _) => {
                sums.flush(wire)?;
                let (units, mut waited) = (held.units.clone(), Duration::ZERO);
                for unit in units.clone().rev() {
                    waited += sums.take(unit, held.grads(layout, unit), wire)?;
                }
                let grads = units.flat_map(|unit| held.counted(layout, unit, counts));
                Ok((gpt.squares(wire, grads)?, waited))
            }
        }
    }

    /// Move the state against the gradients. How long this waited for other ranks, and for files.
    pub(super) fn update(
        &mut self,
        (optimizer, lr): (&mut Optimizer, f32),
        common: &mut Common<'a>,
        device: &Device,
    ) -> Result<[Duration; 2], Error> {
        let Common { layout, sums, wire, .. } = common;
        let held = match self {
            Kept::There(hosted) => return hosted.update(device, (optimizer, lr)),
            Kept::Parts(units) => {
                let (layout, units) = (*layout, units.clone());
                common.divided().update(units, layout, (optimizer, lr), device)?;
                return Ok([Duration::ZERO; 2]);
            }
            Kept::Here(held) => held,
        };
        let mut waited = Duration::ZERO;
        sums.flush(wire)?;
        for unit in held.units.clone().rev() {
            // Whoever clips has taken all of them before.
            if !optimizer.clips() {
                waited += sums.take(unit, held.grads(layout, unit), wire)?;
            }
            held.update(device, layout, unit, (optimizer, lr))?;
        }
        device.stream().synchronize()?;
        Ok([waited, Duration::ZERO])
    }

    /// How long this waited for other ranks, and for files, since this was asked last.
    pub(super) fn take_waited(&mut self) -> [Duration; 2] {
        match self {
            Kept::Here(_) | Kept::Parts(_) => [Duration::ZERO; 2],
            Kept::There(hosted) => hosted.take_waited(),
        }
    }

    /// The state goes to its place, if `Divided` does not have it. Collective over ranks with other
    /// samples.
    pub(super) fn gather(
        &mut self,
        layout: &Layout,
        wire: &mut Wire,
        state: &mut State,
    ) -> Result<(), Error> {
        match self {
            Kept::There(hosted) => hosted.gather(state),
            Kept::Parts(_) => Ok(()),
            Kept::Here(held) => held.tell(wire, layout, true, &mut |array, first, values| {
                state.put(array, first, values);
                Ok(())
            }),
        }
    }

    /// Bytes by kind, of the device or of the host, without those of `Divided`.
    pub(super) fn memory(&self) -> Memory {
        match self {
            Kept::Here(held) => held.memory(),
            Kept::Parts(_) => Memory::default(),
            Kept::There(hosted) => hosted.memory(),
        }
    }

    /// Payload bytes that a step sends for it, beside `Sums`.
    pub(super) fn formula_bytes(&self) -> Result<u64, Error> {
        match self {
            Kept::Here(_) | Kept::Parts(_) => Ok(0),
            Kept::There(hosted) => hosted.formula_bytes(),
        }
    }

    /// What files have cost so far, and what a step costs by formula.
    pub(super) fn disk(&self) -> [DiskUse; 2] {
        match self {
            Kept::Here(_) | Kept::Parts(_) => [DiskUse::default(); 2],
            Kept::There(hosted) => hosted.disk(),
        }
    }

    /// Wait for all that is on its way between host and device.
    pub(super) fn settle(&self) -> Result<(), Error> {
        match self {
            Kept::Here(_) | Kept::Parts(_) => Ok(()),
            Kept::There(hosted) => hosted.settle(),
        }
    }
}
