//! What ranks print: passed through untouched, or line by line with the rank in front.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use brigade_transports::{MAKE_THREAD, remedy};

use crate::sys::Signals;

/// How long to wait for the last lines once all ranks have ended. A program that a rank left behind
/// may hold the pipe open for ever.
const LAST_LINES: Duration = Duration::from_secs(1);
/// How long to wait in all for more, where it comes again and again: what ranks have printed lies
/// in pipes when they have ended, and only a program that they left behind goes on.
const LEFT_BEHIND: Duration = Duration::from_secs(5);
/// How long to wait between looks at who still passes something on.
const LOOK: Duration = Duration::from_millis(20);

/// What is longer is cut, so that a rank that ends no line fills no memory.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Carries the output of ranks to ours.
pub(crate) struct Relay {
    /// Digits of the largest rank, where lines are to be marked.
    width: Option<usize>,
    /// Each reader says at its end whether all that it read was passed on.
    ended: (Sender<bool>, Receiver<bool>),
    readers: usize,
    /// How many readers have something to pass on, rather than to wait for, and how often any of
    /// them has got something.
    passing: Arc<AtomicUsize>,
    got: Arc<AtomicUsize>,
}

/// What became of all that ranks have printed.
pub(crate) enum Passed {
    /// It was passed on, or whoever should read it has gone away.
    All,
    /// Not all of it could be.
    Less,
    /// A signal asked the launcher to stop before.
    Interrupted(i32),
}

impl Relay {
    /// For a world of so many ranks; `prefix` says whether lines are marked.
    pub(crate) fn new(prefix: bool, ranks: usize) -> Self {
        let width = prefix.then(|| (ranks - 1).to_string().len());
        Self { width, ended: channel(), readers: 0, passing: Arc::default(), got: Arc::default() }
    }

    /// Start the command of `rank` with its output going where it should.
    pub(crate) fn spawn(&mut self, rank: usize, command: &mut Command) -> io::Result<Child> {
        let Some(width) = self.width else {
            return command.spawn();
        };
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mark = format!("[{rank:>width$}] ");
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        let is_read = output
            .map_or(Ok(()), |output| self.read(output, io::stdout(), mark.clone()))
            .and_then(|()| errors.map_or(Ok(()), |errors| self.read(errors, io::stderr(), mark)));
        if let Err(error) = is_read {
            // Nobody would read what it prints, and nobody else knows of it.
            let _ended = child.kill().and_then(|()| child.wait());
            return Err(no_reader(&error));
        }
        Ok(child)
    }

    /// Wait until everything that was printed has been passed on. Whoever reads it may take its
    /// time, as a pager does.
    pub(crate) fn finish(&mut self, signals: &Signals) -> Passed {
        // Since when nothing was passed on, and how much had come by then.
        let (mut idle, mut seen) = (Instant::now(), self.got.load(Ordering::Acquire));
        // How long in all nobody had anything to pass on, by the last look.
        let (mut calm, mut looked) = (Duration::ZERO, Instant::now());
        let mut passed = Passed::All;
        loop {
            for is_passed_on in self.ended.1.try_iter() {
                self.readers -= 1;
                if !is_passed_on {
                    passed = Passed::Less;
                }
            }
            let got = self.got.load(Ordering::Acquire);
            let (now, passes) = (Instant::now(), self.passing.load(Ordering::Acquire) > 0);
            if passes || got != seen {
                (idle, seen) = (now, got);
            }
            if !passes {
                calm += now - looked;
            }
            looked = now;
            if self.readers == 0 || now - idle >= LAST_LINES || calm >= LEFT_BEHIND {
                return passed;
            }
            match signals.wait(LOOK) {
                None | Some(libc::SIGCHLD) => {}
                Some(signal) => return Passed::Interrupted(signal),
            }
        }
    }

    fn read(
        &mut self,
        source: impl Read + Send + 'static,
        target: impl Write + Send + 'static,
        mark: String,
    ) -> io::Result<()> {
        let (ended, passing) = (self.ended.0.clone(), Arc::clone(&self.passing));
        let source = Watched { source, passing: Arc::clone(&passing), got: Arc::clone(&self.got) };
        passing.fetch_add(1, Ordering::Release);
        let reader = std::thread::Builder::new().name("output".into());
        let started = reader.spawn(move || {
            let is_passed_on = match copy_lines(BufReader::new(source), target, mark.as_bytes()) {
                // Nobody reads on, and so is the rank told that goes on printing.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => true,
                Err(error) => {
                    eprintln!("brigade: {mark}output lost: {error}");
                    false
                }
                Ok(()) => true,
            };
            // The receiver is gone only when nobody waits for the last lines any more.
            let _ = ended.send(is_passed_on);
            passing.fetch_sub(1, Ordering::Release);
        });
        self.readers += 1;
        started.map(drop)
    }
}

/// A stream of which it is seen whether its reader waits for more.
struct Watched<R> {
    source: R,
    passing: Arc<AtomicUsize>,
    got: Arc<AtomicUsize>,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.passing.fetch_sub(1, Ordering::Release);
        let got = self.source.read(room);
        self.passing.fetch_add(1, Ordering::Release);
        self.got.fetch_add(1, Ordering::Release);
        got
    }
}

/// Why the output of a rank cannot be read.
fn no_reader(error: &io::Error) -> io::Error {
    let remedy = remedy(MAKE_THREAD, error).map_or(String::new(), |remedy| format!("; {remedy}"));
    io::Error::new(error.kind(), format!("no thread can be started for --prefix: {error}{remedy}"))
}

/// Copy line by line, each in one write, so that lines of different ranks do not mix. A carriage
/// return ends a line, too, and stays one: so progress is shown while it is made.
fn copy_lines(source: impl BufRead, target: impl Write, mark: &[u8]) -> io::Result<()> {
    Lines { target, mark, line: mark.to_vec(), has_returned: false }.copy(source)
}

/// The lines of one stream.
struct Lines<'a, T> {
    target: T,
    mark: &'a [u8],
    /// What has come of the next one, behind its mark.
    line: Vec<u8>,
    /// Whether the last one was ended by a carriage return, of which a line feed may be a part.
    has_returned: bool,
}

impl<T: Write> Lines<'_, T> {
    fn copy(&mut self, mut source: impl BufRead) -> io::Result<()> {
        loop {
            let bytes = match source.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                bytes => bytes?,
            };
            if bytes.is_empty() {
                return if self.is_empty() { Ok(()) } else { self.end(b"\n") };
            }
            let room = LINE_BYTES_MAX - (self.line.len() - self.mark.len());
            let ahead = &bytes[..bytes.len().min(room)];
            let taken = match ahead.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
                Some(at) => {
                    self.line.extend_from_slice(&ahead[..at]);
                    let ends = if bytes[at..].starts_with(b"\r\n") { 2 } else { 1 };
                    self.end(&bytes[at..at + ends])?;
                    at + ends
                }
                None => {
                    self.line.extend_from_slice(ahead);
                    self.has_returned = false;
                    if ahead.len() == room {
                        self.end(b"\n")?;
                    }
                    ahead.len()
                }
            };
            source.consume(taken);
        }
    }

    fn is_empty(&self) -> bool {
        self.line.len() == self.mark.len()
    }

    /// Pass the line on with this at its end.
    fn end(&mut self, end: &[u8]) -> io::Result<()> {
        let is_rest = end == b"\n" && self.is_empty() && self.has_returned;
        match self.is_empty() && end == b"\r" {
            // A bar that begins with one.
            true => {}
            false => {
                self.line.extend_from_slice(end);
                let from = if is_rest { self.mark.len() } else { 0 };
                self.target.write_all(&self.line[from..])?;
                self.target.flush()?;
                self.has_returned = end == b"\r";
            }
        }
        self.line.truncate(self.mark.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// What has been passed on, and what is yet to come of a stream that gives a piece at a time.
    fn copied(pieces: &[&str]) -> String {
        /// Ends a read where a piece ends.
        struct Pieces<'a>(std::slice::Iter<'a, &'a str>);
        impl Read for Pieces<'_> {
            fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
                let Some(piece) = self.0.next() else { return Ok(0) };
                room[..piece.len()].copy_from_slice(piece.as_bytes());
                Ok(piece.len())
            }
        }
        let mut out = Vec::new();
        copy_lines(BufReader::new(Pieces(pieces.iter())), &mut out, b"[3] ").unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn progress_is_passed_on_while_it_is_made() {
        assert_eq!(copied(&["\r10%\r20%", "\r30%\n"]), "[3] 10%\r[3] 20%\r[3] 30%\n");
        assert_eq!(copied(&["one\r\ntwo\r", "\nthree"]), "[3] one\r\n[3] two\r\n[3] three\n");
        assert_eq!(copied(&["one\r", "two\n\n"]), "[3] one\r[3] two\n[3] \n");
        let (mut source, target) = std::io::pipe().unwrap();
        let (shown, out) = std::io::pipe().unwrap();
        let copying = std::thread::spawn(move || {
            copy_lines(BufReader::new(&mut source), out, b"[3] ").unwrap();
        });
        let (mut target, mut shown) = (target, shown);
        target.write_all(b"10%\r").unwrap();
        let mut first = [0; 8];
        shown.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"[3] 10%\r");
        drop(target);
        copying.join().unwrap();
    }

    #[test]
    fn what_never_ends_is_cut() {
        let mut out = Vec::new();
        let long = std::io::repeat(b'x').take(2 * LINE_BYTES_MAX as u64 + 5);
        copy_lines(BufReader::new(long), &mut out, b"[3] ").unwrap();
        let lengths: Vec<usize> =
            out.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::len).collect();
        assert_eq!(lengths, [LINE_BYTES_MAX + 5, LINE_BYTES_MAX + 5, 10]);
    }

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
