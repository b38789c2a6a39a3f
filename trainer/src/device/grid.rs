//! Linear layers of matrices that a grid of ranks divides along both sides, as `tensor/summa` and
//! `tensor/cube` have them, each rank's tiles on its device. What products read travels as they
//! read it, sums in f32.
//!
//! In a square the tiles of the next product are on their way while this one is made, and so are
//! the parts of its sums.

use super::among::Among;
use super::calls::dtype;
use super::gpt::DeviceGpt;
use super::layers::LinearGrads;
use super::tape::Passes;
use crate::error::Error;
use crate::kernels::cuda::{Device, Room, View};
use crate::parallel::tensor::{Inside, Side};
use brigade_comm::{Call, Dtype, Op};
use brigade_schedule::Collective;

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
    /// [m × i] inside, and in f32: this rank's tile of the stream, and of its gradient.
    tile: View,
    dtile: View,
    /// [n × c] f32, the tiles of all ranks.
    tiles: View,
    /// Of other ranks, inside: [m × 4i] and [4i × i], in a square two of each in turn; in a cube
    /// the second of x is the gradient of y.
    x: [View; 2],
    weight: [View; 2],
    /// Parts of sums, in f32: [m × 4i] of y and dx, [4i × i] of the weight's gradient.
    y: View,
    dx: View,
    dweight: View,
}

impl GridRooms {
    pub(super) fn take(room: &mut Room, width: usize, passes: Passes) -> GridRooms {
        let is_cube = passes.way == Some(Inside::Cube);
        let is_there = is_cube || matches!(passes.way, Some(Inside::Square | Inside::Squares));
        let has = |len: usize| if is_there { len } else { 0 };
        let (narrow, inner) = (passes.inside.size(), passes.heads.width);
        let rows = passes.samples * passes.heads.time;
        let side = if is_cube { width / inner } else { 1 };
        let (x, weight) = (has(side * rows * 4 * inner), has(4 * inner * inner));
        GridRooms {
            tile: room.take(has(rows * inner), narrow),
            dtile: room.take(has(rows * inner), 4),
            tiles: room.take(has(passes.rows * width), 4),
            x: [0; 2].map(|_| room.take(x, narrow)),
            weight: [weight, if is_cube { 0 } else { weight }].map(|len| room.take(len, narrow)),
            y: room.take(x, 4),
            dx: room.take(x, 4),
            dweight: room.take(weight, 4),
        }
    }
}

/// What a layer's backward writes, and what it reads.
struct Backward {
    side: Side,
    dx: View,
    grads: LinearGrads,
    dy: View,
    x: View,
    weight: View,
}

impl<'a> DeviceGrid<'a> {
    /// Of ranks along these axes.
    pub(super) fn new(way: Inside, axes: [Among<'a>; 3]) -> DeviceGrid<'a> {
        DeviceGrid { axes, is_cube: way == Inside::Cube }
    }

    /// Calls along each axis.
    pub(super) fn axes(&self) -> &[Among<'a>; 3] {
        &self.axes
    }

    pub(super) fn axes_mut(&mut self) -> &mut [Among<'a>; 3] {
        &mut self.axes
    }

    /// y = x · weightᵀ + bias, tile by tile; the bias may be empty.
    fn forward(
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
        self.axes.iter_mut().filter(|axis| axis.size() > 1).try_for_each(Among::arrive)
    }

    fn side(&self) -> usize {
        self.axes[0].size()
    }
}

impl DeviceGpt<'_> {
    /// As `enter`, where a grid divides the model.
    pub(super) fn enter_grid(&mut self, y: View, x: View, layer: [View; 2]) -> Result<(), Error> {
        let tile = self.cut(x)?;
        let DeviceGpt { device, division, scratch, .. } = self;
        let grid = division.as_mut().and_then(|it| it.grid()).expect("a grid");
        grid.forward(device, scratch.grid, Side::Enter, [y, tile], layer)
    }

    /// As `enter_backward`.
    pub(super) fn enter_grid_backward(
        &mut self,
        dx: View,
        grads: LinearGrads,
        [dy, x, weight]: [View; 3],
    ) -> Result<(), Error> {
        let tile = self.cut(x)?;
        let dtile = self.scratch.grid.dtile;
        let layer = Backward { side: Side::Enter, dx: dtile, grads, dy, x: tile, weight };
        self.backward_on_grid(&layer)?;
        self.join(dx, false)
    }

    /// As `leave`.
    pub(super) fn leave_grid(
        &mut self,
        y: View,
        x: View,
        [weight, bias]: [View; 2],
        onto: View,
    ) -> Result<(), Error> {
        let DeviceGpt { device, division, scratch, .. } = self;
        let (rooms, none) = (scratch.grid, bias.first(0));
        let grid = division.as_mut().and_then(|it| it.grid()).expect("a grid");
        grid.forward(device, rooms, Side::Leave, [rooms.dtile, x], [weight, none])?;
        device.start(y, Some(onto), bias)?;
        self.join(y, true)
    }

    /// As `leave_backward`, from the stream's gradient inside.
    pub(super) fn leave_grid_backward(
        &mut self,
        dx: View,
        [dweight, dbias]: LinearGrads,
        [dy, x, weight]: [View; 3],
    ) -> Result<(), Error> {
        // The stream is whole on every rank, and its bias.
        self.device.bias_backward(dbias, dy, self.scratch.partials)?;
        let (dy, grads) = (self.cut(dy)?, [dweight, dbias.first(0)]);
        self.backward_on_grid(&Backward { side: Side::Leave, dx, grads, dy, x, weight })
    }

    fn backward_on_grid(&mut self, layer: &Backward) -> Result<(), Error> {
        let DeviceGpt { device, division, scratch, .. } = self;
        let grid = division.as_mut().and_then(|it| it.grid()).expect("a grid");
        let (rooms, partials) = (scratch.grid, scratch.partials);
        match grid.is_cube {
            true => grid.backward_in_cube(device, rooms, partials, layer),
            false => grid.backward_in_square(device, rooms, partials, layer),
        }
    }

    /// This rank's tile of the stream. Tiles count through rows of tiles, as ranks do.
    fn cut(&self, stream: View) -> Result<View, Error> {
        let (tile, width) = (self.scratch.grid.tile, self.shape.width);
        let (columns, rank) = (self.heads.width, self.division.as_ref().map_or(0, |it| it.rank()));
        let (rows, across) = (tile.len() / columns, width / columns);
        let first = rank / across * rows * width;
        let here = stream.part(first..first + rows * width);
        self.device.take_columns(tile, here, [rank % across * columns, columns, width])?;
        Ok(tile)
    }

    /// The stream, of the tiles that all ranks have in f32; added to what is there, or not.
    fn join(&mut self, stream: View, is_added: bool) -> Result<(), Error> {
        let GridRooms { dtile, tiles, .. } = self.scratch.grid;
        let division = self.division.as_mut().expect("a grid");
        division.gather_beside(dtile, tiles)?;
        division.arrive()?;
        let (columns, width) = (self.heads.width, self.shape.width);
        let rows = dtile.len() / columns;
        self.device.join_tiles(stream, tiles, [rows, columns, width / columns], is_added)
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
    if group.size() == 1 {
        return Ok(());
    }
    let call = Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, view.len());
    group.in_order(call, view)
}
