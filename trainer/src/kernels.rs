//! What a GPT asks of the machine: fifteen operations, forward and backward.
//!
//! A kernel sees slices and shapes. It does not know layers, ranks or steps, and it owns no memory.
//! The unit of every slice is one f32 and every matrix is row-major.
//!
//! Two promises, which the parallel strategies are built on:
//! * gradients of parameters are *written*, not accumulated, so nobody has to zero a buffer;
//! * work is cut into units whose size depends on shapes only, and each unit is computed in one
//!   order, so the number of threads never changes a bit of the result.

mod attention;
mod chunks;
mod cpu;
pub mod cuda;
mod gemm;
mod norm;
mod pointwise;
mod simd;

pub use cpu::Cpu;
pub(crate) use gemm::packed_bytes;

/// Shape of one attention call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Tokens per sample.
    pub time: usize,
    /// Heads.
    pub heads: usize,
    /// Numbers per token; each head has `width / heads`.
    pub width: usize,
}

impl Heads {
    /// Rows of scores that attention works on at a time.
    pub(crate) const ROWS: usize = 64;

    /// Scratch that the backward of one sample needs: [ROWS × time].
    pub fn scratch(&self) -> usize {
        Heads::ROWS.min(self.time) * self.time
    }
}

/// Some rows of a sample whose attention goes to some rows of another rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// First row here.
    pub rows: usize,
    /// First row there.
    pub columns: usize,
    /// Rows of each.
    pub len: usize,
    /// Whether they are the same tokens, of which none sees a later one.
    pub is_causal: bool,
}

/// The operations of a GPT's training step.
pub trait Kernels: Sync {
    /// `x[i] = wte[tokens[n]] + wpe[n mod time]` with `n = rows[i]`. x: [rows × width].
    fn embed(&self, x: &mut [f32], rows: &[u32], tokens: &[u32], tables: [&[f32]; 2], shape: Heads);

    /// Gradients of both tables from `dx`: [rows × width].
    fn embed_backward(
        &self,
        tables: [&mut [f32]; 2],
        dx: &[f32],
        rows: &[u32],
        tokens: &[u32],
        shape: Heads,
    );

    /// Normalise each row to mean 0 and variance 1, then scale and shift. `stats`: [rows × 2] takes
    /// the mean and the inverse deviation of each row, for the backward.
    fn layernorm(&self, y: &mut [f32], stats: &mut [f32], x: &[f32], gain: &[f32], bias: &[f32]);

    /// *Adds* to `dx`, which is the residual stream's gradient; writes `dgain` and `dbias`. Any of
    /// them may be empty: then it is not wanted. Without `dx` it needs no `gain`.
    #[expect(clippy::too_many_arguments, reason = "the operands of the formula")]
    fn layernorm_backward(
        &self,
        dx: &mut [f32],
        dgain: &mut [f32],
        dbias: &mut [f32],
        dy: &[f32],
        x: &[f32],
        stats: &[f32],
        gain: &[f32],
    );

    /// `y = x · weightᵀ + bias + onto`. x: [rows × inputs], weight: [outputs × inputs], bias:
    /// `[outputs]` or empty, onto: `[rows × outputs]`, the residual stream, if any.
    fn linear(
        &self,
        y: &mut [f32],
        x: &[f32],
        weight: &[f32],
        bias: &[f32],
        inputs: usize,
        onto: Option<&[f32]>,
    );

    /// Writes `dx`, `dweight` and `dbias`, each unless it is empty; without `dx` it needs no
    /// `weight`.
    #[expect(clippy::too_many_arguments, reason = "the operands of the formula")]
    fn linear_backward(
        &self,
        dx: &mut [f32],
        dweight: &mut [f32],
        dbias: &mut [f32],
        dy: &[f32],
        x: &[f32],
        weight: &[f32],
        inputs: usize,
    );

    /// Causal self-attention. qkv: [rows × 3·width], probs: [samples × heads × time × time] of
    /// which only the columns that causality allows are ever written or read, y: [rows × width].
    fn attention(&self, y: &mut [f32], probs: &mut [f32], qkv: &[f32], heads: Heads);

    /// Writes `dqkv`. scratch: [samples × `heads.scratch()`].
    fn attention_backward(
        &self,
        dqkv: &mut [f32],
        scratch: &mut [f32],
        dy: &[f32],
        qkv: &[f32],
        probs: &[f32],
        heads: Heads,
    );

    /// More of attention (made: y and lse, [samples × heads × time], which start from 0 and −∞) of
    /// queries to keys and values (from: qkv and kv, [rows × 2·width]) in these chunks, which are
    /// equally long. scratch: [samples × chunk × chunk].
    fn attend(
        &self,
        made: (&mut [f32], &mut [f32]),
        scratch: &mut [f32],
        from: (&[f32], &[f32]),
        to: (&[Chunk], Heads),
    );

    /// Adds to the queries' third of dqkv, and to dkv (gradients). made: dy, y and lse when all
    /// chunks had been seen. scratch: [samples × 2 × chunk × chunk].
    fn attend_backward(
        &self,
        gradients: (&mut [f32], &mut [f32]),
        scratch: &mut [f32],
        made: (&[f32], &[f32], &[f32]),
        from: (&[f32], &[f32]),
        to: (&[Chunk], Heads),
    );

    /// GELU by its tanh form (Hendrycks and Gimpel 2016).
    fn gelu(&self, y: &mut [f32], x: &[f32]);

    /// Turns `dy` into `dx`, in place.
    fn gelu_backward(&self, dy: &mut [f32], x: &[f32]);

    /// Softmax cross-entropy. Writes each row's loss and replaces the logits by `scale` times their
    /// gradient. logits: [rows × vocab].
    fn cross_entropy(&self, logits: &mut [f32], losses: &mut [f32], targets: &[u32], scale: f32);

    /// `total += part`, element by element.
    fn add(&self, total: &mut [f32], part: &[f32]);

    /// Worker threads, for the settings table.
    fn threads(&self) -> usize;
}
