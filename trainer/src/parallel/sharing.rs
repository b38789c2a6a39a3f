//! How ranks share data and state, as a run chooses it.

use super::{Packing, Stage, Travel};

/// What of the data-parallel way to train a run may choose.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sharing {
    /// What is held in parts.
    pub stage: Stage,
    /// Whether lanes are added in order.
    pub is_ordered: bool,
    /// Lanes that each rank computes in a step.
    pub slots: usize,
    /// How gradients and parameters travel.
    pub travel: Travel,
}

impl Sharing {
    /// Whether a rank updates a part of what its group has.
    pub(super) fn has_parts(&self) -> bool {
        self.stage > Stage::Ddp
    }

    /// What each lane's gradient is rounded to, so that it has the same bits wherever it is added.
    pub(super) fn rounding(&self) -> Packing {
        if self.is_ordered { self.travel.reduce } else { Packing::F32 }
    }
}
