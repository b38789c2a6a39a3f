//! libcuda as C sees it: the structures and constants of `cuda.h` that are used here. A test
//! compares them with those that cudarc's authors had generated.

use std::ffi::{c_int, c_uint, c_void};

pub(crate) type CUresult = c_uint;
pub(crate) type CUdevice = c_int;
pub(crate) type CUdeviceptr = u64;
/// A handle that is never looked into.
pub(crate) type Handle = *mut c_void;
pub(crate) type CUhostFn = unsafe extern "C" fn(*mut c_void);

pub(crate) const CUDA_SUCCESS: CUresult = 0;

pub(crate) const CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: c_int = 16;
pub(crate) const CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: c_int = 38;
pub(crate) const CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: c_int = 75;
pub(crate) const CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: c_int = 76;
pub(crate) const CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: c_int = 95;
pub(crate) const CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED: c_int = 99;
pub(crate) const CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: c_int = 103;
pub(crate) const CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: c_int = 115;
pub(crate) const CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: c_int = 124;

pub(crate) const CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK: c_int = 1;
pub(crate) const CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: c_int = 3;

pub(crate) const CU_STREAM_NON_BLOCKING: c_uint = 1;
pub(crate) const CU_STREAM_CAPTURE_STATUS_NONE: c_uint = 0;
pub(crate) const CU_STREAM_CAPTURE_MODE_GLOBAL: c_uint = 0;
pub(crate) const CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: c_uint = 1;
pub(crate) const CU_STREAM_CAPTURE_MODE_RELAXED: c_uint = 2;

pub(crate) const CU_EVENT_DEFAULT: c_uint = 0;
pub(crate) const CU_EVENT_BLOCKING_SYNC: c_uint = 1;
pub(crate) const CU_EVENT_DISABLE_TIMING: c_uint = 2;
pub(crate) const CU_EVENT_INTERPROCESS: c_uint = 4;

pub(crate) const CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;

pub(crate) const CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: c_uint = 4;

pub(crate) const CU_MEMHOSTALLOC_PORTABLE: c_uint = 1;
pub(crate) const CU_MEMHOSTALLOC_DEVICEMAP: c_uint = 2;
pub(crate) const CU_MEMHOSTREGISTER_PORTABLE: c_uint = 1;
pub(crate) const CU_MEMHOSTREGISTER_DEVICEMAP: c_uint = 2;

pub(crate) const CU_MEMORYTYPE_HOST: c_uint = 1;
pub(crate) const CU_MEMORYTYPE_DEVICE: c_uint = 2;

pub(crate) const CU_POINTER_ATTRIBUTE_MEMORY_TYPE: c_uint = 2;
pub(crate) const CU_POINTER_ATTRIBUTE_IS_MANAGED: c_uint = 8;
pub(crate) const CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: c_uint = 9;
pub(crate) const CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: c_uint = 11;
pub(crate) const CU_POINTER_ATTRIBUTE_RANGE_SIZE: c_uint = 12;
pub(crate) const CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: c_uint = 16;

pub(crate) const CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: c_int = 0;
pub(crate) const CU_FUNC_ATTRIBUTE_NUM_REGS: c_int = 4;

pub(crate) const CU_MEM_ALLOCATION_TYPE_PINNED: c_uint = 1;
pub(crate) const CU_MEM_LOCATION_TYPE_DEVICE: c_uint = 1;
pub(crate) const CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: c_uint = 1;
pub(crate) const CU_MEM_ACCESS_FLAGS_PROT_READWRITE: c_uint = 3;
pub(crate) const CU_MEM_ALLOC_GRANULARITY_RECOMMENDED: c_uint = 1;
pub(crate) const CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD: c_uint = 1;

pub(crate) const CU_STREAM_WAIT_VALUE_GEQ: c_uint = 0;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CUuuid {
    pub(crate) bytes: [u8; 16],
}

/// Of memory and of events alike.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CUipcHandle {
    pub(crate) reserved: [u8; 64],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CUmemLocation {
    pub(crate) kind: c_uint,
    pub(crate) id: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CUmemAllocationProp {
    pub(crate) kind: c_uint,
    pub(crate) requested_handle_types: c_uint,
    pub(crate) location: CUmemLocation,
    pub(crate) win32_handle_metadata: *mut c_void,
    pub(crate) alloc_flags: CUmemAllocFlags,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CUmemAllocFlags {
    pub(crate) compression_type: u8,
    pub(crate) gpu_direct_rdma_capable: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CUmemAccessDesc {
    pub(crate) location: CUmemLocation,
    pub(crate) flags: c_uint,
}

/// NVRTC's codes are numbers of their own.
pub(crate) type NvrtcResult = c_int;

#[cfg(test)]
mod tests;
