//! What cannot be done here, or not yet: each is there, and says so.

use std::ffi::{c_int, c_void};

use brigade_wall::Failure;

use crate::comm::ncclComm_t;
use crate::memory::ncclWindow_t;
use crate::result::{enter, ncclResult_t};

const NO_DEVICES: &str = "it is about the inside of NCCL on GPUs, which there is not here";
const ONE_SIDED: &str = "there are no one-sided calls here: use ncclSend and ncclRecv";
const NO_PRICES: &str = "no times are predicted here";

fn absent(name: &str, why: &str) -> ncclResult_t {
    enter(|| Err(Failure::usage(format!("{name}: {why}"))))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommSuspend(_: ncclComm_t, _: c_int) -> ncclResult_t {
    absent("ncclCommSuspend", NO_DEVICES)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommResume(_: ncclComm_t) -> ncclResult_t {
    absent("ncclCommResume", NO_DEVICES)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommMemStats(_: ncclComm_t, _: c_int, _: *mut u64) -> ncclResult_t {
    absent("ncclCommMemStats", NO_DEVICES)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommQueryProperties(_: ncclComm_t, _: *mut c_void) -> ncclResult_t {
    absent("ncclCommQueryProperties", NO_DEVICES)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclDevCommCreate(
    _: ncclComm_t,
    _: *const c_void,
    _: *mut c_void,
) -> ncclResult_t {
    absent("ncclDevCommCreate", NO_DEVICES)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclDevCommDestroy(_: ncclComm_t, _: *const c_void) -> ncclResult_t {
    absent("ncclDevCommDestroy", NO_DEVICES)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLsaDevicePointer(
    _: ncclWindow_t,
    _: usize,
    _: c_int,
    _: *mut *mut c_void,
) -> ncclResult_t {
    absent("ncclGetLsaDevicePointer", NO_DEVICES)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLsaMultimemDevicePointer(
    _: ncclWindow_t,
    _: usize,
    _: *mut *mut c_void,
) -> ncclResult_t {
    absent("ncclGetLsaMultimemDevicePointer", NO_DEVICES)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetPeerDevicePointer(
    _: ncclWindow_t,
    _: usize,
    _: c_int,
    _: *mut *mut c_void,
) -> ncclResult_t {
    absent("ncclGetPeerDevicePointer", NO_DEVICES)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclPutSignal(
    _: *const c_void,
    _: usize,
    _: c_int,
    _: c_int,
    _: ncclWindow_t,
    _: usize,
    _: c_int,
    _: c_int,
    _: u32,
    _: ncclComm_t,
    _: *mut c_void,
) -> ncclResult_t {
    absent("ncclPutSignal", ONE_SIDED)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclSignal(
    _: c_int,
    _: c_int,
    _: c_int,
    _: u32,
    _: ncclComm_t,
    _: *mut c_void,
) -> ncclResult_t {
    absent("ncclSignal", ONE_SIDED)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclWaitSignal(
    _: c_int,
    _: *mut c_void,
    _: ncclComm_t,
    _: *mut c_void,
) -> ncclResult_t {
    absent("ncclWaitSignal", ONE_SIDED)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupSimulateEnd(_: *mut c_void) -> ncclResult_t {
    absent("ncclGroupSimulateEnd", NO_PRICES)
}
