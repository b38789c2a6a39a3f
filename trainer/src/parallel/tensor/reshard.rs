//! From any layout of a tensor over ranks to any other, with the fewest bytes.
//!
//! A tensor is split along an axis, the same on every rank, or a sum whose parts the ranks have
//! (OneFlow's S, B and P: Yuan et al. 2021). What each rank sends to each is arithmetic:
//!
//! | from \ to | split | same | parts of a sum |
//! |---|---|---|---|
//! | split | exchange what differs | everybody sends its part | stays, among zeros |
//! | same | cut | nothing | rank 0 keeps it |
//! | parts of a sum | reduce-scatter | reduce-scatter, then all-gather | stays |
//!
//! One exchange carries it out: what is sent is as much as in the collective of that name, and
//! parts are added in rank order, so the bits do not depend on anything else.
//! The two layouts may have different numbers of ranks.

use super::Group;
use crate::error::Error;
use std::ops::Range;

/// How ranks hold a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// Rank r has the r-th part along this axis (0 or 1), as even as it goes.
    Split(usize),
    /// Every rank has all of it.
    Same,
    /// It is the sum of what the ranks have.
    Partial,
}

/// A signature over the first so many ranks of a group; the others have nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// How.
    pub signature: Signature,
    /// Over how many.
    pub ranks: usize,
}

/// Rows and columns of a matrix.
type Block = [Range<usize>; 2];

impl Sharding {
    /// Which part of a matrix of this shape a rank holds.
    pub fn block(&self, shape: [usize; 2], rank: usize) -> Block {
        let mut block = shape.map(|len| 0..len);
        if rank >= self.ranks {
            return [0..0, 0..0];
        }
        if let Signature::Split(axis) = self.signature {
            let edge = |rank: usize| shape[axis] * rank / self.ranks;
            block[axis] = edge(rank)..edge(rank + 1);
        }
        block
    }

    /// Elements that a rank holds.
    pub fn elems(&self, shape: [usize; 2], rank: usize) -> usize {
        area(&self.block(shape, rank))
    }
}

/// What `source` gives `target` on the way from one layout to another, in one exchange.
pub fn piece(
    from: Sharding,
    to: Sharding,
    shape: [usize; 2],
    source: usize,
    target: usize,
) -> Block {
    use Signature::{Partial, Same};
    let (mut have, mut want) = (from.block(shape, source), to.block(shape, target));
    // What everybody has comes from nearby; what nobody needs whole stays where it is.
    let is_giver = from.signature != Same || source == target % from.ranks;
    let is_taker = to.signature != Partial
        || if from.signature == Same { target == 0 } else { target == source % to.ranks };
    if !(is_giver && is_taker) {
        have = [0..0, 0..0];
    }
    for (have, want) in have.iter().zip(&mut want) {
        *want = have.start.max(want.start)..have.end.min(want.end);
    }
    want
}

/// Where a layout is left on the way: a sum that all shall have is divided first.
pub fn stop(from: Sharding, to: Sharding) -> Option<Sharding> {
    let is_sum = from.signature == Signature::Partial && to.signature == Signature::Same;
    is_sum.then_some(Sharding { signature: Signature::Split(0), ranks: to.ranks })
}

/// Elements that a rank sends to others.
pub fn sent(from: Sharding, to: Sharding, shape: [usize; 2], rank: usize) -> usize {
    if let Some(stop) = stop(from, to) {
        return sent(from, stop, shape, rank) + sent(stop, to, shape, rank);
    }
    let others = (0..to.ranks).filter(|target| *target != rank);
    others.map(|target| area(&piece(from, to, shape, rank, target))).sum()
}

/// Carry it out: this rank's part in the one layout becomes its part in the other. Collective.
pub fn reshard(
    group: &Group,
    shape: [usize; 2],
    from: Sharding,
    to: Sharding,
    mine: &[f32],
) -> Result<Vec<f32>, Error> {
    if let Some(stop) = stop(from, to) {
        let half = reshard(group, shape, from, stop, mine)?;
        return reshard(group, shape, stop, to, &half);
    }
    let (rank, ranks) = (group.rank(), group.size());
    let (own, new) = (from.block(shape, rank), to.block(shape, rank));
    assert_eq!(mine.len(), area(&own), "this rank's part");
    let gives: Vec<Block> = (0..ranks).map(|it| piece(from, to, shape, rank, it)).collect();
    let takes: Vec<Block> = (0..ranks).map(|it| piece(from, to, shape, it, rank)).collect();
    let packed: Vec<f32> = gives
        .iter()
        .flat_map(|block| rows(block, &own))
        .flat_map(|row| &mine[row])
        .copied()
        .collect();
    let (to_each, from_each) = (gives.iter().map(area).collect(), takes.iter().map(area).collect());
    let (to_each, from_each): (Vec<usize>, Vec<usize>) = (to_each, from_each);
    let mut came = vec![0.0; from_each.iter().sum()];
    group.timed(|comm| comm.all_to_all_v(&packed, &to_each, &mut came, &from_each))?;

    let mut part = vec![0.0; area(&new)];
    let mut came = &came[..];
    for row in takes.iter().flat_map(|block| rows(block, &new)) {
        let (values, rest) = came.split_at(row.len());
        for (place, value) in part[row].iter_mut().zip(values) {
            *place += value;
        }
        came = rest;
    }
    Ok(part)
}

fn area(block: &Block) -> usize {
    block.iter().map(|range| range.len()).product()
}

/// The rows of a block as ranges of a part that holds it.
fn rows(block: &Block, part: &Block) -> impl Iterator<Item = Range<usize>> + use<> {
    let (width, len) = (part[1].len(), block[1].len());
    let (top, left) = (part[0].start, block[1].start.saturating_sub(part[1].start));
    let rows = if len == 0 { 0..0 } else { block[0].clone() };
    rows.map(move |row| {
        let first = (row - top) * width + left;
        first..first + len
    })
}
