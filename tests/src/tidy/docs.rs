//! Rules for documents: no dead links, no dead pages, one title, and a README that tells the truth.

use std::collections::BTreeSet;

use super::{Offence, Source, Tree};

/// Where readers begin.
const DOORS: [&str; 2] = ["README.md", "docs/ARCHITECTURE.md"];
/// The program that the README shows.
const HELLO: &str = "examples/hello.rs";

pub(super) fn check(tree: &Tree, offences: &mut Vec<Offence>) {
    let mut linked = BTreeSet::new();
    for file in tree.ending(".md") {
        title(file, offences);
        for (number, target) in links(file) {
            let path = resolve(&file.path, &target);
            if !tree.root.join(&path).exists() {
                offend(offences, file, number, format!("the link to {target} leads nowhere"));
            }
            if DOORS.contains(&file.path.as_str()) {
                linked.insert(path);
            }
        }
    }
    for file in tree.files.iter().filter(|file| file.path.starts_with("docs/")) {
        if !linked.contains(&file.path) && !DOORS.contains(&file.path.as_str()) {
            offend(offences, file, 0, "neither README.md nor docs/ARCHITECTURE.md leads here");
        }
    }
    hello(tree, offences);
    workplace(tree, offences);
}

fn offend(offences: &mut Vec<Offence>, file: &Source, line: usize, what: impl Into<String>) {
    offences.push(Offence { path: file.path.clone(), line, what: what.into() });
}

/// Lines outside fenced code, with their numbers.
fn prose(file: &Source) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (number, line) in file.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push((number, line));
        }
    }
    lines
}

fn title(file: &Source, offences: &mut Vec<Offence>) {
    let prose = prose(file);
    let titles: Vec<_> = prose.iter().filter(|(_, line)| line.starts_with("# ")).collect();
    if titles.len() != 1 {
        let what =
            format!("{} titles; a document has one line that begins with `# `", titles.len());
        offend(offences, file, titles.get(1).map_or(1, |(number, _)| *number), what);
    }
}

/// Relative targets of links and pictures, without the part behind `#`.
fn links(file: &Source) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(file) {
        for part in line.split("](").skip(1) {
            let Some((target, _)) = part.split_once(')') else { continue };
            let target = target.split(['#', ' ']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                found.push((number, target.to_owned()));
            }
        }
    }
    found
}

/// The path from the root of a link in the file `from`.
fn resolve(from: &str, target: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// The first Rust block of the README is the program in examples/, less its story.
fn hello(tree: &Tree, offences: &mut Vec<Offence>) {
    let (Some(readme), Some(hello)) = (tree.file("README.md"), tree.file(HELLO)) else {
        let what = format!("README.md and {HELLO} belong together, and one is missing");
        offences.push(Offence { path: HELLO.to_owned(), line: 0, what });
        return;
    };
    let shown = readme.text.split_once("```rust\n").and_then(|(_, rest)| rest.split_once("```"));
    let shown = shown.map(|(program, _)| program.trim());
    let story = |line: &&str| line.starts_with("//!");
    let program: Vec<&str> = hello.text.lines().skip_while(story).collect();
    if shown != Some(program.join("\n").trim()) {
        let what = format!("the Rust program shown is not that of {HELLO}; copy it");
        offend(offences, readme, 0, what);
    }
}

/// Paths of a workplace mean nothing to a reader elsewhere.
fn workplace(tree: &Tree, offences: &mut Vec<Offence>) {
    let paths = [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/")];
    for file in &tree.files {
        for (number, line) in file.lines() {
            for path in paths.iter().filter(|path| line.contains(**path)) {
                let what = format!("{path} is a path of somebody's machine");
                offend(offences, file, number, what);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_code_and_resolved() {
        let text = "# T\n[a](b.md#c) ![p](../x.svg)\n```\n[no](no.md)\n```\n[w](https://w)\n";
        let file = Source::new("docs/a.md", text);
        let found: Vec<_> =
            links(&file).into_iter().map(|(line, to)| (line, resolve(&file.path, &to))).collect();
        assert_eq!(found, [(2, String::from("docs/b.md")), (2, String::from("x.svg"))]);
    }

    #[test]
    fn a_second_title_is_an_offence() {
        let mut offences = Vec::new();
        title(&Source::new("a.md", "# One\n```\n# code\n```\n## Part\n"), &mut offences);
        assert!(offences.is_empty());
        title(&Source::new("a.md", "# One\n# Two\n"), &mut offences);
        assert_eq!(offences[0].line, 2);
    }
}
