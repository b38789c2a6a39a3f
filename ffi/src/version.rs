//! Which library this is.

use std::ffi::c_int;

/// The first number of the version of this header.
pub const BRIGADE_VERSION_MAJOR: c_int = 0;
/// The second number.
pub const BRIGADE_VERSION_MINOR: c_int = 1;
/// The third number.
pub const BRIGADE_VERSION_PATCH: c_int = 0;

/// The version of the library that was loaded: 10000 * major + 100 * minor + patch.
///
/// Threads: from any thread, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn brigade_version() -> c_int {
    10_000 * BRIGADE_VERSION_MAJOR + 100 * BRIGADE_VERSION_MINOR + BRIGADE_VERSION_PATCH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_tells_the_version_of_the_package() {
        let told = [BRIGADE_VERSION_MAJOR, BRIGADE_VERSION_MINOR, BRIGADE_VERSION_PATCH];
        let told = told.map(|number| number.to_string()).join(".");
        assert_eq!(told, env!("CARGO_PKG_VERSION"));
    }
}
