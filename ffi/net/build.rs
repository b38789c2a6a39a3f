//! Keeps the plugin in memory for as long as the process lives.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Threads may still be on their way out when a host lets go of the library.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
