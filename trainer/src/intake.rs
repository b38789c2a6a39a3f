//! Files that users name: regular ones, and no more of them than a bound where they are read whole.
//! A device or a pipe may never end, or be empty for whoever reads it second.

use crate::error::Error;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The bytes of a file.
///
/// Errors: `File` for what is no file, what cannot be read, and more than `most_bytes`.
pub(crate) fn read(path: &Path, most_bytes: u64) -> Result<Vec<u8>, Error> {
    bounded(path, most_bytes).map_err(Error::file("read", path))
}

/// Open a file to read it.
///
/// Errors: the system's; what is no file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // Asked of the path, since to open a pipe is to wait for whoever writes to it.
    let kind = std::fs::metadata(path)?.file_type();
    if !kind.is_file() {
        let what = if kind.is_dir() { "a folder" } else { "a device or a pipe" };
        let problem = format!("it is {what}, and may have no end; copy what it says to a file");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    File::open(path)
}

fn bounded(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // Files of the system say that they are empty, and may be endless.
    open(path)?.take(most_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes {
        let problem = format!("it has more than {most_bytes} bytes; cut it, as `head -c` does");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_not_waited_for() {
        let problem = read(Path::new("/dev/zero"), 10).unwrap_err().to_string();
        assert!(problem.contains("/dev/zero") && problem.contains("no end"), "{problem}");
        let problem = read(&std::env::temp_dir(), 10).unwrap_err().to_string();
        assert!(problem.contains("a folder"), "{problem}");
        // It says that it has no bytes, and has some.
        let status = Path::new("/proc/self/status");
        let problem = read(status, 10).unwrap_err().to_string();
        assert!(problem.contains("more than 10 bytes"), "{problem}");
        assert!(!read(status, 1 << 20).unwrap().is_empty());
    }
}
