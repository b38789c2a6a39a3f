//! What cuFile answered, in words.

use std::fmt;
use std::io;

use super::sys::{CU_FILE_CUDA_DRIVER_ERROR, CUFILEOP_BASE_ERR, CUfileError};
use crate::Code;

/// Why cuFile did not do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileCode {
    /// A number of cuFile's own (`CUfileOpError`).
    CuFile(u32),
    /// What CUDA's driver told cuFile.
    Cuda(Code),
    /// What the system said of the file.
    System(i32),
}

impl FileCode {
    /// Of a call that moves no bytes; none where it is a success.
    pub(super) fn of(answer: CUfileError) -> Option<FileCode> {
        match answer.err {
            0 => None,
            CU_FILE_CUDA_DRIVER_ERROR => Some(FileCode::Cuda(Code(answer.cu_err))),
            err => Some(FileCode::CuFile(err.unsigned_abs())),
        }
    }

    /// Of a count of bytes that is negative, with what the system said last. The header says that
    /// cuFile's own numbers come as negative counts; the library leaves them where the system's
    /// come.
    pub(super) fn of_count(count: isize, said: &io::Error) -> FileCode {
        let said = said.raw_os_error().unwrap_or(0);
        let own = |number: usize| number > CUFILEOP_BASE_ERR as usize;
        match count.unsigned_abs() {
            number if own(number) => FileCode::CuFile(number as u32),
            _ if own(said.unsigned_abs() as usize) => FileCode::CuFile(said.unsigned_abs()),
            _ => FileCode::System(said),
        }
    }
}

/// The name in `cufile.h`, and what to do next.
fn words(code: u32) -> [&'static str; 2] {
    const OURS: &str = "report it with the versions of cuFile and of nvidia-fs";
    const VERSIONS: &str = "install nvidia-fs and cuFile of one release";
    match code {
        5001 => [
            "CU_FILE_DRIVER_NOT_INITIALIZED",
            "load the kernel's module nvidia-fs, or where kernel and driver can do without it set \
             CUFILE_USE_PCIP2PDMA=true",
        ],
        5004 => ["CU_FILE_DRIVER_VERSION_MISMATCH", VERSIONS],
        5005 => ["CU_FILE_DRIVER_VERSION_READ_ERROR", VERSIONS],
        5006 => ["CU_FILE_DRIVER_CLOSING", "the program is ending"],
        5007 => ["CU_FILE_PLATFORM_NOT_SUPPORTED", "gdscheck -p says what the platform lacks"],
        5008 => ["CU_FILE_IO_NOT_SUPPORTED", "gdscheck -p lists file systems and drives that do"],
        5009 => ["CU_FILE_DEVICE_NOT_SUPPORTED", "the device is too old for it"],
        5010 => ["CU_FILE_NVFS_DRIVER_ERROR", "look at the system's log (dmesg)"],
        5012 => ["CU_FILE_CUDA_POINTER_INVALID", OURS],
        5013 => ["CU_FILE_CUDA_MEMORY_TYPE_INVALID", "memory of pools cannot be used"],
        5014 => ["CU_FILE_CUDA_POINTER_RANGE_ERROR", OURS],
        5015 => ["CU_FILE_CUDA_CONTEXT_MISMATCH", OURS],
        5016 => ["CU_FILE_INVALID_MAPPING_SIZE", "register less at a time"],
        5017 => ["CU_FILE_INVALID_MAPPING_RANGE", OURS],
        5018 => ["CU_FILE_INVALID_FILE_TYPE", "only regular files can be used"],
        5019 => ["CU_FILE_INVALID_FILE_OPEN_FLAG", "the file system must take O_DIRECT"],
        5020 => ["CU_FILE_DIO_NOT_SET", "the file system must take O_DIRECT"],
        5022 => ["CU_FILE_INVALID_VALUE", OURS],
        5023 => ["CU_FILE_MEMORY_ALREADY_REGISTERED", "it is known to cuFile already"],
        5024 => ["CU_FILE_MEMORY_NOT_REGISTERED", OURS],
        5025 => ["CU_FILE_PERMISSION_DENIED", "let the user read and write /dev/nvidia-fs*"],
        5026 => ["CU_FILE_DRIVER_ALREADY_OPEN", "go on"],
        5027 => ["CU_FILE_HANDLE_NOT_REGISTERED", OURS],
        5028 => ["CU_FILE_HANDLE_ALREADY_REGISTERED", OURS],
        5029 => ["CU_FILE_DEVICE_NOT_FOUND", "check CUDA_VISIBLE_DEVICES"],
        5030 => ["CU_FILE_INTERNAL_ERROR", "cufile.log says more"],
        5031 => ["CU_FILE_GETNEWFD_FAILED", "allow more open files (ulimit -n)"],
        5033 => ["CU_FILE_NVFS_SETUP_ERROR", "cufile.log says more"],
        5034 => ["CU_FILE_IO_DISABLED", "cufile.json forbids it for this file system"],
        5036 => ["CU_FILE_GPU_MEMORY_PINNING_FAILED", "the device can show less of its memory"],
        _ => ["an error of cuFile", "look the number up in cufile.h, at CUfileOpError"],
    }
}

impl fmt::Display for FileCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            FileCode::CuFile(code) => {
                let [name, next] = words(code);
                write!(f, "{name} ({code}): {next}")
            }
            FileCode::Cuda(code) => write!(f, "{code}"),
            FileCode::System(errno) => write!(f, "{}", io::Error::from_raw_os_error(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_apart_wherever_they_come() {
        let of = |count, said| FileCode::of_count(count, &io::Error::from_raw_os_error(said));
        assert_eq!(of(-1, 5), FileCode::System(5));
        assert_eq!(of(-1, 5017), FileCode::CuFile(5017));
        assert_eq!(of(-5017, 0), FileCode::CuFile(5017));
        let answer = |err, cu_err| FileCode::of(CUfileError { err, cu_err });
        assert_eq!(answer(0, 3), None);
        assert_eq!(answer(5001, 3), Some(FileCode::CuFile(5001)));
        assert_eq!(answer(5011, 3), Some(FileCode::Cuda(Code(3))));
        let words = of(-1, 5008).to_string();
        assert!(words.starts_with("CU_FILE_IO_NOT_SUPPORTED (5008): gdscheck"), "{words}");
    }
}
