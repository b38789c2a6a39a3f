//! Our structures and constants beside generated ones.

use std::mem::{align_of, offset_of, size_of};

use cudarc::driver::sys as generated;

use super::*;

#[test]
fn structures_are_laid_out_alike() {
    assert_eq!(size_of::<CUuuid>(), size_of::<generated::CUuuid>());
    assert_eq!(size_of::<CUipcHandle>(), size_of::<generated::CUipcMemHandle>());
    assert_eq!(size_of::<CUipcHandle>(), size_of::<generated::CUipcEventHandle>());
    assert_eq!(size_of::<CUmemAccessDesc>(), size_of::<generated::CUmemAccessDesc>());
    assert_eq!(offset_of!(CUmemAccessDesc, flags), offset_of!(generated::CUmemAccessDesc, flags));
    type Theirs = generated::CUmemAllocationProp;
    assert_eq!(size_of::<CUmemAllocationProp>(), size_of::<Theirs>());
    assert_eq!(align_of::<CUmemAllocationProp>(), align_of::<Theirs>());
    let ours = [
        offset_of!(CUmemAllocationProp, requested_handle_types),
        offset_of!(CUmemAllocationProp, location),
        offset_of!(CUmemAllocationProp, win32_handle_metadata),
        offset_of!(CUmemAllocationProp, alloc_flags),
    ];
    let theirs = [
        offset_of!(Theirs, requestedHandleTypes),
        offset_of!(Theirs, location),
        offset_of!(Theirs, win32HandleMetaData),
        offset_of!(Theirs, allocFlags),
    ];
    assert_eq!(ours, theirs);
}

#[test]
fn numbers_mean_the_same() {
    use generated::CUdevice_attribute as Device;
    use generated::CUpointer_attribute as Pointer;
    use generated::CUstreamCaptureMode as Mode;
    let pairs = [
        (
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            Device::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as i32,
        ),
        (
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
            Device::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED as i32,
        ),
        (
            CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
            Device::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED as i32,
        ),
        (
            CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
            Device::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED as i32,
        ),
    ];
    pairs.iter().for_each(|(ours, theirs)| assert_eq!(ours, theirs));
    let pairs = [
        (CU_POINTER_ATTRIBUTE_MEMORY_TYPE, Pointer::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as u32),
        (CU_POINTER_ATTRIBUTE_IS_MANAGED, Pointer::CU_POINTER_ATTRIBUTE_IS_MANAGED as u32),
        (CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, Pointer::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as u32),
        (
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            Pointer::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as u32,
        ),
        (CU_POINTER_ATTRIBUTE_RANGE_SIZE, Pointer::CU_POINTER_ATTRIBUTE_RANGE_SIZE as u32),
        (CU_STREAM_CAPTURE_MODE_GLOBAL, Mode::CU_STREAM_CAPTURE_MODE_GLOBAL as u32),
        (CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as u32),
        (CU_STREAM_CAPTURE_MODE_RELAXED, Mode::CU_STREAM_CAPTURE_MODE_RELAXED as u32),
    ];
    pairs.iter().for_each(|(ours, theirs)| assert_eq!(ours, theirs));
}
