//! How gradients and parameters travel, as flags say, and what goes with it.

use super::Args;
use crate::error::Error;
use crate::offload::Tier;
use crate::parallel::{Axis, Mesh, Pace, Travel, Ways};

impl Args {
    /// How gradients and parameters travel.
    pub(crate) fn travel(&self) -> Travel {
        let is_fused = Ways::of(&self.strategy).is_ok_and(|ways| ways.is_fused);
        Travel { is_fused, ..self.travel }
    }

    /// Refuse ways to travel that do not go with the rest.
    pub(crate) fn check_travel(&self, ways: &Ways, mesh: &Mesh, ranks: usize) -> Result<(), Error> {
        self.travel().suit(ways.data, mesh, self.ordered, self.precision)?;
        self.travel.suit_divided(ways, mesh)?;
        Pace::suit(ways.pace, self, ranks)?;
        let has_servers = ways.pace.is_some();
        let is_plain = self.travel().is_plain() && !has_servers && mesh.length(Axis::Shard) == 1;
        if !is_plain && self.is_pipeline() {
            let problem = "a pipeline goes with ddp, zero1, zero2 or fsdp along dp: no servers, no \
                           axis shard, and all travels as it is";
            return Err(Error::setting("strategy", problem.to_string()));
        }
        if self.travel.secondary && matches!(self.offload, Some(Tier::Nvme(_))) {
            let problem = "holds parameters in memory, that --offload nvme would not".to_string();
            return Err(Error::setting("secondary", problem));
        }
        Ok(())
    }
}
