//! Tensors by name in two tiers: memory up to a limit, and files for the rest.

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brigade_comm::Dtype as Element;
use brigade_offload::layout::{Dtype, Tensor};
use brigade_offload::memory::Category;
use brigade_offload::store::{Carrier, Loan, Store, StoreError};

use crate::arena::{Tiers, brigade_arena_t, failed, files};
use crate::dtype::DtypeCode;
use crate::error::{Failure, Outcome, brigade_result_t, enter};
use brigade_wall::handle::{Noun, Pinned, close, pin, register};
use brigade_wall::pointer::{Out, list, list_mut, text};

/// Files are written in blocks of at most this size, which any drive moves at its full speed, and
/// of no more than the least tensor takes.
const BLOCK_BYTES: u64 = 1 << 20;
const BLOCK_BYTES_MIN: u64 = 4 << 10;

/// Tensors in two tiers. What is inside is nobody's.
pub struct brigade_store {
    _nobody: (),
}

/// A handle of tensors by name: in memory up to a limit, and in files for the rest. They come back
/// into memory ahead of their use, and leave it when room is needed.
pub type brigade_store_t = *mut brigade_store;

/// A tensor of a store.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct brigade_tensor_t {
    /// By which it is asked for.
    pub name: *const c_char,
    /// The type of its elements.
    pub dtype: DtypeCode,
    /// How many.
    pub count: usize,
}

/// The same numbers as in tests/c/layout.c.
const _: () = assert!(size_of::<brigade_tensor_t>() == 24);

/// How a borrowed tensor comes back.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum brigade_returned_t {
    /// As it was.
    BRIGADE_UNCHANGED = 0,
    /// With new contents, which go to the files when room is needed or with the next commit.
    BRIGADE_CHANGED = 1,
    /// With new contents, which start to go to the files now and leave memory once they are there.
    BRIGADE_OUT = 2,
}

/// Any number where C says `brigade_returned_t`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct ReturnedCode(std::ffi::c_int);

/// What stands behind a handle.
struct Shelves(Mutex<Books>);

struct Books {
    store: Store,
    /// What C has borrowed, by name.
    loans: HashMap<String, Loan>,
}

impl Noun for Shelves {
    const KIND: u8 = 6;
    const NAME: &'static str = "store";
}

/// A new store of these tensors, all zeros, in one file for each path; what was there is gone, but
/// for an error because one of the paths or the room for all is not to be had. At most
/// `memory_bytes` of the arena hold tensors. Room for two generations of everything is taken now,
/// so that a full device shows here. `store` is NULL after an error.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_store_create(
    store: *mut brigade_store_t,
    arena: brigade_arena_t,
    paths: *const *const c_char,
    path_count: usize,
    tensors: *const brigade_tensor_t,
    tensor_count: usize,
    memory_bytes: usize,
) -> brigade_result_t {
    let make = |carrier: &Carrier, paths: &[PathBuf]| {
        // SAFETY: C passes as many tensors as it says.
        let listed = unsafe { list(tensors, tensor_count, "tensors") }?;
        let tensors = listed.iter().map(tensor).collect::<Outcome<Vec<_>>>()?;
        let least = tensors.iter().map(Tensor::bytes).min().unwrap_or(0);
        let block = least.clamp(BLOCK_BYTES_MIN, BLOCK_BYTES).next_power_of_two();
        let category = Category::Parameters;
        let made = Store::create(carrier, paths, tensors, block, category, memory_bytes);
        made.map_err(failed)
    };
    // SAFETY: the caller's promise.
    unsafe { open(store, arena, (paths, path_count), make) }
}

/// The store that was committed to these paths, all of those it was made with, as of its last
/// commit. `store` is NULL after an error.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_store_open(
    store: *mut brigade_store_t,
    arena: brigade_arena_t,
    paths: *const *const c_char,
    path_count: usize,
    memory_bytes: usize,
) -> brigade_result_t {
    let make = |carrier: &Carrier, paths: &[PathBuf]| {
        Store::open(carrier, paths, Category::Parameters, memory_bytes).map_err(failed)
    };
    // SAFETY: the caller's promise.
    unsafe { open(store, arena, (paths, path_count), make) }
}

/// Say in which order tensors will be used, over and over: from now on what is needed next is
/// fetched while the caller computes. Uses out of that order are right too, only later.
///
/// Threads: from any thread; calls on one store come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_store_expect(
    store: brigade_store_t,
    names: *const *const c_char,
    count: usize,
) -> brigade_result_t {
    enter(|| {
        let shelves = pin::<Shelves>(store.addr() as u64)?;
        // SAFETY: C passes as many names as it says.
        let names = unsafe { list(names, count, "names") }?;
        // SAFETY: and each of them is text.
        let names = names.iter().map(|name| unsafe { text(*name, "a name") });
        let names = names.collect::<Outcome<Vec<_>>>()?;
        shelves.books().store.expect(&names).map_err(failed)
    })
}

/// Start to bring a tensor into memory. Waits only where room has to be made for it.
///
/// Threads: from any thread; calls on one store come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_store_prefetch(
    store: brigade_store_t,
    name: *const c_char,
) -> brigade_result_t {
    // SAFETY: C passes text.
    unsafe {
        with(store, name, |books, name| {
            books.store.prefetch(name, None).map(|_| ()).map_err(failed)
        })
    }
}

/// Have a tensor in memory: `data` gets where it is, good until brigade_store_give_back, and
/// `bytes`, which may be NULL, how long it is. It begins at a multiple of 4096 bytes.
///
/// Threads: from any thread; calls on one store come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_store_borrow(
    store: brigade_store_t,
    name: *const c_char,
    data: *mut *mut c_void,
    bytes: *mut usize,
) -> brigade_result_t {
    let body = |books: &mut Books, name: &str| {
        let place = Out::new(data, "data")?;
        let length = if bytes.is_null() { None } else { Some(Out::new(bytes, "bytes")?) };
        let mut loan = books.store.get(name).map_err(failed)?;
        // SAFETY: C passes a place for it.
        unsafe { place.put(loan.as_mut_ptr().cast()) };
        if let Some(length) = length {
            // SAFETY: likewise.
            unsafe { length.put(loan.len()) };
        }
        books.loans.insert(name.to_owned(), loan);
        Ok(())
    };
    // SAFETY: C passes text.
    unsafe { with(store, name, body) }
}

/// Give a borrowed tensor back.
///
/// Threads: from any thread; calls on one store come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_store_give_back(
    store: brigade_store_t,
    name: *const c_char,
    how: ReturnedCode,
) -> brigade_result_t {
    let body = |books: &mut Books, name: &str| {
        if !(0..=2).contains(&how.0) {
            return Err(Failure::argument(format!("how: {} is none of its values", how.0)));
        }
        let none = || Failure::usage(format!("tensor {name:?} was not borrowed"));
        let loan = books.loans.remove(name).ok_or_else(none)?;
        match how.0 {
            0 => books.store.give_back(loan),
            1 => books.store.put(loan),
            _ => {
                books.store.put_out(loan).map_err(failed)?;
            }
        }
        Ok(())
    };
    // SAFETY: C passes text.
    unsafe { with(store, name, body) }
}

/// Copy all of a tensor, `bytes` bytes, into the store, and start to bring it to the files: what
/// swapping out is.
///
/// Threads: from any thread; calls on one store come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_store_put(
    store: brigade_store_t,
    name: *const c_char,
    data: *const c_void,
    bytes: usize,
) -> brigade_result_t {
    let body = |books: &mut Books, name: &str| {
        // SAFETY: C passes as much memory as it says.
        let data = unsafe { list(data.cast::<u8>(), bytes, "data") }?;
        let mut loan = books.store.get(name).map_err(failed)?;
        if loan.len() != bytes {
            let has = loan.len();
            books.store.give_back(loan);
            return Err(wrong_length(name, has, bytes));
        }
        loan.copy_from_slice(data);
        books.store.put_out(loan).map(|_| ()).map_err(failed)
    };
    // SAFETY: C passes text.
    unsafe { with(store, name, body) }
}

/// Copy all of a tensor, `bytes` bytes, out of the store, after waiting for it.
///
/// Threads: from any thread; calls on one store come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_store_get(
    store: brigade_store_t,
    name: *const c_char,
    data: *mut c_void,
    bytes: usize,
) -> brigade_result_t {
    let body = |books: &mut Books, name: &str| {
        // SAFETY: C passes as much memory as it says.
        let data = unsafe { list_mut(data.cast::<u8>(), bytes, "data") }?;
        let loan = books.store.get(name).map_err(failed)?;
        let has = loan.len();
        if has == bytes {
            data.copy_from_slice(&loan);
        }
        books.store.give_back(loan);
        if has == bytes { Ok(()) } else { Err(wrong_length(name, has, bytes)) }
    };
    // SAFETY: C passes text.
    unsafe { with(store, name, body) }
}

/// Make all tensors survive a loss of power as they are, as one generation; `label` is kept with
/// it, such as the number of a training step. No tensor may be borrowed. If it fails, the store is
/// back at the last commit, in memory as in the files (in these once they can be written).
///
/// Threads: from any thread; calls on one store come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_store_commit(
    store: brigade_store_t,
    label: u64,
) -> brigade_result_t {
    enter(|| {
        let shelves = pin::<Shelves>(store.addr() as u64)?;
        shelves.books().store.commit(label, b"").map_err(failed)
    })
}

/// The last commit: its number, from 1 on, and the label that it was given; both 0 where nothing
/// was committed yet, and both may be NULL.
///
/// Threads: from any thread; calls on one store come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_store_last(
    store: brigade_store_t,
    number: *mut u64,
    label: *mut u64,
) -> brigade_result_t {
    enter(|| {
        let shelves = pin::<Shelves>(store.addr() as u64)?;
        let last = shelves.books().store.last().unwrap_or((0, 0));
        for (place, value, name) in [(number, last.0, "number"), (label, last.1, "label")] {
            if !place.is_null() {
                // SAFETY: C passes NULL or a place for it.
                unsafe { Out::new(place, name)?.put(value) };
            }
        }
        Ok(())
    })
}

/// End a handle, and with it borrowed memory. What was not committed is forgotten.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_store_destroy(store: brigade_store_t) -> brigade_result_t {
    enter(|| close::<Shelves>(store.addr() as u64))
}

/// Make a store, and a handle for it.
///
/// # Safety
///
/// All is what C must pass.
unsafe fn open(
    store: *mut brigade_store_t,
    arena: brigade_arena_t,
    (paths, path_count): (*const *const c_char, usize),
    make: impl FnOnce(&Carrier, &[PathBuf]) -> Outcome<Store>,
) -> brigade_result_t {
    enter(|| {
        let out = Out::new(store, "store")?;
        // SAFETY: the caller's promise.
        unsafe { out.put(std::ptr::null_mut()) };
        let tiers = pin::<Tiers>(arena.addr() as u64)?;
        // SAFETY: the caller's promise.
        let paths = unsafe { files(paths, path_count) }?;
        let books = Books { store: make(&tiers.carrier, &paths)?, loans: HashMap::new() };
        let handle = register(Arc::new(Shelves(Mutex::new(books))))?;
        // SAFETY: as above.
        unsafe { out.put(std::ptr::without_provenance_mut(handle as usize)) };
        Ok(())
    })
}

/// Do something with a tensor of a store.
///
/// # Safety
///
/// The name is what C must pass.
unsafe fn with(
    store: brigade_store_t,
    name: *const c_char,
    body: impl FnOnce(&mut Books, &str) -> Outcome,
) -> brigade_result_t {
    enter(|| {
        let shelves: Pinned<Shelves> = pin(store.addr() as u64)?;
        // SAFETY: the caller's promise.
        let name = unsafe { text(name, "name") }?;
        body(&mut shelves.books(), name)
    })
}

impl Shelves {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tensor(said: &brigade_tensor_t) -> Outcome<Tensor> {
    // SAFETY: C passes text.
    let name = unsafe { text(said.name, "the name of a tensor") }?;
    let tensor = Tensor::whole(name, layout_type(said.dtype.parse()?), &[said.count as u64]);
    tensor.check().map_err(|error| failed(StoreError::Unplaceable(error.into())))?;
    Ok(tensor)
}

fn wrong_length(name: &str, has: usize, bytes: usize) -> Box<Failure> {
    Failure::argument(format!("tensor {name:?} has {has} bytes, not {bytes}"))
}

/// The type as files have it.
fn layout_type(dtype: Element) -> Dtype {
    match dtype {
        Element::I8 => Dtype::I8,
        Element::U8 => Dtype::U8,
        Element::I16 => Dtype::I16,
        Element::I32 => Dtype::I32,
        Element::U32 => Dtype::U32,
        Element::I64 => Dtype::I64,
        Element::U64 => Dtype::U64,
        Element::F16 => Dtype::F16,
        Element::Bf16 => Dtype::Bf16,
        Element::F32 => Dtype::F32,
        Element::F64 => Dtype::F64,
        Element::F8e4m3 => Dtype::F8E4M3,
        Element::F8e5m2 => Dtype::F8E5M2,
        Element::Bool => Dtype::Bool,
    }
}
