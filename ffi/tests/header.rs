//! `include/brigade.h` is what the sources say.

use std::path::{Path, PathBuf};

/// In the order in which the header shows them, with the part of it that begins there.
const SOURCES: [(&str, &str); 23] = [
    ("version", "The version"),
    ("error", "Errors"),
    ("id", "Unique ids"),
    ("settings", ""),
    ("comm_setting", "Settings"),
    ("comm", "Communicators"),
    ("divide", "Communicators made of others"),
    ("dtype", "Element types and operators"),
    ("op", ""),
    ("work", "Works: calls in flight"),
    ("collective", "Collectives"),
    ("rooted", ""),
    ("message", "Messages"),
    ("group", "Groups of calls"),
    ("interrupt", "Interrupts"),
    ("memory", "Memory for buffers"),
    ("window", "Windows"),
    ("device", "Devices"),
    ("device_collective", "Collectives on devices"),
    ("device_rooted", ""),
    ("arena", "Offloading: memory with a budget"),
    ("store", "Offloading: tensors in two tiers"),
    ("adamw", "Offloading: AdamW"),
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

/// The table at the top is no promise: every function stands in the part of its source.
#[test]
fn functions_stand_in_their_parts() {
    let header = header();
    let (table, code) = header.split_once("#ifndef BRIGADE_H").expect("the comment ends");
    let parts: Vec<&str> = code.split("\n// ==== ").skip(1).collect();
    assert_eq!(parts.len(), SOURCES.iter().filter(|(_, title)| !title.is_empty()).count());
    let mut part = parts.iter();
    let mut text = "";
    for (source, title) in SOURCES {
        if !title.is_empty() {
            text = part.next().expect("as many parts as titles");
            assert!(text.starts_with(&format!("{title}\n")), "{title}");
            assert!(table.contains(&format!(" *   {title}  ")), "{title}");
        }
        for name in functions(source) {
            assert!(text.lines().any(|line| declares(line, &name)), "{name} is not in {title}");
        }
    }
}

/// All that C is told is said somewhere in the sources that the header is made of.
#[test]
fn no_source_is_forgotten() {
    let header = header();
    for entry in std::fs::read_dir(here().join("src")).expect("the sources are here") {
        let path = entry.expect("an entry can be read").path();
        let source = path.file_stem().unwrap_or_default().to_string_lossy();
        for name in functions(&source) {
            let declared = header.lines().any(|line| declares(line, &name));
            assert!(declared, "{name} of {} is not declared", path.display());
        }
    }
}

fn header() -> String {
    let mut builder = cbindgen::Builder::new();
    let config = cbindgen::Config::from_file(here().join("cbindgen.toml"));
    builder = builder.with_config(config.expect("cbindgen.toml can be read"));
    for (name, _) in SOURCES {
        builder = builder.with_src(here().join("src").join(name).with_extension("rs"));
    }
    let mut made = Vec::new();
    builder.generate().expect("a header can be made").write(&mut made);
    in_parts(&String::from_utf8(made).expect("the sources are UTF-8"))
}

/// The header with a banner where each part of it begins, and a table of them in its comment.
fn in_parts(made: &str) -> String {
    let mut lines: Vec<String> = made.lines().map(str::to_owned).collect();
    let mut table = Vec::new();
    for (source, title) in SOURCES.into_iter().filter(|(_, title)| !title.is_empty()) {
        let first = functions(source).swap_remove(0);
        let declared = lines.iter().position(|line| declares(line, &first));
        let declared = declared.expect("a part begins with a function");
        let comment = lines[..declared].iter().rposition(|line| !line.starts_with("//"));
        let at = comment.map_or(0, |before| before + 1);
        lines.splice(at..at, [format!("// ==== {title}"), String::new()]);
        table.push(format!(" *   {title:34}{first} .."));
    }
    let place = lines.iter().position(|line| line == " *   @PARTS@").expect("there is its place");
    lines.splice(place..=place, table);
    lines.join("\n") + "\n"
}

/// The functions of a source, in their order.
fn functions(source: &str) -> Vec<String> {
    let path = here().join("src").join(source).with_extension("rs");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let names = text.split("extern \"C\" fn brigade_").skip(1);
    names.map(|rest| format!("brigade_{}", rest.split('(').next().unwrap_or_default())).collect()
}

/// Whether a line of the header declares this function.
fn declares(line: &str, name: &str) -> bool {
    let Some((before, _)) = line.split_once(&format!("{name}(")) else { return false };
    !before.starts_with("//") && before.ends_with([' ', '*']) && !before.starts_with(" *")
}

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
