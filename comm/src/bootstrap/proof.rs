//! Proving the job's secret, for a root that serves many at once and waits for nobody.
//!
//! The same three passes as the transports' blocking proof (ISO/IEC 9798-4 with HMAC-SHA256), but
//! as pure functions between frames: the joining end shows its code first, so a stranger learns
//! one nonce and nothing else.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The two nonces of one attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nonces {
    pub(super) joining: [u8; 32],
    pub(super) root: [u8; 32],
}

impl Nonces {
    /// What both ends believe about the connection, for keys that are good for it alone.
    pub(super) fn context(&self) -> [u8; 64] {
        let mut context = [0; 64];
        context[..32].copy_from_slice(&self.joining);
        context[32..].copy_from_slice(&self.root);
        context
    }
}

/// Who shows a code, and whether the joining end encrypts what it says from there on. The codes of
/// the two differ, so neither can be sent back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    Joining { encrypt: bool },
    Root { encrypt: bool },
}

/// The code that `side` shows.
pub(super) fn show(secret: &[u8; 32], side: Side, nonces: &Nonces) -> [u8; 32] {
    keyed(secret, side, nonces).finalize().into_bytes().into()
}

/// Whether `mac` is the code that `side` has to show; takes the same time for every wrong one.
pub(super) fn check(secret: &[u8; 32], side: Side, nonces: &Nonces, mac: &[u8; 32]) -> bool {
    keyed(secret, side, nonces).verify_slice(mac).is_ok()
}

/// The secret of one world, from the job's: transports use it, and it never travels.
pub(super) fn world_secret(secret: &[u8; 32], nonce: &[u8; 32]) -> [u8; 32] {
    let mut mac = mac(secret);
    mac.update(b"brigade world");
    mac.update(nonce);
    mac.finalize().into_bytes().into()
}

/// The secret of a root whose id lies where others may read it, from that of the id and the job's.
pub(super) fn keyed_secret(secret: &[u8; 32], job: &[u8; 32]) -> [u8; 32] {
    let mut mac = mac(job);
    mac.update(b"brigade id in a store");
    mac.update(secret);
    mac.finalize().into_bytes().into()
}

/// Bytes that nobody can have seen before.
pub(super) fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(bytes)
}

fn keyed(secret: &[u8; 32], side: Side, nonces: &Nonces) -> Hmac<Sha256> {
    let mut mac = mac(secret);
    let (name, encrypt) = match side {
        Side::Joining { encrypt } => (b"brigade join", encrypt),
        Side::Root { encrypt } => (b"brigade root", encrypt),
    };
    mac.update(name);
    mac.update(&nonces.joining);
    mac.update(&nonces.root);
    mac.update(&[encrypt.into()]);
    mac
}

fn mac(secret: &[u8; 32]) -> Hmac<Sha256> {
    Hmac::new_from_slice(secret).expect("HMAC takes keys of any length")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_good_for_its_secret_its_side_its_nonces_and_its_intention_only() {
        let nonces = Nonces { joining: [1; 32], root: [2; 32] };
        let (joining, root) = (Side::Joining { encrypt: true }, Side::Root { encrypt: true });
        let mac = show(&[3; 32], joining, &nonces);
        assert!(check(&[3; 32], joining, &nonces, &mac));
        assert!(!check(&[4; 32], joining, &nonces, &mac));
        assert!(!check(&[3; 32], root, &nonces, &mac));
        assert!(!check(&[3; 32], Side::Joining { encrypt: false }, &nonces, &mac));
        let swapped = Nonces { joining: [2; 32], root: [1; 32] };
        assert!(!check(&[3; 32], joining, &swapped, &mac));
    }
}
