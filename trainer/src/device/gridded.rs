//! The layers of blocks whose inside is on a grid, as `tensor/grid` has them: tiles of the stream,
//! which is whole on every rank, are cut for free and put together by an all-gather.

use super::gpt::DeviceGpt;
use super::grid::LinearGrads;
use super::grid::{Backward, GridRooms};
use crate::error::Error;
use crate::kernels::cuda::View;
use crate::parallel::tensor::Side;

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
        let dx_part = self.scratch.grid.part;
        let layer = Backward { side: Side::Enter, dx: dx_part, grads, dy, x: tile, weight };
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
        grid.forward(device, rooms, Side::Leave, [rooms.part, x], [weight, none])?;
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
        grid.backward(device, scratch.grid, scratch.partials, layer)
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
        let GridRooms { part, parts, .. } = self.scratch.grid;
        let division = self.division.as_mut().expect("a grid");
        division.gather_beside(part, parts)?;
        division.arrive()?;
        let (columns, width) = (self.heads.width, self.shape.width);
        let rows = part.len() / columns;
        self.device.join_tiles(stream, parts, [rows, columns, width / columns], is_added)
    }
}
