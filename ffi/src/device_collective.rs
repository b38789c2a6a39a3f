//! The collectives without a root, on memory of devices, one function each.

use std::ffi::c_void;

use crate::device::{brigade_device_group_t, enqueue};
use crate::dtype::DtypeCode;
use crate::error::brigade_result_t;
use crate::op::brigade_op_t;
use crate::shape;

/// brigade_all_reduce on memory of devices, in the order of a stream.
///
/// Threads: from any thread; calls on one group come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_all_reduce(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    count: usize,
    dtype: DtypeCode,
    op: brigade_op_t,
    group: brigade_device_group_t,
    stream: *mut c_void,
) -> brigade_result_t {
    // SAFETY: the caller's promise.
    unsafe { enqueue(group, (sendbuf, recvbuf, stream), |_| shape::all_reduce(count, dtype, op)) }
}

/// brigade_reduce_scatter on memory of devices, in the order of a stream.
///
/// Threads: from any thread; calls on one group come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_reduce_scatter(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    recvcount: usize,
    dtype: DtypeCode,
    op: brigade_op_t,
    group: brigade_device_group_t,
    stream: *mut c_void,
) -> brigade_result_t {
    // SAFETY: the caller's promise.
    unsafe {
        enqueue(group, (sendbuf, recvbuf, stream), |seat| {
            shape::reduce_scatter(seat, recvcount, dtype, op)
        })
    }
}

/// brigade_reduce_scatter_v on memory of devices, in the order of a stream.
///
/// Threads: from any thread; calls on one group come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_reduce_scatter_v(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    recvcounts: *const usize,
    dtype: DtypeCode,
    op: brigade_op_t,
    group: brigade_device_group_t,
    stream: *mut c_void,
) -> brigade_result_t {
    // SAFETY: the caller's promise.
    let shape = |seat| unsafe { shape::reduce_scatter_v(seat, recvcounts, dtype, op) };
    // SAFETY: the caller's promise.
    unsafe { enqueue(group, (sendbuf, recvbuf, stream), shape) }
}

/// brigade_all_gather on memory of devices, in the order of a stream.
///
/// Threads: from any thread; calls on one group come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_all_gather(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    sendcount: usize,
    dtype: DtypeCode,
    group: brigade_device_group_t,
    stream: *mut c_void,
) -> brigade_result_t {
    // SAFETY: the caller's promise.
    unsafe {
        enqueue(group, (sendbuf, recvbuf, stream), |seat| shape::all_gather(seat, sendcount, dtype))
    }
}

/// brigade_all_gather_v on memory of devices, in the order of a stream.
///
/// Threads: from any thread; calls on one group come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_all_gather_v(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    sendcounts: *const usize,
    dtype: DtypeCode,
    group: brigade_device_group_t,
    stream: *mut c_void,
) -> brigade_result_t {
    // SAFETY: the caller's promise.
    let shape = |seat| unsafe { shape::all_gather_v(seat, sendcounts, dtype) };
    // SAFETY: the caller's promise.
    unsafe { enqueue(group, (sendbuf, recvbuf, stream), shape) }
}

/// brigade_all_to_all on memory of devices, in the order of a stream.
///
/// Threads: from any thread; calls on one group come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_all_to_all(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    count: usize,
    dtype: DtypeCode,
    group: brigade_device_group_t,
    stream: *mut c_void,
) -> brigade_result_t {
    // SAFETY: the caller's promise.
    unsafe {
        enqueue(group, (sendbuf, recvbuf, stream), |seat| shape::all_to_all(seat, count, dtype))
    }
}

/// brigade_all_to_all_v on memory of devices, in the order of a stream.
///
/// Threads: from any thread; calls on one group come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_all_to_all_v(
    sendbuf: *const c_void,
    sendcounts: *const usize,
    recvbuf: *mut c_void,
    recvcounts: *const usize,
    dtype: DtypeCode,
    group: brigade_device_group_t,
    stream: *mut c_void,
) -> brigade_result_t {
    // SAFETY: the caller's promise.
    let shape = |seat| unsafe { shape::all_to_all_v(seat, sendcounts, recvcounts, dtype) };
    // SAFETY: the caller's promise.
    unsafe { enqueue(group, (sendbuf, recvbuf, stream), shape) }
}

/// What comes behind it in `stream` waits until the streams of all ranks have come here; the host
/// waits for nobody, but where brigade_way_t says so.
///
/// Threads: from any thread; calls on one group come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_barrier(
    group: brigade_device_group_t,
    stream: *mut c_void,
) -> brigade_result_t {
    let nothing = std::ptr::null_mut();
    // SAFETY: there is no memory.
    unsafe { enqueue(group, (nothing, nothing, stream), |_| Ok(shape::barrier())) }
}
