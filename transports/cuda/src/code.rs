//! What CUDA's driver answered, with its own name for it and what to do next.

use std::fmt;

/// A `CUresult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32);

impl Code {
    /// An argument was wrong.
    pub const INVALID_VALUE: Code = Code(1);
    /// There is no memory left.
    pub const OUT_OF_MEMORY: Code = Code(2);
    /// The machine has no device that this process may use.
    pub const NO_DEVICE: Code = Code(100);
    /// What was asked about has not finished.
    pub const NOT_READY: Code = Code(600);
    /// The devices can reach each other's memory already.
    pub const PEER_ACCESS_ALREADY_ENABLED: Code = Code(704);
    /// The driver or the device cannot do this.
    pub const NOT_SUPPORTED: Code = Code(801);

    /// CUDA's name for it, and what to do next.
    pub fn words(self) -> [&'static str; 2] {
        const OURS: &str = "report it with the driver's version";
        const EARLIER: &str = "a kernel before this call failed; run the program under \
                               compute-sanitizer to see which, and start it anew";
        match self.0 {
            0 => ["CUDA_SUCCESS", "go on"],
            1 => ["CUDA_ERROR_INVALID_VALUE", OURS],
            2 => {
                ["CUDA_ERROR_OUT_OF_MEMORY", "ask for less, or free what others hold (nvidia-smi)"]
            }
            3 => ["CUDA_ERROR_NOT_INITIALIZED", OURS],
            4 => ["CUDA_ERROR_DEINITIALIZED", "the program is ending; close communicators before"],
            34 => ["CUDA_ERROR_STUB_LIBRARY", "libcuda is the toolkit's stub: install the driver"],
            36 => ["CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "install a newer driver"],
            46 => ["CUDA_ERROR_DEVICE_UNAVAILABLE", "another process holds the device exclusively"],
            100 => ["CUDA_ERROR_NO_DEVICE", "check nvidia-smi and CUDA_VISIBLE_DEVICES"],
            101 => ["CUDA_ERROR_INVALID_DEVICE", "check CUDA_VISIBLE_DEVICES"],
            200 => ["CUDA_ERROR_INVALID_IMAGE", "delete the cache of kernels and try again"],
            201 => ["CUDA_ERROR_INVALID_CONTEXT", OURS],
            205 => ["CUDA_ERROR_MAP_FAILED", "the memory cannot be mapped into this process"],
            208 => ["CUDA_ERROR_ALREADY_MAPPED", "the memory is mapped into this process already"],
            209 => ["CUDA_ERROR_NO_BINARY_FOR_GPU", "delete the cache of kernels and try again"],
            214 => ["CUDA_ERROR_ECC_UNCORRECTABLE", "the device's memory is broken: replace it"],
            217 => ["CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "the devices cannot reach each other"],
            218 => ["CUDA_ERROR_INVALID_PTX", "the compiler is newer than the driver"],
            219 => ["CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", OURS],
            220 => ["CUDA_ERROR_NVLINK_UNCORRECTABLE", "a link between devices is broken"],
            222 => ["CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the compiler is newer than the driver"],
            226 => ["CUDA_ERROR_CONTAINED", "the device's memory had an error: start it anew"],
            304 => ["CUDA_ERROR_OPERATING_SYSTEM", "look at the system's log (dmesg)"],
            400 => ["CUDA_ERROR_INVALID_HANDLE", "the stream or event is not alive any more"],
            401 => ["CUDA_ERROR_ILLEGAL_STATE", OURS],
            500 => ["CUDA_ERROR_NOT_FOUND", "the kernel is not in this module"],
            600 => ["CUDA_ERROR_NOT_READY", "ask again later"],
            700 => ["CUDA_ERROR_ILLEGAL_ADDRESS", EARLIER],
            701 => ["CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "launch with fewer threads in a block"],
            702 => ["CUDA_ERROR_LAUNCH_TIMEOUT", "the device's watchdog ended a kernel"],
            704 => ["CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "go on"],
            705 => ["CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", OURS],
            709 => ["CUDA_ERROR_CONTEXT_IS_DESTROYED", "somebody has reset the device"],
            710 => ["CUDA_ERROR_ASSERT", EARLIER],
            712 => ["CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "go on"],
            713 => ["CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", OURS],
            714..=718 => ["CUDA_ERROR_ILLEGAL_INSTRUCTION or its kin", EARLIER],
            719 => ["CUDA_ERROR_LAUNCH_FAILED", EARLIER],
            720 => ["CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "launch with fewer blocks"],
            800 => ["CUDA_ERROR_NOT_PERMITTED", "the call is not allowed here (during capture?)"],
            801 => ["CUDA_ERROR_NOT_SUPPORTED", "this driver, device or container cannot do it"],
            802 => ["CUDA_ERROR_SYSTEM_NOT_READY", "start the fabric manager, or wait for it"],
            803 => ["CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "libcuda and the kernel's driver differ"],
            900..=908 => {
                ["CUDA_ERROR_STREAM_CAPTURE", "a stream that is being captured cannot do it"]
            }
            909 => ["CUDA_ERROR_TIMEOUT", "try again"],
            999 => ["CUDA_ERROR_UNKNOWN", "look at the system's log (dmesg)"],
            _ => ["an error of CUDA", "look the number up in cuda.h, at CUresult"],
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [name, next] = self.words();
        write!(formatter, "{name} ({}): {next}", self.0)
    }
}
