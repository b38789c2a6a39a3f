//! The directory: which tensors a state holds, and where each begins among the state's bytes.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use thiserror::Error;

use super::bytes::{Reader, Writer};
use super::fault::{Fault, Wrong};
use super::tensor::{BadHold, Dtype, Hold, RANK_MAX, Tensor};

const NAME_BYTES_MAX: u64 = 4096;
const TENSORS_MAX: u64 = 1 << 24;

/// A tensor with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// What it is.
    pub tensor: Tensor,
    /// Where it begins among the state's bytes. \[bytes\]
    pub offset: u64,
}

impl Placed {
    /// Where it ends among the state's bytes. \[bytes\]
    pub fn end(&self) -> u64 {
        self.offset + self.tensor.bytes()
    }
}

/// All tensors of a state, in the order of their places. They never overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    tensors: Vec<Placed>,
    /// Which of `tensors` bear a name.
    named: BTreeMap<String, Vec<usize>>,
}

/// The parts of a directory that is being made, each beside the first one of its name: a tensor may
/// lie in millions of them, of which each is to be compared with all.
type Seen = HashSet<(usize, Hold)>;

/// Tensors that make no directory.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unplaceable {
    /// A part outside its tensor.
    #[error(transparent)]
    Hold(#[from] BadHold),
    /// The same part twice.
    #[error("tensor {name:?} holds the same part twice")]
    Twice {
        /// Its name.
        name: String,
    },
    /// A name too long to be stored.
    #[error("a name of {bytes} bytes; at most {NAME_BYTES_MAX}")]
    Name {
        /// Its length.
        bytes: u64,
    },
    /// Too many tensors, or bytes, for one state.
    #[error("{tensors} tensors with {bytes} bytes are too many for one state")]
    TooMany {
        /// How many tensors.
        tensors: u64,
        /// How many bytes they have, as far as could be counted.
        bytes: u64,
    },
}

impl Directory {
    /// Place tensors behind one another, each at a multiple of `alignment` bytes (a power of two).
    /// With the size of a block, no two tensors share one; with 64, none begins in the middle of a
    /// cache line, and nothing is wasted.
    pub fn pack(
        tensors: impl IntoIterator<Item = Tensor>,
        alignment: u64,
    ) -> Result<Self, Unplaceable> {
        assert!(alignment.is_power_of_two(), "an alignment of {alignment} bytes");
        let (mut directory, mut seen) = (Self::default(), Seen::default());
        let mut offset = 0_u64;
        for tensor in tensors {
            tensor.check()?;
            let bytes = tensor.name.len() as u64;
            if bytes > NAME_BYTES_MAX {
                return Err(Unplaceable::Name { bytes });
            }
            let known = directory.tensors.len() as u64 + 1;
            let begin = offset.checked_next_multiple_of(alignment);
            let end = begin.and_then(|begin| begin.checked_add(tensor.bytes()));
            let (Some(begin), Some(end)) = (begin, end.filter(|_| known <= TENSORS_MAX)) else {
                return Err(Unplaceable::TooMany { tensors: known, bytes: offset });
            };
            let name = tensor.name.clone();
            if !directory.push(Placed { tensor, offset: begin }, &mut seen) {
                return Err(Unplaceable::Twice { name });
            }
            offset = end;
        }
        Ok(directory)
    }

    /// All tensors, in the order of their places.
    pub fn tensors(&self) -> &[Placed] {
        &self.tensors
    }

    /// The parts of the tensor with this name.
    pub fn named(&self, name: &str) -> impl Iterator<Item = &Placed> {
        let indices = self.named.get(name).map_or(&[][..], Vec::as_slice);
        indices.iter().map(|index| &self.tensors[*index])
    }

    /// What no tensor covers from byte `begin` of the state to byte `end`, in ascending order.
    ///
    /// Cost: the logarithm of all tensors, and a step for each one there.
    pub fn gaps(&self, begin: u64, end: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.tensors.partition_point(|placed| placed.end() <= begin);
        let inside = self.tensors[first..].iter().take_while(move |placed| placed.offset < end);
        let mut at = begin;
        inside.map(|placed| (placed.offset, placed.end())).chain([(end, end)]).filter_map(
            move |(next, behind)| {
                let gap = (next > at).then_some(at..next);
                at = at.max(behind);
                gap
            },
        )
    }

    /// Of all tensors, with the gaps between them. \[bytes\]
    pub fn state_bytes(&self) -> u64 {
        self.tensors.last().map_or(0, Placed::end)
    }

    /// False if the same part is there already.
    fn push(&mut self, placed: Placed, seen: &mut Seen) -> bool {
        let index = self.tensors.len();
        let known = self.named.entry(placed.tensor.name.clone()).or_default();
        let first = known.first().map_or(index, |first| *first);
        if !seen.insert((first, placed.tensor.hold.clone())) {
            return false;
        }
        known.push(index);
        self.tensors.push(placed);
        true
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Writer::default();
        bytes.u64(self.tensors.len() as u64);
        for Placed { tensor, offset } in &self.tensors {
            bytes.u64(tensor.name.len() as u64);
            bytes.bytes(tensor.name.as_bytes());
            bytes.u8(tensor.dtype as u8);
            bytes.u8(tensor.shape.len() as u8);
            bytes.u8(matches!(tensor.hold, Hold::Flat { .. }) as u8);
            tensor.shape.iter().for_each(|size| bytes.u64(*size));
            match &tensor.hold {
                Hold::Box { start, extent } => {
                    start.iter().chain(extent).for_each(|number| bytes.u64(*number));
                }
                Hold::Flat { start, count } => {
                    bytes.u64(*start);
                    bytes.u64(*count);
                }
            }
            bytes.u64(*offset);
        }
        bytes.0
    }

    /// Parse a directory that begins at `offset` of its file, of a state with so many bytes.
    pub(super) fn parse(bytes: &[u8], offset: u64, state_bytes: u64) -> Result<Self, Fault> {
        let mut reader = Reader::new(bytes, offset);
        let count = reader.within("tensors", (0, TENSORS_MAX))?;
        let (mut directory, mut seen) = (Self::default(), Seen::default());
        for _ in 0..count {
            let at = reader.offset();
            let placed = parse_placed(&mut reader)?;
            let least = directory.state_bytes();
            let most = state_bytes.saturating_sub(placed.tensor.bytes());
            let found = placed.offset;
            if !(least..=most).contains(&found) || placed.tensor.bytes() > state_bytes {
                let field = "place of a tensor";
                return Err(Fault::new(at, Wrong::Value { field, least, most, found }));
            }
            if !directory.push(placed, &mut seen) {
                let field = "further parts equal to this one";
                return Err(Fault::new(at, Wrong::Value { field, least: 0, most: 0, found: 1 }));
            }
        }
        reader.end()?;
        Ok(directory)
    }
}

fn parse_placed(reader: &mut Reader) -> Result<Placed, Fault> {
    let at = reader.offset();
    let name_bytes = reader.within("bytes of a name", (0, NAME_BYTES_MAX))?;
    let name = reader.take(name_bytes)?;
    let name = str::from_utf8(name).map_err(|_| Fault::new(at, Wrong::Name))?.to_owned();
    let dtype = Dtype::ALL[small(reader, "dtype", Dtype::ALL.len() - 1)?];
    let rank = small(reader, "dimensions", RANK_MAX)?;
    let is_flat = small(reader, "kind of part", 1)? == 1;
    let numbers = |reader: &mut Reader| (0..rank).map(|_| reader.u64()).collect::<Result<_, _>>();
    let shape = numbers(reader)?;
    let hold = match is_flat {
        false => Hold::Box { start: numbers(reader)?, extent: numbers(reader)? },
        true => Hold::Flat { start: reader.u64()?, count: reader.u64()? },
    };
    let tensor = Tensor { name, dtype, shape, hold };
    if tensor.check().is_err() {
        let wrong =
            Wrong::Value { field: "parts outside their tensor", least: 0, most: 0, found: 1 };
        return Err(Fault::new(at, wrong));
    }
    Ok(Placed { tensor, offset: reader.u64()? })
}

/// One byte, at most `most`.
fn small(reader: &mut Reader, field: &'static str, most: usize) -> Result<usize, Fault> {
    let at = reader.offset();
    let found = usize::from(reader.u8()?);
    if found > most {
        let (most, found) = (most as u64, found as u64);
        return Err(Fault::new(at, Wrong::Value { field, least: 0, most, found }));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Directory {
        let tensors = [
            Tensor::whole("embedding", Dtype::Bf16, &[7, 5]),
            Tensor::flat("embedding", Dtype::Bf16, &[7, 5], 3, 11),
            Tensor::whole("scale", Dtype::F32, &[]),
            Tensor::whole("none", Dtype::F64, &[3, 0]),
            Tensor::flat("bias", Dtype::I8, &[9], 0, 9),
        ];
        Directory::pack(tensors, 64).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let directory = sample();
        let bytes = directory.encode();
        assert_eq!(Directory::parse(&bytes, 4096, directory.state_bytes()).unwrap(), directory);
        assert_eq!(directory.named("embedding").count(), 2);
        assert_eq!(directory.named("nobody").count(), 0);
        for length in 0..bytes.len() {
            Directory::parse(&bytes[..length], 0, directory.state_bytes()).unwrap_err();
        }
        let error = Directory::parse(&bytes, 0, directory.state_bytes() - 1).unwrap_err();
        assert!(matches!(error.wrong, Wrong::Value { field: "place of a tensor", .. }));
        let longer = [bytes.as_slice(), &[0]].concat();
        let error = Directory::parse(&longer, 10, directory.state_bytes()).unwrap_err();
        assert_eq!(error, Fault::new(10 + bytes.len() as u64, Wrong::Extra { extra: 1 }));
    }

    #[test]
    fn gaps_are_what_no_tensor_covers() {
        let directory = sample();
        let all = directory.state_bytes() + 100;
        let covers = |at: u64| {
            directory.tensors().iter().any(|placed| (placed.offset..placed.end()).contains(&at))
        };
        for begin in 0..all {
            for end in [begin, begin + 1, begin + 64, all.max(begin)] {
                let gaps: Vec<u64> = directory.gaps(begin, end).flatten().collect();
                let wanted: Vec<u64> = (begin..end).filter(|at| !covers(*at)).collect();
                assert_eq!(gaps, wanted, "{begin} to {end}");
            }
        }
    }

    /// What passes is a directory that could have been written.
    #[test]
    fn hostile_bytes_are_refused_or_sound() {
        let (bytes, state_bytes) = (sample().encode(), sample().state_bytes());
        for seed in 0..50_000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut hostile = bytes.clone();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..hostile.len());
                hostile[at] = [0, 1, 0x7f, 0x80, 0xff, rng.u8(..)][rng.usize(..6)];
            }
            let Ok(directory) = Directory::parse(&hostile, 0, state_bytes) else { continue };
            let mut end = 0;
            for placed in directory.tensors() {
                assert!(placed.tensor.check().is_ok() && placed.offset >= end, "seed {seed}");
                end = placed.end();
            }
            assert!(end <= state_bytes, "seed {seed}");
            assert_eq!(directory.encode(), hostile, "seed {seed}");
        }
    }
}
