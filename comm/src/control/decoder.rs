//! Bytes as they come, made into frames.

use std::io::{self, Read};

use brigade_transports::seal::Opener;

use super::codec::Malformed;
use super::frame::{Frame, LENGTH_BYTES};

/// How much is read at a time.
const READ_BYTES: usize = 16 << 10;

/// Cuts a stream of bytes into frames, which may be sealed from some place on. Once there is no
/// next one it holds less than one frame.
#[derive(Debug)]
pub(crate) struct Decoder {
    bytes: Vec<u8>,
    done: usize,
    frame_bytes_max: usize,
    opener: Option<Box<Opener>>,
    /// The other end has shown its share of a key: what comes behind it is sealed.
    awaits_opener: bool,
}

impl Decoder {
    /// A decoder that takes frames of up to `frame_bytes_max` bytes.
    pub(crate) fn new(frame_bytes_max: usize) -> Self {
        let (bytes, done, opener, awaits_opener) = (Vec::new(), 0, None, false);
        Self { bytes, done, frame_bytes_max, opener, awaits_opener }
    }

    /// What comes behind the share of a key that was last heard is opened by this, also what has
    /// come already. Errors: `InvalidData` where that is not sealed as it should be.
    pub(crate) fn open_with(&mut self, mut opener: Opener) -> io::Result<()> {
        let behind = self.bytes.split_off(self.done);
        let room = opener.room().get_mut(..behind.len()).ok_or(io::ErrorKind::InvalidData)?;
        room.copy_from_slice(&behind);
        opener.fill(behind.len());
        let outcome = self.take_opened(&mut opener);
        (self.opener, self.awaits_opener) = (Some(Box::new(opener)), false);
        outcome
    }

    /// Take what has come on `stream`, by reading once; returns how many bytes that was, none at
    /// its end. Errors: the stream's, and `InvalidData` for what is not sealed as it should be.
    pub(crate) fn read(&mut self, stream: &mut impl Read) -> io::Result<usize> {
        let Some(mut opener) = self.opener.take() else {
            let mut bytes = [0; READ_BYTES];
            let count = stream.read(&mut bytes)?;
            self.push(&bytes[..count]);
            return Ok(count);
        };
        // What was broken before is so still.
        let outcome = self.take_opened(&mut opener).and_then(|()| {
            let count = stream.read(opener.room())?;
            opener.fill(count);
            self.take_opened(&mut opener).map(|()| count)
        });
        self.opener = Some(opener);
        outcome
    }

    /// What is wrong with what has come behind the last frame, if it is not sealed as it should be.
    pub(crate) fn damage(&mut self) -> Option<io::Error> {
        self.opener.as_mut().and_then(|opener| opener.opened().err())
    }

    /// All that can be opened. Errors: as for `read`, unless there was something in front of it.
    fn take_opened(&mut self, opener: &mut Opener) -> io::Result<()> {
        let mut has_taken = false;
        loop {
            match opener.opened() {
                Ok([]) => return Ok(()),
                Err(_) if has_taken => return Ok(()),
                Err(error) => return Err(error),
                Ok(opened) => {
                    self.push(opened);
                    let count = opened.len();
                    opener.take(count);
                    has_taken = true;
                }
            }
        }
    }

    /// From now on take longer (or only shorter) frames.
    pub(crate) fn limit(&mut self, frame_bytes_max: usize) {
        self.frame_bytes_max = frame_bytes_max;
    }

    /// Take bytes as they came.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.done > 0 {
            self.bytes.drain(..self.done);
            self.done = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame, or `None` until more bytes have come.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        if self.awaits_opener {
            return Ok(None);
        }
        let waiting = &self.bytes[self.done..];
        let Some((length, rest)) = waiting.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > self.frame_bytes_max {
            return Err(Malformed { what: "a frame longer than is allowed here" });
        }
        let Some(frame) = rest.get(..length) else {
            return Ok(None);
        };
        let frame = Frame::decode(frame)?;
        self.done += LENGTH_BYTES + length;
        self.awaits_opener = matches!(frame, Frame::Share { .. });
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests;
