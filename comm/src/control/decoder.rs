//! Bytes as they come, made into frames.

use super::codec::Malformed;
use super::frame::{Frame, LENGTH_BYTES};

/// Cuts a stream of bytes into frames. Holds less than one frame between calls.
#[derive(Debug)]
pub(crate) struct Decoder {
    bytes: Vec<u8>,
    done: usize,
    frame_bytes_max: usize,
}

impl Decoder {
    /// A decoder that takes frames of up to `frame_bytes_max` bytes.
    pub(crate) fn new(frame_bytes_max: usize) -> Self {
        Self { bytes: Vec::new(), done: 0, frame_bytes_max }
    }

    /// From now on take longer (or only shorter) frames.
    pub(crate) fn limit(&mut self, frame_bytes_max: usize) {
        self.frame_bytes_max = frame_bytes_max;
    }

    /// Take bytes as they came.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.done > 0 {
            self.bytes.drain(..self.done);
            self.done = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame, or `None` until more bytes have come.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
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
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests;
