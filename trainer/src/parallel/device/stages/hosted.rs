//! A stage's state with the host, which updates it as it does without a device: in parts, by any
//! rule, with what it has in files. The device has room for the stage's parameters as products read
//! them, which go up once a step, in forward's order, and for their gradients, which come down once
//! a step, or, where the host adds up in order, of each micro-batch.

use crate::device::Wire;
use crate::error::Error;
use crate::kernels::cuda::{Device, ProductFormat, Room, View};
use crate::layout::Layout;
use crate::norms::ExactSum;
use crate::offload::DiskUse;
use crate::optim::Optimizer;
use crate::parallel::device::longest;
use crate::parallel::{Memory, Shards};
use crate::state::State;
use brigade_cuda::Event;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// What of it is on the device.
pub(super) struct Views {
    units: Range<usize>,
    /// Where their parameters begin in the layout.
    start: usize,
    /// [parameters]
    params: View,
    /// [parameters] in f32.
    grads: View,
    /// A micro-batch's gradient of the longest unit, where micro-batches are added up here.
    lane: View,
}

/// A stage.
pub(super) struct Hosted<'a> {
    views: Views,
    shards: Shards<'a>,
    /// Of its own: what comes down of several stages comes in no common order.
    wire: Wire,
    /// Whether the host gets each micro-batch's gradient.
    is_each: bool,
    /// How many units' parameters went up since the last update.
    sent: usize,
    /// After that update.
    updated: Event,
    /// Gradients on their way down: unit and slot.
    coming: VecDeque<(usize, usize)>,
    /// How long files had been waited for when this was asked last.
    files_waited: Duration,
    disk_formula: DiskUse,
}

impl Views {
    pub(super) fn take(
        room: &mut Room,
        layout: &Layout,
        units: Range<usize>,
        slots: usize,
        inside: ProductFormat,
    ) -> Views {
        let (range, longest) = (layout.span(&units), longest(layout, units.clone()));
        Views {
            units,
            start: range.start,
            params: room.take(range.len(), inside.size()),
            grads: room.take(range.len(), 4),
            lane: room.take(if slots > 1 { longest } else { 0 }, 4),
        }
    }

    pub(super) fn units(&self) -> Range<usize> {
        self.units.clone()
    }

    /// A unit's parameters, and their gradient.
    fn of(&self, layout: &Layout, unit: usize) -> [View; 2] {
        let range = layout.unit(unit);
        let part = range.start - self.start..range.end - self.start;
        [self.params, self.grads].map(|view| view.part(part.clone()))
    }
}

impl<'a> Hosted<'a> {
    /// With the host's part of it.
    pub(super) fn new(
        views: Views,
        mut shards: Shards<'a>,
        is_each: bool,
        layout: &Layout,
        device: &Device,
    ) -> Result<Hosted<'a>, Error> {
        shards.go_one_way();
        let longest = longest(layout, views.units());
        Ok(Hosted {
            wire: Wire::new(device.stream(), 4 * longest)?,
            disk_formula: shards.disk_formula_with(|_| 1),
            updated: Event::new(device.context())?,
            sent: 0,
            coming: VecDeque::new(),
            files_waited: Duration::ZERO,
            views,
            shards,
            is_each,
        })
    }

    pub(super) fn units(&self) -> Range<usize> {
        self.views.units()
    }

    /// A unit's parameters and room for its gradient, whatever is there.
    pub(super) fn views(&self, layout: &Layout, unit: usize) -> [View; 2] {
        self.views.of(layout, unit)
    }

    /// A unit's parameters, on the device.
    pub(super) fn params(&mut self, layout: &Layout, unit: usize) -> Result<View, Error> {
        let Hosted { views, shards, wire, sent, updated, .. } = self;
        let [params, _] = views.of(layout, unit);
        let at = unit - views.units.start;
        if at >= *sent {
            assert_eq!(at, *sent, "forward goes through the units in order");
            shards.prefetch(unit)?;
            shards.prefetch(unit + 1)?;
            wire.send(params, shards.fetch(unit)?, updated)?;
            shards.release(unit);
            *sent += 1;
        }
        Ok(params)
    }

    /// Where backward leaves a micro-batch's gradient of a unit.
    pub(super) fn lane(
        &mut self,
        layout: &Layout,
        unit: usize,
        done: usize,
    ) -> Result<View, Error> {
        let [_, grads] = self.views.of(layout, unit);
        if !self.is_each && done > 0 {
            return Ok(self.views.lane.first(grads.len()));
        }
        // The one of the micro-batch before has left it.
        while self.coming.iter().any(|(coming, _)| *coming == unit) {
            self.take()?;
        }
        Ok(grads)
    }

    /// It is there: add it up, or have it on its way to the host and the other ranks.
    pub(super) fn close(
        &mut self,
        layout: &Layout,
        unit: usize,
        (done, is_last): (usize, bool),
        device: &Device,
    ) -> Result<(), Error> {
        let [_, grads] = self.views.of(layout, unit);
        if !self.is_each && done > 0 {
            device.add(grads, self.views.lane.first(grads.len()))?;
        }
        if !self.is_each && !is_last {
            return Ok(());
        }
        if self.wire.is_full() {
            self.take()?;
        }
        self.wire.fetch(grads)?;
        self.coming.push_back((unit, if self.is_each { done } else { 0 }));
        Ok(())
    }

    /// The gradient that comes down first goes on to the other ranks.
    fn take(&mut self) -> Result<(), Error> {
        let (unit, slot) = self.coming.pop_front().expect("a gradient is coming down");
        self.wire.take(self.shards.open_gradient(unit, slot)?, 4)?;
        self.shards.close(unit, slot)
    }

    fn take_all(&mut self) -> Result<(), Error> {
        while !self.coming.is_empty() {
            self.take()?;
        }
        Ok(())
    }

    /// The squares of the gradients, once those have come down, of the tensors that are counted,
    /// and how long this waited for other ranks.
    pub(super) fn squares(
        &mut self,
        counts: &dyn Fn(usize) -> bool,
    ) -> Result<(ExactSum, Duration), Error> {
        self.take_all()?;
        let squares = self.shards.squares(counts)?;
        Ok((squares, self.shards.take_waited()))
    }

    /// Move the state against the gradients, once those have come down. How long this waited for
    /// other ranks, and for files.
    pub(super) fn update(
        &mut self,
        device: &Device,
        (optimizer, lr): (&mut Optimizer, f32),
    ) -> Result<[Duration; 2], Error> {
        self.take_all()?;
        optimizer.scale = 1.0;
        self.shards.update(optimizer, lr)?;
        self.sent = 0;
        device.stream().record(&self.updated)?;
        Ok(self.take_waited())
    }

    /// How long this waited for other ranks, and for files, since this was asked last.
    pub(super) fn take_waited(&mut self) -> [Duration; 2] {
        let files = self.shards.disk_use().waited;
        let waited = files - std::mem::replace(&mut self.files_waited, files);
        [self.shards.take_waited(), waited]
    }

    /// The state goes to its place. Collective over ranks with other samples.
    pub(super) fn gather(&mut self, state: &mut State) -> Result<(), Error> {
        self.shards.gather(state)
    }

    /// What the host has of it.
    pub(super) fn memory(&self) -> Memory {
        let [params, grads, moments, calls, arena] = self.shards.bytes();
        let calls = calls + self.wire.bytes();
        Memory { params, grads, moments, calls, arena, activations: 0 }
    }

    /// Payload bytes that a step sends for it.
    pub(super) fn formula_bytes(&self) -> Result<u64, Error> {
        self.shards.formula_bytes_with(|_| 1)
    }

    /// Wait for all that is on its way between host and device.
    pub(super) fn settle(&self) -> Result<(), Error> {
        self.wire.settle()
    }

    /// What files have cost so far, and what a step costs by formula.
    pub(super) fn disk(&self) -> [DiskUse; 2] {
        [self.shards.disk_use(), self.disk_formula]
    }
}
