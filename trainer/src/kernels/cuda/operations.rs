//! The operations of a GPT, each a launch or two. Shapes are those of `kernels::Kernels`.

use super::launch::{launch, narrow};
use super::{Device, View};
use crate::error::Error;
use crate::kernels::Heads;
use crate::norms::ExactSum;
use brigade_cuda::Arg;

/// What a norm's backward reads: [rows × width], [rows × 2] and `[width]`.
#[derive(Clone, Copy)]
pub struct Norm {
    /// What came in.
    pub x: View,
    /// What forward kept of each row.
    pub stats: View,
    /// The gain.
    pub gain: View,
}

/// AdamW with its constants made for one step, as `adamw` in `elements.cu` reads them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWStep {
    /// What gradients are multiplied by.
    pub scale: f32,
    /// Memory of the mean gradient.
    pub beta1: f32,
    /// Memory of the mean squared gradient.
    pub beta2: f32,
    /// Keeps the division finite.
    pub eps: f32,
    /// lr / (1 − beta1ᵗ)
    pub rate: f32,
    /// 1 / √(1 − beta2ᵗ)
    pub root: f32,
    /// 1 − lr · decay
    pub shrink: f32,
}

/// Slices that sums over rows are cut into, which are then added in order.
pub(super) const SLICES: usize = 32;
/// The same for tokens, whose sums are as long as their table.
const TOKEN_SLICES: usize = 4;

/// Numbers of a sum of squares.
pub const SQUARES: usize = ExactSum::NUMBERS;

impl Device {
    /// f32 numbers that sums over rows need beside them, of a model this wide.
    pub fn partials(width: usize, vocab: usize) -> usize {
        // Norms have two sums of `width`, biases one of up to four times that.
        (SLICES * 4 * width).max(TOKEN_SLICES * vocab * width)
    }

    /// x = token's row + place's row. x: [rows × width]; places: of each row in its sample, or
    /// nothing where the rows are those of whole samples.
    pub fn embed(
        &self,
        x: View,
        [tokens, places]: [View; 2],
        [wte, wpe]: [View; 2],
        shape: Heads,
    ) -> Result<(), Error> {
        assert!(x.len() == tokens.len() * shape.width);
        assert!(places.is_empty() || places.len() == tokens.len());
        let (time, width, len) = (narrow(shape.time), narrow(shape.width), x.len() as u64);
        let places = if places.is_empty() { 0 } else { places.address() };
        launch!(self.embed(
            x.address(), tokens.address(), places, wte.address(), wpe.address(), time, width, len,
        ) as self.elements(x.len()))
    }

    /// Gradients of both tables. Rows of one place lie `period` apart.
    pub fn embed_backward(
        &self,
        [dwte, dwpe]: [View; 2],
        dx: View,
        [tokens, places]: [View; 2],
        partials: View,
        [period, width]: [usize; 2],
    ) -> Result<(), Error> {
        let (rows, vocab) = (tokens.len(), dwte.len() / width);
        assert!(dx.len() == rows * width && dwpe.len() >= rows.min(period) * width);
        let partials = partials.first(TOKEN_SLICES * dwte.len());
        let sizes = [rows, width, vocab, TOKEN_SLICES].map(narrow);
        launch!(self.token_slices(
            partials.address(), dx.address(), tokens.address(), sizes[0], sizes[1], sizes[2],
            sizes[3],
        ) as self.rows(vocab * TOKEN_SLICES, width))?;
        self.fold(dwte, partials, TOKEN_SLICES)?;
        // Places that no row has have no gradient.
        self.clear(dwpe)?;
        let places = if places.is_empty() { 0 } else { places.address() };
        let (all, apart, columns) = (rows as u64, narrow(period), narrow(width));
        launch!(self.embed_places(dwpe.address(), dx.address(), places, all, apart, columns)
            as self.elements(rows.min(period) * width))
    }

    /// y = normalised x · gain + bias; y is inside, x of the stream.
    pub fn layernorm(&self, y: View, norm: Norm, bias: View) -> Result<(), Error> {
        let Norm { x, stats, gain } = norm;
        let width = gain.len();
        let rows = x.len() / width;
        assert!(y.len() == x.len() && stats.len() == 2 * rows && bias.len() == width);
        let (columns, count) = (narrow(width), narrow(rows));
        launch!(self.layernorm(
            y.address(), stats.address(), x.address(), gain.address(), bias.address(), columns,
            count,
        ) as self.rows(rows, width))
    }

    /// Adds to `dx`, writes the other two. dx, dy: [rows × width] in f32.
    pub fn layernorm_backward(
        &self,
        dx: View,
        params: [View; 2],
        dy: View,
        norm: Norm,
        partials: View,
    ) -> Result<(), Error> {
        self.layernorm_input(dx, dy, norm)?;
        self.layernorm_params(params, dy, [norm.x, norm.stats], partials)
    }

    /// The part of that which adds to `dx`.
    pub fn layernorm_input(&self, dx: View, dy: View, norm: Norm) -> Result<(), Error> {
        let Norm { x, stats, gain } = norm;
        let width = gain.len();
        let rows = x.len() / width;
        assert!(dx.len() == x.len() && dy.len() == x.len() && stats.len() == 2 * rows);
        let (columns, count) = (narrow(width), narrow(rows));
        launch!(self.layernorm_backward(
            dx.address(), dy.address(), x.address(), stats.address(), gain.address(), columns,
            count,
        ) as self.rows(rows, width))
    }

    /// The rest of it: gradients of gain and bias. `of`: what came in, and its stats.
    pub fn layernorm_params(
        &self,
        [dgain, dbias]: [View; 2],
        dy: View,
        [x, stats]: [View; 2],
        partials: View,
    ) -> Result<(), Error> {
        let width = dgain.len();
        let rows = x.len() / width;
        assert!(dy.len() == x.len() && stats.len() == 2 * rows && dbias.len() == width);
        let (columns, count, slices) = (narrow(width), narrow(rows), narrow(SLICES));
        let partials = partials.first(2 * SLICES * width);
        launch!(self.norm_slices(
            partials.address(), dy.address(), x.address(), stats.address(), count, columns, slices,
        ) as self.elements(SLICES * width))?;
        let [of_gain, of_bias] = partials.cut([SLICES * width; 2]);
        self.fold(dgain, of_gain, SLICES)?;
        self.fold(dbias, of_bias, SLICES)
    }

    /// GELU by its tanh form.
    pub fn gelu(&self, y: View, x: View) -> Result<(), Error> {
        assert_eq!(y.len(), x.len());
        let len = x.len() as u64;
        launch!(self.gelu(y.address(), x.address(), len) as self.elements(x.len()))
    }

    /// dy becomes dx.
    pub fn gelu_backward(&self, dy: View, x: View) -> Result<(), Error> {
        assert_eq!(dy.len(), x.len());
        let len = x.len() as u64;
        launch!(self.gelu_backward(dy.address(), x.address(), len) as self.elements(x.len()))
    }

    /// Each row's loss, and `scale` times the gradient of its logits, which is inside.
    pub fn cross_entropy(
        &self,
        gradient: View,
        losses: View,
        logits: View,
        targets: View,
        scale: f32,
    ) -> Result<(), Error> {
        let rows = targets.len();
        let vocab = logits.len() / rows;
        assert!(losses.len() == rows && gradient.len() == logits.len());
        let (columns, count) = (narrow(vocab), narrow(rows));
        launch!(self.cross_entropy(
            gradient.address(), losses.address(), logits.address(), targets.address(), scale,
            columns, count,
        ) as self.rows(rows, vocab))
    }

    /// The sum of all losses, in f64.
    pub fn sum_losses(&self, total: View, losses: View) -> Result<(), Error> {
        assert_eq!((total.len(), total.size()), (1, 8));
        let rows = narrow(losses.len());
        launch!(self.sum_losses(total.address(), losses.address(), rows) as self.one_block())
    }

    /// total += part.
    pub fn add(&self, total: View, part: View) -> Result<(), Error> {
        assert_eq!((total.len(), total.size(), part.size()), (part.len(), 4, 4));
        let len = total.len() as u64;
        launch!(self.add(total.address(), part.address(), len) as self.elements(total.len()))
    }

    /// What products read of these f32 numbers.
    pub fn to_inside(&self, y: View, x: View) -> Result<(), Error> {
        assert_eq!((y.len(), y.size(), x.size()), (x.len(), self.inside().size(), 4));
        let len = x.len() as u64;
        launch!(self.to_act(y.address(), x.address(), len) as self.elements(x.len()))
    }

    /// These f32 numbers in bf16.
    pub fn to_bf16(&self, y: View, x: View) -> Result<(), Error> {
        assert_eq!((y.len(), y.size(), x.size()), (x.len(), 2, 4));
        let len = x.len() as u64;
        launch!(self.to_bf16(y.address(), x.address(), len) as self.elements(x.len()))
    }

    /// total, or nothing where it `is_new`, and all these pieces in bf16, in their order.
    pub fn add_bf16(&self, total: View, pieces: View, is_new: bool) -> Result<(), Error> {
        let count = pieces.len() / total.len();
        assert_eq!((total.len() * count, total.size(), pieces.size()), (pieces.len(), 4, 2));
        let (count, len, is_new) = (narrow(count), total.len() as u64, u32::from(is_new));
        launch!(self.add_bf16(total.address(), pieces.address(), count, len, is_new)
            as self.elements(total.len()))
    }

    /// Add the squares of these f32 numbers to a sum of `SQUARES` numbers of 64 bits, which is
    /// exact: its digits count for 2^(32 d - 298), and its last number what is not finite.
    pub fn squares(&self, sum: View, x: View) -> Result<(), Error> {
        assert_eq!((sum.bytes(), x.size()), (8 * SQUARES, 4));
        let len = x.len() as u64;
        launch!(self.squares(sum.address(), x.address(), len) as self.elements(x.len()))
    }

    /// Move [params, mean, square] against their gradients, all f32, and leave in `narrow`, if it
    /// shall, what products read of the parameters.
    pub fn adamw(
        &self,
        step: &AdamWStep,
        [params, mean, square, grads]: [View; 4],
        narrow: Option<View>,
    ) -> Result<(), Error> {
        let lens = [mean, square, grads].map(View::len);
        assert!(lens == [params.len(); 3] && narrow.is_none_or(|view| view.len() == params.len()));
        let AdamWStep { scale, beta1, beta2, eps, rate, root, shrink } = *step;
        let len = params.len() as u64;
        let narrow = narrow.map_or(0, View::address);
        launch!(self.adamw(
            params.address(), narrow, mean.address(), square.address(), grads.address(), len,
            scale, beta1, beta2, eps, rate, root, shrink,
        ) as self.elements(params.len()))
    }

    pub(super) fn fold(&self, sums: View, partials: View, slices: usize) -> Result<(), Error> {
        assert_eq!(partials.len(), slices * sums.len());
        let (count, len) = (narrow(slices), sums.len() as u64);
        launch!(self.fold_slices(sums.address(), partials.address(), count, len)
            as self.elements(sums.len()))
    }
}
