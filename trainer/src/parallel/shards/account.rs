//! What a rank holds, sends, reads and writes, by formula.

use super::fetch::{gather_call, packed_call};
use super::{Shards, Stage, Unit};
use crate::error::Error;
use crate::norms::Sums;
use crate::offload::{Disk, DiskUse};
use crate::parallel::Packing;
use crate::parallel::formula::call_bytes;
use crate::precision::Precision;
use brigade_comm::{Call, Dtype, Op};
use brigade_schedule::Collective;

impl Shards<'_> {
    /// Bytes that one step makes this rank send, if units go through forward in order, backward in
    /// reverse, and the last is kept from one to the other.
    pub fn formula_bytes(&self) -> Result<u64, Error> {
        self.formula_bytes_with(|at| self.fetches(at))
    }

    /// Bytes that one step makes this rank send, if parameters that are held in parts are gathered
    /// so many `times`, by unit.
    pub fn formula_bytes_with(&self, times: impl Fn(usize) -> u64) -> Result<u64, Error> {
        let mut bytes = self.sums.formula_bytes()?;
        let Some(group) = self.group else { return Ok(bytes) };
        if self.precision == Precision::F16 && self.sharing.stage > Stage::Ddp {
            bytes += call_bytes(group, &Call::new(Collective::AllReduce, Dtype::U32, Op::Max, 1))?;
        }
        if self.has_norms && self.sharing.stage > Stage::Ddp {
            let numbers = Sums::numbers(self.tensors);
            let call = Call::new(Collective::AllReduce, Dtype::U64, Op::Sum, numbers);
            bytes += call_bytes(group, &call)?;
        }
        for (at, Unit { cut, .. }) in self.units.iter().enumerate() {
            let times = match self.sharing.stage {
                Stage::Ddp => 0,
                Stage::Zero1 | Stage::Zero2 => 1,
                Stage::Fsdp => times(at),
            };
            // With a second copy, only the first gather of a step is from all ranks.
            let far = if self.near.is_some() { times.min(1) } else { times };
            let call = match self.sharing.travel.gather {
                Packing::F32 => gather_call(cut, self.precision),
                packing => packed_call(cut, packing).0,
            };
            bytes += far * call_bytes(group, &call)?;
            if let Some(near) = &self.near {
                let (group, call) = near.call(at);
                bytes += (times - far) * call_bytes(group, &call)?;
            }
        }
        Ok(bytes)
    }

    /// Whether the next step sends something else than was told last.
    pub fn has_changed(&mut self) -> bool {
        self.sums.has_changed()
    }

    /// Bytes of parameters, gradients, moments, memory for calls, and of an arena. Ask when nothing
    /// is on its way: before the first step or after one.
    pub fn bytes(&self) -> [u64; 5] {
        let of =
            |len: &dyn Fn(&Unit) -> usize| 4 * self.units.iter().map(len).sum::<usize>() as u64;
        let (sums, rooms) = self.sums.bytes();
        let rooms_too = self.rooms.iter().chain(&self.parts);
        let params: u64 = rooms_too.map(|room| 4 * room.capacity() as u64).sum();
        let halves = self.halves.iter().map(|(part, whole)| part.capacity() + whole.capacity());
        let packs = self.packs.iter().map(|(part, whole)| part.capacity() + whole.capacity());
        let params = params + 2 * halves.sum::<usize>() as u64 + packs.sum::<usize>() as u64;
        let near = self.near.iter().flat_map(|near| near.parts.iter().map(Vec::len));
        let near = 4 * near.sum::<usize>() as u64;
        let narrow = 2 * self.units.iter().map(|unit| unit.narrow.len()).sum::<usize>() as u64;
        let moments = match &self.arena {
            Some(_) => 0,
            None => of(&|unit| unit.moments.mean.len() + unit.moments.square.len()),
        };
        let disk = self.disk.as_ref().map_or(0, Disk::arena_bytes);
        let arena = self.arena.as_ref().map_or(disk, |arena| arena.capacity() as u64);
        let full = of(&|unit| unit.whole.len() + unit.part.len());
        [full + narrow + near, sums, moments, rooms + params, arena]
    }

    /// How often a step needs a unit's parameters that are not kept.
    fn fetches(&self, at: usize) -> u64 {
        let slots = self.sharing.slots as u64;
        match at {
            at if at + 1 == self.units.len() => slots,
            0 => slots + 1,
            _ => 2 * slots,
        }
    }

    /// What files have cost this rank so far.
    pub fn disk_use(&self) -> DiskUse {
        self.disk.as_ref().map_or(DiskUse::default(), Disk::used)
    }

    /// What one step reads and writes in files, units going as for `formula_bytes`.
    pub fn disk_formula(&self) -> DiskUse {
        self.disk_formula_with(|at| self.fetches(at))
    }

    /// The same, if parameters that are held in parts are needed so many `times`, by unit.
    pub fn disk_formula_with(&self, times: impl Fn(usize) -> u64) -> DiskUse {
        let formula = |disk: &Disk| disk.formula(times);
        self.disk.as_ref().map_or(DiskUse::default(), formula)
    }
}
