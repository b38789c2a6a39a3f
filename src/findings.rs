//! What the doctor finds: a line for each thing, and at the end whether jobs can run here, over
//! what, and what else would make a difference.

use std::fmt::Display;

/// One thing and what is told of it, in the columns that all sections share.
pub(crate) fn line(name: &str, words: impl Display) {
    println!("  {name:<14} {words}");
}

/// What was found, the weightiest first.
#[derive(Default)]
pub(crate) struct Verdict {
    works: Vec<String>,
    lacks: Vec<String>,
}

impl Verdict {
    /// This can be done here.
    pub(crate) fn works(&mut self, what: impl Into<String>) {
        self.works.push(what.into());
    }

    /// This cannot, until somebody has done that.
    pub(crate) fn lacks(&mut self, what: &str, next: &str) {
        self.lacks.push(format!("{what}: {next}"));
    }

    /// Print it: `is_well` where a job finds all that it asks for.
    pub(crate) fn print(&self, is_well: bool) {
        match is_well {
            true => println!("\nverdict: jobs can run here"),
            false => println!("\nverdict: no job can run here before what stands below is mended"),
        }
        // What would work is no comfort where nothing can begin.
        let works = if is_well { &self.works[..] } else { &[] };
        for (name, list) in [("works", works), ("missing", &self.lacks)] {
            for (at, what) in list.iter().enumerate() {
                line(if at == 0 { name } else { "" }, what);
            }
        }
    }
}
