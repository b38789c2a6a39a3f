//! 2D: SUMMA (van de Geijn and Watts 1997) on q × q ranks, with all three products of a layer's
//! training; and 2.5D: d such layers of ranks, which divide the rows and hold the same weights.
//!
//! Rank (i, j) has tile (i, j) of x, of y and of the weight (inputs i, outputs j). Product by
//! product, with X, W and Y the elements of a tile: forward broadcasts each tile of x along its row
//! and each of the weight along its column; backward broadcasts them again, and reduces parts of dx
//! along rows and of dW along columns. So a rank takes part in q calls of each kind, in one of
//! which it is the root: 2q broadcasts of X and of W, q reductions of each, and with d layers an
//! all-reduce of dW.

use super::grid::{at_least, bytes_of};
use super::{At, Grid, Group, Linear, LinearGrads, Place, Side, Split};
use crate::error::Error;
use crate::kernels::Kernels;
use crate::layout::Share;
use brigade_comm::Communicator;
use brigade_schedule::Collective;
use std::cell::RefCell;

/// A grid of q × q × d ranks.
pub struct Summa {
    /// All, this rank's row, its column, and those with the same tiles of weights.
    groups: [Group; 4],
    side: usize,
    layers: usize,
    rooms: RefCell<[Vec<f32>; 4]>,
}

impl Summa {
    /// On ranks numbered layer by layer and in each row by row. Collective.
    pub fn new(all: Communicator, side: usize, layers: usize) -> Result<Summa, Error> {
        if all.size() != side * side * layers {
            let problem = format!("a grid of {side} × {side} × {layers} is not of {}", all.size());
            return Err(Error::setting("mesh", problem));
        }
        let rank = all.rank();
        let [layer, i, j] = [rank / (side * side), rank / side % side, rank % side];
        let group = |color: usize, key: usize| -> Result<Group, Error> {
            let group = all.split(Some(color as u32), key as i32)?;
            Ok(Group::new(group.expect("every rank is in a group")))
        };
        let row = group(layer * side + i, j)?;
        let column = group(layer * side + j, i)?;
        let depth = group(i * side + j, layer)?;
        let groups = [Group::new(all), row, column, depth];
        Ok(Summa { groups, side, layers, rooms: RefCell::default() })
    }

    /// Into how many parts so many layers of a square divide rows and columns.
    pub(super) fn parts_of(side: usize, layers: usize) -> [usize; 2] {
        [layers * side, side]
    }

    fn place_of(&self, rank: usize) -> [usize; 3] {
        let side = self.side;
        [rank / (side * side), rank / side % side, rank % side]
    }
}

/// The root's tile, to all.
fn spread(group: &Group, room: &mut Vec<f32>, tile: &[f32], root: usize) -> Result<(), Error> {
    room.resize(tile.len(), 0.0);
    if group.rank() == root {
        room.copy_from_slice(tile);
    }
    group.broadcast(room, root)
}

impl Grid for Summa {
    fn split(&self) -> Split {
        if self.layers > 1 { Split::Squares } else { Split::Square }
    }

    fn groups(&self) -> &[Group] {
        &self.groups
    }

    fn parts(&self) -> [usize; 2] {
        Summa::parts_of(self.side, self.layers)
    }

    fn tile(&self, rank: usize, _side: Side) -> [usize; 2] {
        let [layer, i, j] = self.place_of(rank);
        [layer * self.side + i, j]
    }

    fn place(&self, rank: usize) -> Place {
        let [_, i, j] = self.place_of(rank);
        let share = Share { inside: self.side, stream: self.side, ..Share::WHOLE };
        let enter = At { stream: i, inside: j, depth: 0 };
        Place { share, enter, leave: At { stream: j, inside: i, depth: 0 }, expert: 0 }
    }

    fn forward(
        &self,
        k: &dyn Kernels,
        _side: Side,
        y: &mut [f32],
        x: &[f32],
        linear: Linear<'_>,
        inputs: usize,
    ) -> Result<(), Error> {
        let [_, row, column, _] = &self.groups;
        let [x_l, w_l, part, _] = &mut *self.rooms.borrow_mut();
        for l in 0..self.side {
            spread(row, x_l, x, l)?;
            spread(column, w_l, linear.weight, l)?;
            if l == 0 {
                k.linear(y, x_l, w_l, linear.bias, inputs, None);
                continue;
            }
            part.resize(y.len(), 0.0);
            k.linear(part, x_l, w_l, &[], inputs, None);
            k.add(y, part);
        }
        Ok(())
    }

    fn backward(
        &self,
        k: &dyn Kernels,
        _side: Side,
        (dx, grads): (&mut [f32], LinearGrads<'_>),
        dy: &[f32],
        x: &[f32],
        weight: &[f32],
    ) -> Result<(), Error> {
        let [_, row, column, depth] = &self.groups;
        let [x_l, w_l, dx_l, dw_l] = &mut *self.rooms.borrow_mut();
        dx_l.resize(x.len(), 0.0);
        dw_l.resize(weight.len(), 0.0);
        let inputs = inputs_of(x.len(), dy.len(), weight.len());
        for l in 0..self.side {
            spread(row, x_l, x, l)?;
            spread(column, w_l, weight, l)?;
            let bias: &mut [f32] = if l == 0 { &mut *grads.bias } else { &mut [] };
            k.linear_backward(dx_l, dw_l, bias, dy, x_l, w_l, inputs);
            row.reduce(dx_l, l)?;
            column.reduce(dw_l, l)?;
            if row.rank() == l {
                dx.copy_from_slice(dx_l);
            }
            if column.rank() == l {
                grads.weight.copy_from_slice(dw_l);
            }
        }
        depth.all_reduce(grads.weight)?;
        if grads.bias.is_empty() {
            return Ok(());
        }
        column.all_reduce(grads.bias)?;
        depth.all_reduce(grads.bias)
    }

    fn make_room(&self, [rows, inputs, outputs]: [usize; 3]) {
        let (x, weight, y) = (rows * inputs, inputs * outputs, rows * outputs);
        let rooms = &mut *self.rooms.borrow_mut();
        // Forward's part of y and backward's part of dx are there at different times.
        for (room, elems) in rooms.iter_mut().zip([x, weight, x.max(y), weight]) {
            at_least(room, elems);
        }
    }

    fn room_bytes(&self) -> u64 {
        bytes_of(&*self.rooms.borrow())
    }

    fn formula_bytes(
        &self,
        side: Side,
        [rows, inputs, outputs]: [usize; 3],
    ) -> Result<[u64; 2], Error> {
        let [_, row, column, depth] = &self.groups;
        let (x, w) = (rows * inputs, inputs * outputs);
        let (mut spread, mut sums) = (0, depth.bytes(Collective::AllReduce, w)?);
        for root in 0..self.side as u32 {
            for (group, tile) in [(row, x), (column, w)] {
                spread += group.bytes(Collective::Broadcast { root }, tile)?;
                sums += group.bytes(Collective::Reduce { root }, tile)?;
            }
        }
        if side == Side::Enter {
            sums += column.bytes(Collective::AllReduce, outputs)?;
            sums += depth.bytes(Collective::AllReduce, outputs)?;
        }
        Ok([spread, spread + sums])
    }
}

/// Inputs of a layer: with r rows, i inputs and o outputs, r·i elements of x, r·o of y and i·o of
/// the weight.
pub(super) fn inputs_of(x: usize, y: usize, weight: usize) -> usize {
    (x * weight / y).isqrt()
}
