//! What the root has to say on one connection, from one place on sealed.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;

use brigade_transports::seal::{BODY_BYTES, Sealer};

/// Frames that wait to be written. A frame that goes to many is one in memory: it is sealed, for
/// each anew, a record at a time when its turn has come.
#[derive(Default)]
pub(super) struct Outbox {
    frames: VecDeque<Arc<[u8]>>,
    /// How many bytes of the first frame have been written, or are in the record.
    done_bytes: usize,
    sealer: Option<Sealer>,
    /// How many frames were there before anything was sealed.
    open_frames: usize,
    record: Vec<u8>,
    /// How many bytes of the record have been written.
    sent_bytes: usize,
}

impl Outbox {
    pub(super) fn push(&mut self, frame: Arc<[u8]>) {
        self.frames.push_back(frame);
    }

    /// What is pushed from now on is sealed.
    pub(super) fn seal_with(&mut self, sealer: Sealer) {
        (self.sealer, self.open_frames) = (Some(sealer), self.frames.len());
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.sealer.is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Write until nothing is left; fails as `stream` does, `WouldBlock` among it.
    pub(super) fn write_to(&mut self, stream: &mut impl Write) -> io::Result<()> {
        loop {
            let left = &self.record[self.sent_bytes..];
            if !left.is_empty() {
                self.sent_bytes += stream.write(left)?;
                continue;
            }
            let Some(frame) = self.frames.front() else {
                // Thousands of ranks have nothing to be told for most of the time.
                (self.record, self.sent_bytes) = (Vec::new(), 0);
                return Ok(());
            };
            let left = &frame[self.done_bytes..];
            match &mut self.sealer {
                _ if left.is_empty() => {
                    self.frames.pop_front();
                    self.done_bytes = 0;
                    self.open_frames = self.open_frames.saturating_sub(1);
                }
                Some(sealer) if self.open_frames == 0 => {
                    let body = &left[..left.len().min(BODY_BYTES)];
                    self.record.clear();
                    sealer.seal(&[], body, &mut self.record);
                    self.done_bytes += body.len();
                    self.sent_bytes = 0;
                }
                _ => self.done_bytes += stream.write(left)?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use brigade_transports::seal::{self, Offer};

    use super::*;

    /// Takes a few bytes at a time, and every third time none.
    #[derive(Default)]
    struct Narrow {
        bytes: Vec<u8>,
        turns: usize,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.turns += 1;
            if self.turns.is_multiple_of(3) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let count = bytes.len().min(7000);
            self.bytes.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn frames_go_out_in_order_and_from_one_on_sealed() {
        let (offer, share) = Offer::new(&[7; 32], b"").unwrap();
        let (share, root) = seal::accept(&[7; 32], b"", &share).unwrap();
        let mut opener = offer.conclude(&share).unwrap().opener;
        let frame = |byte: u8, length: usize| Arc::<[u8]>::from(vec![byte; length]);
        let open = [frame(1, 10_000), frame(2, 5)];
        let sealed = [frame(3, 40_000), frame(4, BODY_BYTES), frame(5, 9)];
        let (mut outbox, mut wire) = (Outbox::default(), Narrow::default());
        open.iter().for_each(|frame| outbox.push(Arc::clone(frame)));
        // Sealing begins while the first frame is half out.
        wire.turns = 1;
        assert!(outbox.write_to(&mut wire).is_err() && wire.bytes.len() == 7000);
        outbox.seal_with(root.sealer);
        sealed.iter().for_each(|frame| outbox.push(Arc::clone(frame)));
        while let Err(error) = outbox.write_to(&mut wire) {
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            assert!(!outbox.is_empty(), "it has not said all");
        }
        assert!(outbox.is_empty());
        let (said, mut behind) = wire.bytes.split_at(open.iter().map(|frame| frame.len()).sum());
        assert_eq!(said, open.concat());
        let mut opened = Vec::new();
        while !behind.is_empty() {
            let room = opener.room();
            let count = behind.len().min(room.len());
            room[..count].copy_from_slice(&behind[..count]);
            opener.fill(count);
            behind = &behind[count..];
            while let some @ [_, ..] = opener.opened().unwrap() {
                opened.extend_from_slice(some);
                let count = some.len();
                opener.take(count);
            }
        }
        assert!(opened == sealed.concat());
    }
}
