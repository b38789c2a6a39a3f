//! One update of all units: chunks of their state come and go meanwhile.

use super::{Disk, Span};
use crate::error::Error;
use crate::offload::DiskUse;
use crate::optim::{Moments, Optimizer};
use crate::trace::{self, Lane};
use brigade_offload::layout::Placed;
use brigade_offload::optimizer::{Gradients, Moment, Narrowed, Weights, square_sum};
use brigade_offload::step::{Drafted, Format, Optimize, Running, State, Tier as Place};
use std::ops::Range;
use std::time::{Duration, Instant};

/// The update of all units, the last first, wherever their state is.
pub(crate) struct Pass<'a, 'b> {
    optimizer: &'a mut Optimizer,
    lr: f32,
    stream: Option<Stream<'a, 'b>>,
}

struct Stream<'a, 'b> {
    running: Running<'a, Drafted<'b>>,
    spans: &'a [Span],
    has_params: bool,
    is_finite: &'a mut bool,
    used: &'a mut DiskUse,
}

/// Let `work` update every unit, the last first, whether their state is in memory or in a file.
pub(crate) fn pass(
    disk: Option<&mut Disk>,
    optimizer: &mut Optimizer,
    lr: f32,
    work: impl FnOnce(&mut Pass<'_, '_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let Some(disk) = disk else { return work(&mut Pass { optimizer, lr, stream: None }) };
    disk.forget()?;
    disk.stream(optimizer, lr, work)?;
    disk.restart()
}

impl Pass<'_, '_> {
    /// Update this rank's part of a unit. params: all of it, or nothing if it is in the file;
    /// narrowed: where narrower copies go.
    pub(crate) fn update(
        &mut self,
        unit: usize,
        params: &mut [f32],
        mut narrowed: Narrowed<'_>,
        moments: &mut Moments,
        grads: &[f32],
    ) -> Result<(), Error> {
        let Some(stream) = &mut self.stream else {
            self.optimizer.update_both(params, narrowed, moments, grads, self.lr);
            return Ok(());
        };
        let (span, from) = (stream.spans[unit], Instant::now());
        let groups = self.optimizer.updates(moments, self.lr);
        let weights = match stream.has_params {
            true => Place::Streamed(Format::F32),
            false => Place::Memory(Weights::F32(params)),
        };
        let mean = Place::Streamed(Format::F32);
        let square = match moments.count() {
            1 => Place::Memory(Moment::None),
            _ => Place::Streamed(Format::F32),
        };
        let state = State { weights, mean, square };
        let mut optimize = Optimize { crew: &mut self.optimizer.crew, groups: &groups, state };
        let mut computing = Duration::ZERO;
        let wait = || Some(trace::span(Lane::Files, "for state of unit", unit));
        let mut waiting = wait();
        let mut middle = |elements: Range<usize>, arrays: &mut [&mut [u8]]| {
            waiting = None;
            let from = Instant::now();
            let here = elements.start - span.first..(elements.end - span.first).min(span.len);
            let cut = arrays.iter_mut().map(|array| &mut array[..4 * here.len()]);
            let mut arrays: Vec<&mut [u8]> = cut.collect();
            let grads = Gradients::F32(&grads[here.clone()]);
            optimize.part(here.clone(), &mut arrays, grads, narrowed.part(here))?;
            if stream.has_params {
                // They are in the cache still.
                for array in &arrays {
                    let numbers = Gradients::F32(bytemuck::cast_slice(array));
                    *stream.is_finite &= square_sum(optimize.crew, numbers).is_finite();
                }
            }
            computing += from.elapsed();
            waiting = wait();
            Ok(())
        };
        let elements = span.first..span.first + span.padded;
        stream.running.update(elements, &mut middle).map_err(Error::offload)?;
        drop(waiting);
        stream.used.waited += from.elapsed().saturating_sub(computing);
        Ok(())
    }
}

impl Disk {
    /// Let `work` update every unit while chunks come and go.
    fn stream(
        &mut self,
        optimizer: &mut Optimizer,
        lr: f32,
        work: impl FnOnce(&mut Pass<'_, '_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Disk { carrier, state, draft, pipeline, arrays, spans, .. } = self;
        let Disk { has_params, is_finite, used, .. } = self;
        let (arrays, step): (Vec<&Placed>, usize) = (arrays.iter().collect(), optimizer.steps + 1);
        let draft = draft.as_mut().expect("nothing is being committed");
        let mut home = Drafted::new(carrier, state, draft, &arrays).map_err(Error::offload)?;
        let running = pipeline.begin(&mut home).map_err(Error::offload)?;
        let stream = Stream { running, spans, has_params: *has_params, is_finite, used };
        let mut pass = Pass { optimizer, lr, stream: Some(stream) };
        work(&mut pass)?;
        if let Some(Stream { running, used, .. }) = pass.stream {
            let from = Instant::now();
            let _waiting = trace::span(Lane::Files, "for the last writes of step", step);
            let moved = running.finish().map_err(Error::offload)?;
            used.waited += from.elapsed();
            used.read_bytes += moved.read_bytes;
            used.written_bytes += moved.written_bytes;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Unit;
    use super::*;
    use crate::layout::{Config, Layout};
    use crate::offload::{Offload, Tier};
    use crate::optim::Hyper;
    use crate::state::Array;

    #[test]
    fn moments_that_are_no_numbers_are_not_kept_however_parameters_are() {
        let config =
            Config { vocab: 7, context: 5, layers: 1, heads: 1, width: 4, experts: 0, top: 0 };
        let (layout, folder) = (Layout::new(config), std::env::temp_dir());
        let folder = folder.join(format!("brigade-endless-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (range, tier) = (layout.unit(0), Tier::Nvme(folder.clone()));
        let (len, host_budget, from) = (range.len(), None, None);
        let offload = Offload { tier, host_budget, place: (0, 1), parts: 1, stays: true, from };
        let mut ends = Vec::new();
        // The square of the second is beyond all numbers of 32 bits, which moves nothing.
        for gradient in [0.1, 1e25] {
            let (params, zeros) = (vec![1.0; len], vec![0.0; len]);
            let mut moments = Moments::new(&layout, range.clone(), &zeros, &zeros);
            let unit =
                Unit { number: 0, whole: len, first: 0, params: &params, moments: Some(&moments) };
            let mut disk = Disk::new(&folder, &offload, &[unit], true).unwrap();
            let mut optimizer = Optimizer::new(Hyper::default(), 1, 0).unwrap();
            let grads = vec![gradient; len];
            pass(Some(&mut disk), &mut optimizer, 0.1, |pass| {
                pass.update(0, &mut [], Narrowed::None, &mut moments, &grads)
            })
            .unwrap();
            let moved = disk.array(0, Array::Params).unwrap().unwrap();
            assert!(moved.iter().all(|value| value.is_finite()), "{gradient}");
            ends.push(disk.commit(1, "a note").map_err(|error| error.to_string()));
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(ends[0], Ok(()));
        let refused = ends[1].as_ref().unwrap_err();
        assert!(refused.contains("no numbers"), "{refused}");
    }
}
