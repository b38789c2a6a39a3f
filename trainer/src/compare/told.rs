//! Where verdicts are told: a table at the end; JSON and the picture row by row, so that a
//! comparison that is interrupted leaves what it had.

use super::row::Verdict;
use super::{Args, picture, table};
use crate::error::Error;
use brigade_offload::storage::write_whole;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// What is written to.
pub(super) struct Told<'a> {
    args: &'a Args,
    out: &'a mut dyn Write,
    /// The file for JSON, if that goes to one and a row has ended.
    json: Option<File>,
}

impl<'a> Told<'a> {
    /// Nothing is written before a row has ended: a comparison that is refused leaves files as they
    /// were.
    pub(super) fn new(args: &'a Args, out: &'a mut dyn Write) -> Told<'a> {
        Told { args, out, json: None }
    }

    /// The last of these has just ended.
    pub(super) fn row(&mut self, verdicts: &[Verdict]) -> Result<(), Error> {
        let last = verdicts.len().saturating_sub(1);
        let line = || table::json(&verdicts[last..]);
        match self.args.json.as_deref() {
            None => {}
            Some(path) if path == Path::new("-") => self.print(&line())?,
            Some(path) => {
                if last == 0 {
                    self.json = Some(File::create(path).map_err(Error::file("write", path))?);
                }
                let file = self.json.as_mut().expect("it was made with the first row");
                file.write_all(line().as_bytes()).map_err(Error::file("write", path))?;
            }
        }
        let Some(path) = &self.args.plot else { return Ok(()) };
        write_whole(path, picture::draw(verdicts)).map_err(Error::file("write", path))
    }

    /// All have ended.
    pub(super) fn end(&mut self, verdicts: &[Verdict]) -> Result<(), Error> {
        let is_json = self.args.json.as_deref() == Some(Path::new("-"));
        if is_json { Ok(()) } else { self.print(&table::table(verdicts)) }
    }

    fn print(&mut self, text: &str) -> Result<(), Error> {
        let written = self.out.write_all(text.as_bytes());
        written.and_then(|()| self.out.flush()).map_err(Error::Output)
    }
}
