//! The binary interface of NCCL's network plugins, versions 8 to 12, as C lays it out.
//!
//! A plugin exports a table of functions for each version that it knows, `ncclNetPlugin_v8` and so
//! on; whoever loads it takes the newest that both know. From version to version a function gets
//! one more argument here and there, and tables and properties grow at their ends, so one generic
//! table describes them all. What is opaque to the one side is a `*mut c_void` here.
//!
//! Source: the headers and the README of `plugins/net` in github.com/NVIDIA/nccl.

use std::ffi::{c_char, c_int, c_ulong, c_void};

/// What every function returns: an `ncclResult_t`.
pub type Code = c_int;
/// It did what it says.
pub const SUCCESS: Code = 0;
/// A system call, a network or a device failed.
pub const SYSTEM_ERROR: Code = 2;
/// The caller broke the contract.
pub const INTERNAL_ERROR: Code = 3;
/// An argument makes no sense.
pub const INVALID_ARGUMENT: Code = 4;
/// The user asked for what cannot be had.
pub const INVALID_USAGE: Code = 5;
/// The other end is gone.
pub const REMOTE_ERROR: Code = 6;

/// Bytes of the handle that leads a caller to a listener.
pub const HANDLE_BYTES: usize = 128;
/// Memory of the process, among the kinds of memory that a plugin may touch.
pub const PTR_HOST: c_int = 1;
/// How many requests a connection has to take at a time.
pub const REQUESTS_MAX: usize = 32;
/// The most bytes of one transfer that a plugin may announce.
pub const TRANSFER_BYTES_MAX: usize = 1 << 40;
/// A level of the log: something went wrong.
pub const LOG_WARN: c_int = 2;
/// What a rail or a plane is called that is none.
pub const ID_UNDEFINED: i16 = -1;

/// Where a plugin's sentences go: level, subsystems, file, line, and a format as of `printf`.
pub type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

/// A part of a table that is missing where it is null.
pub type May<F> = Option<F>;
/// An address that only one side understands.
pub type Opaque = *mut c_void;
/// Where a function puts such an address.
pub type Out = *mut *mut c_void;

/// Devices that are used as one.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VirtualDevice<const MOST: usize> {
    /// How many.
    pub count: c_int,
    /// Which.
    pub devices: [c_int; MOST],
}

/// What is known of a device, in version 8.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties8 {
    /// Its name, for logs.
    pub name: *const c_char,
    /// Its folder in /sys, or null.
    pub pci_path: *const c_char,
    /// The same for ports of one card.
    pub guid: u64,
    /// Kinds of memory.
    pub ptr_support: c_int,
    /// Whether a registration is good for all connections.
    pub reg_is_global: c_int,
    /// Megabits a second.
    pub speed: c_int,
    /// The number of the port.
    pub port: c_int,
    /// Microseconds.
    pub latency: f32,
    /// How many connections there can be.
    pub max_comms: c_int,
    /// How many receives can be one request.
    pub max_recvs: c_int,
    /// 0: the host moves the bytes.
    pub device_type: c_int,
    /// For devices that move them.
    pub device_version: c_int,
}

/// What is known of a device, in versions 9 (and 10) and up to its length in all later ones.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties9<const MOST: usize> {
    /// As in version 8.
    pub name: *const c_char,
    /// As in version 8.
    pub pci_path: *const c_char,
    /// As in version 8.
    pub guid: u64,
    /// As in version 8.
    pub ptr_support: c_int,
    /// As in version 8.
    pub reg_is_global: c_int,
    /// Whether every receive wants a flush.
    pub force_flush: c_int,
    /// As in version 8.
    pub speed: c_int,
    /// As in version 8.
    pub port: c_int,
    /// As in version 8.
    pub latency: f32,
    /// As in version 8.
    pub max_comms: c_int,
    /// As in version 8.
    pub max_recvs: c_int,
    /// As in version 8.
    pub device_type: c_int,
    /// As in version 8.
    pub device_version: c_int,
    /// The devices that it is made of.
    pub parts: VirtualDevice<MOST>,
    /// The most bytes of a message.
    pub max_p2p_bytes: usize,
    /// The most bytes of a part of a collective.
    pub max_coll_bytes: usize,
}

/// What is known of a device, in version 11.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties11 {
    /// What version 9 has.
    pub first: Properties9<4>,
    /// How many requests can be handed over at once.
    pub max_multi_request: c_int,
}

/// What is known of a device, in version 12.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties12 {
    /// What version 9 has.
    pub first: Properties9<8>,
    /// As in version 11.
    pub max_multi_request: c_int,
    /// Which rail it is on.
    pub rail: i16,
    /// Which plane it is on.
    pub plane: i16,
}

/// A table of functions. `I`, `P`, `L`, `C`, `S`, `R`: the forms of init, properties, listen,
/// connect, isend and irecv; `T`: what stands at its end.
#[repr(C)]
pub struct Table<I, P, L, C, S, R, T> {
    /// The network's name.
    pub name: *const c_char,
    /// Called first.
    pub init: I,
    /// How many devices there are.
    pub devices: May<unsafe extern "C" fn(*mut c_int) -> Code>,
    /// What a device is.
    pub properties: P,
    /// Await one caller, who needs the handle.
    pub listen: L,
    /// Call; null in the last argument but one means: ask again.
    pub connect: C,
    /// The caller; null means: ask again.
    pub accept: May<unsafe extern "C" fn(Opaque, Out, Out) -> Code>,
    /// Make memory known: connection, address, bytes, kind, handle.
    pub reg_mr: May<unsafe extern "C" fn(Opaque, Opaque, usize, c_int, Out) -> Code>,
    /// Make memory of a device known by its file.
    pub reg_mr_dma_buf:
        May<unsafe extern "C" fn(Opaque, Opaque, usize, c_int, u64, c_int, Out) -> Code>,
    /// Forget memory.
    pub dereg_mr: May<unsafe extern "C" fn(Opaque, Opaque) -> Code>,
    /// Begin to send.
    pub isend: S,
    /// Begin to receive.
    pub irecv: R,
    /// Make received bytes visible to a device.
    pub iflush:
        May<unsafe extern "C" fn(Opaque, c_int, *mut Opaque, *mut c_int, *mut Opaque, Out) -> Code>,
    /// Whether a request has ended, and with how many bytes.
    pub test: May<unsafe extern "C" fn(Opaque, *mut c_int, *mut c_int) -> Code>,
    /// End the sending side.
    pub close_send: May<unsafe extern "C" fn(Opaque) -> Code>,
    /// End the receiving side.
    pub close_recv: May<unsafe extern "C" fn(Opaque) -> Code>,
    /// Await nobody any more.
    pub close_listen: May<unsafe extern "C" fn(Opaque) -> Code>,
    /// For devices that move bytes themselves.
    pub get_device_mr: May<unsafe extern "C" fn(Opaque, Opaque, Out) -> Code>,
    /// For devices that move bytes themselves.
    pub irecv_consumed: May<unsafe extern "C" fn(Opaque, c_int, Opaque) -> Code>,
    /// What later versions added.
    pub tail: T,
}

// SAFETY: a table is never written after it was made, and what its name points to neither.
unsafe impl<I, P, L, C, S, R, T> Sync for Table<I, P, L, C, S, R, T> {}

/// init of versions 8 and 9.
pub type Init8 = May<unsafe extern "C" fn(May<Logger>) -> Code>;
/// init of version 10, which is also given a profiler.
pub type Init10 = May<unsafe extern "C" fn(May<Logger>, Opaque) -> Code>;
/// init of versions 11 and 12: context, number of the communicator, its settings, and the rest.
pub type Init11 = May<unsafe extern "C" fn(Out, u64, *mut c_int, May<Logger>, Opaque) -> Code>;
/// getProperties of every version.
pub type Ask<P> = May<unsafe extern "C" fn(c_int, *mut P) -> Code>;
/// listen of versions 8 to 10.
pub type Listen8 = May<unsafe extern "C" fn(c_int, Opaque, Out) -> Code>;
/// listen of versions 11 and 12, which begins with the context.
pub type Listen11 = May<unsafe extern "C" fn(Opaque, c_int, Opaque, Out) -> Code>;
/// connect of versions 8 and 9.
pub type Connect8 = May<unsafe extern "C" fn(c_int, Opaque, Out, Out) -> Code>;
/// connect of version 10, with settings.
pub type Connect10 = May<unsafe extern "C" fn(c_int, *mut c_int, Opaque, Out, Out) -> Code>;
/// connect of versions 11 and 12, with a context.
pub type Connect11 = May<unsafe extern "C" fn(Opaque, c_int, Opaque, Out, Out) -> Code>;
/// isend of version 8: connection, address, bytes, tag, memory, request.
pub type Isend8 = May<unsafe extern "C" fn(Opaque, Opaque, c_int, c_int, Opaque, Out) -> Code>;
/// isend of version 9, which can count.
pub type Isend9 = May<unsafe extern "C" fn(Opaque, Opaque, usize, c_int, Opaque, Out) -> Code>;
/// isend of versions 10 to 12, with something for a profiler.
pub type Isend10 =
    May<unsafe extern "C" fn(Opaque, Opaque, usize, c_int, Opaque, Opaque, Out) -> Code>;
/// irecv of version 8: connection, how many, and for each address, bytes, tag, memory; request.
pub type Irecv8 = May<
    unsafe extern "C" fn(
        Opaque,
        c_int,
        *mut Opaque,
        *mut c_int,
        *mut c_int,
        *mut Opaque,
        Out,
    ) -> Code,
>;
/// irecv of version 9, which can count.
pub type Irecv9 = May<
    unsafe extern "C" fn(
        Opaque,
        c_int,
        *mut Opaque,
        *mut usize,
        *mut c_int,
        *mut Opaque,
        Out,
    ) -> Code,
>;
/// irecv of versions 10 to 12, with something for a profiler.
pub type Irecv10 = May<
    unsafe extern "C" fn(
        Opaque,
        c_int,
        *mut Opaque,
        *mut usize,
        *mut c_int,
        *mut Opaque,
        *mut Opaque,
        Out,
    ) -> Code,
>;
/// What versions 9 and 10 added: make one device of several.
pub type Tail9<const MOST: usize> =
    May<unsafe extern "C" fn(*mut c_int, *mut VirtualDevice<MOST>) -> Code>;

/// What versions 11 and 12 added.
#[repr(C)]
pub struct Tail11<const MOST: usize> {
    /// As in version 9.
    pub make_vdevice: Tail9<MOST>,
    /// End a context.
    pub finalize: May<unsafe extern "C" fn(Opaque) -> Code>,
    /// What a context will be used for.
    pub set_net_attr: May<unsafe extern "C" fn(Opaque, Opaque) -> Code>,
}

/// `ncclNet_v8_t`.
pub type V8 = Table<Init8, Ask<Properties8>, Listen8, Connect8, Isend8, Irecv8, ()>;
/// `ncclNet_v9_t`.
pub type V9 = Table<Init8, Ask<Properties9<4>>, Listen8, Connect8, Isend9, Irecv9, Tail9<4>>;
/// `ncclNet_v10_t`.
pub type V10 = Table<Init10, Ask<Properties9<4>>, Listen8, Connect10, Isend10, Irecv10, Tail9<4>>;
/// `ncclNet_v11_t`.
pub type V11 = Table<Init11, Ask<Properties11>, Listen11, Connect11, Isend10, Irecv10, Tail11<4>>;
/// `ncclNet_v12_t`.
pub type V12 = Table<Init11, Ask<Properties12>, Listen11, Connect11, Isend10, Irecv10, Tail11<8>>;

/// The numbers that a C compiler gives on 64-bit Linux.
const _: () = {
    assert!(size_of::<V8>() == 19 * 8 && size_of::<V9>() == 20 * 8);
    assert!(size_of::<V10>() == 20 * 8 && size_of::<V11>() == 22 * 8 && size_of::<V12>() == 22 * 8);
    assert!(size_of::<Properties8>() == 64 && size_of::<Properties9<4>>() == 104);
    assert!(size_of::<Properties11>() == 112 && size_of::<Properties12>() == 128);
};
