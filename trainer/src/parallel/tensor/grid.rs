//! Linear layers whose matrices are divided along both sides, over a grid of ranks, and blocks that
//! are made of them (Colossal-AI's 2D, 2.5D and 3D: Xu et al. 2021, Wang et al. 2021, Bian et al.
//! 2021).
//!
//! A matrix of activations is cut into tiles of rows (samples) and columns, one per rank, and so is
//! every weight. Inside of a block nothing is whole: qkv, attention over some samples and some
//! heads, proj; fc, GELU, out. The residual stream and the norms are whole on every rank, so a tile
//! is cut from it for free and put together by an all-gather.

use super::{Division, Group, Linear, LinearGrads, Place, Split};
use crate::error::Error;
use crate::extent::Extent;
use crate::kernels::{Heads, Kernels};
use crate::layout::{Config, Layout};
use brigade_schedule::Collective;
use std::cell::RefCell;

/// Which of the two kinds of layer: they follow each other, so that tiles fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// From the stream to the inside.
    Enter,
    /// Back.
    Leave,
}

/// A grid of ranks and the products it makes. Every call is collective over all of its ranks. No
/// tensor is padded: what is divided must divide.
pub trait Grid {
    /// Which of them this is.
    fn split(&self) -> Split;

    /// All ranks, and the groups along the axes.
    fn groups(&self) -> &[Group];

    /// Into how many parts rows and columns of activations are divided.
    fn parts(&self) -> [usize; 2];

    /// Which rows and which columns of an activation a rank has, in the stream or, behind `Enter`,
    /// inside.
    fn tile(&self, rank: usize, side: Side) -> [usize; 2];

    /// Which part of each weight a rank has.
    fn place(&self, rank: usize) -> Place;

    /// y = x · weightᵀ + bias, tile by tile. inputs: columns of x; bias: that of y's columns, or
    /// empty.
    fn forward(
        &self,
        k: &dyn Kernels,
        side: Side,
        y: &mut [f32],
        x: &[f32],
        linear: Linear<'_>,
        inputs: usize,
    ) -> Result<(), Error>;

    /// Writes to the tiles of dx and of the gradients, whose bias may be empty.
    fn backward(
        &self,
        k: &dyn Kernels,
        side: Side,
        to: (&mut [f32], LinearGrads<'_>),
        dy: &[f32],
        x: &[f32],
        weight: &[f32],
    ) -> Result<(), Error>;

    /// Have room for what other ranks' tiles of such a layer take.
    fn make_room(&self, tile: [usize; 3]);

    /// Bytes of that room.
    fn room_bytes(&self) -> u64;

    /// Bytes that this rank sends in forward and in backward of a layer whose tiles have so many
    /// rows, inputs and outputs, the bias included.
    fn formula_bytes(&self, side: Side, tile: [usize; 3]) -> Result<[u64; 2], Error>;
}

/// Have room for `elems` in a buffer, and for no more.
pub(super) fn at_least(room: &mut Vec<f32>, elems: usize) {
    room.clear();
    room.reserve_exact(elems);
}

/// Bytes that such buffers take.
pub(super) fn bytes_of(rooms: &[Vec<f32>]) -> u64 {
    4 * rooms.iter().map(|room| room.capacity() as u64).sum::<u64>()
}

/// Refuse what does not go into so many parts of rows and columns, and those into `depth` more.
pub(super) fn fits(
    [rows, columns]: [usize; 2],
    depth: usize,
    config: &Config,
    batch: usize,
) -> Result<(), Error> {
    for (name, value, parts) in [
        ("batch", batch, rows),
        ("heads", config.heads, columns),
        ("width", config.width, columns * depth),
    ] {
        if !value.is_multiple_of(parts) {
            let problem = format!("{value} do not go into {parts} parts");
            return Err(Error::setting(name, problem));
        }
    }
    Ok(())
}

/// Blocks whose inside is computed on a grid.
pub struct Gridded<G> {
    grid: G,
    width: usize,
    /// A tile of the stream, and the tiles of all ranks.
    rooms: RefCell<[Vec<f32>; 2]>,
}

impl<G: Grid> Gridded<G> {
    /// On this grid, for passes over so many samples.
    ///
    /// Errors: `Setting` if samples, heads or width do not divide.
    pub fn new(grid: G, config: &Config, batch: usize) -> Result<Gridded<G>, Error> {
        let [rows, columns] = grid.parts();
        fits([rows, columns], grid.place(0).share.depth, config, batch)?;
        let stream = batch * config.context * config.width;
        let rooms = [vec![0.0; stream / rows / columns], vec![0.0; stream]];
        let ranks = grid.groups()[0].size();
        assert_eq!(ranks, rows * columns, "a tile for each rank");
        let grid = Gridded { grid, width: config.width, rooms: RefCell::new(rooms) };
        let tokens = batch * config.context;
        grid.layers(tokens).into_iter().for_each(|(_, tile)| grid.grid.make_room(tile));
        Ok(grid)
    }

    /// The layers of a block: rows, inputs and outputs of their tiles.
    fn layers(&self, tokens: usize) -> [(Side, [usize; 3]); 4] {
        let (rows, c) = (tokens / self.grid.parts()[0], self.columns());
        [
            (Side::Enter, [rows, c, 3 * c]),
            (Side::Leave, [rows, c, c]),
            (Side::Enter, [rows, c, 4 * c]),
            (Side::Leave, [rows, 4 * c, c]),
        ]
    }

    /// Rows and columns of the whole stream that are in a rank's tile, row by row.
    fn each(&self, rank: usize, elems: usize, mut see: impl FnMut(std::ops::Range<usize>)) {
        let [rows, columns] = self.grid.parts();
        let [row, column] = self.grid.tile(rank, Side::Enter);
        let (height, width) = (elems / self.width / rows, self.width / columns);
        for row in row * height..(row + 1) * height {
            let first = row * self.width + column * width;
            see(first..first + width);
        }
    }

    fn cut(&self, tile: &mut [f32], whole: &[f32]) {
        let mut rows = tile.chunks_exact_mut(self.columns());
        self.each(self.grid.groups()[0].rank(), whole.len(), |row| {
            rows.next().expect("a row of the tile").copy_from_slice(&whole[row]);
        });
    }

    fn join(&self, whole: &mut [f32], tile: &[f32], all: &mut [f32]) -> Result<(), Error> {
        self.grid.groups()[0].all_gather(tile, all)?;
        let mut rows = all.chunks_exact(self.columns());
        for rank in 0..self.grid.groups()[0].size() {
            self.each(rank, whole.len(), |row| {
                whole[row].copy_from_slice(rows.next().expect("a row of a tile"));
            });
        }
        Ok(())
    }

    /// Columns of a tile of the stream.
    fn columns(&self) -> usize {
        self.width / self.grid.parts()[1]
    }
}

impl<G: Grid> Division for Gridded<G> {
    fn groups(&self) -> &[Group] {
        self.grid.groups()
    }

    fn split(&self) -> Option<Split> {
        Some(self.grid.split())
    }

    fn place(&self, rank: usize) -> Place {
        self.grid.place(rank)
    }

    fn extent(&self, config: &Config, batch: usize, time: usize) -> Extent {
        let [rows, columns] = self.grid.parts();
        let heads = Heads { time, heads: config.heads / columns, width: config.width / columns };
        Extent::inside((0..(batch * time) as u32).collect(), batch / rows, heads)
    }

    fn enter(
        &self,
        k: &dyn Kernels,
        y: &mut [f32],
        x: &[f32],
        linear: Linear<'_>,
    ) -> Result<(), Error> {
        let [tile, _] = &mut *self.rooms.borrow_mut();
        self.cut(tile, x);
        self.grid.forward(k, Side::Enter, y, tile, linear, self.columns())
    }

    fn enter_backward(
        &self,
        k: &dyn Kernels,
        dx: &mut [f32],
        grads: LinearGrads<'_>,
        dy: &[f32],
        x: &[f32],
        linear: Linear<'_>,
    ) -> Result<(), Error> {
        let [tile, all] = &mut *self.rooms.borrow_mut();
        self.cut(tile, x);
        // The gradient has a room of its own until it is put together.
        let dtile = &mut all[..tile.len()];
        self.grid.backward(k, Side::Enter, (dtile, grads), dy, tile, linear.weight)?;
        tile.copy_from_slice(dtile);
        self.join(dx, tile, all)
    }

    fn leave(
        &self,
        k: &dyn Kernels,
        y: &mut [f32],
        x: &[f32],
        linear: Linear<'_>,
        onto: &[f32],
    ) -> Result<(), Error> {
        let [tile, all] = &mut *self.rooms.borrow_mut();
        let inputs = x.len() * self.columns() / tile.len();
        let unbiased = Linear { bias: &[], ..linear };
        self.grid.forward(k, Side::Leave, tile, x, unbiased, inputs)?;
        self.join(y, tile, all)?;
        for row in y.chunks_exact_mut(self.width) {
            k.add(row, linear.bias);
        }
        k.add(y, onto);
        Ok(())
    }

    fn leave_backward(
        &self,
        k: &dyn Kernels,
        dx: &mut [f32],
        grads: LinearGrads<'_>,
        dy: &[f32],
        x: &[f32],
        linear: Linear<'_>,
    ) -> Result<(), Error> {
        let [tile, _] = &mut *self.rooms.borrow_mut();
        self.cut(tile, dy);
        grads.bias.fill(0.0);
        for row in dy.chunks_exact(self.width) {
            k.add(grads.bias, row);
        }
        let unbiased = LinearGrads { weight: grads.weight, bias: &mut [] };
        self.grid.backward(k, Side::Leave, (dx, unbiased), tile, x, linear.weight)
    }

    fn room_bytes(&self) -> u64 {
        let tiles: u64 = self.rooms.borrow().iter().map(|room| room.len() as u64).sum();
        4 * tiles + self.grid.room_bytes()
    }

    fn formula_bytes(
        &self,
        layout: &Layout,
        unit: usize,
        tokens: usize,
    ) -> Result<[u64; 2], Error> {
        if unit == 0 || unit + 1 == layout.units() {
            return Ok([0, 0]);
        }
        let (rows, c) = (tokens / self.grid.parts()[0], self.columns());
        let joins = 2 * self.grid.groups()[0].bytes(Collective::AllGather, rows * c)?;
        let mut bytes = [joins; 2];
        for (side, tile) in self.layers(tokens) {
            let layer = self.grid.formula_bytes(side, tile)?;
            bytes = [bytes[0] + layer[0], bytes[1] + layer[1]];
        }
        Ok(bytes)
    }
}
