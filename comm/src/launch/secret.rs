//! The job's secret, when it does not come with an id.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::error::LaunchError;
use crate::bootstrap::sys::{Watch, poll};
use crate::say;

/// The longest file of a secret.
const BYTES_MAX: usize = 1 << 16;
/// How long a pipe may take to bring it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Who records what encrypting ranks say tries shorter secrets at leisure.
pub(super) const BYTES_MIN: usize = 16;

/// What everyone who joins has to know. Prints as nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct JobSecret {
    bytes: [u8; 32],
    pub(super) is_guard: bool,
    pub(super) is_short: bool,
}

impl JobSecret {
    /// A secret from a text of any length. A text that can be guessed can be guessed offline by
    /// whoever sees a rank join: use at least 16 random bytes.
    pub fn from_text(text: &str) -> Self {
        let is_short = text.len() < BYTES_MIN;
        Self { bytes: digest("brigade secret", text), is_guard: false, is_short }
    }

    /// Not a secret: a number that ranks of one job have in common, so that jobs do not mix by
    /// accident. Anybody who knows the job's name can compute it.
    pub fn guard(identity: &str) -> Self {
        let bytes = digest("brigade guard against mix-ups", identity);
        Self { bytes, is_guard: true, is_short: false }
    }

    pub(crate) fn bytes(&self) -> [u8; 32] {
        self.bytes
    }
}

impl fmt::Debug for JobSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobSecret(..)")
    }
}

/// Say, once in this process, that there is a guard and no secret.
pub(super) fn warn_of_guard() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        say::warn(
            "no BRIGADE_SECRET or BRIGADE_SECRET_FILE is set: ranks recognise each other by the \
             job's name alone, which guards against mix-ups and not against strangers",
        );
    });
}

/// The secret in the file at `path`, without the white space around it.
pub(super) fn read_file(path: PathBuf) -> Result<JobSecret, LaunchError> {
    let why = match read(&path, PATIENCE) {
        Ok(text) if text.trim().is_empty() => "the file is empty".into(),
        Ok(text) => return Ok(JobSecret::from_text(text.trim())),
        Err(why) => why,
    };
    Err(LaunchError::SecretFile { path, why })
}

/// The text of a file, or of a pipe, into which somebody may be about to write.
fn read(path: &Path, patience: Duration) -> Result<String, String> {
    let said = |error: std::io::Error| error.to_string();
    // Opening a pipe into which nobody writes would not end.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let mut file = opened.map_err(said)?;
    let is_pipe = file.metadata().map_err(said)?.file_type().is_fifo();
    let until = Instant::now() + patience;
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    // Before anybody has written, a pipe ends as one does that is closed behind the last byte.
    let mut may_end = !is_pipe;
    loop {
        match file.read(&mut piece) {
            Ok(0) if may_end => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(said(error)),
            Ok(count @ 1..) => {
                bytes.extend_from_slice(&piece[..count]);
                may_end = true;
            }
            _ if await_more(&file, until)? => may_end = true,
            _ if Instant::now() < until => {}
            _ => {
                let seconds = patience.as_secs_f64();
                let why = "no secret that ends has come through this pipe";
                return Err(format!("{why} in {seconds} s: does anybody write there?"));
            }
        }
        // A device may have no end.
        if bytes.len() > BYTES_MAX {
            return Err(format!("more than {BYTES_MAX} bytes are no secret"));
        }
    }
    String::from_utf8(bytes).map_err(|error| error.to_string())
}

/// Wait until there is more to read, or nobody is left who would write it; whether that is so.
fn await_more(file: &File, until: Instant) -> Result<bool, String> {
    let mut watches = [Watch::new(file.as_fd(), false)];
    let left = until.saturating_duration_since(Instant::now());
    poll(&mut watches, Some(left)).map_err(|error| error.to_string())?;
    Ok(watches[0].happened())
}

/// A port for the root of the job with this identity: below the range that Linux hands out for
/// outgoing connections, so that it is mostly free.
pub(super) fn derived_port(identity: &str) -> u16 {
    let digest = digest("brigade port", identity);
    15_000 + u16::from_le_bytes([digest[0], digest[1]]) % 15_000
}

fn digest(purpose: &str, text: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(purpose);
    hash.update([0]);
    hash.update(text);
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_pipe_is_waited_for_while_somebody_may_write_and_not_for_ever() {
        let path = std::env::temp_dir().join(format!("brigade-pipe-{}", std::process::id()));
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let error = read(&path, Duration::from_millis(300)).unwrap_err();
        assert!(error.contains("in 0.3 s: does anybody write there?"), "{error}");
        let writer = std::thread::spawn({
            let path = path.clone();
            move || {
                std::thread::sleep(Duration::from_millis(200));
                let mut pipe = OpenOptions::new().write(true).open(path).unwrap();
                for part in ["in two ", "parts\n"] {
                    std::thread::sleep(Duration::from_millis(100));
                    pipe.write_all(part.as_bytes()).unwrap();
                }
            }
        });
        assert_eq!(read(&path, 6 * PATIENCE).unwrap(), "in two parts\n");
        writer.join().unwrap();
        // One that is held open and says nothing.
        let silent = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        assert!(read(&path, Duration::from_millis(300)).is_err());
        drop(silent);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_pipe_that_was_closed_before_is_as_good_as_a_file() {
        let (end, mut mouth) = std::io::pipe().unwrap();
        mouth.write_all(b"xyzzy").unwrap();
        drop(mouth);
        let path = format!("/dev/fd/{}", end.as_raw_fd());
        assert_eq!(read(path.as_ref(), 6 * PATIENCE).unwrap(), "xyzzy");
    }
}
