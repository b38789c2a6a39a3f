//! Loading libcuda, once, when it is first needed.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt;
use std::sync::OnceLock;

use crate::sys::{
    CUDA_SUCCESS, CUdevice, CUdeviceptr, CUhostFn, CUipcHandle, CUmemAccessDesc,
    CUmemAllocationProp, CUresult, CUuuid, Handle,
};
use crate::{Code, CudaError, Device, Missing, Result};

/// The variable that names the library, for drivers in odd places and for tests.
pub const LIBRARY_VARIABLE: &str = "BRIGADE_CUDA_LIBRARY";

/// Where drivers are, in order: where the linker looks, and where containers and WSL put them.
const FILES: [&str; 4] = [
    "libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
    "libcuda.so",
];

/// Older drivers lack calls that are used here (pools, graphs with flags, unique ids).
const OLDEST: Version = Version { major: 11, minor: 4 };

/// The version of CUDA that a driver or compiler speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 12 of 12.8.
    pub major: u32,
    /// 8 of 12.8.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

/// The driver, loaded and initialised. It is never unloaded.
#[derive(Clone, Copy)]
pub struct Cuda {
    pub(crate) driver: &'static Driver,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Cuda {} of {}", self.driver.version, self.driver.file)
    }
}

impl Cuda {
    /// The driver of this machine. The first call loads it and costs up to a second; later ones
    /// cost a load. [`LIBRARY_VARIABLE`] names another file than the system's.
    ///
    /// # Errors
    ///
    /// [`Missing`] when there is no library, no device or only an old driver; each time alike.
    pub fn load() -> std::result::Result<Cuda, Missing> {
        static LOADED: OnceLock<std::result::Result<Driver, Missing>> = OnceLock::new();
        match LOADED.get_or_init(open) {
            Ok(driver) => Ok(Cuda { driver }),
            Err(missing) => Err(missing.clone()),
        }
    }

    /// The driver, if this process has it open already, whoever opened it: only then can there be
    /// pointers to memory of devices. Opens nothing; costs some microseconds.
    pub fn in_use() -> Option<Cuda> {
        in_process().and_then(|_| Self::load().ok())
    }

    /// What the driver speaks.
    pub fn version(self) -> Version {
        self.driver.version
    }

    /// The file that the driver was loaded from.
    pub fn file(self) -> &'static str {
        &self.driver.file
    }

    /// The devices that this process may use, in the driver's order.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn devices(self) -> Result<Vec<Device>> {
        (0..self.device_count()?).map(|ordinal| self.device(ordinal)).collect()
    }

    /// One of the devices that this process may use.
    ///
    /// # Errors
    ///
    /// [`CudaError::Refused`] when there is none with this number.
    pub fn device(self, ordinal: u32) -> Result<Device> {
        let count = self.device_count()?;
        if ordinal >= count {
            let why = format!("device {ordinal} is asked for, and there are {count} (from 0)");
            return Err(CudaError::refused(why));
        }
        Device::new(self, ordinal)
    }

    fn device_count(self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: the pointer is to a number that outlives the call.
        unsafe { self.driver.device_get_count(&mut count) }.ok("counting devices")?;
        Ok(count.max(0) as u32)
    }
}

/// What a call of the driver answered. It is looked at through [`Called::ok`].
#[must_use]
pub(crate) struct Called {
    pub(crate) call: &'static str,
    pub(crate) code: CUresult,
}

impl Called {
    /// An error with what we were doing, which is formatted only if there is one.
    pub(crate) fn ok(self, what: impl fmt::Display) -> Result<()> {
        if self.code == CUDA_SUCCESS {
            return Ok(());
        }
        Err(CudaError::Call { call: self.call, code: Code(self.code), what: what.to_string() })
    }

    /// For calls in `drop`: who is dropped cannot tell anybody, and what is lost is told by the
    /// next call, since errors of a device stick to its context.
    pub(crate) fn sunk(self) {}
}

/// Declare the functions that are looked up by name, with their C types.
macro_rules! functions {
    ($($name:ident = $symbol:literal($($argument:ident: $type:ty),* $(,)?);)*) => {
        /// libcuda's functions.
        pub(crate) struct Driver {
            pub(crate) version: Version,
            pub(crate) file: String,
            $($name: Option<unsafe extern "C" fn($($type),*) -> CUresult>,)*
        }

        impl Driver {
            fn find(file: &libloading::Library, path: &str) -> Self {
                Self {
                    version: Version { major: 0, minor: 0 },
                    file: path.to_owned(),
                    $(
                        // SAFETY: the type is that of the function in `cuda.h`, and the library
                        // stays loaded for ever.
                        $name: unsafe { file.get(concat!($symbol, "\0").as_bytes()) }
                            .ok()
                            .map(|found| *found),
                    )*
                }
            }

            $(
                /// # Safety
                ///
                /// As `cuda.h` says of the function.
                // The functions are C's, and so are their arguments.
                #[allow(clippy::too_many_arguments)]
                pub(crate) unsafe fn $name(&self, $($argument: $type),*) -> Called {
                    let code = match self.$name {
                        // SAFETY: handed on to our caller.
                        Some(function) => unsafe { function($($argument),*) },
                        None => Code::NOT_SUPPORTED.0,
                    };
                    Called { call: $symbol, code }
                }
            )*
        }
    };
}

functions! {
    init = "cuInit"(flags: c_uint);
    driver_get_version = "cuDriverGetVersion"(version: *mut c_int);
    device_get = "cuDeviceGet"(device: *mut CUdevice, ordinal: c_int);
    device_get_count = "cuDeviceGetCount"(count: *mut c_int);
    device_get_name = "cuDeviceGetName"(name: *mut c_char, bytes: c_int, device: CUdevice);
    device_get_uuid = "cuDeviceGetUuid_v2"(uuid: *mut CUuuid, device: CUdevice);
    device_total_mem = "cuDeviceTotalMem_v2"(bytes: *mut usize, device: CUdevice);
    device_get_attribute = "cuDeviceGetAttribute"(
        value: *mut c_int, attribute: c_int, device: CUdevice);
    device_get_pci_bus_id = "cuDeviceGetPCIBusId"(
        name: *mut c_char, bytes: c_int, device: CUdevice);
    device_can_access_peer = "cuDeviceCanAccessPeer"(
        can: *mut c_int, device: CUdevice, peer: CUdevice);
    device_get_p2p_attribute = "cuDeviceGetP2PAttribute"(
        value: *mut c_int, attribute: c_int, source: CUdevice, target: CUdevice);
    device_get_default_mem_pool = "cuDeviceGetDefaultMemPool"(
        pool: *mut Handle, device: CUdevice);
    primary_ctx_retain = "cuDevicePrimaryCtxRetain"(context: *mut Handle, device: CUdevice);
    primary_ctx_release = "cuDevicePrimaryCtxRelease_v2"(device: CUdevice);
    ctx_get_current = "cuCtxGetCurrent"(context: *mut Handle);
    ctx_push_current = "cuCtxPushCurrent_v2"(context: Handle);
    ctx_pop_current = "cuCtxPopCurrent_v2"(context: *mut Handle);
    ctx_get_device = "cuCtxGetDevice"(device: *mut CUdevice);
    ctx_synchronize = "cuCtxSynchronize"();
    ctx_enable_peer_access = "cuCtxEnablePeerAccess"(peer: Handle, flags: c_uint);
    ctx_get_stream_priority_range = "cuCtxGetStreamPriorityRange"(
        least: *mut c_int, greatest: *mut c_int);
    stream_create_with_priority = "cuStreamCreateWithPriority"(
        stream: *mut Handle, flags: c_uint, priority: c_int);
    stream_destroy = "cuStreamDestroy_v2"(stream: Handle);
    stream_synchronize = "cuStreamSynchronize"(stream: Handle);
    stream_query = "cuStreamQuery"(stream: Handle);
    stream_wait_event = "cuStreamWaitEvent"(stream: Handle, event: Handle, flags: c_uint);
    stream_is_capturing = "cuStreamIsCapturing"(stream: Handle, status: *mut c_uint);
    stream_begin_capture = "cuStreamBeginCapture_v2"(stream: Handle, mode: c_uint);
    stream_end_capture = "cuStreamEndCapture"(stream: Handle, graph: *mut Handle);
    exchange_capture_mode = "cuThreadExchangeStreamCaptureMode"(mode: *mut c_uint);
    stream_write_value32 = "cuStreamWriteValue32_v2"(
        stream: Handle, address: CUdeviceptr, value: u32, flags: c_uint);
    stream_wait_value32 = "cuStreamWaitValue32_v2"(
        stream: Handle, address: CUdeviceptr, value: u32, flags: c_uint);
    launch_host_func = "cuLaunchHostFunc"(stream: Handle, function: CUhostFn, data: *mut c_void);
    event_create = "cuEventCreate"(event: *mut Handle, flags: c_uint);
    event_destroy = "cuEventDestroy_v2"(event: Handle);
    event_record = "cuEventRecord"(event: Handle, stream: Handle);
    event_query = "cuEventQuery"(event: Handle);
    event_synchronize = "cuEventSynchronize"(event: Handle);
    event_elapsed_time = "cuEventElapsedTime"(ms: *mut f32, start: Handle, end: Handle);
    ipc_get_event_handle = "cuIpcGetEventHandle"(handle: *mut CUipcHandle, event: Handle);
    ipc_open_event_handle = "cuIpcOpenEventHandle"(event: *mut Handle, handle: CUipcHandle);
    ipc_get_mem_handle = "cuIpcGetMemHandle"(handle: *mut CUipcHandle, address: CUdeviceptr);
    ipc_open_mem_handle = "cuIpcOpenMemHandle_v2"(
        address: *mut CUdeviceptr, handle: CUipcHandle, flags: c_uint);
    ipc_close_mem_handle = "cuIpcCloseMemHandle"(address: CUdeviceptr);
    mem_get_info = "cuMemGetInfo_v2"(free: *mut usize, total: *mut usize);
    mem_alloc = "cuMemAlloc_v2"(address: *mut CUdeviceptr, bytes: usize);
    mem_free = "cuMemFree_v2"(address: CUdeviceptr);
    mem_alloc_async = "cuMemAllocAsync"(address: *mut CUdeviceptr, bytes: usize, stream: Handle);
    mem_free_async = "cuMemFreeAsync"(address: CUdeviceptr, stream: Handle);
    mem_pool_set_attribute = "cuMemPoolSetAttribute"(
        pool: Handle, attribute: c_uint, value: *mut c_void);
    mem_pool_set_access = "cuMemPoolSetAccess"(
        pool: Handle, access: *const CUmemAccessDesc, count: usize);
    mem_get_address_range = "cuMemGetAddressRange_v2"(
        start: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr);
    mem_host_alloc = "cuMemHostAlloc"(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
    mem_free_host = "cuMemFreeHost"(pointer: *mut c_void);
    mem_host_register = "cuMemHostRegister_v2"(pointer: *mut c_void, bytes: usize, flags: c_uint);
    mem_host_unregister = "cuMemHostUnregister"(pointer: *mut c_void);
    mem_host_get_device_pointer = "cuMemHostGetDevicePointer_v2"(
        address: *mut CUdeviceptr, pointer: *mut c_void, flags: c_uint);
    memcpy_async = "cuMemcpyAsync"(
        target: CUdeviceptr, source: CUdeviceptr, bytes: usize, stream: Handle);
    memset_d8_async = "cuMemsetD8Async"(
        address: CUdeviceptr, byte: u8, bytes: usize, stream: Handle);
    pointer_get_attributes = "cuPointerGetAttributes"(
        count: c_uint, attributes: *mut c_uint, values: *mut *mut c_void, address: CUdeviceptr);
    module_load_data = "cuModuleLoadData"(module: *mut Handle, image: *const c_void);
    module_unload = "cuModuleUnload"(module: Handle);
    module_get_function = "cuModuleGetFunction"(
        function: *mut Handle, module: Handle, name: *const c_char);
    func_load = "cuFuncLoad"(function: Handle);
    func_get_attribute = "cuFuncGetAttribute"(
        value: *mut c_int, attribute: c_int, function: Handle);
    launch_kernel = "cuLaunchKernel"(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: Handle,
        arguments: *mut *mut c_void, extra: *mut *mut c_void);
    launch_cooperative_kernel = "cuLaunchCooperativeKernel"(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: Handle,
        arguments: *mut *mut c_void);
    graph_instantiate = "cuGraphInstantiateWithFlags"(
        executable: *mut Handle, graph: Handle, flags: u64);
    graph_upload = "cuGraphUpload"(executable: Handle, stream: Handle);
    graph_launch = "cuGraphLaunch"(executable: Handle, stream: Handle);
    graph_destroy = "cuGraphDestroy"(graph: Handle);
    graph_exec_destroy = "cuGraphExecDestroy"(executable: Handle);
    graph_get_nodes = "cuGraphGetNodes"(graph: Handle, nodes: *mut Handle, count: *mut usize);
    vmm_create = "cuMemCreate"(
        handle: *mut u64, bytes: usize, properties: *const CUmemAllocationProp, flags: u64);
    vmm_release = "cuMemRelease"(handle: u64);
    vmm_reserve = "cuMemAddressReserve"(
        address: *mut CUdeviceptr, bytes: usize, align: usize, hint: CUdeviceptr, flags: u64);
    vmm_free = "cuMemAddressFree"(address: CUdeviceptr, bytes: usize);
    vmm_map = "cuMemMap"(
        address: CUdeviceptr, bytes: usize, offset: usize, handle: u64, flags: u64);
    vmm_unmap = "cuMemUnmap"(address: CUdeviceptr, bytes: usize);
    vmm_set_access = "cuMemSetAccess"(
        address: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize);
    vmm_granularity = "cuMemGetAllocationGranularity"(
        bytes: *mut usize, properties: *const CUmemAllocationProp, option: c_uint);
    vmm_export = "cuMemExportToShareableHandle"(
        target: *mut c_void, handle: u64, kind: c_uint, flags: u64);
    vmm_import = "cuMemImportFromShareableHandle"(
        handle: *mut u64, source: *mut c_void, kind: c_uint);
    range_handle = "cuMemGetHandleForAddressRange"(
        target: *mut c_void, address: CUdeviceptr, bytes: usize, kind: c_uint, flags: u64);
}

/// The driver that this process has open, if any. Opens nothing.
pub(crate) fn in_process() -> Option<libloading::os::unix::Library> {
    /// Nothing is loaded that is not loaded already.
    const NO_LOAD: c_int = 4;
    let flags = libloading::os::unix::RTLD_LAZY | NO_LOAD;
    let named = named();
    names(&named).into_iter().find_map(|name| {
        // SAFETY: what is open already has run its initialisers.
        unsafe { libloading::os::unix::Library::open(Some(name), flags) }.ok()
    })
}

fn open() -> std::result::Result<Driver, Missing> {
    let (file, path) = open_file()?;
    let mut driver = Driver::find(&file, &path);
    // What was found must stay where it is: contexts may be alive until the process ends.
    std::mem::forget(file);
    // SAFETY: the call has no conditions.
    let called = unsafe { driver.init(0) };
    if called.code != CUDA_SUCCESS {
        return Err(refusal(&path, Code(called.code)));
    }
    let mut number = 0;
    // SAFETY: the pointer is to a number that outlives the call.
    unsafe { driver.driver_get_version(&mut number) }
        .ok("asking for the driver's version")
        .map_err(|error| missing(format!("{path} is no CUDA driver: {error}"), "install one"))?;
    let number = number.max(0) as u32;
    driver.version = Version { major: number / 1000, minor: number % 1000 / 10 };
    if driver.version < OLDEST {
        let why = format!("the driver speaks CUDA {}, and {OLDEST} is needed", driver.version);
        return Err(missing(why, "install a newer NVIDIA driver"));
    }
    Ok(driver)
}

fn open_file() -> std::result::Result<(libloading::Library, String), Missing> {
    let named = named();
    let mut first_error = String::new();
    for name in names(&named) {
        // SAFETY: loading libcuda runs its initialisers, which any program that links it runs too.
        match unsafe { libloading::Library::new(name) } {
            Ok(file) => return Ok((file, name.to_owned())),
            Err(error) if first_error.is_empty() => first_error = error.to_string(),
            Err(_) => {}
        }
    }
    Err(match named {
        Some(name) => missing(
            format!("{LIBRARY_VARIABLE}={name} cannot be loaded: {first_error}"),
            format!("unset {LIBRARY_VARIABLE}, or name the driver's libcuda.so.1"),
        ),
        None => missing(
            format!("no CUDA driver: {} cannot be loaded ({first_error})", FILES[0]),
            format!(
                "install the NVIDIA driver, or in a container start it with its GPUs; \
                 {LIBRARY_VARIABLE} names the file if it is somewhere else"
            ),
        ),
    })
}

/// The file that the user names.
fn named() -> Option<String> {
    std::env::var(LIBRARY_VARIABLE).ok().filter(|name| !name.is_empty())
}

/// What is tried, in order.
fn names(named: &Option<String>) -> Vec<&str> {
    named.as_deref().map_or_else(|| FILES.to_vec(), |name| vec![name])
}

/// Why `cuInit` refused.
fn refusal(path: &str, code: Code) -> Missing {
    let why = match code {
        Code::NO_DEVICE => format!("{path} is there, but no device that this process may use"),
        code => format!("{path} is there, but cannot be initialised: {code}"),
    };
    missing(why, code.words()[1])
}

fn missing(why: impl Into<String>, next_step: impl Into<String>) -> Missing {
    Missing { why: why.into(), next_step: next_step.into() }
}
