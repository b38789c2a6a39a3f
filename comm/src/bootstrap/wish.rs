//! What a rank asks the root for, and the card that it brings.

use std::time::Duration;

use super::error::JoinError;
use crate::control::{CARD_BYTES_MAX, Member};

/// What a rank asks for.
pub(super) struct Wish<'a> {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) card: &'a mut CardMaker<'a>,
    pub(super) process: [u8; 16],
    pub(super) member: Member,
    /// After how long the root shall tell who is missing.
    pub(super) report_after: Option<Duration>,
    pub(super) silence: Duration,
    /// Whether to seal what is said.
    pub(super) encrypt: bool,
}

/// What makes this rank's card, once the job's secret is known. Asked again when the root turned
/// out to be another one, with another secret.
pub(crate) type CardMaker<'a> = dyn FnMut(&[u8; 32]) -> Result<Vec<u8>, String> + 'a;

/// The card for a world with this secret.
pub(super) fn draw(card: &mut CardMaker<'_>, secret: &[u8; 32]) -> Result<Vec<u8>, JoinError> {
    let bytes = card(secret).map_err(|why| JoinError::NoCard { why })?;
    if bytes.len() > CARD_BYTES_MAX {
        return Err(JoinError::CardTooLong { bytes: bytes.len() });
    }
    Ok(bytes)
}
