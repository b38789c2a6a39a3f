//! Numbers, texts and byte strings, written to and read from a frame.

use thiserror::Error;

/// The longest text in a frame; longer ones are cut.
pub(crate) const TEXT_BYTES_MAX: usize = 512;

/// Bytes that nobody of ours would send.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{what}")]
pub(crate) struct Malformed {
    pub(crate) what: &'static str,
}

/// A rank as it travels.
pub(crate) fn wire(rank: usize) -> u32 {
    u32::try_from(rank).expect("ranks are bounded by RANKS_MAX")
}

/// A frame being written.
pub(crate) struct Parts(pub(crate) Vec<u8>);

impl Parts {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// How many of something follow.
    pub(crate) fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).expect("counts are bounded by the number of ranks"));
    }

    /// Bytes whose number both ends know.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Bytes behind their number.
    pub(crate) fn long(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.bytes(bytes);
    }

    /// A text behind its length, cut where it would be too long.
    pub(crate) fn text(&mut self, text: &str) {
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.u16(u16::try_from(end).expect("texts are short"));
        self.bytes(&text.as_bytes()[..end]);
    }
}

/// What has not yet been read of a frame.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self
            .0
            .split_at_checked(count)
            .ok_or(Malformed { what: "a frame that ends in the middle of a field" })?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed { what: "neither yes nor no" }),
        }
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// How many of something follow. Each is at least a byte, so a number beyond what is left of
    /// the frame is a lie and is found before anything is reserved for it.
    pub(crate) fn count(&mut self) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        if count > self.0.len() {
            return Err(Malformed { what: "a count beyond the end of its frame" });
        }
        Ok(count)
    }

    pub(crate) fn long(&mut self, bytes_max: usize) -> Result<&'a [u8], Malformed> {
        let count = self.count()?;
        if count > bytes_max {
            return Err(Malformed { what: "a card longer than is allowed" });
        }
        self.take(count)
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        let count = usize::from(self.u16()?);
        if count > TEXT_BYTES_MAX {
            return Err(Malformed { what: "a text longer than is allowed" });
        }
        let text = std::str::from_utf8(self.take(count)?)
            .map_err(|_| Malformed { what: "a text that is not UTF-8" })?;
        // It ends up on people's terminals.
        Ok(text.replace(|letter: char| letter.is_control() && letter != '\n', "?"))
    }

    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed { what: "bytes behind a frame" }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_no_letters_that_a_terminal_obeys() {
        let mut parts = Parts(Vec::new());
        parts.text("one\x1b[2J\ntwo\u{9b}");
        assert_eq!(Fields(&parts.0).text().as_deref(), Ok("one?[2J\ntwo?"));
    }
}
