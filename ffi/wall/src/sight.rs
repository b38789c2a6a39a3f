//! Memory that the host cannot read, noticed before a call reads it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use brigade_comm::device::cuda::Onlooker;

use crate::memory::Memory;

/// The driver that this process was seen to have open.
static DRIVER: OnceLock<Onlooker> = OnceLock::new();

/// Whether an address leads to memory of a device, which the host cannot read. Only where a driver
/// is open can there be such pointers; none is opened here, and none set up. Costs some 100 ns with
/// a driver, some microseconds without.
pub fn is_out_of_reach(address: u64) -> bool {
    if DRIVER.get().is_none()
        && let Some(driver) = Onlooker::of_process()
    {
        // Whoever was faster has found the same.
        let _same = DRIVER.set(driver);
    }
    DRIVER.get().is_some_and(|driver| driver.hides(address))
}

/// The address of a call's memory that the host cannot read, if there is one.
pub fn hidden_in(memory: &Memory) -> Option<u64> {
    let addresses = memory.ranges().into_iter().filter(|(_, bytes)| *bytes > 0);
    addresses.map(|(address, _)| address).find(|address| is_out_of_reach(*address))
}

/// What a communicator knows of devices: it looks for a driver with its first call on memory, since
/// programs that have devices have opened them by then. Later calls cost two loads where there was
/// none.
#[derive(Default)]
pub struct Sight {
    has_looked: AtomicBool,
}

impl Sight {
    /// The address that the host cannot read, if the memory of a call has one.
    #[inline(always)]
    pub fn hidden(&self, memory: &Memory) -> Option<u64> {
        if self.has_looked.load(Ordering::Relaxed) && DRIVER.get().is_none() {
            return None;
        }
        self.search(memory)
    }

    #[cold]
    fn search(&self, memory: &Memory) -> Option<u64> {
        let hidden = hidden_in(memory);
        // A call without memory has looked nowhere.
        let has_memory = memory.ranges().iter().any(|(_, bytes)| *bytes > 0);
        self.has_looked.fetch_or(has_memory, Ordering::Relaxed);
        hidden
    }
}
