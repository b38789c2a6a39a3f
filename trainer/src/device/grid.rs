//! Linear layers of matrices that a grid of ranks divides along both sides, as `tensor/summa` and
//! `tensor/cube` have them, each rank's tiles on its device. What products read travels as they
//! read it, sums in f32.
//!
//! In a square the tiles of the next product are on their way while this one is made, and parts of
//! dx while those of the weight's gradient are.

use super::among::Among;
use super::calls::dtype;
use super::passes::Passes;
use crate::error::Error;
use crate::kernels::cuda::{Device, Room, View};
use crate::parallel::tensor::{Side, Split};
use brigade_comm::{Call, Dtype, Op};
use brigade_schedule::Collective;

/// What a linear layer's backward writes: the gradients of its weight and bias.
pub(super) type LinearGrads = [View; 2];

/// Ranks in a square of a side, in several, or in a cube.
pub(crate) struct DeviceGrid<'a> {
    /// This rank's row, its column, and those with the same tiles of weights; or those along the
    /// three axes of a cube.
    axes: [Among<'a>; 3],
    is_cube: bool,
}

/// What a grid needs of a device. m: rows inside, i: numbers that the rank has of the inside; all
/// that is divided by a side of a cube comes together once more.
#[derive(Clone, Copy)]
pub(crate) struct GridRooms {
    /// [m × i] inside: this rank's tile of what is cut.
    pub(super) tile: View,
    /// [m × i] f32: its tile of what is to be joined; and [n × c], those of all ranks.
    pub(super) part: View,
    pub(super) parts: View,
    /// Of other ranks, inside: [m × 4i] and [4i × i], in a square two of each in turn; in a cube
    /// the second of x is the gradient of y.
    x: [View; 2],
    weight: [View; 2],
    /// Parts of sums, in f32: [m × 4i] of y and dx, [4i × i] of the weight's gradient. In a cube,
    /// forward leaves sums that are not kept in f32 where dx is in backward, and backward where y
    /// is in forward.
    y: View,
    dx: View,
    dweight: View,
}

impl GridRooms {
    pub(super) fn take(room: &mut Room, width: usize, passes: Passes) -> GridRooms {
        let (split, narrow, inner) = (passes.split, passes.inside.size(), passes.heads.width);
        let is_cube = split == Some(Split::Cube);
        let is_there = is_cube || matches!(split, Some(Split::Square | Split::Squares));
        let has = |len: usize| if is_there { len } else { 0 };
        let rows = passes.samples * passes.heads.time;
        let [x, weight] = GridRooms::lens(width, passes).map(has);
        GridRooms {
            tile: room.take(has(rows * inner), narrow),
            part: room.take(has(rows * inner), 4),
            parts: room.take(has(passes.rows * width), 4),
            x: [0; 2].map(|_| room.take(x, narrow)),
            weight: [weight, if is_cube { 0 } else { weight }].map(|len| room.take(len, narrow)),
            y: room.take(x, 4),
            dx: room.take(x, 4),
            dweight: room.take(weight, 4),
        }
    }

    /// The most numbers that a call along an axis gives or gets.
    pub(crate) fn longest(width: usize, passes: Passes) -> usize {
        let [x, weight] = GridRooms::lens(width, passes);
        x.max(weight)
    }

    /// Numbers of the longest factors of a product.
    fn lens(width: usize, passes: Passes) -> [usize; 2] {
        let (rows, inner) = (passes.samples * passes.heads.time, passes.heads.width);
        let side = if passes.split == Some(Split::Cube) { width / inner } else { 1 };
        [side * rows * 4 * inner, 4 * inner * inner]
    }
}

/// What a layer's backward writes, and what it reads.
pub(super) struct Backward {
    pub(super) side: Side,
    pub(super) dx: View,
    /// The bias's may be empty.
    pub(super) grads: LinearGrads,
    pub(super) dy: View,
    pub(super) x: View,
    pub(super) weight: View,
}

impl<'a> DeviceGrid<'a> {
    /// Of ranks along these axes.
    pub(super) fn new(split: Split, axes: [Among<'a>; 3]) -> DeviceGrid<'a> {
        DeviceGrid { axes, is_cube: split == Split::Cube }
    }

    /// Calls along each axis.
    pub(super) fn axes(&self) -> &[Among<'a>; 3] {
        &self.axes
    }

    pub(super) fn axes_mut(&mut self) -> &mut [Among<'a>; 3] {
        &mut self.axes
    }

    /// y = x · weightᵀ + bias, tile by tile; the bias may be empty.
    pub(super) fn forward(
        &mut self,
        d: &Device,
        rooms: GridRooms,
        side: Side,
        [y, x]: [View; 2],
        layer: [View; 2],
    ) -> Result<(), Error> {
        match self.is_cube {
            true => self.forward_in_cube(d, rooms, side, [y, x], layer),
            false => self.forward_in_square(d, rooms, [y, x], layer),
        }
    }

    /// Writes the tiles of dx and of the gradients.
    pub(super) fn backward(
        &mut self,
        d: &Device,
        rooms: GridRooms,
        partials: View,
        layer: &Backward,
    ) -> Result<(), Error> {
        match self.is_cube {
            true => self.backward_in_cube(d, rooms, partials, layer),
            false => self.backward_in_square(d, rooms, partials, layer),
        }
    }

    fn forward_in_square(
        &mut self,
        d: &Device,
        rooms: GridRooms,
        [y, x]: [View; 2],
        [weight, bias]: [View; 2],
    ) -> Result<(), Error> {
        // Added up in f32, whatever y is.
        let sum = if y.size() == 4 { y } else { rooms.y.first(y.len()) };
        if bias.is_empty() {
            d.clear(sum)?;
        } else {
            d.start(sum, None, bias)?;
        }
        let mut next = Some(self.spread(rooms, 0, [x, weight])?);
        for at in 0..self.side() {
            let [x_there, weight_there] = next.take().expect("it was sent");
            self.arrive()?;
            if at + 1 < self.side() {
                next = Some(self.spread(rooms, at + 1, [x, weight])?);
            }
            let outputs = outputs([x.len(), sum.len(), weight.len()]);
            d.project_onto(sum, x_there, weight_there, outputs)?;
        }
        if sum == y { Ok(()) } else { d.to_inside(y, sum) }
    }

    fn backward_in_square(
        &mut self,
        d: &Device,
        rooms: GridRooms,
        partials: View,
        layer: &Backward,
    ) -> Result<(), Error> {
        let &Backward { dx, grads: [dweight, dbias], dy, x, weight, .. } = layer;
        let outputs = outputs([x.len(), dy.len(), weight.len()]);
        let mut next = Some(self.spread(rooms, 0, [x, weight])?);
        for at in 0..self.side() {
            let [x_there, weight_there] = next.take().expect("it was sent");
            self.arrive()?;
            self.take_sum(d, rooms, dx, at.checked_sub(1))?;
            if at + 1 < self.side() {
                next = Some(self.spread(rooms, at + 1, [x, weight])?);
            }
            let [row, column, _] = &mut self.axes;
            let is_mine = row.rank() == at;
            let part = if is_mine && dx.size() == 4 { dx } else { rooms.dx.first(dx.len()) };
            d.linear_input(part, dy, weight_there, outputs)?;
            reduce(row, at, part)?;
            let is_mine = column.rank() == at;
            let part = if is_mine { dweight } else { rooms.dweight.first(dweight.len()) };
            d.linear_weight(part, dy, x_there, outputs)?;
            reduce(column, at, part)?;
        }
        self.arrive()?;
        self.take_sum(d, rooms, dx, Some(self.side() - 1))?;
        let [_, column, depth] = &mut self.axes;
        sum(depth, dweight)?;
        if dbias.is_empty() {
            return Ok(());
        }
        d.bias_backward(dbias, dy, partials)?;
        sum(column, dbias)?;
        sum(depth, dbias)
    }

    /// The tiles of x of the `at`-th rank of this row, and of the weight of that of this column, on
    /// their way to all others: where they will be.
    fn spread(
        &mut self,
        rooms: GridRooms,
        at: usize,
        tiles: [View; 2],
    ) -> Result<[View; 2], Error> {
        let [row, column, _] = &mut self.axes;
        let [x, weight] = tiles;
        let x = broadcast(row, at, x, rooms.x[at % 2])?;
        Ok([x, broadcast(column, at, weight, rooms.weight[at % 2])?])
    }

    /// The sum of what the row made of this rank's dx, if it is that of the `at`-th.
    fn take_sum(
        &self,
        d: &Device,
        rooms: GridRooms,
        dx: View,
        at: Option<usize>,
    ) -> Result<(), Error> {
        let is_there = dx.size() == 4 || at != Some(self.axes[0].rank());
        if is_there { Ok(()) } else { d.to_inside(dx, rooms.dx.first(dx.len())) }
    }

    fn forward_in_cube(
        &mut self,
        d: &Device,
        rooms: GridRooms,
        side: Side,
        [y, x]: [View; 2],
        [weight, bias]: [View; 2],
    ) -> Result<(), Error> {
        let [x_all, weight_all] =
            self.collect(side, [(0, x, rooms.x[0]), (1, weight, rooms.weight[0])])?;
        let y_all = rooms.y.first(self.side() * y.len());
        let outputs = outputs([x_all.len(), y_all.len(), weight_all.len()]);
        let along_y = &mut self.axes[axis(side, 2)];
        // The sum has the bias once.
        if bias.is_empty() || along_y.rank() > 0 {
            d.project(y_all, x_all, weight_all, outputs)?;
        } else {
            d.leave(y_all, x_all, [weight_all, bias], None)?;
        }
        scatter(d, along_y, y_all, y, rooms.dx)
    }

    fn backward_in_cube(
        &mut self,
        d: &Device,
        rooms: GridRooms,
        partials: View,
        layer: &Backward,
    ) -> Result<(), Error> {
        let &Backward { side, dx, grads: [dweight, dbias], dy, x, weight } = layer;
        let parts = [(0, x, rooms.x[0]), (1, weight, rooms.weight[0]), (2, dy, rooms.x[1])];
        let [x_all, weight_all, dy_all] = self.collect(side, parts)?;
        let outputs = outputs([x_all.len(), dy_all.len(), weight_all.len()]);
        let dx_all = rooms.dx.first(x_all.len());
        d.linear_input(dx_all, dy_all, weight_all, outputs)?;
        scatter(d, &mut self.axes[axis(side, 0)], dx_all, dx, rooms.y)?;
        let dweight_all = rooms.dweight.first(weight_all.len());
        d.linear_weight(dweight_all, dy_all, x_all, outputs)?;
        let along_weight = &mut self.axes[axis(side, 1)];
        scatter(d, along_weight, dweight_all, dweight, rooms.y)?;
        if dbias.is_empty() {
            return Ok(());
        }
        // Rows of the block were whole along y, so only those of other blocks are missing.
        d.bias_backward(dbias, dy_all, partials)?;
        sum(along_weight, dbias)
    }

    /// Whole blocks, of everybody's parts along the axis of x, of the weight, or of y.
    fn collect<const N: usize>(
        &mut self,
        side: Side,
        parts: [(usize, View, View); N],
    ) -> Result<[View; N], Error> {
        let ranks = self.side();
        let mut all = [parts[0].2; N];
        for (all, (of, part, room)) in all.iter_mut().zip(parts) {
            *all = room.first(ranks * part.len());
            let call = Call::moving(Collective::AllGather, dtype(part), part.len());
            self.axes[axis(side, of)].beside(call, [part, *all])?;
        }
        self.arrive()?;
        Ok(all)
    }

    fn arrive(&mut self) -> Result<(), Error> {
        self.axes.iter_mut().try_for_each(Among::arrive)
    }

    fn side(&self) -> usize {
        self.axes[0].size()
    }
}

/// Which axis of a cube those are along who divide a block of x, of the weight, or of y.
fn axis(side: Side, of: usize) -> usize {
    let axes = match side {
        Side::Enter => [1, 0, 2],
        Side::Leave => [2, 0, 1],
    };
    axes[of]
}

/// Outputs of a layer: with r rows, i inputs and o outputs, r·i numbers of x, r·o of y and i·o of
/// the weight.
fn outputs([x, y, weight]: [usize; 3]) -> usize {
    (y * weight / x).isqrt()
}

/// Have a tile on its way from a rank to all others: where it will be.
fn broadcast(group: &mut Among<'_>, root: usize, tile: View, room: View) -> Result<View, Error> {
    let (root_rank, room) = (root as u32, room.first(tile.len()));
    let is_root = group.rank() == root;
    let call = Call::moving(Collective::Broadcast { root: root_rank }, dtype(tile), tile.len());
    let (from, to) = if is_root { (tile, tile) } else { (room.first(0), room) };
    group.beside(call, [from, to])?;
    Ok(to)
}

/// Have the sum of what each has on its way to a rank, in its place there.
fn reduce(group: &mut Among<'_>, root: usize, part: View) -> Result<(), Error> {
    let to = if group.rank() == root { part } else { part.first(0) };
    let root = root as u32;
    let call = Call::new(Collective::Reduce { root }, Dtype::F32, Op::Sum, part.len());
    group.beside(call, [part, to])
}

/// This rank's part of the sum, through this room where it is not kept in f32.
fn scatter(
    d: &Device,
    group: &mut Among<'_>,
    all: View,
    part: View,
    room: View,
) -> Result<(), Error> {
    let to = if part.size() == 4 { part } else { room.first(part.len()) };
    let call = Call::new(Collective::ReduceScatter, Dtype::F32, Op::Sum, to.len());
    group.beside(call, [all, to])?;
    group.arrive()?;
    if to == part { Ok(()) } else { d.to_inside(part, to) }
}

/// The sum over all of them, before what is computed next.
fn sum(group: &mut Among<'_>, view: View) -> Result<(), Error> {
    let call = Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, view.len());
    group.in_order(call, view)
}
