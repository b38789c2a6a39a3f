//! Memory behind handles and descriptors (`cuMemCreate` and its kin).

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::ptr;

use crate::access::forget;
use crate::device::current;
use crate::graph::forbidden_in_capture;
use crate::memory::{Kind, Range, add, map, new_file, remove, unmap};
use crate::table::{Handle, INVALID_VALUE, OUT_OF_MEMORY, Table, export, put};

const GRANULARITY: usize = 2 << 20;

static HANDLES: Table<OwnedFd> = Table::new();

export! {
    fn cuMemGetAllocationGranularity(
        target: *mut usize, _properties: *const c_void, _option: c_uint,
    ) {
        put(target, GRANULARITY)
    }
    fn cuMemCreate(
        target: *mut u64, bytes: usize, _properties: *const c_void, _flags: u64,
    ) {
        forbidden_in_capture()?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(INVALID_VALUE);
        }
        put(target, HANDLES.add(new_file(bytes)?) as u64)
    }
    fn cuMemRelease(handle: u64) {
        forbidden_in_capture()?;
        HANDLES.remove(handle as Handle).map(drop)
    }
    fn cuMemAddressReserve(
        target: *mut u64, bytes: usize, _align: usize, _hint: u64, _flags: u64,
    ) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: asks for fresh addresses anywhere.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        put(target, start as u64)
    }
    fn cuMemAddressFree(address: u64, bytes: usize) {
        unmap(address, bytes);
        Ok(())
    }
    fn cuMemMap(address: u64, bytes: usize, _offset: usize, handle: u64, _flags: u64) {
        forbidden_in_capture()?;
        let file = HANDLES.find(handle as Handle)?;
        map(&*file, bytes, address)?;
        add(address, Range { bytes, kind: Kind::Shared { device: current()? } });
        Ok(())
    }
    fn cuMemUnmap(address: u64, _bytes: usize) {
        forbidden_in_capture()?;
        crate::stream::settle();
        forget(address);
        remove(address).map(drop)
    }
    fn cuMemExportToShareableHandle(
        target: *mut c_void, handle: u64, _kind: c_uint, _flags: u64,
    ) {
        let file = HANDLES.find(handle as Handle)?;
        let copy = file.try_clone().map_err(|_| OUT_OF_MEMORY)?;
        put(target.cast::<c_int>(), copy.into_raw_fd())
    }
    fn cuMemImportFromShareableHandle(target: *mut u64, source: *mut c_void, _kind: c_uint) {
        let fd = source as usize as c_int;
        if fd < 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller owes a descriptor that is open during the call.
        let file = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
        put(target, HANDLES.add(file.map_err(|_| INVALID_VALUE)?) as u64)
    }
}
