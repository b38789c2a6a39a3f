//! What the command prints goes to a terminal, a file or a pipe, of which any may be full or gone.
//! The standard library's macros panic there; these take their place in all of the command.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, IsTerminal, Write};

use crate::sys;

/// As that of the standard library, but where it cannot be printed that is told, and the end.
macro_rules! print {
    ($($words:tt)*) => { $crate::terminal::print(format_args!($($words)*)) };
}

/// The same with the end of a line.
macro_rules! println {
    ($($words:tt)*) => { print!("{}\n", format_args!($($words)*)) };
}

/// As that of the standard library, but who cannot be told is not.
macro_rules! eprintln {
    ($($words:tt)*) => { $crate::terminal::say(format_args!($($words)*)) };
}

/// Print it; the command ends where that cannot be.
pub(crate) fn print(words: Arguments<'_>) {
    io::stdout().write_fmt(words).unwrap_or_else(|error| end_unprinted(&error));
}

/// End with what the parser says: help that was asked for, or what is wrong with the flags.
pub(crate) fn end_with(said: &clap::Error) -> ! {
    let printed = said.print().and_then(|()| io::stdout().flush());
    if let Err(error) = printed
        && !said.use_stderr()
    {
        end_unprinted(&error);
    }
    std::process::exit(said.exit_code())
}

fn end_unprinted(error: &io::Error) -> ! {
    if error.kind() == ErrorKind::BrokenPipe {
        end_unread();
    }
    say(format_args!("brigade: cannot print: {error}"));
    std::process::exit(1)
}

/// End where nobody reads on what is printed (`| head`), as what does not care for the signal of
/// that does: whoever went away wants to hear no more of it, and whoever waits sees why.
pub(crate) fn end_unread() -> ! {
    sys::end_by(libc::SIGPIPE)
}

/// Whether `COLUMNS` is 0, as where nobody knows the width, and no terminal says better.
pub(crate) fn is_of_no_width() -> bool {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    columns == Some(0) && !sys::is_terminal_with_width()
}

/// Tell by which signal it was ended, in the place of a bar of progress where there is one.
pub(crate) fn say_stopped(name: &str, signal: i32) {
    let line = if io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
    say(format_args!("{line}{name}: stopped by {}", sys::signal_name(signal)));
}

/// Tell the user, whose terminal may be gone.
pub(crate) fn say(words: Arguments<'_>) {
    // In one piece, as ranks share a terminal.
    let _gone = io::stderr().write_all(format!("{words}\n").as_bytes());
}
