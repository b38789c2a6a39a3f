//! The state of some units, all of it on the device, which updates it too: what a process alone
//! has there, a rank of DDP, or a stage of a pipeline.

use super::{counted, longest, runs};
use crate::device::Wire;
use crate::error::Error;
use crate::kernels::cuda::{Device, ProductFormat, Room, View};
use crate::layout::Layout;
use crate::optim::Optimizer;
use crate::parallel::source::Passing;
use crate::parallel::{Memory, Take};
use crate::state::Array;
use std::ops::Range;

/// Numbers of these units, by their place on the device.
pub(super) struct Held {
    pub(super) units: Range<usize>,
    /// Where their parameters begin in the layout.
    start: usize,
    /// [parameters] in f32, and what products read of them: themselves where that is f32 too.
    params: View,
    inside: View,
    /// [parameters] each.
    grads: View,
    mean: View,
    square: View,
    /// A lane's gradient of the longest unit, where there is more than one lane.
    lane: View,
}

impl Held {
    pub(super) fn take(
        room: &mut Room,
        layout: &Layout,
        units: Range<usize>,
        slots: usize,
        inside: ProductFormat,
    ) -> Held {
        let (range, longest) = (layout.span(&units), longest(layout, units.clone()));
        let len = range.len();
        let params = room.take(len, 4);
        Held {
            units,
            start: range.start,
            params,
            inside: if inside.size() == 4 { params } else { room.take(len, inside.size()) },
            grads: room.take(len, 4),
            mean: room.take(len, 4),
            square: room.take(len, 4),
            lane: room.take(if slots > 1 { longest } else { 0 }, 4),
        }
    }

    /// What starts here goes to the device, and what products read, unit by unit.
    pub(super) fn fill(
        &self,
        wire: &mut Wire,
        layout: &Layout,
        passing: &mut Passing<'_>,
    ) -> Result<(), Error> {
        for range in self.units.clone().map(|unit| layout.unit(unit)) {
            wire.put(self.of(self.mean, &range), passing.unit(Array::Mean, &range)?)?;
            wire.put(self.of(self.square, &range), passing.unit(Array::Square, &range)?)?;
            let numbers = passing.unit(Array::Params, &range)?;
            wire.put(self.of(self.params, &range), numbers)?;
            if self.inside != self.params {
                wire.put(self.of(self.inside, &range), numbers)?;
            }
        }
        Ok(())
    }

    /// A unit's parameters, as products read them.
    pub(super) fn params(&self, layout: &Layout, unit: usize) -> View {
        self.of(self.inside, &layout.unit(unit))
    }

    /// The sum of a unit's gradients.
    pub(super) fn grads(&self, layout: &Layout, unit: usize) -> View {
        self.of(self.grads, &layout.unit(unit))
    }

    /// Where backward of a slot leaves a unit's gradient: the first where the sum is.
    pub(super) fn lane(&self, layout: &Layout, unit: usize, slot: usize) -> View {
        let sum = self.grads(layout, unit);
        if slot == 0 { sum } else { self.lane.first(sum.len()) }
    }

    /// The gradients of a unit's tensors that are counted.
    pub(super) fn counted(
        &self,
        layout: &Layout,
        unit: usize,
        counts: impl Fn(usize) -> bool,
    ) -> impl Iterator<Item = View> {
        counted(layout, layout.unit(unit), counts).map(|range| self.of(self.grads, &range))
    }

    /// Move the parameters of a unit against their gradients.
    pub(super) fn update(
        &self,
        device: &Device,
        layout: &Layout,
        unit: usize,
        (optimizer, lr): (&Optimizer, f32),
    ) -> Result<(), Error> {
        let Held { params, inside, grads, mean, square, .. } = *self;
        for (range, decays) in runs(layout, layout.unit(unit)) {
            let step = optimizer.adamw_step(lr, decays);
            let arrays = [params, mean, square, grads].map(|view| self.of(view, &range));
            let narrow = (inside != params).then(|| self.of(inside, &range));
            device.adamw(&step, arrays, narrow)?;
        }
        Ok(())
    }

    /// Hand the state over, unit by unit.
    pub(super) fn tell(
        &self,
        wire: &mut Wire,
        layout: &Layout,
        has_moments: bool,
        take: &mut Take<'_>,
    ) -> Result<(), Error> {
        let mut room = Vec::new();
        let arrays =
            [(Array::Params, self.params), (Array::Mean, self.mean), (Array::Square, self.square)];
        for range in self.units.clone().map(|unit| layout.unit(unit)) {
            room.resize(range.len(), 0.0);
            for (array, view) in &arrays[..if has_moments { 3 } else { 1 }] {
                wire.read(self.of(*view, &range), &mut room)?;
                take(*array, range.start, &room)?;
            }
        }
        Ok(())
    }

    /// Bytes by kind.
    pub(super) fn memory(&self) -> Memory {
        let bytes = |views: &[View]| views.iter().map(|view| view.bytes()).sum::<usize>() as u64;
        let Held { params, inside, grads, mean, square, lane, .. } = *self;
        let copy = if inside == params { 0 } else { bytes(&[inside]) };
        Memory {
            params: bytes(&[params]) + copy,
            grads: bytes(&[grads, lane]),
            moments: bytes(&[mean, square]),
            ..Memory::default()
        }
    }

    /// The part of an array that is at this range of the layout.
    fn of(&self, array: View, range: &Range<usize>) -> View {
        array.part(range.start - self.start..range.end - self.start)
    }
}
