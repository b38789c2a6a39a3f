//! The library as a program meets it: opened at run time, its functions by their names.

use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::sync::OnceLock;

/// Pointers and handles go as numbers, which C passes alike.
pub(crate) type Address = usize;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId(pub(crate) [u8; 128]);

/// ncclConfig_t, of which nothing is asked for but these.
#[repr(C)]
pub(crate) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    others: [c_int; 2],
    least_blocks: c_int,
    pub(crate) most_blocks: c_int,
}

impl Config {
    pub(crate) fn at_most(most_blocks: c_int) -> Self {
        let (size, magic, undefined) = (size_of::<Self>(), 0xcafe_beef, c_int::MIN);
        let others = [undefined; 2];
        Self { size, magic, version: 22_809, others, least_blocks: undefined, most_blocks }
    }
}

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const INVALID_ARGUMENT: c_int = 4;
pub(crate) const INVALID_USAGE: c_int = 5;
pub(crate) const REMOTE_ERROR: c_int = 6;
pub(crate) const F32: c_int = 7;
pub(crate) const SUM: c_int = 0;
pub(crate) const MAX: c_int = 2;
pub(crate) const AVG: c_int = 4;

macro_rules! functions {
    ($($name:ident = $symbol:literal($($type:ty),*);)*) => {
        /// NCCL's functions.
        pub(crate) struct Nccl {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) -> c_int,)*
            last_error: unsafe extern "C" fn(Address) -> *const c_char,
        }

        impl Nccl {
            fn of(file: &libloading::Library) -> Self {
                // SAFETY: the types are those of `nccl.h`, and the library stays for ever.
                unsafe {
                    Self {
                        $($name: *file.get($symbol.to_bytes()).expect("a name of NCCL's"),)*
                        last_error: *file.get(b"ncclGetLastError").expect("a name of NCCL's"),
                    }
                }
            }
        }
    };
}

functions! {
    unique_id = c"ncclGetUniqueId"(*mut UniqueId);
    init_rank = c"ncclCommInitRank"(*mut Address, c_int, UniqueId, c_int);
    init_rank_config =
        c"ncclCommInitRankConfig"(*mut Address, c_int, UniqueId, c_int, *const Config);
    init_all = c"ncclCommInitAll"(*mut Address, c_int, *const c_int);
    split = c"ncclCommSplit"(Address, c_int, c_int, *mut Address, Address);
    finalize = c"ncclCommFinalize"(Address);
    destroy = c"ncclCommDestroy"(Address);
    abort = c"ncclCommAbort"(Address);
    async_error = c"ncclCommGetAsyncError"(Address, *mut c_int);
    device = c"ncclCommCuDevice"(Address, *mut c_int);
    group_start = c"ncclGroupStart"();
    group_end = c"ncclGroupEnd"();
    memory = c"ncclMemAlloc"(*mut Address, usize);
    free = c"ncclMemFree"(Address);
    factor = c"ncclRedOpCreatePreMulSum"(*mut c_int, Address, c_int, c_int, Address);
    all_reduce = c"ncclAllReduce"(Address, Address, usize, c_int, c_int, Address, Address);
    reduce_scatter = c"ncclReduceScatter"(Address, Address, usize, c_int, c_int, Address, Address);
    all_gather = c"ncclAllGather"(Address, Address, usize, c_int, Address, Address);
    all_to_all = c"ncclAlltoAll"(Address, Address, usize, c_int, Address, Address);
    broadcast = c"ncclBroadcast"(Address, Address, usize, c_int, c_int, Address, Address);
    bcast = c"ncclBcast"(Address, usize, c_int, c_int, Address, Address);
    reduce = c"ncclReduce"(Address, Address, usize, c_int, c_int, c_int, Address, Address);
    gather = c"ncclGather"(Address, Address, usize, c_int, c_int, Address, Address);
    send = c"ncclSend"(Address, usize, c_int, c_int, Address, Address);
    recv = c"ncclRecv"(Address, usize, c_int, c_int, Address, Address);
}

impl Nccl {
    /// The library of this build, opened once.
    pub(crate) fn get() -> &'static Self {
        static OPENED: OnceLock<Nccl> = OnceLock::new();
        OPENED.get_or_init(|| {
            let path = beside("libbrigade_nccl.so");
            // SAFETY: its initialisers are Rust's.
            let file = unsafe { libloading::Library::new(&path) };
            let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let functions = Self::of(&file);
            std::mem::forget(file);
            functions
        })
    }

    /// The sentence of this thread's last failure.
    pub(crate) fn why(&self) -> String {
        // SAFETY: no communicator is needed; what comes back is a string until the next failure.
        unsafe { CStr::from_ptr((self.last_error)(0)) }.to_string_lossy().into_owned()
    }

    /// Require success.
    #[track_caller]
    pub(crate) fn ok(&self, result: c_int) {
        assert_eq!(result, SUCCESS, "{}", self.why());
    }

    /// Require a refusal with these words.
    #[track_caller]
    pub(crate) fn refused(&self, result: c_int, wanted: c_int, words: &str) {
        let why = self.why();
        assert!(result == wanted && why.contains(words), "{result}, not {wanted}: {why}");
    }
}

/// A library of this build: packed beside the test, or where cargo puts it.
fn beside(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("a running program has a path");
    let folder = program.parent().expect("a program lies in a folder");
    let places = [folder.join(name), folder.join("..").join(name)];
    let mut places = places.into_iter().filter(|place| place.exists());
    places.next().unwrap_or_else(|| panic!("{name} is not built beside {}", program.display()))
}
