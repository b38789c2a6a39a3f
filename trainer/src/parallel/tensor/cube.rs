//! 3D (Agarwal et al. 1995; Bian et al. 2021): q × q × q ranks, of which each multiplies one pair
//! of blocks. What it multiplies lies divided among the q ranks that need it.
//!
//! Rank (i, j, k), entering: block (i, k) of x, of which it has the j-th part of the rows; block
//! (k, j) of the weight (inputs k, outputs j), of which it has the i-th part of the outputs; block
//! (i, j) of y, of which it gets the k-th part of the rows. Leaving is the same with j and k
//! exchanged, so the tiles fit. With X, W and Y the elements of a whole block: forward gathers X
//! and W and scatters the sum of Y; backward gathers all three and scatters the sums of dX and dW:
//! each costs (q − 1)/q of a block, and a block is 1/q² of its matrix.

use super::grid::{at_least, bytes_of};
use super::summa::inputs_of;
use super::{At, Grid, Group, Linear, LinearGrads, Place, Side, Split};
use crate::error::Error;
use crate::kernels::Kernels;
use crate::layout::Share;
use brigade_comm::Communicator;
use brigade_schedule::Collective;
use std::cell::RefCell;

/// A cube of ranks.
pub struct Cube {
    /// All, and those along i, along j and along k.
    groups: [Group; 4],
    side: usize,
    rooms: RefCell<[Vec<f32>; 5]>,
}

impl Cube {
    /// On ranks numbered with k fastest. Collective.
    pub fn new(all: Communicator, side: usize) -> Result<Cube, Error> {
        if all.size() != side * side * side {
            let problem = format!("a cube of {side} a side is not of {} ranks", all.size());
            return Err(Error::setting("mesh", problem));
        }
        let along = |stride: usize| -> Result<Group, Error> {
            let place = all.rank() / stride % side;
            let first = all.rank() - place * stride;
            let group = all.split(Some(first as u32), place as i32)?;
            Ok(Group::new(group.expect("every rank is in a group")))
        };
        let (i, j, k) = (along(side * side)?, along(side)?, along(1)?);
        Ok(Cube { groups: [Group::new(all), i, j, k], side, rooms: RefCell::default() })
    }

    /// Into how many parts a cube divides rows and columns.
    pub(super) fn parts_of(side: usize) -> [usize; 2] {
        [side * side, side]
    }

    fn place_of(&self, rank: usize) -> [usize; 3] {
        [rank / (self.side * self.side), rank / self.side % self.side, rank % self.side]
    }

    /// Those who divide a block of x, of the weight, and of y.
    fn axes(&self, side: Side) -> [&Group; 3] {
        let [_, i, j, k] = &self.groups;
        match side {
            Side::Enter => [j, i, k],
            Side::Leave => [k, i, j],
        }
    }
}

/// A whole block, of everybody's parts of its rows.
fn collect(group: &Group, room: &mut Vec<f32>, part: &[f32]) -> Result<(), Error> {
    room.resize(group.size() * part.len(), 0.0);
    group.all_gather(part, room)
}

impl Grid for Cube {
    fn split(&self) -> Split {
        Split::Cube
    }

    fn groups(&self) -> &[Group] {
        &self.groups
    }

    fn parts(&self) -> [usize; 2] {
        Cube::parts_of(self.side)
    }

    fn tile(&self, rank: usize, side: Side) -> [usize; 2] {
        let [i, j, k] = self.place_of(rank);
        match side {
            Side::Enter => [i * self.side + j, k],
            Side::Leave => [i * self.side + k, j],
        }
    }

    fn place(&self, rank: usize) -> Place {
        let [i, j, k] = self.place_of(rank);
        let share = Share { inside: self.side, stream: self.side, depth: self.side, experts: 1 };
        let at = At { stream: k, inside: j, depth: i };
        Place { share, enter: at, leave: at, expert: 0 }
    }

    fn forward(
        &self,
        k: &dyn Kernels,
        side: Side,
        y: &mut [f32],
        x: &[f32],
        linear: Linear<'_>,
        inputs: usize,
    ) -> Result<(), Error> {
        let [along_x, along_w, along_y] = self.axes(side);
        let [x_all, w_all, y_all, ..] = &mut *self.rooms.borrow_mut();
        collect(along_x, x_all, x)?;
        collect(along_w, w_all, linear.weight)?;
        y_all.resize(self.side * y.len(), 0.0);
        // The sum has the bias once.
        let bias = if along_y.rank() == 0 { linear.bias } else { &[] };
        k.linear(y_all, x_all, w_all, bias, inputs, None);
        along_y.reduce_scatter(y_all, y)
    }

    fn backward(
        &self,
        k: &dyn Kernels,
        side: Side,
        (dx, grads): (&mut [f32], LinearGrads<'_>),
        dy: &[f32],
        x: &[f32],
        weight: &[f32],
    ) -> Result<(), Error> {
        let [along_x, along_w, along_y] = self.axes(side);
        let [x_all, w_all, dy_all, dx_all, dw_all] = &mut *self.rooms.borrow_mut();
        collect(along_x, x_all, x)?;
        collect(along_w, w_all, weight)?;
        collect(along_y, dy_all, dy)?;
        dx_all.resize(x_all.len(), 0.0);
        dw_all.resize(w_all.len(), 0.0);
        let inputs = inputs_of(x_all.len(), dy_all.len(), w_all.len());
        k.linear_backward(dx_all, dw_all, grads.bias, dy_all, x_all, w_all, inputs);
        along_x.reduce_scatter(dx_all, dx)?;
        along_w.reduce_scatter(dw_all, grads.weight)?;
        // The block's rows were whole along y, so only those of other blocks are missing.
        if grads.bias.is_empty() { Ok(()) } else { along_w.all_reduce(grads.bias) }
    }

    fn make_room(&self, [rows, inputs, outputs]: [usize; 3]) {
        let (x, y) = (self.side * rows * inputs, self.side * rows * outputs);
        let weight = inputs * outputs;
        let rooms = &mut *self.rooms.borrow_mut();
        for (room, elems) in rooms.iter_mut().zip([x, weight, y, x, weight]) {
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
        let [along_x, along_w, along_y] = self.axes(side);
        let [x, w, y] = [rows * inputs, inputs * outputs / self.side, rows * outputs];
        let gather = |group: &Group, part| group.bytes(Collective::AllGather, part);
        let scatter = |group: &Group, part| group.bytes(Collective::ReduceScatter, part);
        let gathers = gather(along_x, x)? + gather(along_w, w)?;
        let mut sums = scatter(along_x, x)? + scatter(along_w, w)?;
        if side == Side::Enter {
            sums += along_w.bytes(Collective::AllReduce, outputs)?;
        }
        Ok([gathers + scatter(along_y, y)?, gathers + gather(along_y, y)? + sums])
    }
}
