//! Where a root may be.

/// Where a root may be for which the job was given no address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Site {
    /// Which interfaces others come by, as for TCP; all if nothing is said.
    pub(crate) interface: Option<String>,
    /// The first and the last port; any if nothing is said.
    pub(crate) ports: Option<(u16, u16)>,
}
