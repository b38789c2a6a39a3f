//! Loading libibverbs, once, when it is first needed.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_mr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};
use crate::{Result, VerbsError};

const FILE: &str = "libibverbs.so.1";

/// `ibv_reg_dmabuf_mr`: domain, offset, length, the address that devices shall name, file, access.
type RegDmabufMr = unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;

/// Declare the functions that are looked up by name, with their C types.
macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// libibverbs, loaded. It is never unloaded.
        pub struct Library {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Missing in libraries before version 34 of rdma-core.
            pub(crate) reg_dmabuf_mr: Option<RegDmabufMr>,
        }

        impl Library {
            fn find(file: &libloading::Library) -> std::result::Result<Self, libloading::Error> {
                Ok(Self {
                    $(
                        // SAFETY: the type is that of the function in `infiniband/verbs.h`, and
                        // the library stays loaded for ever.
                        $field: unsafe { *file.get($symbol)? },
                    )*
                    // SAFETY: as above.
                    reg_dmabuf_mr: unsafe { file.get(b"ibv_reg_dmabuf_mr\0") }
                        .ok()
                        .map(|found| *found),
                })
            }
        }
    };
}

functions! {
    get_device_list = b"ibv_get_device_list\0": fn(*mut c_int) -> *mut *mut ibv_device;
    free_device_list = b"ibv_free_device_list\0": fn(*mut *mut ibv_device);
    get_device_name = b"ibv_get_device_name\0": fn(*mut ibv_device) -> *const c_char;
    open_device = b"ibv_open_device\0": fn(*mut ibv_device) -> *mut ibv_context;
    close_device = b"ibv_close_device\0": fn(*mut ibv_context) -> c_int;
    query_device = b"ibv_query_device\0": fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    query_port = b"ibv_query_port\0": fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    alloc_pd = b"ibv_alloc_pd\0": fn(*mut ibv_context) -> *mut ibv_pd;
    dealloc_pd = b"ibv_dealloc_pd\0": fn(*mut ibv_pd) -> c_int;
    reg_mr = b"ibv_reg_mr\0": fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    dereg_mr = b"ibv_dereg_mr\0": fn(*mut ibv_mr) -> c_int;
    create_comp_channel = b"ibv_create_comp_channel\0":
        fn(*mut ibv_context) -> *mut ibv_comp_channel;
    destroy_comp_channel = b"ibv_destroy_comp_channel\0": fn(*mut ibv_comp_channel) -> c_int;
    create_cq = b"ibv_create_cq\0":
        fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    destroy_cq = b"ibv_destroy_cq\0": fn(*mut ibv_cq) -> c_int;
    get_cq_event = b"ibv_get_cq_event\0":
        fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ack_cq_events = b"ibv_ack_cq_events\0": fn(*mut ibv_cq, c_uint);
    create_qp = b"ibv_create_qp\0": fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    modify_qp = b"ibv_modify_qp\0": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    destroy_qp = b"ibv_destroy_qp\0": fn(*mut ibv_qp) -> c_int;
}

impl Library {
    /// The library of this machine. The first call loads it; later ones cost a load.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Missing`] when it is not installed or lacks a function, each time alike.
    pub fn load() -> Result<&'static Library> {
        static LOADED: OnceLock<Result<Library>> = OnceLock::new();
        LOADED.get_or_init(open).as_ref().map_err(Clone::clone)
    }
}

fn open() -> Result<Library> {
    let missing = |error: libloading::Error| VerbsError::Missing {
        why: format!("{FILE} cannot be loaded: {error}"),
    };
    // SAFETY: loading libibverbs runs its initialisers, which any program that links it runs too.
    let file = unsafe { libloading::Library::new(FILE) }.map_err(missing)?;
    let library = Library::find(&file).map_err(missing)?;
    // What was found must stay where it is: devices may be open until the process ends.
    std::mem::forget(file);
    Ok(library)
}
