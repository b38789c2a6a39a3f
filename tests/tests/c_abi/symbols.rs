//! What the libraries export: what the header declares, and nothing else.

use std::collections::BTreeSet;
use std::process::Command;

use crate::library::{Installed, has, root, run};

#[test]
fn the_shared_library_exports_what_the_header_declares() {
    if !has("nm") {
        return;
    }
    let library = Installed::get();
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only"]).arg(library.lib().join("libbrigade.so"));
    let exported: BTreeSet<String> = names(&run(&mut nm)).map(|(_, name)| name).collect();
    assert_eq!(exported, declared());
}

/// What a compiler of Rust brings along has names that no one else uses; what `ring` is of C has
/// its version in each name.
#[test]
fn the_static_library_defines_nothing_else_that_c_could_name() {
    if !has("nm") {
        return;
    }
    let library = Installed::get();
    let mut nm = Command::new("nm");
    nm.args(["-g", "--defined-only"]).arg(library.lib().join("libbrigade.a"));
    let listed = run(&mut nm);
    let strange: BTreeSet<String> = names(&listed)
        .filter(|(kind, name)| {
            let rusts = ["_ZN", "_R", "__", "DW.ref.", "anon.", "rust_eh_personality"];
            let known = |prefix: &&str| name.starts_with(prefix);
            kind != "W" && !rusts.iter().chain(&["ring_core_"]).any(known)
        })
        .map(|(_, name)| name)
        .collect();
    assert_eq!(strange, declared());
}

#[test]
fn the_soname_tells_the_binary_interface() {
    if !has("readelf") {
        return;
    }
    let library = Installed::get();
    let mut readelf = Command::new("readelf");
    let dynamic = run(readelf.arg("-d").arg(library.lib().join("libbrigade.so")));
    assert!(dynamic.contains("[libbrigade.so.0]"), "{dynamic}");
    // Its threads outlive a dlclose.
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
    for needed in dynamic.lines().filter(|line| line.contains("(NEEDED)")) {
        let usual = ["libc.so", "libgcc_s.so", "ld-linux", "libm.so"];
        assert!(usual.iter().any(|name| needed.contains(name)), "{needed}");
    }
}

/// Kind and name of each symbol that is listed.
fn names(listed: &str) -> impl Iterator<Item = (String, String)> {
    listed.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, kind, name] = words[..] else { return None };
        (kind.len() == 1).then(|| (kind.to_owned(), name.to_owned()))
    })
}

/// The functions of the header.
fn declared() -> BTreeSet<String> {
    let header = std::fs::read_to_string(root().join("include/brigade.h")).expect("it is there");
    let code = header.lines().filter(|line| !line.starts_with("//") && !line.starts_with(" *"));
    let names = code.filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit([' ', '*']).next()?;
        name.starts_with("brigade_").then(|| name.to_owned())
    });
    names.collect()
}
