//! `include/brigade.h` is what the sources say.

use std::path::{Path, PathBuf};

/// In the order in which the header shows them.
const SOURCES: [&str; 22] = [
    "version",
    "error",
    "id",
    "settings",
    "comm",
    "divide",
    "dtype",
    "op",
    "work",
    "collective",
    "rooted",
    "message",
    "group",
    "interrupt",
    "memory",
    "window",
    "device",
    "device_collective",
    "device_rooted",
    "arena",
    "store",
    "adamw",
];

#[test]
fn the_header_is_made_of_the_sources() {
    let made = header();
    let path = here().join("../include/brigade.h");
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&path, &made).expect("the header can be written");
    }
    let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = made.lines().zip(checked_in.lines()).position(|(made, old)| made != old);
    assert!(
        made == checked_in,
        "include/brigade.h is not what the sources say (from line {:?}); make it anew with \
         UPDATE_HEADER=1 cargo test -p brigade-ffi --test header",
        differs.map(|line| line + 1)
    );
}

/// All that C is told is said somewhere in the sources that the header is made of.
#[test]
fn no_source_is_forgotten() {
    let header = header();
    for entry in std::fs::read_dir(here().join("src")).expect("the sources are here") {
        let path = entry.expect("an entry can be read").path();
        let Ok(source) = std::fs::read_to_string(&path) else { continue };
        for found in source.split("extern \"C\" fn brigade_").skip(1) {
            let name = found.split('(').next().unwrap_or_default();
            let declared = header.contains(&format!("brigade_{name}("));
            assert!(declared, "brigade_{name} of {} is not declared", path.display());
        }
    }
}

fn header() -> String {
    let mut builder = cbindgen::Builder::new();
    let config = cbindgen::Config::from_file(here().join("cbindgen.toml"));
    builder = builder.with_config(config.expect("cbindgen.toml can be read"));
    for name in SOURCES {
        builder = builder.with_src(here().join("src").join(name).with_extension("rs"));
    }
    let mut made = Vec::new();
    builder.generate().expect("a header can be made").write(&mut made);
    String::from_utf8(made).expect("the sources are UTF-8")
}

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
