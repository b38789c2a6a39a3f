//! libcufile as C sees it: the structures and numbers of `cufile.h` that are used here. A test
//! compares them with those that cudarc's authors had generated.

use std::ffi::{c_int, c_uint, c_void};

use crate::sys::CUresult;

/// A file's handle, which is never looked into.
pub(crate) type CUfileHandle = *mut c_void;

pub(crate) const CU_FILE_SUCCESS: c_int = 0;
/// Numbers of cuFile's own lie above, negative where a count of bytes could stand.
pub(crate) const CUFILEOP_BASE_ERR: c_int = 5000;
pub(crate) const CU_FILE_CUDA_DRIVER_ERROR: c_int = 5011;
pub(crate) const CU_FILE_DRIVER_ALREADY_OPEN: c_int = 5026;

pub(crate) const CU_FILE_HANDLE_TYPE_OPAQUE_FD: c_int = 1;

/// Places of bits in `dcontrolflags` and `dstatusflags`.
pub(crate) const CU_FILE_ALLOW_COMPAT_MODE: c_uint = 1;
pub(crate) const CU_FILE_NVME_P2P_SUPPORTED: c_uint = 11;
/// And in `feature_flags`: where cuFile of CUDA 13.1 says it, whose header takes the other back.
pub(crate) const CU_FILE_P2P_SUPPORTED: c_uint = 4;

pub(crate) const CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE: c_int = 1;
pub(crate) const CUFILE_PARAM_FORCE_COMPAT_MODE: c_int = 2;

/// What calls answer that move no bytes.
#[must_use]
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CUfileError {
    pub(crate) err: c_int,
    /// Means something where the other is [`CU_FILE_CUDA_DRIVER_ERROR`].
    pub(crate) cu_err: CUresult,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CUfileDescr {
    pub(crate) kind: c_int,
    pub(crate) handle: CUfileDescrHandle,
    pub(crate) fs_ops: *const c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union CUfileDescrHandle {
    pub(crate) fd: c_int,
    pub(crate) handle: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct CUfileDrvProps {
    pub(crate) nvfs: CUfileNvfsProps,
    pub(crate) feature_flags: c_uint,
    pub(crate) max_device_cache_size: c_uint,
    pub(crate) per_buffer_cache_size: c_uint,
    pub(crate) max_device_pinned_mem_size: c_uint,
    pub(crate) max_batch_io_size: c_uint,
    pub(crate) max_batch_io_timeout_msecs: c_uint,
    /// For fields of later versions.
    pub(crate) room: [u64; 16],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct CUfileNvfsProps {
    pub(crate) major_version: c_uint,
    pub(crate) minor_version: c_uint,
    pub(crate) poll_thresh_size: usize,
    pub(crate) max_direct_io_size: usize,
    pub(crate) dstatusflags: c_uint,
    pub(crate) dcontrolflags: c_uint,
}

#[cfg(test)]
mod tests {
    use std::mem::{align_of, offset_of, size_of};

    use cudarc::cufile::sys as generated;

    use super::*;

    #[test]
    fn structures_are_laid_out_alike() {
        assert_eq!(size_of::<CUfileError>(), size_of::<generated::CUfileError>());
        assert_eq!(offset_of!(CUfileError, cu_err), offset_of!(generated::CUfileError, cu_err));
        type Descr = generated::CUfileDescr_t;
        assert_eq!(size_of::<CUfileDescr>(), size_of::<Descr>());
        assert_eq!(align_of::<CUfileDescr>(), align_of::<Descr>());
        assert_eq!(offset_of!(CUfileDescr, handle), offset_of!(Descr, handle));
        assert_eq!(offset_of!(CUfileDescr, fs_ops), offset_of!(Descr, fs_ops));
        type Props = generated::CUfileDrvProps;
        let ours = offset_of!(CUfileDrvProps, max_batch_io_timeout_msecs);
        assert_eq!(ours, offset_of!(Props, max_batch_io_timeout_msecs));
        assert_eq!(offset_of!(CUfileDrvProps, feature_flags), offset_of!(Props, fflags));
        assert!(size_of::<CUfileDrvProps>() >= size_of::<Props>() + 128);
        type Nvfs = generated::CUfileDrvProps__bindgen_ty_1;
        assert_eq!(size_of::<CUfileNvfsProps>(), size_of::<Nvfs>());
        let ours = offset_of!(CUfileNvfsProps, dcontrolflags);
        assert_eq!(ours, offset_of!(Nvfs, dcontrolflags));
        assert_eq!(offset_of!(CUfileNvfsProps, dstatusflags), offset_of!(Nvfs, dstatusflags));
    }

    #[test]
    fn numbers_mean_the_same() {
        use generated::{CUfileDriverControlFlags, CUfileFileHandleType, CUfileOpError};
        let pairs = [
            (CU_FILE_SUCCESS, CUfileOpError::CU_FILE_SUCCESS as c_int),
            (CU_FILE_CUDA_DRIVER_ERROR, CUfileOpError::CU_FILE_CUDA_DRIVER_ERROR as c_int),
            (CU_FILE_DRIVER_ALREADY_OPEN, CUfileOpError::CU_FILE_DRIVER_ALREADY_OPEN as c_int),
            (
                CU_FILE_HANDLE_TYPE_OPAQUE_FD,
                CUfileFileHandleType::CU_FILE_HANDLE_TYPE_OPAQUE_FD as c_int,
            ),
            (
                CU_FILE_ALLOW_COMPAT_MODE as c_int,
                CUfileDriverControlFlags::CU_FILE_ALLOW_COMPAT_MODE as c_int,
            ),
        ];
        pairs.iter().for_each(|(ours, theirs)| assert_eq!(ours, theirs));
    }
}
