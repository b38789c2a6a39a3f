//! The parts of all ranks, put together unit by unit.

use super::{Shards, Stage, Unit};
use crate::error::Error;
use crate::offload::Disk;
use crate::parallel::Take;
use crate::precision::Precision;
use crate::state::{Array, State};

impl Shards<'_> {
    /// Put the ranks' parts together, on every rank of the group. Each writes the ranges of its
    /// units in `state`.
    pub fn gather(&mut self, state: &mut State) -> Result<(), Error> {
        self.tell(true, &mut |array, first, values| {
            state.put(array, first, values);
            Ok(())
        })
    }

    /// The same, handed over unit by unit: parameters, and moments if they are asked for. A rank
    /// has no more than one of them whole.
    pub fn tell(&mut self, has_moments: bool, take: &mut Take<'_>) -> Result<(), Error> {
        let mut room = Vec::new();
        for at in 0..self.units.len() {
            // What is computed with is not what is updated, then.
            let is_narrow = self.precision != Precision::F32 || !self.packs.is_empty();
            let first = self.units[at].range.start;
            if !is_narrow {
                take(Array::Params, first, self.fetch(self.first + at)?)?;
                self.release(self.first + at);
            }
            let Unit { cut, part, moments, .. } = &self.units[at];
            let arrays: [(Array, &[f32], bool); 3] = [
                (Array::Params, part, is_narrow),
                (Array::Mean, &moments.mean, has_moments),
                (Array::Square, &moments.square, has_moments && moments.count() > 1),
            ];
            for (array, mine, _) in arrays.into_iter().filter(|(_, _, is_there)| *is_there) {
                let read = self.disk.as_mut().map_or(Ok(None), |disk| disk.array(at, array))?;
                let mine = read.as_deref().unwrap_or(mine);
                match self.group.filter(|_| self.sharing.stage > Stage::Ddp) {
                    Some(group) => {
                        room.resize(cut.len(), 0.0);
                        group.all_gather_v(mine, &mut room, &cut.counts)?;
                        take(array, first, &room)?;
                    }
                    None => take(array, first, mine)?,
                }
            }
        }
        self.forget_near();
        self.disk.as_mut().map_or(Ok(()), Disk::restart)
    }
}
