//! Unique ids: how ranks find each other.

use brigade_comm::bootstrap::ID_BYTES;

use crate::error::{brigade_result_t, enter};
use brigade_wall::pointer::Out;
use brigade_wall::roots;

/// Bytes of a unique id.
pub const BRIGADE_UNIQUE_ID_BYTES: usize = 128;
const _: () = assert!(BRIGADE_UNIQUE_ID_BYTES == ID_BYTES);

/// Where ranks meet, and the secret that lets them in: hand it on as one hands on a password.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct brigade_unique_id_t {
    /// To be copied as they are.
    pub bytes: [u8; BRIGADE_UNIQUE_ID_BYTES],
}

/// The same number as in tests/c/layout.c.
const _: () = assert!(size_of::<brigade_unique_id_t>() == BRIGADE_UNIQUE_ID_BYTES);

/// Draw an id for one world. One process calls this, and brings the id to all ranks by any way it
/// has. A thread of this process then waits for the ranks, so the process stays until they have
/// come; it need not be a rank itself.
///
/// Threads: from any thread, at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_get_unique_id(
    unique_id: *mut brigade_unique_id_t,
) -> brigade_result_t {
    enter(|| {
        let out = Out::new(unique_id, "unique_id")?;
        let bytes = roots::draw()?;
        // SAFETY: C passed a place for it.
        unsafe { out.put(brigade_unique_id_t { bytes }) };
        Ok(())
    })
}
