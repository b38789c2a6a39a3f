//! Causal attention without scores in memory: what `tiles.cu` does, tile by tile. It takes one
//! number a row for backward where `attention` takes `time`, and computes scores twice more.

use super::launch::{launch, narrow};
use super::{Device, View};
use crate::error::Error;
use crate::kernels::Heads;
use brigade_cuda::Arg;

/// Queries of a tile, and keys: as `tiles.cu` has it.
const SIDE: usize = 16;
/// Numbers of a head, at most.
const HEAD_MAX: usize = 128;

impl Device {
    /// Whether heads are small enough for tiles.
    pub fn has_tiles(heads: Heads) -> bool {
        heads.width / heads.heads <= HEAD_MAX
    }

    /// Causal attention; lse: [samples × heads × time] in f32, written.
    ///
    /// Panics: for heads that are too large.
    pub fn attention_in_tiles(
        &self,
        y: View,
        lse: View,
        qkv: View,
        heads: Heads,
    ) -> Result<(), Error> {
        let Tiles { time, count, size, scale, tiles } = Tiles::of(heads, y, lse);
        assert_eq!(qkv.len(), 3 * y.len());
        launch!(self.attention_tiles(
            y.address(), lse.address(), qkv.address(), time, count, size, scale, tiles,
        ) as self.blocks(tiles as usize, SIDE * SIDE))
    }

    /// Writes `dqkv`; y and lse are as forward left them, delta is as long as lse.
    pub fn attention_in_tiles_backward(
        &self,
        dqkv: View,
        delta: View,
        dy: View,
        [y, qkv, lse]: [View; 3],
        heads: Heads,
    ) -> Result<(), Error> {
        let Tiles { time, count, size, scale, tiles } = Tiles::of(heads, y, lse);
        assert!(dqkv.len() == 3 * y.len() && qkv.len() == dqkv.len());
        assert!(dy.len() == y.len() && delta.len() == lse.len());
        let shape = self.blocks(tiles as usize, SIDE * SIDE);
        launch!(self.attention_tiles_queries(
            dqkv.address(),
            delta.address(),
            dy.address(),
            y.address(),
            qkv.address(),
            lse.address(),
            time,
            count,
            size,
            scale,
            tiles,
        ) as shape)?;
        launch!(self.attention_tiles_keys(
            dqkv.address(),
            delta.address(),
            dy.address(),
            qkv.address(),
            lse.address(),
            time,
            count,
            size,
            scale,
            tiles,
        ) as shape)
    }
}

/// What the kernels are told of shapes.
struct Tiles {
    time: u32,
    count: u32,
    size: u32,
    scale: f32,
    /// Of all heads of all samples.
    tiles: u64,
}

impl Tiles {
    fn of(heads: Heads, y: View, lse: View) -> Tiles {
        assert!(Device::has_tiles(heads), "heads of more than {HEAD_MAX} numbers");
        let Heads { time, heads: count, width } = heads;
        let lines = y.len() / width / time * count;
        assert_eq!((lse.len(), lse.size()), (lines * time, 4));
        let (size, tiles) = (width / count, (lines * time.div_ceil(SIDE)) as u64);
        let scale = 1.0 / (size as f32).sqrt();
        Tiles { time: narrow(time), count: narrow(count), size: narrow(size), scale, tiles }
    }
}
