//! Memory for the buffers of all cases: taken once, aligned to a page, touched before it is timed.

/// A page on every machine we run on, or several.
const ALIGN: usize = 4096;

/// One buffer, reused from case to case.
pub(crate) struct Arena {
    memory: Vec<u8>,
    start: usize,
}

impl Arena {
    /// Room for so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        // Not `vec![0; _]`: pages that were never written are all the same page of zeros, and
        // reading that page costs less than reading memory.
        let memory = vec![1; bytes + ALIGN];
        let start = memory.as_ptr().align_offset(ALIGN);
        assert!(start < ALIGN, "bytes can be aligned to anything");
        Self { memory, start }
    }

    /// The first `bytes` of it.
    pub(crate) fn bytes(&mut self, bytes: usize) -> &mut [u8] {
        &mut self.memory[self.start..][..bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_begin_on_a_page() {
        let mut arena = Arena::new(100);
        assert_eq!(arena.bytes(100).as_ptr() as usize % ALIGN, 0);
        assert_eq!(arena.bytes(100).len(), 100);
        assert!(arena.bytes(0).is_empty());
    }
}
