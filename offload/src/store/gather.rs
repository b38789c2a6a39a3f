//! Pieces of states brought together in memory: each block is read once, whatever is needed of it.

use super::error::StoreError;
use super::shared::PendingBlock;
use super::state::StateFile;
use crate::layout::{Piece, Placed};
use crate::memory::Category;
use crate::storage::Priority;

impl StateFile {
    /// Read bytes of the state, from `offset` on: those of tensors and of the gaps between them.
    ///
    /// Errors: nothing was ever committed, or a block of them is damaged or cannot be read.
    pub fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), StoreError> {
        self.must_have_generation()?;
        let bytes = target.len() as u64;
        gather(&[self], &[Piece { source: 0, offset, target: 0, bytes }], target)
    }

    /// Read a part of a tensor, `from` so many bytes after its begin. Panics: if it ends before.
    pub fn read_tensor(
        &self,
        placed: &Placed,
        from: u64,
        target: &mut [u8],
    ) -> Result<(), StoreError> {
        let bytes = target.len() as u64;
        assert!(from + bytes <= placed.tensor.bytes(), "{from} + {bytes} of {placed:?}");
        self.read(placed.offset + from, target)
    }
}

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
