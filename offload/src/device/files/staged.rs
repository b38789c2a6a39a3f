//! Any bytes between a file and a device, through pinned buffers: while some are read, others
//! cross.

use super::part::{Direction, FileSettings, Part};
use super::problem::FileProblem;
use crate::device::{Lane, PinnedArena};
use crate::memory::{Buffer, Category};
use crate::storage::{File, Priority, Storage};
use std::collections::VecDeque;
use std::time::Duration;

/// How long one transfer may take.
const LIMIT: Duration = Duration::from_secs(60);

/// What a part passes through.
pub(super) struct Staged<'a> {
    pub(super) storage: &'a Storage,
    pub(super) pinned: &'a PinnedArena,
    pub(super) settings: FileSettings,
}

impl Staged<'_> {
    /// Move a part, and wait until it is there. `address` is where the memory begins; the part lies
    /// within it and is the caller's alone.
    pub(super) fn pass(
        &self,
        direction: Direction,
        file: &File,
        address: u64,
        part: Part,
    ) -> Result<(), FileProblem> {
        let FileSettings { piece_bytes, pieces, .. } = self.settings;
        let count = part.bytes.div_ceil(piece_bytes).min(pieces);
        let take = |_| self.pinned.arena().take(piece_bytes, Category::Staging);
        let free = (0..count).map(take).collect::<Result<Vec<Buffer>, _>>()?;
        let lane = self.pinned.lane()?;
        match direction {
            Direction::Read => self.read(file, address, part, &lane, free),
            Direction::Write => self.write(file, address, part, &lane, free),
        }
    }

    fn read(
        &self,
        file: &File,
        address: u64,
        part: Part,
        lane: &Lane<'_>,
        mut free: Vec<Buffer>,
    ) -> Result<(), FileProblem> {
        let half = free.len() / 2;
        let (mut reading, mut crossing) = (VecDeque::new(), VecDeque::new());
        let mut pieces = part.pieces(self.settings.piece_bytes);
        loop {
            while let Some(buffer) = free.pop()
                && let Some(piece) = pieces.next()
            {
                let (Part { offset, bytes, .. }, urgent) = (piece, Priority::Urgent);
                let read = self.storage.read(file, offset, buffer, 0..bytes, urgent);
                reading.push_back((piece, read));
            }
            let Some((Part { at, bytes, .. }, read)) = reading.pop_front() else { break };
            let buffer = read.wait(LIMIT).into_buffer()?;
            // SAFETY: the part is the caller's until we return, which is after all flights.
            let flight = unsafe { lane.up_first(address + at as u64, buffer, bytes) }?;
            crossing.push_back(flight);
            if crossing.len() > half {
                let flight = crossing.pop_front().expect("there is one");
                free.push(flight.land()?);
            }
        }
        Ok(crossing.into_iter().try_for_each(|flight| flight.land().map(drop))?)
    }

    fn write(
        &self,
        file: &File,
        address: u64,
        part: Part,
        lane: &Lane<'_>,
        mut free: Vec<Buffer>,
    ) -> Result<(), FileProblem> {
        let half = free.len() / 2;
        let (mut crossing, mut writing) = (VecDeque::new(), VecDeque::new());
        let mut pieces = part.pieces(self.settings.piece_bytes);
        loop {
            while let Some(buffer) = free.pop()
                && let Some(piece) = pieces.next()
            {
                let from = address + piece.at as u64;
                // SAFETY: as in `read`.
                crossing.push_back((piece, unsafe { lane.down_first(from, buffer, piece.bytes) }?));
            }
            let Some((Part { offset, bytes, .. }, flight)) = crossing.pop_front() else { break };
            let (buffer, urgent) = (flight.land()?, Priority::Urgent);
            writing.push_back(self.storage.write(file, offset, buffer, 0..bytes, urgent));
            if writing.len() > half {
                let write = writing.pop_front().expect("there is one");
                free.push(write.wait(LIMIT).into_buffer()?);
            }
        }
        writing.into_iter().try_for_each(|write| Ok(write.wait(LIMIT).into_buffer().map(drop)?))
    }
}
