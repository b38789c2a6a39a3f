//! Which device may do what with memory that is mapped.

use crate::Device;
use crate::sys::{
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_LOCATION_TYPE_DEVICE, CUmemAccessDesc, CUmemLocation,
};

/// That a device may read and write.
pub(crate) fn access_of(device: &Device) -> CUmemAccessDesc {
    CUmemAccessDesc { location: location(device), flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE }
}

/// Memory of a device.
pub(crate) fn location(device: &Device) -> CUmemLocation {
    CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: device.raw }
}
