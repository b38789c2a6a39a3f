//! What a rank holds of its moments, where, and what it tells others of its tensors.

use super::{Shards, Stage, Unit};
use crate::error::Error;
use crate::norms::{ExactSum, Sums};
use crate::offload::{self, Disk, Offload, Tier};
use crate::optim::{Optimizer, Rule};
use crate::precision::Precision;
use brigade_comm::Op;
use std::time::Instant;

impl Shards<'_> {
    /// Keep as many moments as a rule has, and talk about norms if it asks for them. The precision
    /// is known.
    ///
    /// Errors: `Setting` if files would have to be passed through twice.
    pub fn suit(&mut self, rule: Rule, offload: Option<&Offload>) -> Result<(), Error> {
        let has_files = offload.is_some_and(|offload| matches!(offload.tier, Tier::Nvme(_)));
        // Where weights are narrow, what they are narrowed from goes to the files too.
        let is_away = self.sharing.stage == Stage::Fsdp || self.precision != Precision::F32;
        if has_files && (rule == Rule::Lamb || rule.has_norms() && is_away) {
            let problem = "wants norms of what would be in files: --offload cpu works".to_string();
            return Err(Error::setting("optimizer", problem));
        }
        self.units.iter_mut().for_each(|unit| unit.moments.keep(rule.moments()));
        self.has_norms = rule.has_norms();
        Ok(())
    }

    /// Compute with weights of 16 bits; what this rank updates stays in 32.
    pub fn narrow(&mut self, precision: Precision) {
        self.precision = precision;
        if precision == Precision::F32 {
            return;
        }
        let is_sharded = self.sharing.stage == Stage::Fsdp && self.group.is_some();
        for Unit { cut, whole, part, narrow, .. } in &mut self.units {
            let mine = match self.sharing.stage {
                Stage::Ddp => 0..cut.len(),
                _ => cut.part.clone(),
            };
            if !is_sharded {
                *narrow = vec![0; whole.len()];
                precision.narrow(whole, narrow);
                *part = std::mem::take(whole)[mine].to_vec();
            }
        }
        let [whole, part] = self.longest();
        self.rooms = (0..2).map(|_| Vec::with_capacity(whole)).collect();
        let halves = if is_sharded { 2 } else { 0 };
        let half = |_| (Vec::with_capacity(part), Vec::with_capacity(whole));
        self.halves = (0..halves).map(half).collect();
    }

    /// Whether a sum of gradients is not finite on any rank: one call of four bytes.
    pub(super) fn has_overflow(&mut self, optimizer: &mut Optimizer) -> Result<bool, Error> {
        let mut is_finite = true;
        for at in 0..self.units.len() {
            is_finite &= optimizer.is_finite(self.sums.sum(at)?);
        }
        let mut flag = [u32::from(!is_finite)];
        // Where every rank has every sum, all of them see the same.
        if let Some(group) = self.group.filter(|_| self.sharing.stage > Stage::Ddp) {
            let from = Instant::now();
            group.all_reduce(&mut flag, Op::Max)?;
            self.waited += from.elapsed();
        }
        Ok(flag[0] > 0)
    }

    /// Move the moments to a cheaper memory, and to files also parameters that are held in parts,
    /// or in 32 bits beside others of 16.
    ///
    /// Errors: `HostBudget` if the budget is too small, `Offload` for what the device says.
    pub fn offload(&mut self, offload: &Offload) -> Result<(), Error> {
        let folder = match &offload.tier {
            Tier::Cpu => {
                let moments = self.units.iter_mut().map(|unit| &mut unit.moments);
                self.arena = Some(offload::to_host(moments, offload)?);
                return Ok(());
            }
            Tier::Nvme(folder) => folder,
        };
        let is_narrow = self.precision != Precision::F32;
        // Whoever keeps weights of 16 bits needs those of 32 in the update only.
        let is_fetched = self.sharing.stage == Stage::Fsdp && (self.group.is_some() || !is_narrow);
        let has_params = is_fetched || is_narrow;
        let mut units = Vec::new();
        for (at, Unit { cut, whole, part, moments, .. }) in self.units.iter().enumerate() {
            let params = if whole.is_empty() { part } else { whole };
            units.push(offload::Unit {
                number: self.first + at,
                whole: cut.len(),
                first: if self.sharing.stage == Stage::Ddp { 0 } else { cut.part.start },
                params: if has_params { params } else { &[] },
                moments: Some(moments),
            });
        }
        self.disk = Some(Disk::new(folder, offload, &units, is_fetched)?);
        self.units.iter_mut().for_each(|unit| unit.moments.leave());
        if has_params {
            self.units.iter_mut().for_each(|unit| {
                (unit.whole, unit.part) = Default::default();
            });
        }
        if is_fetched {
            let [whole, part] = self.longest();
            let parts = if self.group.is_some() { 2 } else { 0 };
            self.rooms = (0..2).map(|_| Vec::with_capacity(whole)).collect();
            self.parts = (0..parts).map(|_| Vec::with_capacity(part)).collect();
        }
        Ok(())
    }

    /// Where all that is updated is in files that stay: make it their newest generation.
    pub fn commit(&mut self, step: usize, note: &str) -> Result<(), Error> {
        self.disk.as_mut().map_or(Ok(()), |disk| disk.commit(step, note))
    }

    /// After the last slot: the squares of what this rank updates by, of those tensors that it
    /// counts. Cost: one pass that reads the sums.
    pub(crate) fn squares(&mut self, counts: impl Fn(usize) -> bool) -> Result<ExactSum, Error> {
        self.complete()?;
        let mut squares = ExactSum::ZERO;
        for at in (0..self.units.len()).rev() {
            let grads = self.sums.sum(at)?;
            squares = squares.plus(self.units[at].moments.squares(grads, &counts));
        }
        Ok(squares)
    }

    /// Find the norms of whole tensors, of which ranks have parts: one call, of a few kilobytes.
    pub(super) fn measure(&mut self, optimizer: &mut Optimizer) -> Result<(), Error> {
        let mut norms = Sums::new(self.tensors);
        let group = self.group.filter(|_| self.sharing.stage > Stage::Ddp);
        for at in (0..self.units.len()).rev() {
            let grads = self.sums.sum(at)?;
            let Unit { cut, whole, part, moments, .. } = &mut self.units[at];
            let params = match (group, self.sharing.stage) {
                _ if self.precision != Precision::F32 => part,
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
}
