//! A program for NCCL in Rust: cudarc's binding, which finds libnccl.so when it runs, makes its
//! calls on host memory. Two ranks in this process, their calls in groups.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use cudarc::nccl::{result, sys};
use sys::ncclDataType_t::ncclFloat32;
use sys::ncclRedOp_t::{ncclMax, ncclSum};

const RANKS: usize = 2;

/// Where a rank's elements are.
fn to<T>(elements: &mut [T]) -> *mut c_void {
    elements.as_mut_ptr().cast()
}

/// Make a call of every rank, as one group.
fn together(mut call: impl FnMut(usize) -> Result<result::NcclStatus, result::NcclError>) {
    result::group_start().expect("a group begins");
    for rank in 0..RANKS {
        call(rank).expect("a call is listed");
    }
    result::group_end().expect("a group ends");
}

/// The first two elements of each rank.
fn heads(out: &[[f32; 4]; RANKS]) -> [[f32; 2]; RANKS] {
    out.map(|out| [out[0], out[1]])
}

fn main() {
    let mut comms = [null_mut(); RANKS];
    // SAFETY: there is room for so many handles, and as many numbers.
    let made =
        unsafe { result::comm_init_all(comms.as_mut_ptr(), RANKS as c_int, [0, 1].as_ptr()) };
    made.expect("a world of two");
    // SAFETY: these are its communicators.
    let size = unsafe { result::comm_count(comms[1]) };
    assert_eq!(size.expect("it has joined"), 2);
    let mut parts = [[1_f32, 2.0], [10.0, 20.0]];
    let mut out = [[0_f32; 4]; RANKS];
    let (none, of) = (null_mut(), parts.each_mut().map(|part| to(part)));
    let into = out.each_mut().map(|out| to(out));
    // SAFETY: all memory is ours, long enough, and used by one call at a time.
    together(|r| unsafe {
        result::all_reduce(of[r], into[r], 2, ncclFloat32, ncclSum, comms[r], none)
    });
    assert_eq!(out, [[11.0, 22.0, 0.0, 0.0]; 2]);
    // SAFETY: as above.
    together(|r| unsafe { result::all_gather(of[r], into[r], 2, ncclFloat32, comms[r], none) });
    assert_eq!(out, [[1.0, 2.0, 10.0, 20.0]; 2]);
    // SAFETY: as above.
    together(|r| unsafe {
        result::reduce_scatter(of[r], into[r], 1, ncclFloat32, ncclMax, comms[r], none)
    });
    assert_eq!([out[0][0], out[1][0]], [10.0, 20.0]);
    // SAFETY: as above.
    together(|r| unsafe { result::broadcast(of[r], into[r], 2, ncclFloat32, 1, comms[r], none) });
    assert_eq!(heads(&out), [[10.0, 20.0]; 2]);
    // SAFETY: as above.
    together(|r| unsafe {
        result::reduce(of[r], into[r], 2, ncclFloat32, ncclSum, 0, comms[r], none)
    });
    assert_eq!(heads(&out)[0], [11.0, 22.0]);
    // SAFETY: as above.
    together(|r| unsafe {
        let peer = 1 - r as c_int;
        result::send(of[r], 2, ncclFloat32, peer, comms[r], none)?;
        result::recv(into[r], 2, ncclFloat32, peer, comms[r], none)
    });
    assert_eq!(heads(&out), [[10.0, 20.0], [1.0, 2.0]]);
    for comm in comms {
        // SAFETY: it is used no more.
        unsafe { result::comm_destroy(comm) }.expect("it ends");
    }
    println!("cudarc made its calls on host memory");
}
