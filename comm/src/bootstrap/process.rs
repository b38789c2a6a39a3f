//! Which process a rank is of.

use std::io;
use std::sync::OnceLock;

use super::proof;

/// How many bytes tell a process from all others, and how many of them its threads draw once.
const TOKEN_BYTES: usize = 16;
pub(super) const DRAWN_BYTES: usize = 12;

/// Bytes that are the same for all ranks of this process and different everywhere else. The number
/// of the process is among them, so that a fork is another process; for a rank that another thread
/// is, too, they are others.
pub(super) fn process_token(is_second: bool) -> io::Result<[u8; TOKEN_BYTES]> {
    static DRAWN: OnceLock<[u8; DRAWN_BYTES]> = OnceLock::new();
    let drawn = match DRAWN.get() {
        Some(drawn) => drawn,
        None => {
            let drawn = proof::random()?;
            DRAWN.get_or_init(|| drawn)
        }
    };
    let pid = std::process::id();
    let mut token = [0; TOKEN_BYTES];
    token[..DRAWN_BYTES].copy_from_slice(drawn);
    // No process has a number with its highest bit set.
    token[DRAWN_BYTES..].copy_from_slice(&if is_second { !pid } else { pid }.to_le_bytes());
    Ok(token)
}
