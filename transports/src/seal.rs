//! Sealing a stream whose ends know one secret: who is between them reads nothing of it, and can
//! neither change it, nor say it again, nor leave out anything but its end.
//!
//! * `keys`: how the ends agree on keys, one for each direction
//! * `records`: the stream, cut into sealed pieces
//!
//! ```text
//! connecting                                accepting
//!     psk, e: 48 bytes  ──────────────────────▶
//!     ◀──────────────────────  e, ee: 48 bytes
//!     ◀────  length 2, sealed bytes, tag 16  ────▶    again and again
//! ```
//!
//! The keys come from a secret that both know and from two numbers that are drawn for this stream
//! alone and thrown away: whoever learns the secret afterwards cannot read what was recorded
//! before, and who only listens cannot at all.
//!
//! Source: T. Perrin, The Noise Protocol Framework, revision 34: pattern NNpsk0 (sections 7.5 and
//! 9), rekeying (11.3).

mod keys;
mod records;

pub use keys::{Offer, SHARE_BYTES, accept};
pub use records::{BODY_BYTES, Opener, RECORD_BYTES, Sealer};

/// What one end has for each direction.
#[derive(Debug)]
pub struct Seals {
    /// For what this end says.
    pub sealer: Sealer,
    /// For what it hears.
    pub opener: Opener,
}
