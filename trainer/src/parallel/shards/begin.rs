//! What a rank starts from, unit by unit: nobody has the whole state for it.

use super::{Shards, Unit};
use crate::error::Error;
use crate::layout::Layout;
use crate::model::Initial;
use crate::parallel::Peers;
use std::path::PathBuf;

/// Where a rank's part of a state comes from.
#[derive(Clone, Debug, Default)]
pub enum Source {
    /// The state that is given, or nothing if that is absent.
    #[default]
    Given,
    /// Weights drawn by a seed, and no moments yet.
    Seed(u64),
    /// What a run has kept in these files, of all its ranks.
    Kept(Vec<PathBuf>),
}

impl Shards<'_> {
    /// In place of a state that was absent: weights drawn by a seed. Before they are narrowed or
    /// moved. Collective.
    ///
    /// What is held more than once is drawn by one rank, since the logarithms of two machines may
    /// differ in their last bits.
    pub fn draw<'p>(
        &mut self,
        seed: u64,
        layout: &Layout,
        peers: impl Into<Peers<'p>>,
    ) -> Result<(), Error> {
        let peers = peers.into();
        let untiled = Layout::new(*layout.config());
        let (initial, pieces) = (Initial::new(&untiled, seed), layout.pieces());
        let draw = |first: usize, params: &mut [f32]| {
            let end = first + params.len();
            for (there, here) in &pieces {
                let (from, to) = (here.start.max(first), here.end.min(end));
                if from < to {
                    let there = there.start + (from - here.start);
                    initial.fill(there, &mut params[from - first..to - first]);
                }
            }
        };
        for Unit { range, cut, whole, part, .. } in &mut self.units {
            let (copies, first, params) = match whole.is_empty() {
                true => (peers.replicas, range.start + cut.part.start, part),
                false => (peers.data, range.start, whole),
            };
            if copies.is_none_or(|copies| copies.rank() == 0) {
                draw(first, params);
            }
            copies.map_or(Ok(()), |copies| copies.broadcast(params, 0))?;
        }
        Ok(())
    }
}
