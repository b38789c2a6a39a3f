//! The 128-byte unique id: where the root listens and the secret that joining needs.
//!
//! ```text
//!  0  "BRIGADE"   7  version 1   8  number of addresses   9  secret [32]
//! 41  addresses: 4 or 6, port (u16 LE), 4 or 16 bytes; then zeros to the end
//! ```
//!
//! Whoever sees an id can join: hand it on as one hands on a password.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::proof::{keyed_secret, random};
use super::sys::user;

/// How many bytes an id has.
pub const ID_BYTES: usize = 128;
const MAGIC: &[u8; 7] = b"BRIGADE";
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 9;
const SECRET_BYTES: usize = 32;
/// The most that is read of an id file, which has half of that and a byte.
const FILE_BYTES_MAX: u64 = 4 * ID_BYTES as u64;
/// How often a missing id file is looked for.
pub(super) const FILE_POLL: Duration = Duration::from_millis(5);

/// A world to join.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId([u8; ID_BYTES]);

/// Why something is not an id, or cannot be kept in a file.
#[derive(Error)]
pub enum IdError {
    /// The bytes are not an id of ours.
    #[error("not a unique id of this version: {what}")]
    Malformed {
        /// What is wrong with them.
        what: &'static str,
    },
    /// The text is not 256 hexadecimal digits.
    #[error("a unique id is {} hexadecimal digits, and this is not: {what}", 2 * ID_BYTES)]
    Text {
        /// What is wrong with it.
        what: String,
    },
    /// The file cannot be written or read.
    #[error("the id file {} cannot be used: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl std::fmt::Debug for IdError {
    /// The sentence, as `Display` has it: what a `main` that returns an error prints.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl IdError {
    /// Whether there is what we may not use or what is no file, which waiting will not change.
    pub(super) fn is_final(&self) -> bool {
        use io::ErrorKind::{IsADirectory, NotADirectory, PermissionDenied};
        matches!(self, Self::File { source, .. }
            if [PermissionDenied, IsADirectory, NotADirectory].contains(&source.kind()))
    }
}

impl UniqueId {
    /// An id for a root at `addresses`, as many of them as fit, the first ones first.
    pub(super) fn new(addresses: &[SocketAddr], secret: &[u8; SECRET_BYTES]) -> Self {
        let mut bytes = [0; ID_BYTES];
        bytes[..7].copy_from_slice(MAGIC);
        bytes[7] = VERSION;
        bytes[HEAD_BYTES..HEAD_BYTES + SECRET_BYTES].copy_from_slice(secret);
        let mut end = HEAD_BYTES + SECRET_BYTES;
        for address in addresses {
            let mut entry = Vec::with_capacity(19);
            match address.ip() {
                IpAddr::V4(v4) => {
                    entry.push(4);
                    entry.extend(address.port().to_le_bytes());
                    entry.extend(v4.octets());
                }
                IpAddr::V6(v6) => {
                    entry.push(6);
                    entry.extend(address.port().to_le_bytes());
                    entry.extend(v6.octets());
                }
            }
            if end + entry.len() > ID_BYTES {
                break;
            }
            bytes[end..end + entry.len()].copy_from_slice(&entry);
            end += entry.len();
            bytes[8] += 1;
        }
        Self(bytes)
    }

    /// The id as it may travel.
    pub fn to_bytes(&self) -> [u8; ID_BYTES] {
        self.0
    }

    /// Read an id from anywhere. Errors: `Malformed`.
    pub fn from_bytes(bytes: [u8; ID_BYTES]) -> Result<Self, IdError> {
        let malformed = |what| Err(IdError::Malformed { what });
        if &bytes[..7] != MAGIC {
            return malformed("it does not begin with BRIGADE");
        }
        if bytes[7] != VERSION {
            return malformed("another version wrote it");
        }
        let Some((addresses, rest)) = parse_addresses(&bytes) else {
            return malformed("its addresses do not fit");
        };
        if addresses.is_empty() || rest.iter().any(|byte| *byte != 0) {
            return malformed("it has no address, or something behind them");
        }
        if addresses.iter().any(|a| a.port() == 0 || a.ip().is_unspecified()) {
            return malformed("one of its addresses cannot be connected to");
        }
        Ok(Self(bytes))
    }

    /// Where the root listens, the most general address first.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        parse_addresses(&self.0).expect("checked when the id was made").0
    }

    pub(crate) fn secret(&self) -> [u8; SECRET_BYTES] {
        let mut secret = [0; SECRET_BYTES];
        secret.copy_from_slice(&self.0[HEAD_BYTES..HEAD_BYTES + SECRET_BYTES]);
        secret
    }

    /// What tells it from any other that one will ever see, and does not tell the secret.
    pub(super) fn mark(&self) -> u64 {
        let digest = keyed_secret(&self.secret(), &[0; SECRET_BYTES]);
        u64::from_le_bytes(*digest.first_chunk().expect("a digest is longer"))
    }

    /// The id that those take this for who know the job's secret, too.
    pub(super) fn keyed(&self, job: &[u8; SECRET_BYTES]) -> Self {
        Self::new(&self.addresses(), &keyed_secret(&self.secret(), job))
    }

    /// Write the id, as text, to a file that only its owner can read. Whoever reads `path` finds
    /// either the whole id or what was there before. Errors: `File`, also where there is something
    /// that no job has left: it stays.
    pub fn write_file(&self, path: &Path) -> Result<(), IdError> {
        let failed = |source| IdError::File { path: path.to_owned(), source };
        may_replace(path).map_err(failed)?;
        let name = path.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let tag = u64::from_le_bytes(random().map_err(failed)?);
        let draft = path.with_file_name(format!(".{}.{tag:016x}", name.to_string_lossy()));
        let write = || {
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
            writeln!(file, "{self}")?;
            file.sync_all()?;
            fs::rename(&draft, path)
        };
        write().map_err(|source| {
            // The draft may never have existed; the error that counts is the first one.
            let _removed = fs::remove_file(&draft);
            failed(source)
        })
    }

    /// Read an id that [`UniqueId::write_file`] wrote. Errors: `File`, also for a file of another
    /// user than this one and the administrator in a folder that all may write to; `Text`,
    /// `Malformed`.
    pub fn read_file(path: &Path) -> Result<Self, IdError> {
        let failed = |source| IdError::File { path: path.to_owned(), source };
        let mut text = String::new();
        // To open a pipe would be to wait for its writer, without a deadline.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = file.and_then(|file| of_a_friend(file, path)).map_err(failed)?;
        let mut file = io::Read::take(file, FILE_BYTES_MAX);
        io::Read::read_to_string(&mut file, &mut text).map_err(failed)?;
        text.trim().parse()
    }

    /// Like [`UniqueId::read_file`], but wait for the file until `deadline`.
    pub fn wait_for_file(path: &Path, deadline: Instant) -> Result<Self, IdError> {
        loop {
            match Self::read_file(path) {
                Err(IdError::File { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && Instant::now() < deadline =>
                {
                    std::thread::sleep(FILE_POLL);
                }
                done => return done,
            }
        }
    }
}

/// A file whose owner may tell us where to go: in a folder that all may write to, anybody can leave
/// one that leads to a root of his own. Elsewhere owners may be others than those who have written,
/// as file systems of a network have it.
fn of_a_friend(file: File, path: &Path) -> io::Result<File> {
    let (owner, me) = (file.metadata()?.uid(), user());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = fs::metadata(folder.unwrap_or(Path::new(".")))?;
    if owner == me || owner == 0 || folder.mode() & 0o002 == 0 {
        return Ok(file);
    }
    let why = format!(
        "it belongs to user {owner}, and this process runs as user {me}, in a folder that all may \
         write to"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Refuse to take the place of what is no id, as far as one can see without reading it: the file
/// of an earlier job goes, damaged ones too, but a path may be mistyped.
fn may_replace(path: &Path) -> io::Result<()> {
    let refused = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(found) if !found.is_file() => {
            refused("it is a device or a pipe, and a file would take its place")
        }
        Ok(found) if found.len() > FILE_BYTES_MAX => {
            refused("a file is there that is too long for an id; remove it, or name another")
        }
        // Nothing, or what cannot be looked at: what follows tells.
        _ => Ok(()),
    }
}

/// The addresses, and what stands behind them; `None` when they reach beyond the end.
fn parse_addresses(bytes: &[u8; ID_BYTES]) -> Option<(Vec<SocketAddr>, &[u8])> {
    let mut rest = &bytes[HEAD_BYTES + SECRET_BYTES..];
    let mut addresses = Vec::new();
    for _ in 0..bytes[8] {
        let (head, behind) = rest.split_first_chunk::<3>()?;
        let ip = match head[0] {
            4 => IpAddr::from(*behind.first_chunk::<4>()?),
            6 => IpAddr::from(*behind.first_chunk::<16>()?),
            _ => return None,
        };
        addresses.push(SocketAddr::new(ip, u16::from_le_bytes([head[1], head[2]])));
        rest = &behind[if ip.is_ipv4() { 4 } else { 16 }..];
    }
    Some((addresses, rest))
}

impl fmt::Display for UniqueId {
    /// 256 hexadecimal digits; they contain the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for UniqueId {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

impl FromStr for UniqueId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let digits = text.as_bytes();
        if digits.len() != 2 * ID_BYTES {
            return Err(IdError::Text { what: format!("it has {} characters", digits.len()) });
        }
        let mut bytes = [0; ID_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit: u8| (digit as char).to_digit(16);
            *byte = match (digit(pair[0]), digit(pair[1])) {
                (Some(high), Some(low)) => (high * 16 + low) as u8,
                _ => return Err(IdError::Text { what: "it has other characters".into() }),
            };
        }
        Self::from_bytes(bytes)
    }
}
