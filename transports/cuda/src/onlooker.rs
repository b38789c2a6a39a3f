//! Asking about pointers the driver that a process has open, without setting it up.

use std::ffi::{c_uint, c_void};
use std::ptr;

use crate::library::in_process;
use crate::sys::{
    CU_MEMORYTYPE_DEVICE, CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    CUDA_SUCCESS, CUdeviceptr, CUresult,
};

type Attributes =
    unsafe extern "C" fn(c_uint, *mut c_uint, *mut *mut c_void, CUdeviceptr) -> CUresult;

/// The driver of a process that may or may not use devices, for those who only want to know
/// whether the host can read at an address. Setting a driver up costs up to a second, and keeps
/// processes that are forked later from using it, so whoever merely looks must not do it.
#[derive(Clone, Copy, Debug)]
pub struct Onlooker {
    attributes: Attributes,
}

impl Onlooker {
    /// The driver that this process has open, whoever opened it. Opens nothing; costs some
    /// microseconds.
    pub fn of_process() -> Option<Self> {
        let library = in_process()?;
        // SAFETY: the type is that of the function in `cuda.h`.
        let found = unsafe { library.get::<Attributes>(b"cuPointerGetAttributes\0") };
        let attributes = found.ok().map(|found| *found)?;
        // Drivers stay until the process ends; so must what was found in this one.
        std::mem::forget(library);
        Some(Self { attributes })
    }

    /// Whether an address leads to memory of a device, which the host cannot read. A driver that
    /// nobody has set up has none. Costs some 100 ns.
    pub fn hides(self, address: u64) -> bool {
        let (mut kind, mut is_managed) = (0_u32, 0_u32);
        let mut names = [CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED];
        let mut values: [*mut c_void; 2] =
            [ptr::from_mut(&mut kind).cast(), ptr::from_mut(&mut is_managed).cast()];
        let (count, names, values) = (names.len() as c_uint, names.as_mut_ptr(), &raw mut values);
        // SAFETY: both arrays have `count` entries, and each value is of its attribute's type.
        let code = unsafe { (self.attributes)(count, names, values.cast(), address) };
        // A managed flag is a bool of C: only its first byte is written.
        code == CUDA_SUCCESS && kind == CU_MEMORYTYPE_DEVICE && is_managed & 0xff == 0
    }
}
