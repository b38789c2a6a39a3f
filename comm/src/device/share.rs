//! How much of its device a rank gives to the calls of one group.

/// What calls of a group may take of a rank's device, beside those of other groups there: those
/// that wait for other ranks must all fit at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceShare {
    /// Groups whose calls may be there at once, this one among them.
    pub(super) groups: u32,
    /// Blocks of a call.
    pub(super) blocks: u32,
}

impl DeviceShare {
    /// An equal part, where calls of so many groups may be on the device at once, this one among
    /// them; 0 counts as 1.
    pub fn among(groups: u32) -> Self {
        Self { groups: groups.max(1), ..Self::default() }
    }

    /// So many blocks of a kernel at most, each of which takes a multiprocessor while it runs; 0
    /// counts as 1. All ranks take the least that any of them says.
    pub fn at_most(self, blocks: u32) -> Self {
        Self { blocks: blocks.max(1), ..self }
    }
}

impl Default for DeviceShare {
    /// All of it.
    fn default() -> Self {
        Self { groups: 1, blocks: u32::MAX }
    }
}
