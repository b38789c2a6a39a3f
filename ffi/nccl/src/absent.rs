//! What cannot be done here, or not yet: each is there, and says so.

use std::ffi::{c_char, c_int, c_void};

use brigade_wall::Failure;

use crate::comm::ncclComm_t;
use crate::memory::ncclWindow_t;
use crate::result::{enter, ncclResult_t};

const NO_DEVICES: &str = "it is about the inside of NCCL on GPUs, which there is not here";
const ONE_SIDED: &str = "there are no one-sided calls here: use ncclSend and ncclRecv";
const NO_PRICES: &str = "no times are predicted here";
const NO_PARAMETERS: &str =
    "no parameters of NCCL's are read here: `brigade doctor --settings` tells those that are";

/// A handle of one of NCCL's parameters, of which none is ever given.
pub type ncclParamHandle_t = *mut c_void;

/// Ranks that kernels reach alike.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclTeam_t {
    nRanks: c_int,
    rank: c_int,
    stride: c_int,
}

/// What whoever asks for a team gets, as an error has no place in it.
const NO_TEAM: ncclTeam_t = ncclTeam_t { nRanks: 0, rank: 0, stride: 0 };

fn absent(name: &str, why: &str) -> ncclResult_t {
    enter(|| Err(Failure::usage(format!("{name}: {why}"))))
}

/// Functions with these arguments, of which all is said by what they return.
macro_rules! absent {
    ($($name:ident($($argument:ty),*) = $why:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($(_: $argument),*) -> ncclResult_t {
                absent(stringify!($name), $why)
            }
        )*
    };
    // Where no result is returned, the sentence is there all the same.
    ($($name:ident($($argument:ty),*) -> $answer:ty = $instead:expr, $why:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($(_: $argument),*) -> $answer {
                absent(stringify!($name), $why);
                $instead
            }
        )*
    };
}

absent! {
    ncclCommSuspend(ncclComm_t, c_int) = NO_DEVICES;
    ncclCommResume(ncclComm_t) = NO_DEVICES;
    ncclCommMemStats(ncclComm_t, c_int, *mut u64) = NO_DEVICES;
    ncclPutSignal(
        *const c_void, usize, c_int, c_int, ncclWindow_t, usize, c_int, c_int, u32, ncclComm_t,
        *mut c_void
    ) = ONE_SIDED;
    ncclSignal(c_int, c_int, c_int, u32, ncclComm_t, *mut c_void) = ONE_SIDED;
    ncclWaitSignal(c_int, *mut c_void, ncclComm_t, *mut c_void) = ONE_SIDED;
    ncclGroupSimulateEnd(*mut c_void) = NO_PRICES;
}

absent! {
    ncclParamBind(*mut ncclParamHandle_t, *const c_char) = NO_PARAMETERS;
    ncclParamGet(ncclParamHandle_t, *mut c_void, c_int, *mut c_int) = NO_PARAMETERS;
    ncclParamGetI8(ncclParamHandle_t, *mut i8) = NO_PARAMETERS;
    ncclParamGetI16(ncclParamHandle_t, *mut i16) = NO_PARAMETERS;
    ncclParamGetI32(ncclParamHandle_t, *mut i32) = NO_PARAMETERS;
    ncclParamGetI64(ncclParamHandle_t, *mut i64) = NO_PARAMETERS;
    ncclParamGetU8(ncclParamHandle_t, *mut u8) = NO_PARAMETERS;
    ncclParamGetU16(ncclParamHandle_t, *mut u16) = NO_PARAMETERS;
    ncclParamGetU32(ncclParamHandle_t, *mut u32) = NO_PARAMETERS;
    ncclParamGetU64(ncclParamHandle_t, *mut u64) = NO_PARAMETERS;
    ncclParamGetStr(ncclParamHandle_t, *mut *const c_char) = NO_PARAMETERS;
    ncclParamGetParameter(*const c_char, *mut *const c_char, *mut c_int) = NO_PARAMETERS;
    ncclParamGetAllParameterKeys(*mut *mut *const c_char, *mut c_int) = NO_PARAMETERS;
}

// The side of the host of what kernels call: nccl_device.h.
absent! {
    ncclCommQueryProperties(ncclComm_t, *mut c_void) = NO_DEVICES;
    ncclDevCommCreate(ncclComm_t, *const c_void, *mut c_void) = NO_DEVICES;
    ncclDevCommDestroy(ncclComm_t, *const c_void) = NO_DEVICES;
    ncclGetLsaDevicePointer(ncclWindow_t, usize, c_int, *mut *mut c_void) = NO_DEVICES;
    ncclGetLsaMultimemDevicePointer(ncclWindow_t, usize, *mut *mut c_void) = NO_DEVICES;
    ncclGetMultimemDevicePointer(ncclWindow_t, usize, *mut c_void, *mut *mut c_void) = NO_DEVICES;
    ncclGetPeerDevicePointer(ncclWindow_t, usize, c_int, *mut *mut c_void) = NO_DEVICES;
    ncclGinBarrierCreateRequirement(
        ncclComm_t, ncclTeam_t, c_int, *mut c_void, *mut c_void
    ) = NO_DEVICES;
    ncclGinInboxA2ACreateRequirement(
        ncclTeam_t, c_int, c_int, *mut c_void, *mut c_void
    ) = NO_DEVICES;
    ncclGinOutboxCreateRequirement(c_int, c_int, *mut c_void, *mut c_void) = NO_DEVICES;
    ncclLLA2ACreateRequirement(c_int, c_int, *mut c_void, *mut c_void) = NO_DEVICES;
    ncclLsaBarrierCreateRequirement(ncclTeam_t, c_int, *mut c_void, *mut c_void) = NO_DEVICES;
}

absent! {
    ncclParamDumpAll() -> () = (), NO_PARAMETERS;
    ncclLLA2ACalcSlots(c_int, c_int) -> c_int = 0, NO_DEVICES;
    ncclTeamWorld(ncclComm_t) -> ncclTeam_t = NO_TEAM, NO_DEVICES;
    ncclTeamLsa(ncclComm_t) -> ncclTeam_t = NO_TEAM, NO_DEVICES;
    ncclTeamRail(ncclComm_t) -> ncclTeam_t = NO_TEAM, NO_DEVICES;
    ncclTeamRankToWorld(ncclComm_t, ncclTeam_t, c_int) -> c_int = -1, NO_DEVICES;
    ncclTeamRankToLsa(ncclComm_t, ncclTeam_t, c_int) -> c_int = -1, NO_DEVICES;
}
