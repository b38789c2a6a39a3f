//! What a rank of these starts from.

use super::{Shards, Stage, Unit};
use crate::error::Error;
use crate::layout::Layout;
use crate::parallel::Peers;
use crate::parallel::source::{Passing, Source, Weights};
use crate::state::{Array, State};

impl Shards<'_> {
    /// Have the numbers of a source, in place of a state that was absent, before they are narrowed
    /// or moved. Collective over all peers.
    pub fn begin<'p>(
        &mut self,
        source: &Source,
        layout: &Layout,
        peers: impl Into<Peers<'p>>,
    ) -> Result<(), Error> {
        let (untiled, peers) = (Layout::new(*layout.config()), peers.into());
        match source {
            Source::Given | Source::Kept(_) => Ok(()),
            Source::Seed(seed) => self.draw(&Weights::new(*seed, layout, &untiled), peers),
            Source::File(..) => {
                let nothing = State::absent();
                let layouts = (layout, &untiled);
                self.read(Passing::open(source, &nothing, layouts, peers.data)?)
            }
        }
    }

    /// Weights drawn by a seed.
    ///
    /// What is held more than once is drawn by one rank, since the logarithms of two machines may
    /// differ in their last bits.
    fn draw(&mut self, weights: &Weights<'_>, peers: Peers<'_>) -> Result<(), Error> {
        for Unit { range, cut, whole, part, .. } in &mut self.units {
            let (copies, first, params) = match whole.is_empty() {
                true => (peers.replicas, range.start + cut.part.start, part),
                false => (peers.data, range.start, whole),
            };
            if copies.is_none_or(|copies| copies.rank() == 0) {
                weights.draw(first, params);
            }
            copies.map_or(Ok(()), |copies| copies.broadcast(params, 0))?;
        }
        Ok(())
    }

    /// Units of a checkpoint, which pass by every rank one after the other.
    fn read(&mut self, mut passing: Passing<'_>) -> Result<(), Error> {
        for Unit { range, cut, whole, part, moments, .. } in &mut self.units {
            let updates =
                if self.sharing.stage == Stage::Ddp { 0..cut.len() } else { cut.part.clone() };
            let params = passing.unit(Array::Params, range)?;
            match whole.is_empty() {
                true => part.copy_from_slice(&params[cut.part.clone()]),
                false => whole.copy_from_slice(params),
            }
            let mean = passing.unit(Array::Mean, range)?;
            moments.mean.copy_from_slice(&mean[updates.clone()]);
            let square = passing.unit(Array::Square, range)?;
            moments.square.copy_from_slice(&square[updates]);
        }
        Ok(())
    }
}
