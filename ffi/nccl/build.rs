//! Gives the library the soname that programs for NCCL ask for, and no undefined names.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
    // Threads may still be on their way out when a host lets go of the library.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
