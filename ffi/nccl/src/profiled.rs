//! Every name a second time, with a `p` in front: for tools that take the place of NCCL's
//! functions, to count or time their calls, and hand these on.
//!
//! A name here knows neither arguments nor result of what it stands for: it goes on to that with
//! everything as it was passed. How, is told for two kinds of processors; others have no such
//! names.

#[cfg(target_arch = "x86_64")]
macro_rules! go_on {
    () => {
        "jmp {}"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! go_on {
    () => {
        "b {}"
    };
}

macro_rules! second_names {
    ($($room:ident: $($name:ident)*;)*) => {
        $($(
            const _: () = {
                /// # Safety
                ///
                /// As of what it stands for.
                #[unsafe(naked)]
                #[unsafe(export_name = concat!("p", stringify!($name)))]
                unsafe extern "C" fn second_name() {
                    core::arch::naked_asm!(go_on!(), sym crate::$room::$name)
                }
            };
        )*)*
    };
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
second_names! {
    absent: ncclCommSuspend ncclCommResume ncclCommMemStats ncclPutSignal ncclSignal ncclWaitSignal
        ncclGroupSimulateEnd ncclParamBind ncclParamGet ncclParamGetI8 ncclParamGetI16
        ncclParamGetI32 ncclParamGetI64 ncclParamGetU8 ncclParamGetU16 ncclParamGetU32
        ncclParamGetU64 ncclParamGetStr ncclParamGetParameter ncclParamGetAllParameterKeys
        ncclCommQueryProperties ncclDevCommCreate ncclDevCommDestroy ncclGetLsaDevicePointer
        ncclGetLsaMultimemDevicePointer ncclGetMultimemDevicePointer ncclGetPeerDevicePointer
        ncclGinBarrierCreateRequirement ncclGinInboxA2ACreateRequirement
        ncclGinOutboxCreateRequirement ncclLLA2ACreateRequirement ncclLsaBarrierCreateRequirement
        ncclParamDumpAll ncclLLA2ACalcSlots ncclTeamWorld ncclTeamLsa ncclTeamRail
        ncclTeamRankToWorld ncclTeamRankToLsa;
    collective: ncclAllReduce ncclReduceScatter ncclAllGather ncclAlltoAll ncclBroadcast ncclBcast
        ncclReduce ncclGather ncclScatter;
    comm: ncclCommGetAsyncError ncclCommCount ncclCommUserRank ncclCommCuDevice ncclGetLastError;
    divide: ncclCommSplit ncclCommShrink;
    group: ncclGroupStart ncclGroupEnd;
    grow: ncclCommGetUniqueId ncclCommGrow;
    id: ncclGetUniqueId;
    join: ncclCommInitRank ncclCommInitRankConfig ncclCommInitRankScalable ncclCommInitAll;
    leave: ncclCommFinalize ncclCommDestroy ncclCommAbort ncclCommRevoke;
    memory: ncclMemAlloc ncclMemFree ncclCommRegister ncclCommDeregister ncclCommWindowRegister
        ncclCommWindowDeregister ncclWinGetUserPtr;
    message: ncclSend ncclRecv;
    op: ncclRedOpCreatePreMulSum ncclRedOpDestroy;
    result: ncclGetErrorString ncclGetVersion ncclResetDebugInit;
}
