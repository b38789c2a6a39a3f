//! Pieces of states brought together in memory: each block is read once, whatever is needed of it.

use super::error::StoreError;
use super::shared::PendingBlock;
use super::state::StateFile;
use crate::layout::Piece;
use crate::memory::Category;
use crate::storage::Priority;

/// Bytes of one block, and where they go.
#[derive(Clone, Copy)]
struct Part {
    source: usize,
    block: u64,
    /// Where in the block. \[bytes\]
    within: usize,
    /// Where in the target. \[bytes\]
    target: usize,
    bytes: usize,
}

/// Read these pieces, of which each names one of the states, into the target. All blocks are
/// checked.
pub(super) fn gather(
    states: &[&StateFile],
    pieces: &[Piece],
    target: &mut [u8],
) -> Result<(), StoreError> {
    let Some(largest) = states.iter().map(|state| state.geometry().block_bytes()).max() else {
        assert!(pieces.is_empty(), "pieces of no state");
        return Ok(());
    };
    let carrier = &states[0].shared.carrier;
    let mut convoy = carrier.convoy(largest, Category::Staging);
    let mut land = |(pending, parts): (PendingBlock, &[Part])| {
        let buffer = pending.wait(carrier)?;
        for part in parts {
            let source = &buffer[part.within..part.within + part.bytes];
            target[part.target..part.target + part.bytes].copy_from_slice(source);
        }
        Ok(buffer)
    };
    let mut parts: Vec<Part> = pieces.iter().flat_map(|piece| cut(states, piece)).collect();
    // All sources advance together, so several devices work at once.
    parts.sort_by_key(|part| (part.block, part.source));
    for parts in parts.chunk_by(|a, b| (a.block, a.source) == (b.block, b.source)) {
        let buffer = convoy.buffer(&mut land)?;
        let pending = states[parts[0].source].read_block(parts[0].block, buffer, Priority::Urgent);
        convoy.send((pending, parts));
    }
    convoy.finish(&mut land)
}

/// Cut a piece where blocks end.
fn cut(states: &[&StateFile], piece: &Piece) -> impl Iterator<Item = Part> + use<> {
    let Piece { source, offset, target, bytes } = *piece;
    let block_bytes = states[source].geometry().block_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        (at < bytes).then(|| {
            let within = (offset + at) % block_bytes;
            let part = Part {
                source,
                block: (offset + at) / block_bytes,
                within: within as usize,
                target: (target + at) as usize,
                bytes: (bytes - at).min(block_bytes - within) as usize,
            };
            at += part.bytes as u64;
            part
        })
    })
}
