//! Rules for Rust files: sizes, where unsafe may be, words that do not belong.

use super::{Offence, Source, Tree};

const FILE_LINES_MAX: usize = 400;
const FUNCTION_LINES_MAX: usize = 70;
const LINE_COLUMNS_MAX: usize = 100;

/// Names of files that may contain unsafe code: walls to the system, and shared memory.
const UNSAFE_NAMES: [&str; 3] = ["sys.rs", "wire.rs", "region.rs"];
/// Folders that may: SIMD, the walls to libibverbs and to CUDA, of which each type owns its own
/// calls, and the wall to C, of which every function takes pointers.
const UNSAFE_FOLDERS: [&str; 4] = ["kernels", "verbs", "cuda", "ffi"];
/// Single files that may, each with its reason.
const UNSAFE_FILES: [(&str, &str); 68] = [
    ("comm/tests/communicator/forked.rs", "forks"),
    ("transports/src/forks.rs", "runs in children made by fork"),
    ("trainer/src/device/calls.rs", "owes calls on devices its views"),
    ("comm/tests/device/processes.rs", "owes calls on devices its buffers"),
    ("bench/src/device.rs", "owes calls on devices its buffers"),
    ("comm/tests/device/reach.rs", "owes calls on devices its buffers"),
    ("comm/tests/device/streams.rs", "owes calls on devices its buffers"),
    ("comm/tests/device/waits.rs", "owes calls on devices its buffers"),
    ("comm/tests/device/world.rs", "owes calls on devices its buffers"),
    ("comm/tests/device/calls.rs", "owes calls on devices its buffers"),
    ("comm/tests/device/endings.rs", "owes calls on devices its buffers"),
    ("comm/tests/device/failures.rs", "makes calls on devices that are refused"),
    ("comm/tests/device/groups.rs", "owes calls on devices its buffers"),
    ("comm/tests/device/windows.rs", "copies into windows of other ranks"),
    ("trainer/src/parallel/device/stages/post.rs", "copies into windows of other ranks"),
    ("comm/tests/device/graphs.rs", "owes calls on devices its buffers"),
    ("comm/src/device.rs", "says what whoever enqueues calls on a device owes them"),
    ("comm/src/device/ways.rs", "hands the caller's buffers to kernels and copies"),
    ("comm/src/device/ways/lent.rs", "maps memory that other processes lend"),
    ("comm/src/device/messages.rs", "hands the memory of messages to kernels and copies"),
    ("comm/src/device/ways/proof.rs", "makes calls on buffers of its own"),
    ("comm/src/device/ways/slots.rs", "hands the caller's buffers to kernels and copies"),
    ("comm/src/device/nodes.rs", "hands the caller's buffers to its legs"),
    ("comm/src/device/nodes/legs.rs", "hands the caller's buffers to calls of two groups"),
    ("comm/tests/device/nodes.rs", "owes calls on devices its buffers"),
    ("comm/src/device/staged.rs", "hands the caller's buffers to what copies them"),
    ("comm/src/device/staged/relay.rs", "copies the caller's buffers to and from the host"),
    ("comm/src/device/setup/reached.rs", "maps memory of other processes, and writes into it"),
    ("comm/tests/device/linked.rs", "owes calls on devices its buffers"),
    ("comm/tests/device/rows.rs", "owes calls on devices its buffers"),
    ("comm/src/device/setup/shown.rs", "clears memory before it is shown"),
    ("comm/src/device/kernels.rs", "hands arguments to kernels"),
    ("transports/src/rdma/cache.rs", "makes the caller's memory known to devices"),
    ("comm/src/run.rs", "runs plans over offsets into the caller's memory"),
    ("comm/src/run/within.rs", "merges and copies in the caller's memory, and updates it"),
    ("comm/src/middle.rs", "hands the caller's memory to the function in the middle of a call"),
    ("comm/src/engine/update.rs", "hands the caller's memory to the cursor"),
    ("comm/src/sharded.rs", "sees typed slices as memory, and memory as typed slices"),
    ("transports/src/plugin/net.rs", "calls the functions of a network plugin"),
    ("transports/src/plugin/calls.rs", "calls the functions of a network plugin"),
    ("transports/src/plugin/outlet.rs", "fills slots that a network plugin does not have"),
    ("transports/src/plugin/inlet.rs", "reads slots that a network plugin does not have"),
    ("transports/src/caches.rs", "writes past the caches"),
    ("transports/src/lib.rs", "says what whoever lends memory to a wire owes it"),
    ("transports/src/loopback/sender.rs", "holds memory that is lent to a wire"),
    ("comm/src/run/send.rs", "lends the caller's memory to wires for as long as a run lasts"),
    ("transports/src/rdma/lane/held.rs", "copies lent memory when its queue pair fails"),
    ("comm/src/drive.rs", "hands the caller's memory to the cursor, poll by poll"),
    ("comm/src/engine.rs", "hands the caller's memory to the cursor"),
    ("comm/src/reduction.rs", "calls the kernels on parts of the caller's memory"),
    ("comm/src/typed.rs", "sees typed slices as bytes"),
    ("comm/src/messages.rs", "hands the caller's slices to the engine"),
    ("comm/src/work.rs", "keeps the caller's memory borrowed while the progress thread uses it"),
    ("comm/src/owned.rs", "keeps the memory of a call until it has ended"),
    ("comm/tests/communicator/leaving.rs", "starts a call that outlives its scope"),
    ("tests/examples/cudarc_nccl.rs", "is a program for NCCL, whose calls are C"),
    ("comm/tests/kernels.rs", "calls every kernel that the machine has"),
    ("bench/benches/kernels.rs", "calls every kernel that the machine has"),
    ("offload/src/memory/buffer.rs", "lends a range of the arena as a slice"),
    ("offload/src/device/staging.rs", "lends pinned slots to copies of a device"),
    ("offload/tests/device/main.rs", "copies between memory that it keeps"),
    ("offload/tests/device/files.rs", "fills memory that it keeps"),
    ("offload/src/device/files/staged.rs", "lends buffers and memory to copies of a device"),
    ("offload/src/device/files/straight.rs", "lends memory of a device to reads of files"),
    ("trainer/tests/device_absent.rs", "says that there is no driver where the only test asks"),
    ("offload/src/device/rates.rs", "copies between memory that it keeps"),
    ("offload/src/device/pinned.rs", "lends buffers of the arena to copies of a device"),
    ("offload/src/storage/request.rs", "lends a buffer's memory to transfers until they complete"),
];

/// Names that say nothing.
const EMPTY_NAMES: [&str; 6] = ["util", "utils", "common", "helper", "helpers", "manager"];

/// Words of unfinished work, taken apart so that this file does not offend.
const UNFINISHED: [&str; 6] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("todo", "!"),
    concat!("unimplemented", "!"),
    concat!("dbg", "!"),
    concat!("allow(dead", "_code)"),
];

pub(super) fn check(tree: &Tree, offences: &mut Vec<Offence>) {
    for file in tree.ending(".rs") {
        sizes(file, offences);
        functions(file, offences);
        unsafe_code(file, offences);
        words(file, offences);
    }
    what_rooms_do_not_know(tree, offences);
}

fn offend(offences: &mut Vec<Offence>, file: &Source, line: usize, what: impl Into<String>) {
    offences.push(Offence { path: file.path.clone(), line, what: what.into() });
}

fn sizes(file: &Source, offences: &mut Vec<Offence>) {
    let lines = file.text.lines().count();
    if lines > FILE_LINES_MAX {
        let what =
            format!("{lines} lines hide two rooms (at most {FILE_LINES_MAX}): find the wall");
        offend(offences, file, 0, what);
    }
    for (number, line) in file.lines() {
        let columns = line.chars().count();
        if columns > LINE_COLUMNS_MAX {
            let what = format!("{columns} columns, at most {LINE_COLUMNS_MAX}");
            offend(offences, file, number, what);
        }
    }
    if file.text.lines().next().is_none_or(|line| !line.starts_with("//!")) {
        offend(offences, file, 1, "a file begins with its story: //!");
    }
    let name = file.path.rsplit('/').next().unwrap_or_default();
    if EMPTY_NAMES.iter().any(|empty| name.strip_suffix(".rs") == Some(empty)) {
        offend(offences, file, 0, "the name says nothing: find the noun of the trade");
    }
    // Right under tests/ a file of its own would be a test by itself.
    if name == "mod.rs" && file.path.rsplit('/').nth(2) != Some("tests") {
        offend(offences, file, 0, "a room lies beside its folder: NAME.rs and NAME/");
    }
}

/// Find functions by their first line and count braces to their last.
fn functions(file: &Source, offences: &mut Vec<Offence>) {
    let lines: Vec<&str> = file.code.lines().collect();
    for (first, line) in lines.iter().enumerate() {
        if !begins_function(line) {
            continue;
        }
        let (mut depth, mut opened) = (0_i32, false);
        for (offset, line) in lines[first..].iter().enumerate() {
            let count = |brace: char| line.matches(brace).count() as i32;
            opened |= line.contains('{');
            depth += count('{') - count('}');
            let declared_only = !opened && line.trim_end().ends_with(';');
            if (opened && depth <= 0) || declared_only {
                let length = offset + 1;
                if length > FUNCTION_LINES_MAX {
                    let what = format!(
                        "a function of {length} lines hides a noun (at most {FUNCTION_LINES_MAX})"
                    );
                    offend(offences, file, first + 1, what);
                }
                break;
            }
        }
    }
}

fn begins_function(line: &str) -> bool {
    let mut words = line.split_whitespace();
    words.any(|word| word == "fn")
        && line.split_whitespace().take_while(|word| *word != "fn").all(|word| {
            word.starts_with("pub")
                || matches!(word, "const" | "unsafe" | "async" | "extern" | "\" \"")
                || word.starts_with('"')
                || word.ends_with(')')
        })
}

fn unsafe_code(file: &Source, offences: &mut Vec<Offence>) {
    let (mut blocks, mut first) = (0, None);
    for (number, line) in file.code_lines() {
        let words: Vec<&str> = line.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
        if words.contains(&"unsafe") && !line.contains("unsafe_") {
            first.get_or_insert(number);
        }
        // An unsafe function states its terms under `# Safety`; the lints see to that.
        blocks += line.matches("unsafe {").count() + line.matches("unsafe impl").count();
    }
    let Some(first) = first else { return };
    let name = file.path.rsplit('/').next().unwrap_or_default();
    let is_named = UNSAFE_NAMES.contains(&name)
        || file.path.split('/').any(|folder| UNSAFE_FOLDERS.contains(&folder))
        || UNSAFE_FILES.iter().any(|(path, _)| *path == file.path);
    if !is_named {
        let what = "unsafe code lives in sys.rs, wire.rs, region.rs, kernels/, verbs/, \
                    cuda/, ffi/ and the files listed in tests/src/tidy/rust.rs";
        offend(offences, file, first, what);
    }
    let notes = file.text.matches("SAFETY:").count();
    if notes < blocks {
        let what = format!("{blocks} unsafe blocks, {notes} SAFETY notes: each block has its own");
        offend(offences, file, first, what);
    }
}

fn words(file: &Source, offences: &mut Vec<Offence>) {
    for (number, line) in file.lines() {
        for word in UNFINISHED {
            if line.contains(word) {
                offend(offences, file, number, format!("{word}: finish it or delete it"));
            }
        }
    }
}

/// The invariants of absence that can be seen in names.
fn what_rooms_do_not_know(tree: &Tree, offences: &mut Vec<Offence>) {
    const COLLECTIVES: [&str; 14] = [
        "all_reduce",
        "AllReduce",
        "all_gather",
        "AllGather",
        "reduce_scatter",
        "ReduceScatter",
        "all_to_all",
        "AllToAll",
        "broadcast",
        "Broadcast",
        "Collective",
        "brigade_comm",
        "brigade_schedule",
        "Algorithm",
    ];
    // Checksums have algorithms too.
    const NOT_ITS_OWN: &[&str] = COLLECTIVES.split_at(13).0;
    // In `schedule` even the standard library's rooms for bytes, time and the outside are closed.
    const OUTSIDE: [&str; 8] = [
        "std::io",
        "std::net",
        "std::fs",
        "std::time",
        "std::env",
        "std::thread",
        "Instant",
        "brigade_transports",
    ];
    const TRANSPORTS: [&str; 4] = [
        "brigade_transports::shm",
        "brigade_transports::tcp",
        "brigade_transports::rdma",
        "brigade_transports::loopback",
    ];
    let rules: [(&str, &[&str], &str); 6] = [
        ("transports/src/", &COLLECTIVES, "transports do not know what a collective is"),
        ("comm/schedule/src/", &OUTSIDE, "schedule has never seen a byte, a socket or a clock"),
        ("comm/src/", &TRANSPORTS, "comm names a transport only in comm/src/transports.rs"),
        ("offload/src/", NOT_ITS_OWN, "offload does not know what a collective is"),
        ("offload/src/plan", &OUTSIDE, "plan sees no file, no clock and no thread"),
        ("offload/src/layout", &OUTSIDE, "layout sees no file, no clock and no thread"),
    ];
    for (folder, words, why) in rules {
        let in_folder = tree.ending(".rs").filter(|file| file.path.starts_with(folder));
        for file in in_folder.filter(|file| file.path != "comm/src/transports.rs") {
            for (number, line) in file.code_lines() {
                for word in words.iter().filter(|word| line.contains(**word)) {
                    offend(offences, file, number, format!("`{word}`: {why}"));
                }
            }
        }
    }
    let schedule = tree.file("comm/schedule/src/lib.rs");
    if !schedule.is_some_and(|file| file.code.contains("#![forbid(unsafe_code)]")) {
        let what = String::from("the schedule crate says #![forbid(unsafe_code)]");
        offences.push(Offence { path: String::from("comm/schedule/src/lib.rs"), line: 1, what });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::told;

    fn found(path: &str, text: &str) -> Vec<String> {
        let mut told = told(check, &[(path, text)]);
        told.retain(|offence| !offence.contains("schedule crate says"));
        told
    }

    #[test]
    fn long_files_lines_and_functions_are_seen() {
        let long = format!("//! s\n{}", "\n".repeat(400));
        assert_eq!(found("a.rs", &long).len(), 1);
        let wide = format!("//! {}", "x".repeat(97));
        assert_eq!(found("a.rs", &wide).len(), 1);
        let body = "    let x = \"}\";\n".repeat(69);
        assert_eq!(found("a.rs", &format!("//! s\nfn f() {{\n{body}}}\n")).len(), 1);
        let body = "    let x = \"}\";\n".repeat(68);
        assert_eq!(found("a.rs", &format!("//! s\npub(crate) fn f() {{\n{body}}}\n")).len(), 0);
    }

    #[test]
    fn rooms_lie_beside_their_folders() {
        assert_eq!(found("a/src/b/mod.rs", "//! s\n").len(), 1);
        assert_eq!(found("src/b/mod.rs", "//! s\n").len(), 1);
        assert_eq!(found("a/tests/b/c/mod.rs", "//! s\n").len(), 1);
        assert_eq!(found("a/tests/b/mod.rs", "//! s\n").len(), 0);
        assert_eq!(found("a/src/b.rs", "//! s\n").len(), 0);
    }

    #[test]
    fn unsafe_code_needs_a_room_and_a_note() {
        let block = "//! s\nfn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(found("a/sys.rs", block).len(), 1);
        assert_eq!(found("a/b.rs", block).len(), 2);
        let noted = block.replace("    unsafe", "    // SAFETY: g is kind.\n    unsafe");
        assert_eq!(found("a/kernels/b.rs", &noted).len(), 0);
        assert_eq!(
            found("a/b.rs", "//! unsafe is a word here\n#![forbid(unsafe_code)]\n").len(),
            0
        );
    }

    #[test]
    fn rooms_are_not_to_know_each_other() {
        assert_eq!(found("offload/src/plan.rs", "//! s\nuse std::time::Instant;\n").len(), 2);
        assert_eq!(found("transports/src/a.rs", "//! all_reduce\nfn all_reduce() {}\n").len(), 1);
        assert_eq!(found("comm/schedule/src/a.rs", "//! s\nuse std::time::Instant;\n").len(), 2);
        assert_eq!(found("comm/src/a.rs", "//! s\nuse brigade_transports::shm::Shm;\n").len(), 1);
        assert_eq!(
            found("comm/src/transports.rs", "//! s\nuse brigade_transports::tcp;\n").len(),
            0
        );
    }
}
