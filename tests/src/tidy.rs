//! The house rules, as functions from the files of the project to a list of offences.
//!
//! Nothing here knows how Rust is compiled: a small lexer ([`Source`]) blanks comments and
//! literals, and the rules look at what is left. The test `tidy.rs` runs all rules and prints all
//! offences.

mod circles;
mod docs;
mod edges;
mod rust;
mod source;

use std::fmt;
use std::path::{Path, PathBuf};

pub use source::Source;

/// One place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offence {
    /// The file, from the root of the project.
    pub path: String,
    /// The line, counted from 1; 0 where the whole file is meant.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub what: String,
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// All files of the project that people wrote.
pub struct Tree {
    /// Where it lies.
    pub root: PathBuf,
    /// Its text files, by path from the root.
    pub files: Vec<Source>,
}

impl Tree {
    /// Read the project that this crate belongs to. Panics if a file cannot be read.
    pub fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent");
        let mut files = Vec::new();
        collect(root, root, &mut files);
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Self { root: root.to_owned(), files }
    }

    /// The files whose names end so.
    fn ending<'a>(&'a self, end: &'a str) -> impl Iterator<Item = &'a Source> {
        self.files.iter().filter(move |file| file.path.ends_with(end))
    }

    /// The file with this path.
    fn file(&self, path: &str) -> Option<&Source> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Every place that breaks a rule, in the order of paths.
    pub fn offences(&self) -> Vec<Offence> {
        let mut offences = Vec::new();
        rust::check(self, &mut offences);
        edges::check(self, &mut offences);
        circles::check(self, &mut offences);
        docs::check(self, &mut offences);
        offences.sort();
        offences
    }
}

/// What people write; anything else is data.
const ENDINGS: [&str; 9] = [".rs", ".md", ".toml", ".sh", ".svg", ".c", ".h", ".py", ".ci/run"];

fn collect(root: &Path, folder: &Path, files: &mut Vec<Source>) {
    let entries = std::fs::read_dir(folder).expect("a folder of the project can be read");
    for entry in entries {
        let path = entry.expect("an entry of a folder can be read").path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        if path.is_dir() {
            let is_ours = !name.starts_with("target") && (!name.starts_with('.') || name == ".ci");
            if is_ours {
                collect(root, &path, files);
            }
            continue;
        }
        let path_here = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        if ENDINGS.iter().any(|end| path_here.ends_with(end)) {
            let text = std::fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("{path_here} cannot be read: {error}"));
            files.push(Source::new(path_here, text));
        }
    }
}

/// What a rule says of files with these paths and texts.
#[cfg(test)]
fn told(check: fn(&Tree, &mut Vec<Offence>), files: &[(&str, &str)]) -> Vec<String> {
    let files = files.iter().map(|(path, text)| Source::new(*path, *text)).collect();
    let mut offences = Vec::new();
    check(&Tree { root: "/".into(), files }, &mut offences);
    offences.iter().map(ToString::to_string).collect()
}
