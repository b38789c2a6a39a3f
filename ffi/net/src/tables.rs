//! The tables that a loader finds: one for each version, over the same functions.
//!
//! From version to version functions got arguments that we do not use, and numbers grew.

use std::ffi::{c_char, c_int};

use brigade_transports::plugin::sys::{
    self, Code, ID_UNDEFINED, Logger, May, Opaque, Out, PTR_HOST, Properties8, Properties9,
    Properties11, Properties12, TRANSFER_BYTES_MAX, Table, Tail11, VirtualDevice,
};

use crate::calls::{
    accept, close_listen, close_recv, close_send, connect8, dereg_mr, devices, isend10, listen8,
    put, receive, reg_mr, test,
};
use crate::device;
use crate::fault::{Fault, Outcome, enter, log_to};
use crate::frame::GROUP_MAX;
use crate::registry::PLACES;

const NAME: *const c_char = c"Brigade".as_ptr();
/// What our contexts are: nothing but not null.
const CONTEXT: usize = 0xB4 << 56;

/// The table with what all versions have in common.
macro_rules! table {
    ($init:ident, $properties:ident, $listen:ident, $connect:ident, $isend:ident, $irecv:ident,
     $tail:expr) => {
        Table {
            name: NAME,
            init: Some($init),
            devices: Some(devices),
            properties: Some($properties),
            listen: Some($listen),
            connect: Some($connect),
            accept: Some(accept),
            reg_mr: Some(reg_mr),
            reg_mr_dma_buf: None,
            dereg_mr: Some(dereg_mr),
            isend: Some($isend),
            irecv: Some($irecv),
            iflush: None,
            test: Some(test),
            close_send: Some(close_send),
            close_recv: Some(close_recv),
            close_listen: Some(close_listen),
            get_device_mr: None,
            irecv_consumed: None,
            tail: $tail,
        }
    };
}

/// Version 8.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub(crate) static ncclNetPlugin_v8: sys::V8 =
    table!(init8, properties8, listen8, connect8, isend8, irecv8, ());
/// Version 9.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub(crate) static ncclNetPlugin_v9: sys::V9 =
    table!(init8, properties9, listen8, connect8, isend9, irecv9, None);
/// Version 10.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub(crate) static ncclNetPlugin_v10: sys::V10 =
    table!(init10, properties9, listen8, connect10, isend10, irecv10, None);
/// Version 11.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub(crate) static ncclNetPlugin_v11: sys::V11 = {
    let tail = Tail11 { make_vdevice: None, finalize: Some(finalize), set_net_attr: Some(attr) };
    table!(init11, properties11, listen11, connect11, isend10, irecv10, tail)
};
/// Version 12.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub(crate) static ncclNetPlugin_v12: sys::V12 = {
    let tail = Tail11 { make_vdevice: None, finalize: Some(finalize), set_net_attr: Some(attr) };
    table!(init11, properties12, listen11, connect11, isend10, irecv10, tail)
};

unsafe extern "C" fn init8(logger: May<Logger>) -> Code {
    log_to(logger);
    enter("init", || device::all().map(drop))
}

unsafe extern "C" fn init10(logger: May<Logger>, _profiler: Opaque) -> Code {
    // SAFETY: the same function with an argument that we do not use.
    unsafe { init8(logger) }
}

unsafe extern "C" fn init11(
    context: Out,
    _communicator: u64,
    _config: *mut c_int,
    logger: May<Logger>,
    _profiler: Opaque,
) -> Code {
    log_to(logger);
    enter("init", || {
        device::all()?;
        // SAFETY: the caller gives a place for the context.
        unsafe { put(context, CONTEXT as Opaque) }
    })
}

unsafe extern "C" fn finalize(_context: Opaque) -> Code {
    sys::SUCCESS
}

unsafe extern "C" fn attr(_context: Opaque, _attributes: Opaque) -> Code {
    sys::SUCCESS
}

/// What the newest version says, of which older ones have the beginning.
fn properties<const MOST: usize>(number: c_int) -> Outcome<Properties9<MOST>> {
    let device = device::of(number)?;
    let mut devices = [0; MOST];
    devices[0] = number;
    let mbit = 8e-6 / device.caps.byte_s;
    Ok(Properties9 {
        name: device.name.as_ptr(),
        pci_path: std::ptr::null(),
        guid: number as u64,
        ptr_support: PTR_HOST,
        reg_is_global: 0,
        force_flush: 0,
        speed: mbit as c_int,
        port: 0,
        latency: (device.caps.latency_s * 1e6) as f32,
        max_comms: PLACES as c_int,
        max_recvs: GROUP_MAX as c_int,
        device_type: 0,
        device_version: 0,
        parts: VirtualDevice { count: 1, devices },
        max_p2p_bytes: TRANSFER_BYTES_MAX,
        max_coll_bytes: TRANSFER_BYTES_MAX,
    })
}

unsafe extern "C" fn properties8(number: c_int, target: *mut Properties8) -> Code {
    enter("getProperties", || {
        let all = properties::<1>(number)?;
        let first = Properties8 {
            name: all.name,
            pci_path: all.pci_path,
            guid: all.guid,
            ptr_support: all.ptr_support,
            reg_is_global: all.reg_is_global,
            speed: all.speed,
            port: all.port,
            latency: all.latency,
            max_comms: all.max_comms,
            max_recvs: all.max_recvs,
            device_type: all.device_type,
            device_version: all.device_version,
        };
        // SAFETY: the caller gives a place for the properties of this version.
        unsafe { put(target, first) }
    })
}

unsafe extern "C" fn properties9(number: c_int, target: *mut Properties9<4>) -> Code {
    // SAFETY: the caller gives a place for the properties of this version.
    enter("getProperties", || unsafe { put(target, properties(number)?) })
}

unsafe extern "C" fn properties11(number: c_int, target: *mut Properties11) -> Code {
    enter("getProperties", || {
        let all = Properties11 { first: properties(number)?, max_multi_request: 1 };
        // SAFETY: the caller gives a place for the properties of this version.
        unsafe { put(target, all) }
    })
}

unsafe extern "C" fn properties12(number: c_int, target: *mut Properties12) -> Code {
    enter("getProperties", || {
        let (rail, plane) = (ID_UNDEFINED, ID_UNDEFINED);
        let first = properties(number)?;
        let all = Properties12 { first, max_multi_request: 1, rail, plane };
        // SAFETY: the caller gives a place for the properties of this version.
        unsafe { put(target, all) }
    })
}

unsafe extern "C" fn listen11(
    _context: Opaque,
    number: c_int,
    handle: Opaque,
    listener: Out,
) -> Code {
    // SAFETY: the same function with an argument that we do not use.
    unsafe { listen8(number, handle, listener) }
}

unsafe extern "C" fn connect10(
    number: c_int,
    _config: *mut c_int,
    handle: Opaque,
    connection: Out,
    device_connection: Out,
) -> Code {
    // SAFETY: the same function with an argument that we do not use.
    unsafe { connect8(number, handle, connection, device_connection) }
}

unsafe extern "C" fn connect11(
    _context: Opaque,
    number: c_int,
    handle: Opaque,
    connection: Out,
    device_connection: Out,
) -> Code {
    // SAFETY: the same function with an argument that we do not use.
    unsafe { connect8(number, handle, connection, device_connection) }
}

unsafe extern "C" fn isend9(
    connection: Opaque,
    address: Opaque,
    bytes: usize,
    tag: c_int,
    memory: Opaque,
    request: Out,
) -> Code {
    // SAFETY: the same function with an argument that we do not use.
    unsafe { isend10(connection, address, bytes, tag, memory, std::ptr::null_mut(), request) }
}

unsafe extern "C" fn isend8(
    connection: Opaque,
    address: Opaque,
    bytes: c_int,
    tag: c_int,
    memory: Opaque,
    request: Out,
) -> Code {
    match usize::try_from(bytes) {
        // SAFETY: the same function with a larger number.
        Ok(bytes) => unsafe { isend9(connection, address, bytes, tag, memory, request) },
        Err(_) => enter("isend", || Err(Fault::argument(format!("{bytes} bytes")))),
    }
}

unsafe extern "C" fn irecv9(
    connection: Opaque,
    count: c_int,
    addresses: *mut Opaque,
    sizes: *mut usize,
    tags: *mut c_int,
    memories: *mut Opaque,
    request: Out,
) -> Code {
    enter("irecv", || {
        if sizes.is_null() {
            return Err(Fault::argument("sizes are null"));
        }
        // SAFETY: the caller gives an array of `count` sizes, and asks for no other places.
        let size_of = |place| Ok(unsafe { *sizes.add(place) });
        // SAFETY: the caller's promises are those of irecv.
        unsafe { receive(connection, count, (addresses, tags, memories), size_of, request) }
    })
}

unsafe extern "C" fn irecv10(
    connection: Opaque,
    count: c_int,
    addresses: *mut Opaque,
    sizes: *mut usize,
    tags: *mut c_int,
    memories: *mut Opaque,
    _profiles: *mut Opaque,
    request: Out,
) -> Code {
    // SAFETY: the same function with an argument that we do not use.
    unsafe { irecv9(connection, count, addresses, sizes, tags, memories, request) }
}

unsafe extern "C" fn irecv8(
    connection: Opaque,
    count: c_int,
    addresses: *mut Opaque,
    sizes: *mut c_int,
    tags: *mut c_int,
    memories: *mut Opaque,
    request: Out,
) -> Code {
    enter("irecv", || {
        if sizes.is_null() {
            return Err(Fault::argument("sizes are null"));
        }
        let size_of = |place| {
            // SAFETY: the caller gives an array of `count` sizes, and asks for no other places.
            let size = unsafe { *sizes.add(place) };
            usize::try_from(size).map_err(|_| Fault::argument(format!("{size} bytes")))
        };
        // SAFETY: the caller's promises are those of irecv.
        unsafe { receive(connection, count, (addresses, tags, memories), size_of, request) }
    })
}
