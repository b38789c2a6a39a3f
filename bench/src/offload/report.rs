//! Where the numbers of a measurement go: a table, lines of JSON, a picture.

use std::io::Write;
use std::path::PathBuf;

use brigade_offload::storage::write_whole;
use serde::Serialize;

use super::Failure;
use crate::failure::cannot_write;
use crate::median::median;
use crate::plot::{Line, picture};
use crate::session::Target;
use crate::sys::processor;

/// How often everything is measured, and where the numbers go.
#[derive(clap::Args, Clone, Debug)]
pub struct Reporting {
    /// Measure everything so many times, in turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub turns: u32,
    /// Write JSON, an object a line, to FILE; `-`: to stdout, the table to stderr
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw times and bandwidths over sizes
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// The median of several measurements, with the range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

/// What is known of a measurement once it is done.
pub(super) trait Record: Serialize {
    /// Its line of the table.
    fn row(&self) -> String;

    /// What the picture's legend calls the line that it is on.
    fn series(&self) -> String;

    /// Its size in bytes, with the values of the left and the right panel.
    fn point(&self) -> (usize, [f64; 2]);
}

/// A table that grows line by line, and what is made of it in the end.
pub(super) struct Report {
    title: String,
    panels: [&'static str; 2],
    table: Box<dyn Write>,
    json: Option<Target>,
    plot: Option<PathBuf>,
    lines: Vec<Line>,
}

impl Reporting {
    /// So many turns, in words.
    pub(super) fn turns(&self) -> String {
        if self.turns == 1 { String::from("1 turn") } else { format!("{} turns", self.turns) }
    }
}

impl Spread {
    /// Panics: when there are none.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let median = median(values.iter().copied()).expect("there are some");
        Self { median, least: values[0], most: values[values.len() - 1] }
    }
}

impl Report {
    /// Nothing is made before there is something to write.
    pub(super) fn new(title: &str, panels: [&'static str; 2], reporting: &Reporting) -> Self {
        let (table, json) = Target::open(reporting.json.as_deref());
        let (title, plot) = (title.to_owned(), reporting.plot.clone());
        Self { title, panels, table, json, plot, lines: Vec::new() }
    }

    /// Write what stands above the table: where and how it was measured, and the columns.
    pub(super) fn head(&mut self, facts: &[String], columns: &str) -> Result<(), Failure> {
        let cores = std::thread::available_parallelism().map_or(0, |cores| cores.get());
        let (version, title) = (env!("CARGO_PKG_VERSION"), &self.title);
        let mut text = format!("# brigade {version}: {title}\n# machine: {}", processor());
        text.push_str(&format!(", {cores} cores\n"));
        for fact in facts {
            text.push_str(&format!("# {fact}\n"));
        }
        text.push_str(&format!("#\n#{columns}\n"));
        let written = self.table.write_all(text.as_bytes()).and_then(|()| self.table.flush());
        Ok(written.map_err(cannot_write("the table"))?)
    }

    /// Write one line, as soon as it is known.
    pub(super) fn add(&mut self, record: &impl Record) -> Result<(), Failure> {
        let written = writeln!(self.table, " {}", record.row()).and_then(|()| self.table.flush());
        written.map_err(cannot_write("the table"))?;
        if let Some(json) = &mut self.json {
            json.line(serde_json::to_string(record))?;
        }
        let (name, point) = (record.series(), record.point());
        match self.lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => self.lines.push(Line { name, points: vec![point] }),
        }
        Ok(())
    }

    /// Draw the picture, where one is wanted.
    pub(super) fn finish(self) -> Result<(), Failure> {
        let Some(path) = &self.plot else { return Ok(()) };
        let svg = picture(&self.title, self.panels, &self.lines);
        Ok(write_whole(path, svg).map_err(cannot_write(&path.display().to_string()))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_three_of_the_values() {
        let spread = Spread::of([3.0, 1.0, 2.0, 9.0, 4.0]);
        assert_eq!(spread, Spread { median: 3.0, least: 1.0, most: 9.0 });
        assert_eq!(Spread::of([7.0]).median, 7.0);
    }
}
