//! Imports run down inside a crate, too: no two of its files import each other, straight or through
//! others.
//!
//! An import is of the file that defines the name, whoever hands it on. A room and its parts are
//! one: they may know each other. What only tests use is not looked at.

use std::collections::{BTreeMap, BTreeSet};

use super::{Offence, Tree};

/// Circles that stay, each with its reason.
const STAYING: [(&[&str], &str); 7] = [
    (
        &[
            "offload/src/storage/file.rs",
            "offload/src/storage/inbox.rs",
            "offload/src/storage/request.rs",
        ],
        "a request holds its file, that the inbox of its storage, and an inbox requests",
    ),
    (
        &["transports/cuda/src/device.rs", "transports/cuda/src/library.rs"],
        "a driver finds devices, which keep it",
    ),
    (
        &["transports/cuda/src/pace.rs", "transports/cuda/src/stream.rs"],
        "a stream has a pace, which marks places in it",
    ),
    (
        &[
            "transports/cuda/fake/src/access.rs",
            "transports/cuda/fake/src/event.rs",
            "transports/cuda/fake/src/graph.rs",
            "transports/cuda/fake/src/memory.rs",
            "transports/cuda/fake/src/stream.rs",
        ],
        "a driver is one thing, whose functions are sorted by what they are about",
    ),
    (
        &["transports/cuda/fake/src/compiler.rs", "transports/cuda/fake/src/races.rs"],
        "what looks for races is compiled, and says how",
    ),
    (
        &[
            "transports/src/loopback/bell.rs",
            "transports/src/loopback/endpoint.rs",
            "transports/src/loopback/port.rs",
            "transports/src/loopback/receiver.rs",
            "transports/src/loopback/sender.rs",
            "transports/src/loopback/window.rs",
            "transports/src/loopback/wire.rs",
            "transports/src/loopback/world.rs",
        ],
        "a world holds its groups, these their wires, and a wire keeps the world's time",
    ),
    (
        &["transports/src/rdma/hand.rs", "transports/src/rdma/lane.rs"],
        "a lane is handed to the thread that it asks",
    ),
];

/// A path of names, as `use` has it.
type Names = Vec<String>;

/// A file as the module that it is.
struct Module<'a> {
    path: &'a str,
    /// Its code without tests.
    code: &'a str,
    /// What it imports or hands on, and under which name.
    uses: Vec<(String, Names)>,
}

impl Module<'_> {
    /// What a name stands for here.
    fn known_as(&self, name: &str) -> Option<&Names> {
        self.uses.iter().find(|(known, _)| known == name).map(|(_, names)| names)
    }
}

/// The modules of one crate, by the names that lead to them from its root.
type Crate<'a> = BTreeMap<Names, Module<'a>>;

pub(super) fn check(tree: &Tree, offences: &mut Vec<Offence>) {
    let mut found: Vec<Vec<&str>> = crates(tree).values().flat_map(circles).collect();
    for (files, _) in STAYING {
        let is_here = tree.file(files[0]).is_some();
        match found.iter().position(|circle| circle == files) {
            Some(place) => drop(found.swap_remove(place)),
            None if is_here => {
                let what = String::from("a circle that stays in tests/src/tidy/circles.rs is none");
                offences.push(Offence { path: files[0].to_owned(), line: 0, what });
            }
            None => {}
        }
    }
    for circle in found {
        let what = format!(
            "files import each other in a circle: {}; move what they share below them",
            circle.join(", ")
        );
        offences.push(Offence { path: circle[0].to_owned(), line: 0, what });
    }
}

fn crates(tree: &Tree) -> BTreeMap<&str, Crate<'_>> {
    let mut crates: BTreeMap<&str, Crate<'_>> = BTreeMap::new();
    let mut for_tests = BTreeSet::new();
    for file in tree.ending(".rs") {
        let Some(at) = file.path.find("src/") else { continue };
        let (root, rest) = (&file.path[..at], &file.path[at + 4..]);
        let names: Names = match rest.trim_end_matches(".rs") {
            // The modules are the program's, where there is one: a library beside it hands on names
            // of other crates.
            "lib" if tree.file(&format!("{root}src/main.rs")).is_some() => continue,
            "lib" | "main" => vec![],
            module => module.split('/').map(str::to_owned).collect(),
        };
        let code = without_tests(&file.code, |name| {
            for_tests.insert((root, [&names[..], &[name.to_owned()]].concat()));
        });
        let module = Module { path: &file.path, code, uses: uses(code) };
        crates.entry(root).or_default().insert(names, module);
    }
    for (root, names) in for_tests {
        if let Some(modules) = crates.get_mut(root) {
            modules.retain(|module, _| !module.starts_with(&names));
        }
    }
    crates
}

/// The code in front of the tests in a file; `declared` is told of modules of tests in other files.
fn without_tests(code: &str, mut declared: impl FnMut(&str)) -> &str {
    for (at, mark) in code.match_indices("#[cfg(test)]") {
        let Some(rest) = code[at + mark.len()..].trim_start().strip_prefix("mod ") else {
            continue;
        };
        let end = rest.find([';', '{']).unwrap_or(rest.len());
        match rest[end..].starts_with('{') {
            true => return &code[..at],
            false => declared(rest[..end].trim()),
        }
    }
    code
}

/// What stands behind every `use`, by the name that it has here.
fn uses(code: &str) -> Vec<(String, Names)> {
    let mut all = Vec::new();
    for statement in statements(code) {
        expand(statement, &[], &mut all);
    }
    all
}

fn statements(code: &str) -> impl Iterator<Item = &str> {
    let begins = |at: usize| code[..at].chars().next_back().is_none_or(|c| !is_name(c));
    code.match_indices("use ").filter(move |(at, _)| begins(*at)).map(|(at, mark)| {
        let rest = &code[at + mark.len()..];
        &rest[..rest.find(';').unwrap_or(rest.len())]
    })
}

/// Take a tree of imports apart.
fn expand(tree: &str, before: &[String], all: &mut Vec<(String, Names)>) {
    let tree = tree.trim();
    if let Some((head, rest)) = tree.split_once('{') {
        let names: Names = [before, &split(head)].concat();
        let inner = rest.strip_suffix('}').unwrap_or(rest);
        let (mut depth, mut from) = (0, 0);
        for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    expand(&inner[from..at], &names, all);
                    from = at + 1;
                }
                _ => {}
            }
        }
        return;
    }
    let (path, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
    let mut names = [before, &split(path)].concat();
    if names.last().is_some_and(|last| last == "self") {
        names.pop();
    }
    if let Some(last) = names.last().filter(|last| *last != "*") {
        let name = if alias.is_empty() { last.clone() } else { alias.trim().to_owned() };
        all.push((name, names));
    }
}

fn split(path: &str) -> Names {
    path.split("::").map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

/// Every path of several names in code.
fn mentions(code: &str) -> impl Iterator<Item = Names> {
    let words = code.split(|c: char| !(is_name(c) || c == ':'));
    words.filter(|word| word.contains("::")).map(split)
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The files of each circle, in the order of their paths.
fn circles<'a>(modules: &Crate<'a>) -> Vec<Vec<&'a str>> {
    let edges: BTreeMap<&Names, BTreeSet<&Names>> =
        modules.iter().map(|(names, module)| (names, imports(modules, names, module))).collect();
    let reached = |from: &Names| {
        let (mut seen, mut next) = (BTreeSet::new(), Vec::from_iter(&edges[from]));
        while let Some(names) = next.pop() {
            if seen.insert(*names) {
                next.extend(&edges[*names]);
            }
        }
        seen
    };
    let reached: BTreeMap<_, _> = edges.keys().map(|names| (*names, reached(names))).collect();
    let circle = |names: &Names| {
        let mates = reached[names].iter().filter(|mate| reached[**mate].contains(names));
        let mut files: Vec<&str> = mates.map(|mate| modules[*mate].path).collect();
        files.sort_unstable();
        files
    };
    let found: BTreeSet<_> = edges.keys().map(|names| circle(names)).collect();
    found.into_iter().filter(|circle| circle.len() > 1).collect()
}

/// The modules of which this one imports something, without its own room.
fn imports<'m>(modules: &'m Crate<'_>, here: &Names, module: &Module<'_>) -> BTreeSet<&'m Names> {
    let imported = module.uses.iter().map(|(_, names)| names.clone());
    let mentioned = mentions(module.code).filter_map(|names| match names.first()?.as_str() {
        "crate" | "super" | "self" => Some(names),
        first => {
            let known = module.known_as(first).filter(|known| known.len() > 1)?;
            Some([known, &names[1..]].concat())
        }
    });
    let definers = imported.chain(mentioned).filter_map(|names| definer(modules, here, &names, 0));
    let others = definers.filter(|there| !there.starts_with(here) && !here.starts_with(there));
    others.collect()
}

/// The module that defines what this path leads to; none if that is a module, or of another crate.
fn definer<'m>(
    modules: &'m Crate<'_>,
    here: &[String],
    names: &[String],
    depth: usize,
) -> Option<&'m Names> {
    let up = names.iter().take_while(|name| *name == "super").count();
    let (mut at, rest) = match names.first()?.as_str() {
        "crate" => (vec![], &names[1..]),
        "self" => (here.to_vec(), &names[1..]),
        "super" => (here[..here.len().checked_sub(up)?].to_vec(), &names[up..]),
        child => {
            let inside = [here, &[child.to_owned()]].concat();
            (modules.contains_key(&inside).then_some(inside)?, &names[1..])
        }
    };
    for (index, name) in rest.iter().enumerate() {
        let inside = [&at[..], std::slice::from_ref(name)].concat();
        let is_last = index + 1 == rest.len();
        let handed_on = modules.get(&at)?.known_as(name).filter(|_| depth < 8);
        match handed_on {
            Some(path) if is_last || !modules.contains_key(&inside) => {
                let path = [path, &rest[index + 1..]].concat();
                return definer(modules, &at, &path, depth + 1);
            }
            _ if modules.contains_key(&inside) => at = inside,
            _ => return modules.get_key_value(&at).map(|(names, _)| names),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::told;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        told(check, files)
    }

    const LIB: (&str, &str) = ("c/src/lib.rs", "mod a; mod b; mod d; pub use a::{A, f};");

    #[test]
    fn files_that_import_each_other_are_a_circle_however_they_say_so() {
        let a = ("c/src/a.rs", "use crate::b::B; pub struct A; fn f() {}");
        for upward in [
            "use super::a::A;",
            "use crate::A;",
            "use crate::{a::{self, A as Other}, x};",
            "fn g() { crate::f() }",
            "use crate::a; fn g() { a::f() }",
            "fn g() { use crate::{A, x}; } mod m { use other::A; }",
        ] {
            assert_eq!(found(&[LIB, a, ("c/src/b.rs", upward)]).len(), 1, "{upward}");
        }
        let program = ("c/src/main.rs", "mod a; mod b; mod d; use a::A;");
        let beside = ("c/src/lib.rs", "pub use other::A;");
        assert_eq!(found(&[program, beside, a, ("c/src/b.rs", "use crate::A;")]).len(), 1);
        let through = [("c/src/b.rs", "use crate::d::D;"), ("c/src/d.rs", "use crate::A;")];
        let told = found(&[LIB, a, through[0], through[1]]);
        assert!(told[0].contains("c/src/a.rs, c/src/b.rs, c/src/d.rs"), "{told:?}");
    }

    #[test]
    fn one_direction_a_room_and_tests_are_none() {
        let a = ("c/src/a.rs", "mod part; use part::P; use crate::b::B;");
        for other in [
            ("c/src/b.rs", "use std::fmt; use other::A; pub struct B;"),
            ("c/src/a/part.rs", "use super::A; use crate::b::B;"),
            ("c/src/b.rs", "#[cfg(test)]\nmod tests { use crate::A; }"),
            ("c/src/b.rs", "//! use crate::A;\nfn f() { \"crate::A\" }"),
        ] {
            assert_eq!(found(&[LIB, a, other]), [""; 0], "{other:?}");
        }
        let declared = ("c/src/b.rs", "#[cfg(test)]\nmod tests;");
        let tests = ("c/src/b/tests.rs", "use crate::A;");
        assert_eq!(found(&[LIB, a, declared, tests]), [""; 0]);
    }

    #[test]
    fn a_circle_that_stays_must_be_one() {
        let files = STAYING[1].0;
        assert_eq!(found(&[(files[0], ""), (files[1], "")]).len(), 1);
        let circle = [(files[0], "use crate::library::Cuda;"), (files[1], "use crate::Device;")];
        let lib =
            ("transports/cuda/src/lib.rs", "mod device; mod library; pub use device::Device;");
        assert_eq!(found(&[lib, circle[0], circle[1]]), [""; 0]);
    }
}
