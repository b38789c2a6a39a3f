//! Which crate may use which: edges between our own crates, and guests from outside.

use std::collections::BTreeMap;

use super::{Offence, Tree};

/// What is measured and what is trained with: both halves, on devices too.
const HALVES: [&str; 5] =
    ["brigade-comm", "brigade-cuda", "brigade-cuda-fake", "brigade-offload", "brigade-schedule"];

/// Our crates, each with those it may build on. Everything points down.
const EDGES: [(&str, &[&str]); 16] = [
    ("brigade-built", &[]),
    ("brigade-schedule", &[]),
    ("brigade-verbs", &[]),
    ("brigade-cuda-fake", &[]),
    // What ends in `fake`, and `built`, are for tests: among dev-dependencies only, but for those
    // of `brigade-tests`, which is nothing else.
    ("brigade-cuda", &["brigade-cuda-fake"]),
    ("brigade-offload", &["brigade-cuda", "brigade-cuda-fake"]),
    (
        "brigade-transports",
        &["brigade-built", "brigade-cuda", "brigade-cuda-fake", "brigade-verbs"],
    ),
    (
        "brigade-comm",
        &["brigade-cuda", "brigade-cuda-fake", "brigade-schedule", "brigade-transports"],
    ),
    ("brigade-wall", &["brigade-comm"]),
    (
        "brigade-ffi",
        &[
            "brigade-built",
            "brigade-comm",
            "brigade-cuda-fake",
            "brigade-offload",
            "brigade-schedule",
            "brigade-wall",
        ],
    ),
    (
        "brigade-nccl",
        &["brigade-comm", "brigade-cuda", "brigade-cuda-fake", "brigade-schedule", "brigade-wall"],
    ),
    ("brigade-net", &["brigade-comm", "brigade-transports"]),
    ("brigade-bench", &HALVES),
    ("brigade-trainer", &HALVES),
    (
        "brigade",
        &[
            "brigade-bench",
            "brigade-comm",
            "brigade-cuda",
            "brigade-cuda-fake",
            "brigade-offload",
            "brigade-schedule",
            "brigade-trainer",
            "brigade-transports",
        ],
    ),
    (
        "brigade-tests",
        &[
            "brigade",
            "brigade-built",
            "brigade-bench",
            "brigade-comm",
            "brigade-cuda",
            "brigade-cuda-fake",
            "brigade-offload",
            "brigade-schedule",
            "brigade-trainer",
            "brigade-transports",
        ],
    ),
];

const LIST: &str = "docs/DEPENDENCIES.md";

/// A line of a Cargo.toml that names a dependency.
struct Dependency<'a> {
    path: &'a str,
    line: usize,
    user: &'a str,
    name: &'a str,
}

pub(super) fn check(tree: &Tree, offences: &mut Vec<Offence>) {
    let manifests = tree.ending("Cargo.toml");
    let all: Vec<Dependency> =
        manifests.flat_map(|file| dependencies(&file.path, &file.text)).collect();
    inner(&all, offences);
    guests(tree, &all, offences);
}

fn inner(all: &[Dependency], offences: &mut Vec<Offence>) {
    let edges: BTreeMap<_, _> = EDGES.into_iter().collect();
    for Dependency { path, line, user, name } in all {
        if !name.starts_with("brigade") {
            continue;
        }
        let what = match edges.get(user) {
            Some(allowed) if allowed.contains(name) => continue,
            Some(_) => format!("{user} must not use {name}: imports run downward only"),
            None => format!("{user} is not on the list of crates in tests/src/tidy/edges.rs"),
        };
        offences.push(Offence { path: path.to_string(), line: *line, what });
    }
}

/// Every dependency from outside has a line with its reason, and every line a dependency.
fn guests(tree: &Tree, all: &[Dependency], offences: &mut Vec<Offence>) {
    let Some(list) = tree.file(LIST) else {
        let what = String::from("the list of dependencies is missing");
        offences.push(Offence { path: LIST.to_owned(), line: 0, what });
        return;
    };
    let mut listed: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, line) in list.lines() {
        if let Some((name, _)) = line.strip_prefix("| `").and_then(|rest| rest.split_once('`'))
            && listed.insert(name, number).is_some()
        {
            let what = format!("{name} is listed twice");
            offences.push(Offence { path: LIST.to_owned(), line: number, what });
        }
    }
    for Dependency { path, line, name, .. } in all {
        if !name.starts_with("brigade") && !listed.contains_key(name) {
            let what = format!("{name} has no line with a reason in {LIST}");
            offences.push(Offence { path: path.to_string(), line: *line, what });
        }
    }
    for (name, line) in listed {
        if !all.iter().any(|dependency| dependency.name == name) {
            let what = format!("{name} is listed but nobody depends on it");
            offences.push(Offence { path: LIST.to_owned(), line, what });
        }
    }
}

/// The dependencies of one manifest. The workspace's own table of versions uses nothing by itself.
fn dependencies<'a>(path: &'a str, text: &'a str) -> Vec<Dependency<'a>> {
    let lines = || text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let name = lines().find_map(|(_, line)| line.strip_prefix("name = \"")?.strip_suffix('"'));
    let Some(user) = name else { return Vec::new() };
    let mut found = Vec::new();
    let mut inside = false;
    for (line, content) in lines() {
        if content.starts_with('[') {
            inside = content.ends_with("dependencies]") && !content.starts_with("[workspace");
        } else if inside && let Some((key, _)) = content.split_once('=') {
            let name = key.trim().trim_end_matches(".workspace");
            if !name.starts_with('#') {
                found.push(Dependency { path, line, user, name });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::told;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        told(check, files)
    }

    #[test]
    fn an_edge_upward_is_seen() {
        let list = (LIST, "# Dependencies\n");
        let up = "[package]\nname = \"brigade-schedule\"\n[dependencies]\nbrigade-comm = {}\n";
        assert_eq!(found(&[list, ("s/Cargo.toml", up)]).len(), 1);
        let down = "[package]\nname = \"brigade-comm\"\n[dependencies]\nbrigade-schedule = {}\n";
        assert_eq!(found(&[list, ("c/Cargo.toml", down)]), [""; 0]);
    }

    #[test]
    fn guests_and_their_list_must_agree() {
        let user =
            "[package]\nname = \"brigade-comm\"\n[dev-dependencies]\nlibc.workspace = true\n";
        let listed = "# D\n| `libc` | reason |\n";
        assert_eq!(found(&[(LIST, listed), ("c/Cargo.toml", user)]), [""; 0]);
        assert_eq!(found(&[(LIST, "# D\n"), ("c/Cargo.toml", user)]).len(), 1);
        assert_eq!(found(&[(LIST, listed)]).len(), 1);
    }
}
