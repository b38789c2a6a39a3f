//! The collectives with a root, on memory of devices, one function each.

use std::ffi::{c_int, c_void};

use crate::device::{brigade_device_group_t, enqueue};
use crate::dtype::DtypeCode;
use crate::error::brigade_result_t;
use crate::op::brigade_op_t;
use crate::shape;

/// brigade_broadcast on memory of devices, in the order of a stream.
///
/// Threads: from any thread; calls on one group come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_broadcast(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    count: usize,
    dtype: DtypeCode,
    root: c_int,
    group: brigade_device_group_t,
    stream: *mut c_void,
) -> brigade_result_t {
    // SAFETY: the caller's promise.
    unsafe {
        enqueue(group, (sendbuf, recvbuf, stream), |seat| {
            shape::broadcast(seat, count, dtype, root)
        })
    }
}

/// brigade_reduce on memory of devices, in the order of a stream.
///
/// Threads: from any thread; calls on one group come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_reduce(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    count: usize,
    dtype: DtypeCode,
    op: brigade_op_t,
    root: c_int,
    group: brigade_device_group_t,
    stream: *mut c_void,
) -> brigade_result_t {
    // SAFETY: the caller's promise.
    unsafe {
        enqueue(group, (sendbuf, recvbuf, stream), |seat| {
            shape::reduce(seat, count, dtype, op, root)
        })
    }
}

/// brigade_gather on memory of devices, in the order of a stream.
///
/// Threads: from any thread; calls on one group come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_gather(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    sendcount: usize,
    dtype: DtypeCode,
    root: c_int,
    group: brigade_device_group_t,
    stream: *mut c_void,
) -> brigade_result_t {
    // SAFETY: the caller's promise.
    unsafe {
        enqueue(group, (sendbuf, recvbuf, stream), |seat| {
            shape::gather(seat, sendcount, dtype, root)
        })
    }
}

/// brigade_gather_v on memory of devices, in the order of a stream.
///
/// Threads: from any thread; calls on one group come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_gather_v(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    sendcounts: *const usize,
    dtype: DtypeCode,
    root: c_int,
    group: brigade_device_group_t,
    stream: *mut c_void,
) -> brigade_result_t {
    // SAFETY: the caller's promise.
    let shape = |seat| unsafe { shape::gather_v(seat, sendcounts, dtype, root) };
    // SAFETY: the caller's promise.
    unsafe { enqueue(group, (sendbuf, recvbuf, stream), shape) }
}

/// brigade_scatter on memory of devices, in the order of a stream.
///
/// Threads: from any thread; calls on one group come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_scatter(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    recvcount: usize,
    dtype: DtypeCode,
    root: c_int,
    group: brigade_device_group_t,
    stream: *mut c_void,
) -> brigade_result_t {
    // SAFETY: the caller's promise.
    unsafe {
        enqueue(group, (sendbuf, recvbuf, stream), |seat| {
            shape::scatter(seat, recvcount, dtype, root)
        })
    }
}

/// brigade_scatter_v on memory of devices, in the order of a stream.
///
/// Threads: from any thread; calls on one group come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_scatter_v(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    recvcounts: *const usize,
    dtype: DtypeCode,
    root: c_int,
    group: brigade_device_group_t,
    stream: *mut c_void,
) -> brigade_result_t {
    // SAFETY: the caller's promise.
    let shape = |seat| unsafe { shape::scatter_v(seat, recvcounts, dtype, root) };
    // SAFETY: the caller's promise.
    unsafe { enqueue(group, (sendbuf, recvbuf, stream), shape) }
}
