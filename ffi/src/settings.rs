//! Settings: the same names in C as in the environment.

use std::ffi::c_char;

use brigade_comm::Settings;

use brigade_wall::pointer::{list, text};
use brigade_wall::{Failure, Outcome};

/// One setting: the name of its environment variable, and its value as text.
/// `brigade doctor --settings` lists them all.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct brigade_setting_t {
    /// BRIGADE_TIMEOUT_MS, say.
    pub name: *const c_char,
    /// What would stand in the environment; empty for what does stand there.
    pub value: *const c_char,
}

/// How a communicator shall be. Begin with BRIGADE_CONFIG_INIT; members are only ever added at the
/// end, and a library knows by struct_size which of them its caller knew.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct brigade_config_t {
    /// sizeof(brigade_config_t).
    pub struct_size: usize,
    /// Settings that count instead of the environment's; may be NULL if there are none.
    pub settings: *const brigade_setting_t,
    /// How many.
    pub setting_count: usize,
}

/// The same numbers as in tests/c/layout.c, where they are told to compilers of C.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<brigade_setting_t>() == 16 && size_of::<brigade_config_t>() == 24);
    assert!(offset_of!(brigade_setting_t, name) == 0);
    assert!(offset_of!(brigade_setting_t, value) == 8);
    assert!(offset_of!(brigade_config_t, struct_size) == 0);
    assert!(offset_of!(brigade_config_t, settings) == 8);
    assert!(offset_of!(brigade_config_t, setting_count) == 16);
};

/// No struct of ours will ever be larger.
const STRUCT_BYTES_MAX: usize = 4096;
/// More are a mistake: there are not so many names.
const SETTINGS_MAX: usize = 1024;

/// The settings of the environment, and over them those of `config`, which may be NULL.
///
/// # Safety
///
/// As for [`settings_over`].
pub(crate) unsafe fn settings(config: *const brigade_config_t) -> Outcome<Settings> {
    // SAFETY: the caller's promise.
    unsafe { settings_over(Settings::from_env()?, config) }
}

/// Settings, and over them those of `config`, which may be NULL.
///
/// # Safety
///
/// `config` is NULL, misaligned, or leads to a config and its settings.
pub(crate) unsafe fn settings_over(
    mut settings: Settings,
    config: *const brigade_config_t,
) -> Outcome<Settings> {
    if config.is_null() {
        return Ok(settings);
    }
    // SAFETY: the caller's promise.
    let config: brigade_config_t = unsafe { sized(config.cast(), "config") }?;
    if config.setting_count > SETTINGS_MAX {
        let count = config.setting_count;
        return Err(Failure::argument(format!("config: {count} settings, at most {SETTINGS_MAX}")));
    }
    // SAFETY: the caller's promise.
    let pairs = unsafe { list(config.settings, config.setting_count, "config: settings") }?;
    for pair in pairs {
        // SAFETY: the caller's promise, for both.
        let name = unsafe { text(pair.name, "config: the name of a setting") }?;
        // SAFETY: as above.
        let value = unsafe { text(pair.value, name) }?.trim();
        match value.is_empty() {
            true => drop(settings.row(name)?),
            false => settings.set(name, value)?,
        }
    }
    Ok(settings)
}

/// A struct that begins with its size, from a caller who may know fewer members or more: those that
/// it does not know are zero, and those that we do not know must be.
///
/// # Safety
///
/// The pointer is NULL, misaligned, or leads to as many bytes as the first word says.
pub(crate) unsafe fn sized<T: Copy>(start: *const usize, name: &str) -> Outcome<T> {
    // SAFETY: the caller's promise.
    let bytes = *unsafe { brigade_wall::pointer::read(start, name) }?;
    let known = size_of::<T>();
    if bytes < size_of::<usize>() || bytes > STRUCT_BYTES_MAX {
        return Err(Failure::argument(format!(
            "{name}: struct_size is {bytes}, not {known}: begin with its _INIT"
        )));
    }
    // SAFETY: the caller's promise, now that the size is one.
    let theirs = unsafe { list(start.cast::<u8>(), bytes, name) }?;
    if let Some(at) = theirs.iter().skip(known).position(|byte| *byte != 0) {
        return Err(Failure::argument(format!(
            "{name}: this library does not know what stands at byte {}: it is older than the \
             header that the program was compiled with",
            known + at
        )));
    }
    let mut ours = std::mem::MaybeUninit::<T>::zeroed();
    let common = bytes.min(known);
    // SAFETY: both have so many bytes. Structs of C are numbers and pointers, so zeros and any
    // other bytes are one; `T` is one of those in this crate.
    Ok(unsafe {
        std::ptr::copy_nonoverlapping(theirs.as_ptr(), ours.as_mut_ptr().cast(), common);
        ours.assume_init()
    })
}

/// Write text with a zero at its end to where C has room for so many bytes.
///
/// # Safety
///
/// C has.
pub(crate) unsafe fn put_text(
    (place, bytes): (*mut c_char, usize),
    name: &str,
    text: &str,
) -> Outcome {
    let text = text.as_bytes();
    if bytes <= text.len() {
        let needed = text.len() + 1;
        return Err(Failure::argument(format!("{name} takes {needed} bytes, not {bytes}")));
    }
    // SAFETY: the caller's promise, and the text with its zero is not longer.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), place.cast(), text.len());
        place.add(text.len()).write(0);
    }
    Ok(())
}
