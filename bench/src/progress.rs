//! How far a measurement is, for whoever looks at the terminal meanwhile.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use crate::size;

/// Which round it is, on a terminal: a table may take a minute.
pub(crate) struct Progress {
    pub(crate) what: &'static str,
    pub(crate) rounds: u32,
    pub(crate) is_shown: bool,
}

impl Progress {
    fn show(&self, line: &str) {
        let mut terminal = io::stderr();
        if self.is_shown && terminal.is_terminal() {
            // The table counts, and not this.
            let _shown = write!(terminal, "\r\x1b[K{line}").and_then(|()| terminal.flush());
        }
    }

    pub(crate) fn round(&self, round: usize) {
        self.show(&format!("{}: round {} of {}", self.what, round + 1, self.rounds));
    }

    /// A round is done, and all that follows it takes so long.
    pub(crate) fn after(&self, round: usize, left: Option<Duration>) {
        let left = left.map_or_else(String::new, |left| format!(", {} left", size::time(left)));
        let next = (round + 2).min(self.rounds as usize);
        self.show(&format!("{}: round {next} of {}{left}", self.what, self.rounds));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.show("");
    }
}
