//! What settings there are, and which a communicator has.

use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;

use brigade_comm::Settings;
use brigade_wall::handle::pin;
use brigade_wall::pointer::{Out, text};

use crate::comm::{Comm, brigade_comm_t};
use crate::error::{brigade_result_t, enter};
use crate::settings::put_text;

/// Write the value that a setting has in a communicator, as text with a zero at its end, to
/// `value`, which has room for `bytes` bytes. If that is too little the error tells how many it
/// takes.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_comm_setting(
    comm: brigade_comm_t,
    name: *const c_char,
    value: *mut c_char,
    bytes: usize,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        Out::new(value, "value")?;
        // SAFETY: C passes text.
        let name = unsafe { text(name, "name") }?;
        let row = comm.communicator.settings().row(name)?;
        // SAFETY: C passes room for so many bytes.
        unsafe { put_text((value, bytes), name, &row.current) }
    })
}

/// The name of a setting, by its number from 0; NULL behind the last one.
///
/// Threads: from any thread, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn brigade_setting_name(number: c_int) -> *const c_char {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let rows = Settings::default().table();
        rows.into_iter().filter_map(|row| CString::new(row.name).ok()).collect()
    });
    let name = usize::try_from(number).ok().and_then(|number| names.get(number));
    name.map_or(std::ptr::null(), |name| name.as_ptr())
}
