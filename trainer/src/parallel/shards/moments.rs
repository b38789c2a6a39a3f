//! What a rank holds of its moments, where, and what it tells others of its tensors.

use super::{Shards, Stage, Unit};
use crate::error::Error;
use crate::norms::Sums;
use crate::offload::{self, Disk, DiskUse, Offload, Tier};
use crate::optim::{Optimizer, Rule};
use brigade_comm::Op;
use std::time::Instant;

impl Shards<'_> {
    /// Keep as many moments as a rule has, and talk about norms if it asks for them.
    ///
    /// Errors: `Setting` if files would have to be passed through twice.
    pub fn suit(&mut self, rule: Rule, offload: Option<&Offload>) -> Result<(), Error> {
        let has_files = offload.is_some_and(|offload| matches!(offload.tier, Tier::Nvme(_)));
        if has_files
            && (rule == Rule::Lamb || rule.has_norms() && self.sharing.stage == Stage::Fsdp)
        {
            let problem = "wants norms of what would be in files: --offload cpu works".to_string();
            return Err(Error::setting("optimizer", problem));
        }
        self.units.iter_mut().for_each(|unit| unit.moments.keep(rule.moments()));
        self.has_norms = rule.has_norms();
        Ok(())
    }

    /// Move the moments to a cheaper memory, and, where they are held in parts, parameters to files.
    ///
    /// Errors: `Setting` if the budget is too small, `Offload` for what the device says.
    pub fn offload(&mut self, offload: &Offload) -> Result<(), Error> {
        let Offload { tier, host_budget, place } = offload;
        let folder = match tier {
            Tier::Cpu => {
                let moments = self.units.iter_mut().map(|unit| &mut unit.moments);
                self.arena = Some(offload::to_host(moments, *host_budget)?);
                return Ok(());
            }
            Tier::Nvme(folder) => folder,
        };
        let has_params = self.sharing.stage == Stage::Fsdp;
        let mut units = Vec::new();
        for Unit { whole, part, moments, .. } in &self.units {
            let params = if whole.is_empty() { part } else { whole };
            units.push(offload::Unit { params: if has_params { params } else { &[] }, moments });
        }
        self.disk = Some(Disk::new(folder, *host_budget, *place, &units)?);
        self.units.iter_mut().for_each(|unit| unit.moments.leave());
        if has_params {
            self.units.iter_mut().for_each(|unit| {
                (unit.whole, unit.part) = Default::default();
            });
            let longest = |len: fn(&Unit) -> usize| self.units.iter().map(len).max().unwrap_or(0);
            let (whole, part) =
                (longest(|unit| unit.cut.len()), longest(|unit| unit.moments.len()));
            let parts = if self.group.is_some() { 2 } else { 0 };
            self.rooms = (0..2).map(|_| Vec::with_capacity(whole)).collect();
            self.parts = (0..parts).map(|_| Vec::with_capacity(part)).collect();
        }
        Ok(())
    }

    /// Find the norms of whole tensors, of which ranks have parts: one call, of a few kilobytes.
    pub(super) fn measure(&mut self, optimizer: &mut Optimizer) -> Result<(), Error> {
        let mut norms = Sums::new(self.tensors);
        let group = self.group.filter(|_| self.sharing.stage > Stage::Ddp);
        for at in (0..self.units.len()).rev() {
            let grads = self.sums.sum(at)?;
            let Unit { cut, whole, part, moments, .. } = &mut self.units[at];
            let params = match (group, self.sharing.stage) {
                (None, _) => whole,
                (_, Stage::Fsdp) => part,
                _ => &mut whole[cut.part.clone()],
            };
            optimizer.measure(&mut norms, params, moments, grads);
        }
        if let Some(group) = group {
            let from = Instant::now();
            group.all_reduce(norms.numbers_mut(), Op::Sum)?;
            self.waited += from.elapsed();
        }
        optimizer.take_norms(&norms);
        Ok(())
    }

    /// What files have cost this rank so far.
    pub fn disk_use(&self) -> DiskUse {
        self.disk.as_ref().map_or(DiskUse::default(), Disk::used)
    }

    /// What one step reads and writes in files, units going as for `formula_bytes`.
    pub fn disk_formula(&self) -> DiskUse {
        let formula = |disk: &Disk| disk.formula(|at| self.fetches(at));
        self.disk.as_ref().map_or(DiskUse::default(), formula)
    }
}
