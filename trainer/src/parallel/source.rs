//! What a run starts from, which passes by every rank unit by unit: nobody has the whole state for
//! it.

use crate::checkpoint::Reader;
use crate::error::Error;
use crate::layout::Layout;
use crate::model::Initial;
use crate::offload::{Origin, overtaken};
use crate::state::{Array, State};
use brigade_comm::Communicator;
use std::ops::Range;
use std::path::PathBuf;

/// Where a rank's part of a state comes from.
#[derive(Clone, Debug, Default)]
pub enum Source {
    /// The state that is given, or nothing if that is absent.
    #[default]
    Given,
    /// Weights drawn by a seed, and no moments yet.
    Seed(u64),
    /// A checkpoint after so many steps, which the first rank has.
    File(PathBuf, usize),
    /// What a run has kept in files of all its ranks.
    Kept(Origin),
}

/// A source that ranks who share their data look at together.
pub(super) struct Passing<'a> {
    start: Start<'a>,
    data: Option<&'a Communicator>,
    room: Vec<f32>,
}

/// Where numbers come from on this rank.
enum Start<'a> {
    Given(&'a State),
    Drawn(Weights<'a>),
    /// With the reader on the first rank.
    File(Option<Box<Reader<'a>>>, Pieces),
}

impl<'a> Passing<'a> {
    /// `untiled` is the layout of the same model without tiles, in which files are.
    ///
    /// Errors, on the first rank: `File` for a checkpoint that is not one of this model;
    /// `Checkpoint` if another is there by now.
    pub(super) fn open(
        source: &Source,
        given: &'a State,
        (layout, untiled): (&Layout, &'a Layout),
        data: Option<&'a Communicator>,
    ) -> Result<Passing<'a>, Error> {
        let is_first = data.is_none_or(|data| data.rank() == 0);
        let start = match source {
            // What is in files stays there, and whoever reads it does so by itself.
            Source::Given | Source::Kept(_) => Start::Given(given),
            Source::Seed(seed) => Start::Drawn(Weights::new(*seed, layout, untiled)),
            Source::File(path, step) => {
                let reader = is_first.then(|| Reader::open(path, untiled)).transpose()?;
                if reader.as_ref().is_some_and(|reader| reader.header.step != *step) {
                    return Err(overtaken(path));
                }
                Start::File(reader.map(Box::new), layout.pieces())
            }
        };
        Ok(Passing { start, data, room: Vec::new() })
    }

    /// An array of a unit, or of neighbouring ones, the same on every rank. Collective.
    ///
    /// Errors: `File` on the first rank; those of a broadcast.
    pub(super) fn unit(&mut self, array: Array, range: &Range<usize>) -> Result<&[f32], Error> {
        let Passing { start, data, room } = self;
        room.clear();
        room.resize(range.len(), 0.0);
        let is_first = data.is_none_or(|data| data.rank() == 0);
        match start {
            Start::Given(state) if state.is_absent() => return Ok(room),
            Start::Given(state) => return Ok(&state.array(array)[range.clone()]),
            Start::Drawn(_) if array != Array::Params => return Ok(room),
            // One rank draws, since the logarithms of two machines may differ in their last bits.
            Start::Drawn(weights) if is_first => weights.draw(range.start, room),
            Start::Drawn(_) => {}
            Start::File(reader, pieces) => {
                // A unit is whole tensors, or tiles of them.
                for (there, here) in pieces.iter().filter(|(_, it)| range.contains(&it.start)) {
                    let room = &mut room[here.start - range.start..here.end - range.start];
                    reader.as_mut().map_or(Ok(()), |file| file.read(array, there.start, room))?;
                }
            }
        }
        data.map_or(Ok(()), |data| data.broadcast(room, 0))?;
        Ok(room)
    }
}

/// Where everything lies in a layout without tiles, and in that of a run.
type Pieces = Vec<(Range<usize>, Range<usize>)>;

/// Weights as a seed draws them.
pub(super) struct Weights<'a> {
    initial: Initial<'a>,
    pieces: Pieces,
}

impl<'a> Weights<'a> {
    pub(super) fn new(seed: u64, layout: &Layout, untiled: &'a Layout) -> Weights<'a> {
        Weights { initial: Initial::new(untiled, seed), pieces: layout.pieces() }
    }

    /// Those from `first` on.
    pub(super) fn draw(&self, first: usize, params: &mut [f32]) {
        let end = first + params.len();
        for (there, here) in &self.pieces {
            let (from, to) = (here.start.max(first), here.end.min(end));
            if from < to {
                let there = there.start + (from - here.start);
                self.initial.fill(there, &mut params[from - first..to - first]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Course, Header, Writer};
    use crate::layout::Config;

    #[test]
    fn a_checkpoint_that_another_run_has_written_meanwhile_is_refused() {
        let path = std::env::temp_dir().join(format!("brigade-source-{}", std::process::id()));
        let config =
            Config { vocab: 7, context: 5, layers: 1, heads: 2, width: 4, experts: 0, top: 0 };
        let (layout, nothing) = (Layout::new(config), State::absent());
        let header = Header { step: 5, config, course: Course::new(), loss_scale: None };
        let mut file = Writer::create(&path, &layout, &header).unwrap();
        let numbers = vec![0.5; layout.len()];
        Array::ALL.into_iter().for_each(|array| file.put(array, 0, &numbers).unwrap());
        file.finish().unwrap();
        let opened = [5, 4].map(|step| {
            let source = Source::File(path.clone(), step);
            let mut passing = Passing::open(&source, &nothing, (&layout, &layout), None)?;
            passing.unit(Array::Params, &layout.unit(0)).map(<[f32]>::to_vec)
        });
        std::fs::remove_file(&path).unwrap();
        let [there, overtaken] = opened;
        assert_eq!(there.unwrap(), numbers[layout.unit(0)]);
        let overtaken = overtaken.unwrap_err().to_string();
        assert!(overtaken.contains("another run has written to it meanwhile"), "{overtaken}");
    }
}
