//! Whole blocks between a file and a device by cuFile, whose calls return when they are done: so
//! several threads make them, each for the next piece.

use super::part::{Direction, FileSettings, Part};
use brigade_cuda::cufile::{DirectFile, DirectMemory};
use brigade_cuda::{CudaError, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// The shortest block of a file.
const BLOCK: usize = 512;

/// Move a part of whole blocks. When it returns, nobody is moving anything any more.
///
/// Errors: the first that a piece had; some of the part may have been moved.
pub(super) fn pass(
    file: &DirectFile,
    memory: &DirectMemory,
    direction: Direction,
    part: Part,
    settings: FileSettings,
) -> Result<()> {
    let pieces: Vec<Part> = part.pieces(settings.piece_bytes).collect();
    let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || -> Result<()> {
        let _here = memory.memory().context().enter()?;
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed))
            && !has_failed.load(Ordering::Relaxed)
        {
            move_piece(file, memory, direction, *piece)
                .inspect_err(|_| has_failed.store(true, Ordering::Relaxed))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let others = settings.pieces.min(pieces.len()).saturating_sub(1);
        let others: Vec<_> = (0..others).map(|_| scope.spawn(work)).collect();
        // All are waited for before the first error is told.
        let mine = work();
        let ends = others.into_iter().map(|other| other.join().expect("it does not panic"));
        ends.fold(mine, |first, end| first.and(end))
    })
}

/// Move a piece, however few bytes a call moves.
fn move_piece(
    file: &DirectFile,
    memory: &DirectMemory,
    direction: Direction,
    piece: Part,
) -> Result<()> {
    let mut done = 0;
    while done < piece.bytes {
        let Part { offset, at, bytes } = piece.cut(done, piece.bytes - done);
        // SAFETY: the part is the caller's until all threads have ended, and no two have the same
        // piece; streams that use it were waited for.
        let moved = unsafe {
            match direction {
                Direction::Read => file.read(memory, at, offset, bytes),
                Direction::Write => file.write(memory, at, offset, bytes),
            }
        }?;
        // What is asked for lies within the file and is of whole blocks, and so are its parts.
        if moved == 0 || !moved.is_multiple_of(BLOCK) {
            let why = format!("cuFile moved {moved} of {bytes} bytes at offset {offset}");
            return Err(CudaError::Refused { why });
        }
        done += moved;
    }
    Ok(())
}
