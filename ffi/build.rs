//! Gives the shared library its soname, and calls within it a way that nobody can step into.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The number changes when programs must be compiled anew.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libbrigade.so.0");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
    // Threads may still be on their way out when a host lets go of the library.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
