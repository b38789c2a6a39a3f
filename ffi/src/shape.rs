//! What C's arguments say of a call: which it is, and how many elements it reads and writes on a
//! rank. The same for memory of the host and of devices.

use std::ffi::c_int;
use std::sync::Arc;

use brigade_comm::{Call, Counts, Dtype, Op};
use brigade_schedule::Collective;
use brigade_wall::memory::{Lengths, Seat, sum};
use brigade_wall::pointer::list;

use crate::dtype::DtypeCode;
use crate::error::Outcome;
use crate::op::{brigade_op_t, parse};

/// A call that was parsed.
pub(crate) struct Shape {
    pub(crate) call: Call,
    pub(crate) lengths: Lengths,
}

/// The root that C means, as calls number ranks.
#[inline(always)]
fn root_of(seat: Seat, purpose: &str, root: c_int) -> Outcome<u32> {
    Ok(seat.member(purpose, root)? as u32)
}

#[inline(always)]
pub(crate) fn all_reduce(count: usize, dtype: DtypeCode, op: brigade_op_t) -> Outcome<Shape> {
    let call = Call::new(Collective::AllReduce, dtype.parse()?, parse(op)?, count);
    Ok(Shape { call, lengths: Lengths::equal(count) })
}

#[inline(always)]
pub(crate) fn reduce_scatter(
    seat: Seat,
    recvcount: usize,
    dtype: DtypeCode,
    op: brigade_op_t,
) -> Outcome<Shape> {
    let call = Call::new(Collective::ReduceScatter, dtype.parse()?, parse(op)?, recvcount);
    Ok(Shape { call, lengths: seat.gathering(recvcount).reversed() })
}

/// # Safety
///
/// The counts are what C must pass.
pub(crate) unsafe fn reduce_scatter_v(
    seat: Seat,
    recvcounts: *const usize,
    dtype: DtypeCode,
    op: brigade_op_t,
) -> Outcome<Shape> {
    // SAFETY: the caller's promise.
    let (counts, lengths) = unsafe { per_rank(seat, recvcounts, "recvcounts") }?;
    let collective = Collective::ReduceScatter;
    let call = Call { collective, dtype: dtype.parse()?, op: parse(op)?, counts };
    Ok(Shape { call, lengths: lengths.reversed() })
}

#[inline(always)]
pub(crate) fn all_gather(seat: Seat, sendcount: usize, dtype: DtypeCode) -> Outcome<Shape> {
    let call = Call::moving(Collective::AllGather, dtype.parse()?, sendcount);
    Ok(Shape { call, lengths: seat.gathering(sendcount) })
}

/// # Safety
///
/// The counts are what C must pass.
pub(crate) unsafe fn all_gather_v(
    seat: Seat,
    sendcounts: *const usize,
    dtype: DtypeCode,
) -> Outcome<Shape> {
    // SAFETY: the caller's promise.
    let (counts, lengths) = unsafe { per_rank(seat, sendcounts, "sendcounts") }?;
    Ok(Shape { call: moving(Collective::AllGather, dtype.parse()?, counts), lengths })
}

#[inline(always)]
pub(crate) fn all_to_all(seat: Seat, count: usize, dtype: DtypeCode) -> Outcome<Shape> {
    let call = Call::moving(Collective::AllToAll, dtype.parse()?, count);
    Ok(Shape { call, lengths: Lengths::equal(count.saturating_mul(seat.ranks)) })
}

/// # Safety
///
/// The counts are what C must pass.
pub(crate) unsafe fn all_to_all_v(
    seat: Seat,
    sendcounts: *const usize,
    recvcounts: *const usize,
    dtype: DtypeCode,
) -> Outcome<Shape> {
    // SAFETY: the caller's promise.
    let to = unsafe { list(sendcounts, seat.ranks, "sendcounts") }?;
    // SAFETY: the caller's promise.
    let from = unsafe { list(recvcounts, seat.ranks, "recvcounts") }?;
    let lengths = Lengths::apart(sum(to), sum(from));
    let counts = Counts::PerPair { to: to.into(), from: from.into() };
    Ok(Shape { call: moving(Collective::AllToAll, dtype.parse()?, counts), lengths })
}

#[inline(always)]
pub(crate) fn barrier() -> Shape {
    let call = Call::moving(Collective::Barrier, Dtype::U8, 0);
    Shape { call, lengths: Lengths::equal(0) }
}

#[inline(always)]
pub(crate) fn broadcast(seat: Seat, count: usize, dtype: DtypeCode, root: c_int) -> Outcome<Shape> {
    let collective = Collective::Broadcast { root: root_of(seat, "broadcast: root", root)? };
    let call = Call::moving(collective, dtype.parse()?, count);
    Ok(Shape { call, lengths: Lengths::apart(if seat.is(root) { count } else { 0 }, count) })
}

#[inline(always)]
pub(crate) fn reduce(
    seat: Seat,
    count: usize,
    dtype: DtypeCode,
    op: brigade_op_t,
    root: c_int,
) -> Outcome<Shape> {
    let collective = Collective::Reduce { root: root_of(seat, "reduce: root", root)? };
    let call = Call::new(collective, dtype.parse()?, parse(op)?, count);
    Ok(Shape { call, lengths: Lengths::apart(count, if seat.is(root) { count } else { 0 }) })
}

#[inline(always)]
pub(crate) fn gather(
    seat: Seat,
    sendcount: usize,
    dtype: DtypeCode,
    root: c_int,
) -> Outcome<Shape> {
    let collective = Collective::Gather { root: root_of(seat, "gather: root", root)? };
    let call = Call::moving(collective, dtype.parse()?, sendcount);
    Ok(Shape { call, lengths: at_root(seat, root, sendcount) })
}

/// # Safety
///
/// The counts are what C must pass.
pub(crate) unsafe fn gather_v(
    seat: Seat,
    sendcounts: *const usize,
    dtype: DtypeCode,
    root: c_int,
) -> Outcome<Shape> {
    // SAFETY: the caller's promise.
    let (counts, lengths) = unsafe { per_rank_at(seat, root, sendcounts, "sendcounts") }?;
    let collective = Collective::Gather { root: root_of(seat, "gather: root", root)? };
    Ok(Shape { call: moving(collective, dtype.parse()?, counts), lengths })
}

#[inline(always)]
pub(crate) fn scatter(
    seat: Seat,
    recvcount: usize,
    dtype: DtypeCode,
    root: c_int,
) -> Outcome<Shape> {
    let collective = Collective::Scatter { root: root_of(seat, "scatter: root", root)? };
    let call = Call::moving(collective, dtype.parse()?, recvcount);
    Ok(Shape { call, lengths: at_root(seat, root, recvcount).reversed() })
}

/// # Safety
///
/// The counts are what C must pass.
pub(crate) unsafe fn scatter_v(
    seat: Seat,
    recvcounts: *const usize,
    dtype: DtypeCode,
    root: c_int,
) -> Outcome<Shape> {
    // SAFETY: the caller's promise.
    let (counts, lengths) = unsafe { per_rank_at(seat, root, recvcounts, "recvcounts") }?;
    let collective = Collective::Scatter { root: root_of(seat, "scatter: root", root)? };
    Ok(Shape { call: moving(collective, dtype.parse()?, counts), lengths: lengths.reversed() })
}

/// A call that only moves elements.
fn moving(collective: Collective, dtype: Dtype, counts: Counts) -> Call {
    Call { collective, dtype, op: Op::Sum, counts }
}

/// One block in, and at the root a block of each rank out.
fn at_root(seat: Seat, root: c_int, count: usize) -> Lengths {
    match seat.is(root) {
        true => seat.gathering(count),
        false => Lengths::apart(count, 0),
    }
}

/// The counts of all ranks, and the lengths of a rank that gathers.
///
/// # Safety
///
/// The counts are what C must pass.
unsafe fn per_rank(seat: Seat, counts: *const usize, name: &str) -> Outcome<(Counts, Lengths)> {
    // SAFETY: the caller's promise.
    let counts = unsafe { list(counts, seat.ranks, name) }?;
    let lengths = Lengths::gathering_v(counts, seat.rank);
    Ok((Counts::PerRank(Arc::from(counts)), lengths))
}

/// Like [`per_rank`], where only the root gathers.
///
/// # Safety
///
/// The counts are what C must pass.
unsafe fn per_rank_at(
    seat: Seat,
    root: c_int,
    counts: *const usize,
    name: &str,
) -> Outcome<(Counts, Lengths)> {
    // SAFETY: the caller's promise.
    let (counts, lengths) = unsafe { per_rank(seat, counts, name) }?;
    let own = match &counts {
        Counts::PerRank(counts) => counts[seat.rank],
        _ => 0,
    };
    Ok((counts, if seat.is(root) { lengths } else { Lengths::apart(own, 0) }))
}
