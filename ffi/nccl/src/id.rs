//! Unique ids.

use brigade_comm::bootstrap::ID_BYTES;
use brigade_wall::pointer::Out;
use brigade_wall::roots;

use crate::result::{enter, ncclResult_t};

/// Where ranks meet, and the secret that lets them in.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclUniqueId {
    pub internal: [u8; 128],
}

const _: () = assert!(size_of::<ncclUniqueId>() == ID_BYTES && align_of::<ncclUniqueId>() == 1);

/// A thread of this process waits for the ranks, so the process stays until they have come.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(unique_id: *mut ncclUniqueId) -> ncclResult_t {
    enter(|| {
        let out = Out::new(unique_id, "uniqueId")?;
        let internal = roots::draw()?;
        // SAFETY: C passes a place for it.
        unsafe { out.put(ncclUniqueId { internal }) };
        Ok(())
    })
}
