//! What is to pass between a file and memory of a device: which bytes, which way, how cut.

/// How bytes are cut, and whether the straight way is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSettings {
    /// The most bytes of a transfer: a multiple of 4 KiB.
    pub piece_bytes: usize,
    /// Transfers on their way, each by a thread (straight) or a pinned buffer of so many bytes.
    pub pieces: usize,
    /// Ask for GPUDirect Storage.
    pub direct: bool,
}

impl Default for FileSettings {
    fn default() -> Self {
        Self { piece_bytes: 4 << 20, pieces: 8, direct: true }
    }
}

/// Which bytes: `bytes` at `offset` of a file, and at `at` of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where in the file.
    pub offset: u64,
    /// Where in the device's memory.
    pub at: usize,
    /// How many.
    pub bytes: usize,
}

impl Part {
    /// The part of this from its `start`-th byte on.
    pub(super) fn cut(self, start: usize, bytes: usize) -> Part {
        Part { offset: self.offset + start as u64, at: self.at + start, bytes }
    }

    /// This in pieces of at most so many bytes.
    pub(super) fn pieces(self, most: usize) -> impl Iterator<Item = Part> {
        (0..self.bytes).step_by(most).map(move |at| self.cut(at, most.min(self.bytes - at)))
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// To the device.
    Read,
    /// To the file.
    Write,
}
