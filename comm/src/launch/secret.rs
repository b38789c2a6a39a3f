//! The job's secret, when it does not come with an id.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Once;

use sha2::{Digest, Sha256};

use super::LaunchError;
use crate::say;

/// The longest file of a secret.
const BYTES_MAX: u64 = 1 << 16;

/// What everyone who joins has to know. Prints as nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct JobSecret {
    bytes: [u8; 32],
    is_guard: bool,
}

impl JobSecret {
    /// A secret from a text of any length. A text that can be guessed can be guessed offline by
    /// whoever sees a rank join: use at least 16 random bytes.
    pub fn from_text(text: &str) -> Self {
        Self { bytes: digest("brigade secret", text), is_guard: false }
    }

    /// Not a secret: a number that ranks of one job have in common, so that jobs do not mix by
    /// accident. Anybody who knows the job's name can compute it.
    pub fn guard(identity: &str) -> Self {
        Self { bytes: digest("brigade guard against mix-ups", identity), is_guard: true }
    }

    pub(crate) fn bytes(&self) -> [u8; 32] {
        self.bytes
    }

    pub(super) fn is_guard(&self) -> bool {
        self.is_guard
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
    let mut text = String::new();
    // A pipe is as good as a file, but a device may have no end.
    let read =
        File::open(&path).and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text));
    let why = match read {
        Ok(read) if read as u64 > BYTES_MAX => format!("more than {BYTES_MAX} bytes are no secret"),
        Ok(_) if text.trim().is_empty() => "the file is empty".into(),
        Ok(_) => return Ok(JobSecret::from_text(text.trim())),
        Err(error) => error.to_string(),
    };
    Err(LaunchError::SecretFile { path, why })
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
