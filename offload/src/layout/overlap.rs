//! Which bytes of whose files make up what is wanted: loading at another number of ranks.
//!
//! A part of a tensor is a list of *runs* in row-major order: one for a flat range, one for each
//! row (or plane, or all) of a box. Two parts overlap where their runs do, whatever their kinds.

use thiserror::Error;

use super::directory::Placed;
use super::tensor::{Hold, Tensor};

/// A part of a tensor that somebody holds.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// The caller's number for the state that holds it.
    pub source: usize,
    /// The part, and its place there.
    pub placed: &'a Placed,
}

/// Bytes to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// From which state.
    pub source: usize,
    /// Where among that state's bytes. \[bytes\]
    pub offset: u64,
    /// To where in the wanted part. \[bytes\]
    pub target: u64,
    /// How many. \[bytes\]
    pub bytes: u64,
}

/// Why what is wanted cannot be put together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Missing {
    /// Nobody holds some of the elements.
    #[error(
        "nobody holds {missing} of the {wanted} elements wanted of {name:?}, the first of them \
         number {first}"
    )]
    Elements {
        /// The tensor.
        name: String,
        /// How many elements are not to be had.
        missing: u64,
        /// How many were wanted.
        wanted: u64,
        /// The first that is missing, in row-major order of the whole tensor.
        first: u64,
    },
    /// The tensor is stored with another type or shape.
    #[error("{name:?} is stored as {found}, wanted {wanted}")]
    Conflict {
        /// The tensor.
        name: String,
        /// Type and shape wanted.
        wanted: String,
        /// Type and shape stored.
        found: String,
    },
}

/// Elements behind one another, in the whole tensor and in the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// The first, in row-major order of the whole tensor.
    start: u64,
    count: u64,
    /// The first, within the part.
    local: u64,
}

/// What to copy so that all of `want` is there, in the order of its bytes. Where several hold the
/// same elements, the first in `held` gives them; those of other names are passed over.
pub fn pieces(want: &Tensor, held: &[Held]) -> Result<Vec<Piece>, Missing> {
    let size = want.dtype.bytes();
    let mut open: Vec<Run> = Runs::of(want).collect();
    let mut pieces = Vec::new();
    for Held { source, placed } in held {
        let tensor = &placed.tensor;
        if tensor.name != want.name || open.is_empty() {
            continue;
        }
        if tensor.dtype != want.dtype || tensor.shape != want.shape {
            let describe = |tensor: &Tensor| format!("{:?} {:?}", tensor.dtype, tensor.shape);
            let (wanted, found) = (describe(want), describe(tensor));
            return Err(Missing::Conflict { name: want.name.clone(), wanted, found });
        }
        open = meet(open, Runs::of(tensor), |target, local, count| {
            let offset = placed.offset + local * size;
            let (target, bytes) = (target * size, count * size);
            pieces.push(Piece { source: *source, offset, target, bytes });
        });
    }
    if let Some(first) = open.first() {
        let missing = open.iter().map(|run| run.count).sum();
        let (name, wanted, first) = (want.name.clone(), want.count(), first.start);
        return Err(Missing::Elements { name, missing, wanted, first });
    }
    pieces.sort_unstable_by_key(|piece| piece.target);
    pieces.dedup_by(|next, last| {
        let is_next = next.source == last.source
            && next.offset == last.offset + last.bytes
            && next.target == last.target + last.bytes;
        if is_next {
            last.bytes += next.bytes;
        }
        is_next
    });
    Ok(pieces)
}

/// Report what `open` and `runs` share, as (place in open, place in runs, elements); what is left
/// of `open`. Both are in ascending order.
fn meet(open: Vec<Run>, mut runs: Runs, mut share: impl FnMut(u64, u64, u64)) -> Vec<Run> {
    let mut left = Vec::new();
    let mut next = runs.next();
    for mut want in open {
        while let Some(run) = next {
            let end = run.start + run.count;
            if end <= want.start {
                runs.seek(want.start);
                next = runs.next();
                continue;
            }
            let start = run.start.max(want.start);
            let shared_end = end.min(want.start + want.count);
            if start >= shared_end {
                break;
            }
            let before = start - want.start;
            if before > 0 {
                left.push(Run { count: before, ..want });
            }
            share(want.local + before, run.local + (start - run.start), shared_end - start);
            let taken = shared_end - want.start;
            want = Run { start: shared_end, count: want.count - taken, local: want.local + taken };
            if want.count == 0 {
                break;
            }
        }
        if want.count > 0 {
            left.push(want);
        }
    }
    left
}

/// The runs of a part, in ascending order, none of them empty.
struct Runs {
    /// The next one.
    next: Run,
    /// How many are left, of how many.
    left: u64,
    runs: u64,
    /// The first element of all.
    first: u64,
    /// The dimensions that are walked through, outermost first.
    outer: Vec<Dimension>,
}

struct Dimension {
    /// Where we are, from 0.
    at: u64,
    extent: u64,
    /// From one index to the next. \[elements\]
    stride: u64,
}

impl Runs {
    fn of(tensor: &Tensor) -> Self {
        let (start, extent) = match &tensor.hold {
            Hold::Flat { start, count } => {
                let next = Run { start: *start, count: *count, local: 0 };
                let runs = u64::from(*count > 0);
                return Self { next, left: runs, runs, first: *start, outer: Vec::new() };
            }
            Hold::Box { start, extent } => (start, extent),
        };
        let (mut first, mut stride, mut run, mut runs) = (0, 1, 1, 1);
        let mut outer = Vec::new();
        let mut is_whole = true;
        for ((start, extent), size) in start.iter().zip(extent).zip(&tensor.shape).rev() {
            first += start * stride;
            if is_whole {
                run *= extent;
            } else {
                runs *= extent;
                outer.push(Dimension { at: 0, extent: *extent, stride });
            }
            is_whole &= extent == size;
            stride *= size;
        }
        outer.reverse();
        let runs = if run == 0 { 0 } else { runs };
        let next = Run { start: first, count: run, local: 0 };
        Self { next, left: runs, runs, first, outer }
    }
}

impl Runs {
    /// Pass over runs that end before this element; perhaps not over the last of them.
    fn seek(&mut self, element: u64) {
        let (mut at, mut number) = (self.first, 0);
        for Dimension { extent, stride, .. } in &self.outer {
            let steps = (element.saturating_sub(at) / stride).min(extent - 1);
            at += steps * stride;
            number = number * extent + steps;
        }
        if number > self.runs - self.left {
            let mut rest = number;
            for dimension in self.outer.iter_mut().rev() {
                dimension.at = rest % dimension.extent;
                rest /= dimension.extent;
            }
            self.left = self.runs - number;
            self.next = Run { start: at, local: number * self.next.count, ..self.next };
        }
    }
}

impl Iterator for Runs {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        self.left = self.left.checked_sub(1)?;
        let run = self.next;
        self.next.local += run.count;
        for dimension in self.outer.iter_mut().rev() {
            self.next.start += dimension.stride;
            dimension.at += 1;
            if dimension.at < dimension.extent {
                break;
            }
            self.next.start -= dimension.extent * dimension.stride;
            dimension.at = 0;
        }
        Some(run)
    }
}
