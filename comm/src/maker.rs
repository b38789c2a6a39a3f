//! Who made something: a child made by `fork` has copies of what its parent uses.

/// The process that made something.
#[derive(Clone, Copy)]
pub(crate) struct Maker(u32);

impl Maker {
    /// This process.
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    /// Whether that is another process, whose child this one is: it goes on with what it made, so
    /// nothing of it may be closed or told to others here.
    pub(crate) fn is_parent(self) -> bool {
        self.0 != std::process::id()
    }
}
