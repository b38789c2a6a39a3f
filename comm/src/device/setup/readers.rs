//! Which devices reach which buffers, where ranks are threads of one process: memory of pools, and
//! what is mapped, is opened to each device by itself, and a kernel that reads what its device does
//! not reach ends, and its device's context with it.

use std::cell::OnceCell;

use brigade_cuda::{Context, CudaError, Device};

use super::super::Inner;
use super::super::way::Way;
use crate::Error;

impl Inner {
    /// The other devices whose ranks read this one's memory where it lies, without a meeting.
    pub(in crate::device) fn readers(&self) -> Result<Vec<Device>, CudaError> {
        if self.way != Way::Together {
            return Ok(Vec::new());
        }
        let own = self.context.device();
        let has_rank = |ordinal: u32| self.cards.iter().any(|card| card.ordinal == ordinal);
        if self.cards.iter().all(|card| card.ordinal == own.ordinal) {
            return Ok(Vec::new());
        }
        let mut devices = own.cuda.devices()?;
        devices.retain(|device| device.ordinal != own.ordinal && has_rank(device.ordinal));
        Ok(devices)
    }

    /// Refuse a buffer that ranks on other devices would read where it lies, and do not reach.
    /// Costs some 100 ns for each of those `readers`, which are found the first time.
    pub(in crate::device) fn refuse_unread(
        &self,
        what: &str,
        address: u64,
        readers: &OnceCell<Vec<Context>>,
    ) -> Result<(), Error> {
        let found = || {
            // A driver that does not answer has refused nothing.
            let devices = self.readers().unwrap_or_default();
            devices.iter().filter_map(|device| Context::new(device).ok()).collect()
        };
        for reader in readers.get_or_init(found) {
            if self.reads(reader, address) {
                continue;
            }
            let (own, other) = (self.context.device().ordinal, reader.device().ordinal);
            return Err(Error::invalid(format!(
                "the {what} at {address:#x} lies in memory of device {own} that device {other} \
                 does not reach: memory of a pool or that was mapped has to be opened to it \
                 (cuMemPoolSetAccess, cuMemSetAccess; PyTorch: neither expandable_segments nor \
                 cudaMallocAsync), or each rank has to be a process"
            )));
        }
        Ok(())
    }

    /// Whether kernels of this rank read a buffer of a rank that is another thread.
    pub(in crate::device) fn reads_of(&self, peer: usize, address: u64) -> bool {
        let (own, theirs) = (&self.cards[self.group.rank as usize], &self.cards[peer]);
        let reads = |address| self.context.accesses(address).unwrap_or(false);
        own.uuid == theirs.uuid
            || reads(address)
            || !reads(theirs.shows)
            // What is the host's all devices reach, whatever a driver says of it.
            || !self.context.device().cuda.where_is(address).is_ok_and(|found| found.is_on_device())
    }

    /// Whether kernels of another device read what lies on this one. What is shown they do, as was
    /// proved: a driver that says no of that, too, does not know the question.
    fn reads(&self, reader: &Context, address: u64) -> bool {
        let reads = |address| reader.accesses(address).unwrap_or(false);
        reads(address) || !reads(self.board.address())
    }
}
