//! The stages of ZeRO.

/// What ranks that share their data hold in parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Nothing: every rank holds everything.
    #[default]
    Ddp,
    /// The optimizer's moments.
    Zero1,
    /// Also gradients.
    Zero2,
    /// Also parameters.
    Fsdp,
}
