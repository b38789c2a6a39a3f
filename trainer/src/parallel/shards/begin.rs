//! What a rank starts from, unit by unit: nobody has the whole state for it.

use super::{Shards, Stage, Unit};
use crate::checkpoint::Reader;
use crate::error::Error;
use crate::layout::Layout;
use crate::model::Initial;
use crate::parallel::Peers;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Where a rank's part of a state comes from.
#[derive(Clone, Debug, Default)]
pub enum Source {
    /// The state that is given, or nothing if that is absent.
    #[default]
    Given,
    /// Weights drawn by a seed, and no moments yet.
    Seed(u64),
    /// A checkpoint, which the first rank has.
    File(PathBuf),
    /// What a run has kept in these files, of all its ranks.
    Kept(Vec<PathBuf>),
}

impl Shards<'_> {
    /// Have the numbers of a source, in place of a state that was absent, before they are narrowed
    /// or moved. Collective over all peers.
    pub fn begin<'p>(
        &mut self,
        source: &Source,
        layout: &Layout,
        peers: impl Into<Peers<'p>>,
    ) -> Result<(), Error> {
        match source {
            Source::Given | Source::Kept(_) => Ok(()),
            Source::Seed(seed) => self.draw(*seed, layout, peers.into()),
            Source::File(path) => self.read(path, layout, peers.into()),
        }
    }

    /// Weights drawn by a seed.
    ///
    /// What is held more than once is drawn by one rank, since the logarithms of two machines may
    /// differ in their last bits.
    fn draw(&mut self, seed: u64, layout: &Layout, peers: Peers<'_>) -> Result<(), Error> {
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

    /// Units of a checkpoint, which pass by every rank one after the other.
    fn read(&mut self, path: &Path, layout: &Layout, peers: Peers<'_>) -> Result<(), Error> {
        let untiled = Layout::new(*layout.config());
        let pieces = layout.pieces();
        let is_first = peers.data.is_none_or(|data| data.rank() == 0);
        let mut file = is_first.then(|| Reader::open(path, &untiled)).transpose()?;
        let mut room = Vec::new();
        for Unit { range, cut, whole, part, moments, .. } in &mut self.units {
            room.resize(range.len(), 0.0);
            let updates =
                if self.sharing.stage == Stage::Ddp { 0..cut.len() } else { cut.part.clone() };
            for array in ["params", "mean", "square"] {
                // A unit is whole tensors, or tiles of them.
                let is_here = |here: &Range<usize>| range.contains(&here.start);
                for (there, here) in pieces.iter().filter(|(_, here)| is_here(here)) {
                    let room = &mut room[here.start - range.start..here.end - range.start];
                    file.as_mut().map_or(Ok(()), |file| file.read(array, there.start, room))?;
                }
                peers.data.map_or(Ok(()), |data| data.broadcast(&mut room, 0))?;
                match array {
                    "params" if whole.is_empty() => part.copy_from_slice(&room[cut.part.clone()]),
                    "params" => whole.copy_from_slice(&room),
                    "mean" => moments.mean.copy_from_slice(&room[updates.clone()]),
                    _ => moments.square.copy_from_slice(&room[updates.clone()]),
                }
            }
        }
        Ok(())
    }
}
