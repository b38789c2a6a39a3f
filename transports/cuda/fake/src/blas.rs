//! Products with cuBLAS's names: columns lie together, checked as cuBLAS checks, added up one by
//! one. As cuBLAS does, it loads code for a kind of product when that is first asked for, which
//! waits for everything on the device.

use half::{bf16, f16};
use std::ffi::{c_int, c_longlong, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::current;
use crate::stream;
use crate::table::{Code, Handle, Table, export, lock, put, while_all_wait};

const INVALID_ARGUMENT: Code = 7;
const NOT_SUPPORTED: Code = 15;
const F32: c_int = 0;
const F16: c_int = 2;
const BF16: c_int = 14;

/// A handle: the stream that its products go into, and whether their sums may be in parts that are
/// added up in the type of what comes out.
struct Blas {
    stream: Mutex<u64>,
    rounds: AtomicBool,
}

static HANDLES: Table<Blas> = Table::new();
/// Kinds of products whose code is there: what is turned, and the types.
static LOADED: Mutex<Vec<[c_int; 4]>> = Mutex::new(Vec::new());

/// A matrix, or as many as there are products, in memory of a device.
#[derive(Clone, Copy)]
struct Matrix {
    start: u64,
    kind: c_int,
    is_turned: bool,
    /// From one column to the next, and from one matrix to the next.
    apart: usize,
    stride: i64,
}

impl Matrix {
    /// Whether columns of a matrix of this shape lie apart; a turned one lies as its transpose.
    fn holds(&self, rows: c_int, columns: c_int) -> bool {
        let rows = if self.is_turned { columns } else { rows };
        matches!(self.kind, F32 | F16 | BF16) && self.apart >= rows.max(1) as usize
    }

    fn place(&self, product: i64, row: usize, column: usize) -> u64 {
        let (row, column) = if self.is_turned { (column, row) } else { (row, column) };
        let at = product * self.stride + (column * self.apart + row) as i64;
        self.start + at as u64 * if self.kind == F32 { 4 } else { 2 }
    }

    fn read(&self, place: u64) -> f32 {
        // SAFETY: who asked for the product owes its matrices until it is done.
        unsafe {
            match self.kind {
                F32 => (place as *const f32).read(),
                F16 => (place as *const f16).read().to_f32(),
                _ => (place as *const bf16).read().to_f32(),
            }
        }
    }

    /// The number that it would have of this one.
    fn rounded(&self, number: f32) -> f32 {
        match self.kind {
            F32 => number,
            F16 => f16::from_f32(number).to_f32(),
            _ => bf16::from_f32(number).to_f32(),
        }
    }

    fn write(&self, place: u64, number: f32) {
        // SAFETY: as above, and nobody else uses what is written.
        unsafe {
            match self.kind {
                F32 => (place as *mut f32).write(number),
                F16 => (place as *mut f16).write(f16::from_f32(number)),
                _ => (place as *mut bf16).write(bf16::from_f32(number)),
            }
        }
    }
}

/// c = alpha a b + beta c, with a: [m x k], b: [k x n]. Sums that are `cut` are of two halves.
fn multiply(
    [a, b, c]: [Matrix; 3],
    [m, n, k]: [usize; 3],
    [alpha, beta]: [f32; 2],
    count: i64,
    cut: bool,
) {
    for product in 0..count {
        for (row, column) in (0..n).flat_map(|column| (0..m).map(move |row| (row, column))) {
            let part = |at: usize| {
                a.read(a.place(product, row, at)) * b.read(b.place(product, at, column))
            };
            let half = if cut { k / 2 } else { 0 };
            let sum = c.rounded((0..half).map(part).sum()) + (half..k).map(part).sum::<f32>();
            let to = c.place(product, row, column);
            // What is there is not looked at where it does not count: it may be no number.
            let before = if beta == 0.0 { 0.0 } else { beta * c.read(to) };
            c.write(to, alpha * sum + before);
        }
    }
}

/// At most so many products at a time: as many blocks as a grid has along its third dimension.
const PRODUCTS_MAX: c_int = 65_535;

export! {
    fn cublasCreate_v2(target: *mut Handle) {
        stream::wait_for_device(current()?);
        put(target, HANDLES.add(Blas { stream: Mutex::new(0), rounds: AtomicBool::new(true) }))
    }
    fn cublasDestroy_v2(handle: Handle) {
        stream::wait_for_device(current()?);
        HANDLES.remove(handle).map(drop)
    }
    fn cublasSetStream_v2(handle: Handle, stream: Handle) {
        *lock(&HANDLES.find(handle)?.stream) = stream as u64;
        Ok(())
    }
    fn cublasSetMathMode(handle: Handle, mode: c_int) {
        HANDLES.find(handle)?.rounds.store(mode & 16 == 0, Ordering::Relaxed);
        Ok(())
    }
    fn cublasGemmStridedBatchedEx(
        handle: Handle, turn_a: c_int, turn_b: c_int, m: c_int, n: c_int, k: c_int,
        alpha: *const c_void, a: u64, a_kind: c_int, a_apart: c_int, a_stride: c_longlong,
        b: u64, b_kind: c_int, b_apart: c_int, b_stride: c_longlong, beta: *const c_void,
        c: u64, c_kind: c_int, c_apart: c_int, c_stride: c_longlong, count: c_int,
        _compute: c_int, _algorithm: c_int,
    ) {
        let matrix = |start, kind, turn: c_int, apart: c_int, stride| {
            let (is_turned, apart) = (turn != 0, apart.max(0) as usize);
            Matrix { start, kind, is_turned, apart, stride }
        };
        let all = [
            matrix(a, a_kind, turn_a, a_apart, a_stride),
            matrix(b, b_kind, turn_b, b_apart, b_stride),
            matrix(c, c_kind, 0, c_apart, c_stride),
        ];
        let fits = m >= 0 && n >= 0 && k >= 0 && count >= 0;
        if !fits || !all[0].holds(m, k) || !all[1].holds(k, n) || !all[2].holds(m, n) {
            return Err(INVALID_ARGUMENT);
        }
        // The real one says of no such end, and some of its kernels may have it all the same.
        if a_kind != b_kind || count > PRODUCTS_MAX || (a_kind == F32 && c_kind != F32) {
            return Err(NOT_SUPPORTED);
        }
        let handle = HANDLES.find(handle)?;
        let stream = stream::find(*lock(&handle.stream) as Handle)?;
        let cut = handle.rounds.load(Ordering::Relaxed);
        load([turn_a, turn_b, a_kind, c_kind])?;
        // SAFETY: the caller owes two numbers of f32.
        let scales = unsafe { [alpha.cast::<f32>().read(), beta.cast::<f32>().read()] };
        let shape = [m, n, k].map(|side| side as usize);
        stream.submit(move || multiply(all, shape, scales, i64::from(count), cut))
    }
}

/// Have the code for a kind of product.
fn load(kind: [c_int; 4]) -> Result<(), Code> {
    let device = current()?;
    if lock(&LOADED).contains(&kind) {
        return Ok(());
    }
    while_all_wait(|| stream::wait_for_device(device));
    lock(&LOADED).push(kind);
    Ok(())
}
