//! How a stream is cut into pieces, and how many of them may be on their way.

/// Pieces begin at multiples of this.
pub(super) const LINE_BYTES: usize = 64;
/// The most pieces that the receiver has not consumed yet.
pub(super) const PIECES: usize = 64;
/// Room for what we post on a queue pair: twice as much, since pieces may be sent again.
pub(super) const SENDS: u32 = 2 * PIECES as u32;
/// Room for the receiver's words: it sends one for every quarter of the ring or of the pieces.
pub(super) const CREDITS: u32 = 16;

/// The longest piece in a ring of this length.
pub(super) fn piece_bytes(ring_bytes: usize) -> usize {
    (ring_bytes / 8).clamp(4 << 10, 128 << 10)
}
