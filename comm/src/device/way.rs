//! The names of the ways to carry out a call.

/// How calls of a group are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Kernels of all ranks run at the same time and find each other by flags: threads of one
    /// process, whose kernels fit their devices together. The host waits for nothing.
    Together,
    /// Kernels of all ranks run at the same time, and what one sends another goes through slots in
    /// the other's memory, by the call's schedule: processes that share no device, or threads for
    /// which an algorithm was named. The host waits for nothing.
    Linked,
    /// The host's ranks meet before and after kernels that wait for nobody: processes, whose
    /// kernels take turns on a device, or more ranks than a device has room for.
    Met,
    /// Through pinned memory of the host and the transports of the group: what always works.
    Staged,
    /// Longer calls by the devices of each node, which reach each other, and of what goes from node
    /// to node by each rank's host its part; shorter ones, and those that do not come apart like
    /// that, as [`Way::Staged`].
    ByNodes,
}

impl Way {
    /// Whether calls go into a stream and nothing waits for them here, so that they can be
    /// captured.
    pub fn is_enqueued(self) -> bool {
        matches!(self, Self::Together | Self::Linked)
    }
}
