//! What ranks print: passed through untouched, or line by line with the rank in front.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How long to wait for the last lines once all ranks have ended. A program that a rank left behind
/// may hold the pipe open for ever.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Carries the output of ranks to ours.
pub(crate) struct Relay {
    /// Digits of the largest rank, where lines are to be marked.
    width: Option<usize>,
    ended: (Sender<()>, Receiver<()>),
    readers: usize,
}

impl Relay {
    /// For a world of so many ranks; `prefix` says whether lines are marked.
    pub(crate) fn new(prefix: bool, ranks: usize) -> Self {
        let width = prefix.then(|| (ranks - 1).to_string().len());
        Self { width, ended: channel(), readers: 0 }
    }

    /// Start the command of `rank` with its output going where it should.
    pub(crate) fn spawn(&mut self, rank: usize, command: &mut Command) -> io::Result<Child> {
        let Some(width) = self.width else {
            return command.spawn();
        };
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mark = format!("[{rank:>width$}] ");
        if let Some(output) = child.stdout.take() {
            self.read(output, io::stdout(), mark.clone());
        }
        if let Some(output) = child.stderr.take() {
            self.read(output, io::stderr(), mark);
        }
        Ok(child)
    }

    /// Wait until everything that was printed has been passed on.
    pub(crate) fn finish(&mut self) {
        let due = Instant::now() + LAST_LINES;
        while self.readers > 0 {
            if self.ended.1.recv_timeout(due.saturating_duration_since(Instant::now())).is_err() {
                return;
            }
            self.readers -= 1;
        }
    }

    fn read(
        &mut self,
        source: impl Read + Send + 'static,
        target: impl Write + Send + 'static,
        mark: String,
    ) {
        self.readers += 1;
        let ended = self.ended.0.clone();
        std::thread::spawn(move || {
            match copy_lines(BufReader::new(source), target, mark.as_bytes()) {
                // Nobody reads on, and so is the rank told that goes on printing.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(error) => eprintln!("brigade: {mark}output lost: {error}"),
                Ok(()) => {}
            }
            // The receiver is gone only when nobody waits for the last lines any more.
            let _ = ended.send(());
        });
    }
}

/// Copy line by line, each in one write, so that lines of different ranks do not mix.
fn copy_lines(mut source: impl BufRead, mut target: impl Write, mark: &[u8]) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        line.extend_from_slice(mark);
        if source.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        target.write_all(&line)?;
        target.flush()?;
    }
}

#[cfg(test)]
mod tests {
    use super::copy_lines;

    #[test]
    fn every_line_is_marked_and_the_last_one_is_ended() {
        let mut out = Vec::new();
        copy_lines(&b"one\ntwo"[..], &mut out, b"[3] ").unwrap();
        assert_eq!(out, b"[3] one\n[3] two\n");
    }

    #[test]
    fn nothing_printed_is_nothing_passed_on() {
        let mut out = Vec::new();
        copy_lines(&b""[..], &mut out, b"[3] ").unwrap();
        assert!(out.is_empty());
    }
}
