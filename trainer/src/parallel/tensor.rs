//! Ranks that have the same samples and the same units, and divide the work inside of each.
//!
//! A block is norm, *enter* (qkv, fc), something in the middle (attention, GELU), *leave* (proj,
//! out), and the residual stream around it. The model calls a `Division` for all of these but norm
//! and GELU, which see one row at a time. What a division may choose is which rows of the stream a
//! rank has, and what of the inside; then entering and leaving are where ranks talk.
//!
//! | way | stream | inside | sent per rank, block, forward and backward |
//! |---|---|---|---|
//! | `tp` | whole | heads / t | 4 all-reduces of n·c |
//! | `sp` | rows / t | heads / t | 4 reduce-scatters and 6 all-gathers of n·c |
//! | `ring` | rows / t | rows / t | (6 − 4/t) · n·c, and the gradients once |
//! | `ep` | samples / t | samples / t | what gates decide, and the other gradients once |
//! | `2d`, `2.5d`, `3d` | whole | blocks | see `summa`, `cube`; and 4 all-gathers of n·c |
//!
//! n is tokens, c the width. The embedding and the head are replicated in every way. Where the
//! stream is whole every rank computes them; else each on its own rows, and their gradients are
//! all-reduced.

mod cube;
mod expert;
mod fits;
mod grid;
mod megatron;
mod place;
pub mod reshard;
mod ring;
mod summa;

pub use cube::Cube;
pub use expert::Expert;
pub(crate) use expert::in_front_of_experts;
pub use grid::{Grid, Gridded, Side};
pub use megatron::Megatron;
pub use place::{At, Place};
pub(crate) use ring::Circle;
pub use ring::Ring;
pub use summa::Summa;

use super::formula::call_bytes;
use crate::error::Error;
use crate::extent::Extent;
use crate::kernels::{Heads, Kernels};
use crate::layout::{Config, Layout};
use crate::trace::{self, Lane};
use brigade_comm::{Call, Communicator, Dtype, Op};
use brigade_schedule::Collective;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// A way to divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Megatron's split of heads and hidden numbers.
    Heads,
    /// And of the stream's rows.
    Sequence,
    /// Tokens, with keys and values that go round.
    Ring,
    /// SUMMA on q × q ranks.
    Square,
    /// On as many squares as a side is long, or fewer.
    Squares,
    /// On q × q × q ranks.
    Cube,
    /// Experts, and samples.
    Experts,
}

impl Split {
    /// Whether each rank has rows of the stream of its own.
    pub(crate) fn divides_rows(self) -> bool {
        matches!(self, Split::Sequence | Split::Ring | Split::Experts)
    }

    /// Divide a model of this shape among `ranks`, for passes over so many samples. Collective.
    ///
    /// Errors: `Setting` if something does not divide.
    pub fn divide(
        self,
        ranks: Communicator,
        config: &Config,
        batch: usize,
    ) -> Result<Box<dyn Division>, Error> {
        let (size, tokens) = (ranks.size(), batch * config.context);
        self.fits(size, config, batch)?;
        let sides = || self.sides(size).expect("they make a square or a cube");
        let squares = |ranks, side: usize, layers| -> Result<Box<dyn Division>, Error> {
            Ok(Box::new(Gridded::new(Summa::new(ranks, side, layers)?, config, batch)?))
        };
        match self {
            Split::Heads | Split::Sequence => {
                let divides_rows = self == Split::Sequence;
                let group = Group::new(ranks);
                Ok(Box::new(Megatron::new(group, divides_rows, config, tokens)?))
            }
            Split::Ring => Ok(Box::new(Ring::new(Group::new(ranks), config, batch)?)),
            Split::Square | Split::Squares => {
                let [side, layers] = sides();
                squares(ranks, side, layers)
            }
            Split::Experts => Ok(Box::new(Expert::new(Group::new(ranks), config, batch)?)),
            Split::Cube => {
                Ok(Box::new(Gridded::new(Cube::new(ranks, sides()[0])?, config, batch)?))
            }
        }
    }
}

/// A linear layer's weight, [outputs × inputs], and bias, on this rank.
#[derive(Clone, Copy)]
pub struct Linear<'a> {
    /// [outputs × inputs]
    pub weight: &'a [f32],
    /// `[outputs]`
    pub bias: &'a [f32],
}

impl Linear<'_> {
    fn inputs(&self) -> usize {
        self.weight.len() / self.bias.len()
    }
}

/// Where the gradients of a linear layer are written.
pub struct LinearGrads<'a> {
    /// [outputs × inputs]
    pub weight: &'a mut [f32],
    /// `[outputs]`
    pub bias: &'a mut [f32],
}

/// How the ranks of a group divide the inside of a model's units. Every call is collective over the
/// group; the defaults are those of a process that has everything.
pub trait Division {
    /// All who divide, then groups of them; nobody if there is nobody else.
    fn groups(&self) -> &[Group];

    /// Which way this is, if it divides something.
    fn split(&self) -> Option<Split> {
        None
    }

    /// Which part of each tensor a rank of the group has.
    fn place(&self, _rank: usize) -> Place {
        Place::WHOLE
    }

    /// What this rank has of a pass.
    fn extent(&self, config: &Config, batch: usize, time: usize) -> Extent {
        Extent::whole(config, batch, time)
    }

    /// From the stream to the inside: y = x · weightᵀ + bias.
    fn enter(
        &self,
        k: &dyn Kernels,
        y: &mut [f32],
        x: &[f32],
        linear: Linear<'_>,
    ) -> Result<(), Error> {
        k.linear(y, x, linear.weight, linear.bias, linear.inputs(), None);
        Ok(())
    }

    /// Writes `dx`, of the stream, and the gradients of the layer.
    fn enter_backward(
        &self,
        k: &dyn Kernels,
        dx: &mut [f32],
        grads: LinearGrads<'_>,
        dy: &[f32],
        x: &[f32],
        linear: Linear<'_>,
    ) -> Result<(), Error> {
        let inputs = linear.inputs();
        k.linear_backward(dx, grads.weight, grads.bias, dy, x, linear.weight, inputs);
        Ok(())
    }

    /// From the inside back to the stream: y = x · weightᵀ + bias + onto.
    fn leave(
        &self,
        k: &dyn Kernels,
        y: &mut [f32],
        x: &[f32],
        linear: Linear<'_>,
        onto: &[f32],
    ) -> Result<(), Error> {
        k.linear(y, x, linear.weight, linear.bias, linear.inputs(), Some(onto));
        Ok(())
    }

    /// Writes `dx`, of the inside, and the gradients of the layer. dy: of the stream.
    fn leave_backward(
        &self,
        k: &dyn Kernels,
        dx: &mut [f32],
        grads: LinearGrads<'_>,
        dy: &[f32],
        x: &[f32],
        linear: Linear<'_>,
    ) -> Result<(), Error> {
        let inputs = linear.inputs();
        k.linear_backward(dx, grads.weight, grads.bias, dy, x, linear.weight, inputs);
        Ok(())
    }

    /// Causal attention, by the shape of this rank's extent.
    fn attention(
        &self,
        k: &dyn Kernels,
        y: &mut [f32],
        kept: &mut [f32],
        qkv: &[f32],
        heads: Heads,
    ) -> Result<(), Error> {
        k.attention(y, kept, qkv, heads);
        Ok(())
    }

    /// Writes `dqkv`. y: what forward made.
    fn attention_backward(
        &self,
        k: &dyn Kernels,
        dqkv: &mut [f32],
        scratch: &mut [f32],
        dy: &[f32],
        from: Attended<'_>,
    ) -> Result<(), Error> {
        k.attention_backward(dqkv, scratch, dy, from.qkv, from.kept, from.heads);
        Ok(())
    }

    /// After a unit's backward: make gradients whole that this rank's rows gave a part of. block:
    /// the lengths of its tensors, if the unit is one.
    fn complete(&self, _grads: &mut [f32], _block: Option<&[usize; 12]>) -> Result<(), Error> {
        Ok(())
    }

    /// The sum over all rows of a loss over this rank's.
    fn sum_loss(&self, mine: f64) -> Result<f64, Error> {
        Ok(mine)
    }

    /// Bytes of memory for what comes from other ranks.
    fn room_bytes(&self) -> u64 {
        0
    }

    /// Bytes that this rank sends in forward and in backward of a unit, over so many tokens.
    fn formula_bytes(
        &self,
        _layout: &Layout,
        _unit: usize,
        _tokens: usize,
    ) -> Result<[u64; 2], Error> {
        Ok([0, 0])
    }
}

/// What attention's forward was given, what it made and what it kept.
pub struct Attended<'a> {
    /// [rows × 3·width]
    pub qkv: &'a [f32],
    /// [rows × width]
    pub y: &'a [f32],
    /// As long as the extent says.
    pub kept: &'a [f32],
    /// Shape on this rank.
    pub heads: Heads,
}

/// One process has everything.
pub struct Whole;

impl Division for Whole {
    fn groups(&self) -> &[Group] {
        &[]
    }
}

/// A communicator, and how long this rank waited for it.
pub struct Group {
    comm: Communicator,
    waited: Cell<Duration>,
}

impl Group {
    /// Of these ranks.
    pub fn new(comm: Communicator) -> Group {
        Group { comm, waited: Cell::default() }
    }

    /// The ranks.
    pub(crate) fn comm(&self) -> &Communicator {
        &self.comm
    }

    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.comm.size()
    }

    /// Whether sums are in the order of ranks.
    pub fn is_ordered(&self) -> bool {
        self.comm.settings().ordered
    }

    /// Bytes that this rank has sent.
    pub fn sent_bytes(&self) -> u64 {
        self.comm.stats().sent_bytes
    }

    /// How long this rank waited since this was asked last.
    pub fn take_waited(&self) -> Duration {
        self.waited.take()
    }

    /// A call, timed.
    pub fn timed<T>(
        &self,
        call: impl FnOnce(&Communicator) -> Result<T, brigade_comm::Error>,
    ) -> Result<T, Error> {
        let _waiting = trace::span(Lane::Waiting, "for the other parts of the model", self.rank());
        let from = Instant::now();
        let done = call(&self.comm);
        self.waited.set(self.waited.get() + from.elapsed());
        Ok(done?)
    }

    /// Sum over all ranks, in place.
    pub fn all_reduce(&self, data: &mut [f32]) -> Result<(), Error> {
        self.timed(|comm| comm.all_reduce(data, Op::Sum))
    }

    /// Everybody's, one after the other.
    pub fn all_gather(&self, mine: &[f32], all: &mut [f32]) -> Result<(), Error> {
        self.timed(|comm| comm.all_gather(mine, all))
    }

    /// This rank's part of the sum.
    pub fn reduce_scatter(&self, all: &[f32], mine: &mut [f32]) -> Result<(), Error> {
        self.timed(|comm| comm.reduce_scatter(all, mine, Op::Sum))
    }

    /// Rank `root`'s, to everybody.
    pub fn broadcast(&self, data: &mut [f32], root: usize) -> Result<(), Error> {
        self.timed(|comm| comm.broadcast(data, root))
    }

    /// The sum, to rank `root`.
    pub fn reduce(&self, data: &mut [f32], root: usize) -> Result<(), Error> {
        self.timed(|comm| comm.reduce(data, Op::Sum, root))
    }

    /// Bytes that this rank sends in a call with blocks of `elems` f32.
    pub fn bytes(&self, collective: Collective, elems: usize) -> Result<u64, Error> {
        call_bytes(&self.comm, &Call::new(collective, Dtype::F32, Op::Sum, elems))
    }

    /// The sum of a number over all ranks, the same bits on each.
    pub fn sum(&self, mine: f64) -> Result<f64, Error> {
        let mut sum = [mine];
        self.timed(|comm| comm.all_reduce(&mut sum, Op::Sum))?;
        Ok(sum[0])
    }

    /// Bytes of `sum`.
    pub fn sum_bytes(&self) -> Result<u64, Error> {
        call_bytes(&self.comm, &Call::new(Collective::AllReduce, Dtype::F64, Op::Sum, 1))
    }
}
