//! Commands to drives past the block layer, as the kernel takes them.

/// The kernel's `struct nvme_uring_cmd`, as far as reads, writes and flushes use it.
#[derive(Clone, Copy)]
pub(super) struct Command {
    pub(super) operation: u8,
    pub(super) namespace: u32,
    pub(super) data_bytes: u32,
    pub(super) first_block: u64,
    /// One less than there are, as the drive counts.
    pub(super) last_block: u16,
}

impl Command {
    /// `NVME_URING_CMD_IO`, that is `_IOWR('N', 0x80, struct nvme_uring_cmd)` of 72 bytes.
    pub(super) const CODE: u32 = 0xC048_4E80;

    /// The command's bytes, for data at this address.
    pub(super) fn bytes(&self, address: u64) -> [u8; 80] {
        let mut bytes = [0; 80];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &[self.operation]);
        put(4, &self.namespace.to_ne_bytes());
        put(24, &address.to_ne_bytes());
        put(36, &self.data_bytes.to_ne_bytes());
        put(40, &self.first_block.to_ne_bytes());
        put(48, &u32::from(self.last_block).to_ne_bytes());
        bytes
    }
}
