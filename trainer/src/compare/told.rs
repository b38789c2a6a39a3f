//! Where verdicts are told: a table at the end; JSON and the picture row by row, so that a
//! comparison that is interrupted leaves what it had.

use super::row::Verdict;
use super::{Args, picture, table};
use crate::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// What is written to.
pub(super) struct Told<'a> {
    args: &'a Args,
    out: &'a mut dyn Write,
    /// The file for JSON, if that goes to one.
    json: Option<File>,
}

impl<'a> Told<'a> {
    /// Make the files, so that a path that cannot be written is known before the first row.
    pub(super) fn open(args: &'a Args, out: &'a mut dyn Write) -> Result<Told<'a>, Error> {
        let create = |path: &Path| File::create(path).map_err(Error::file("write", path));
        let json = args.json.as_deref().filter(|path| *path != Path::new("-"));
        let json = json.map(create).transpose()?;
        args.plot.as_deref().map(create).transpose()?;
        Ok(Told { args, out, json })
    }

    /// The last of these has just ended.
    pub(super) fn row(&mut self, verdicts: &[Verdict]) -> Result<(), Error> {
        let last = verdicts.len().saturating_sub(1);
        let line = || table::json(&verdicts[last..]);
        match (&mut self.json, &self.args.json) {
            (Some(file), Some(path)) => {
                file.write_all(line().as_bytes()).map_err(Error::file("write", path))?;
            }
            (None, Some(_)) => self.print(&line())?,
            _ => {}
        }
        let Some(path) = &self.args.plot else { return Ok(()) };
        std::fs::write(path, picture::draw(verdicts)).map_err(Error::file("write", path))
    }

    /// All have ended.
    pub(super) fn end(&mut self, verdicts: &[Verdict]) -> Result<(), Error> {
        let is_json = self.args.json.is_some() && self.json.is_none();
        if is_json { Ok(()) } else { self.print(&table::table(verdicts)) }
    }

    fn print(&mut self, text: &str) -> Result<(), Error> {
        let written = self.out.write_all(text.as_bytes());
        written.and_then(|()| self.out.flush()).map_err(Error::Output)
    }
}
