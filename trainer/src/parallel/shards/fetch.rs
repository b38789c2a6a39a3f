//! Parameters that are held in parts, on their way to everyone, and gone again.

use super::{Shards, Sharing, Stage, Unit};
use crate::error::Error;
use crate::offload::Disk;
use crate::parallel::Packing;
use crate::parallel::cut::Cut;
use crate::precision::Precision;
use crate::trace::{self, Lane};
use brigade_comm::{Call, Communicator, Counts, Dtype, Owned};
use brigade_schedule::Collective;
use std::time::Instant;

/// Parameters on their way from all ranks, by what they travel as.
pub(super) enum Gather {
    Full(Owned<f32>),
    Half(Owned<i16>),
    Packed(Owned<u8>),
    /// From the second copy.
    Near(Owned<f32>),
}

/// A second copy of all parameters, in parts among ranks that are near each other: ZeRO++'s hpZ
/// (Wang et al. 2023). Taken when a unit has been gathered from all ranks for the first time in a
/// step, and of no worth after the update.
pub(super) struct Near<'a> {
    group: &'a Communicator,
    cuts: Vec<Cut>,
    pub(super) parts: Vec<Vec<f32>>,
    is_there: Vec<bool>,
}

impl<'a> Near<'a> {
    /// Of units as long as these.
    pub(super) fn new(group: &'a Communicator, cuts: &[Cut]) -> Near<'a> {
        let cut = |cut: &Cut| Cut::new(cut.len(), group.rank(), group.size());
        let cuts: Vec<Cut> = cuts.iter().map(cut).collect();
        let parts = cuts.iter().map(|cut| vec![0.0; cut.part.len()]).collect();
        Near { group, is_there: vec![false; cuts.len()], cuts, parts }
    }

    /// What a unit's gather makes this rank send.
    pub(super) fn call(&self, at: usize) -> (&Communicator, Call) {
        (self.group, gather_call(&self.cuts[at], Precision::F32))
    }

    /// Keep this rank's part, if it is not here yet. whole: [the unit's elements].
    fn keep(&mut self, at: usize, whole: &[f32]) {
        if !std::mem::replace(&mut self.is_there[at], true) {
            self.parts[at].copy_from_slice(&whole[self.cuts[at].part.clone()]);
        }
    }

    /// Start to gather a unit in `room`, which the call keeps, if its parts are here.
    fn start(&mut self, at: usize, room: &mut Vec<f32>) -> Option<Result<Owned<f32>, Error>> {
        self.is_there[at].then(|| {
            let (part, room) = (std::mem::take(&mut self.parts[at]), std::mem::take(room));
            Ok(self.group.start_owned(self.call(at).1, part, room)?)
        })
    }
}

impl Shards<'_> {
    /// Have a unit's parameters on their way if they are not here and there is room for them.
    pub fn prefetch(&mut self, unit: usize) -> Result<(), Error> {
        let Some(at) = unit.checked_sub(self.first).filter(|at| *at < self.units.len()) else {
            return Ok(());
        };
        let unit = &mut self.units[at];
        if !unit.whole.is_empty() || unit.gather.is_some() || !unit.narrow.is_empty() {
            return Ok(());
        }
        let file = self.disk.as_mut().filter(|disk| disk.is_fetched());
        let Some(group) = self.group else {
            return file.expect("a process alone has whole parameters in memory").ahead(at);
        };
        let packing = self.sharing.travel.gather;
        if self.precision != Precision::F32 && self.halves.is_empty()
            || packing != Packing::F32 && self.packs.is_empty()
        {
            return Ok(());
        }
        let Some(mut room) = self.rooms.pop() else { return Ok(()) };
        room.resize(unit.cut.len(), 0.0);
        let span = trace::span(Lane::Calls, "gather parameters", self.first + at);
        if let Some(call) = self.near.as_mut().and_then(|near| near.start(at, &mut room)) {
            unit.gather = Some((Gather::Near(call?), span));
            return Ok(());
        }
        if let Some(file) = file {
            unit.part = self.parts.pop().expect("as many parts as rooms");
            file.fetch(at, &mut unit.part)?;
        }
        if packing != Packing::F32 {
            let (mut part, mut whole) = self.packs.pop().expect("as many as rooms");
            let (call, bytes) = packed_call(&unit.cut, packing);
            part.resize(packing.bytes(unit.part.len()), 0);
            whole.resize(bytes, 0);
            packing.pack(&unit.part, &mut part);
            if self.disk.is_some() {
                self.parts.push(std::mem::take(&mut unit.part));
            }
            self.rooms.push(room);
            unit.gather = Some((Gather::Packed(group.start_owned(call, part, whole)?), span));
            return Ok(());
        }
        let call = gather_call(&unit.cut, self.precision);
        if self.precision == Precision::F32 {
            let call = group.start_owned(call, std::mem::take(&mut unit.part), room)?;
            unit.gather = Some((Gather::Full(call), span));
            return Ok(());
        }
        let (mut part, mut whole) = self.halves.pop().expect("as many as rooms");
        part.resize(unit.part.len(), 0);
        whole.resize(room.len(), 0);
        self.precision.narrow(&unit.part, &mut part);
        if self.disk.is_some() {
            self.parts.push(std::mem::take(&mut unit.part));
        }
        self.rooms.push(room);
        unit.gather = Some((Gather::Half(group.start_owned(call, part, whole)?), span));
        Ok(())
    }

    /// Nobody needs the unit's parameters for now.
    pub fn release(&mut self, unit: usize) {
        let at = unit - self.first;
        let unit = &mut self.units[at];
        let is_in_file = self.disk.as_ref().is_some_and(Disk::is_fetched);
        let is_sharded = self.sharing.stage == Stage::Fsdp && self.group.is_some();
        if is_in_file || is_sharded || !unit.narrow.is_empty() {
            if let Some(near) = &mut self.near {
                near.keep(at, &unit.whole);
            }
            self.rooms.push(std::mem::take(&mut unit.whole));
        }
    }

    /// Parameters have changed, or were gathered out of turn.
    pub(super) fn forget_near(&mut self) {
        if let Some(near) = &mut self.near {
            near.is_there.fill(false);
        }
    }

    /// Have a unit's parameters here.
    pub(super) fn arrive(&mut self, unit: usize) -> Result<(), Error> {
        self.prefetch(unit)?;
        let at = unit - self.first;
        self.land(at)?;
        let Unit { whole, narrow, .. } = &mut self.units[at];
        if !whole.is_empty() {
            return Ok(());
        }
        // What is neither here nor was on its way is narrow, or in this process's own file.
        *whole = self.rooms.pop().expect("another unit was not released");
        match &mut self.disk {
            Some(disk) if narrow.is_empty() => disk.fetch(at, whole),
            _ => {
                whole.resize(narrow.len(), 0.0);
                self.precision.widen(narrow, whole);
                Ok(())
            }
        }
    }

    /// Wait for a unit's parameters if they are on their way.
    pub(super) fn land(&mut self, at: usize) -> Result<(), Error> {
        let Unit { cut, whole, part, narrow, gather, .. } = &mut self.units[at];
        let Some((call, _span)) = gather.take() else { return Ok(()) };
        let _waiting = trace::span(Lane::Waiting, "for parameters", self.first + at);
        let from = Instant::now();
        match call {
            Gather::Full(call) => {
                let (input, output) = call.wait()?;
                *whole = output;
                match self.disk.as_ref().is_some_and(Disk::is_fetched) {
                    true => self.parts.push(input),
                    // In place there is no input, and no part either.
                    false => *part = input,
                }
            }
            Gather::Near(call) => {
                let (input, output) = call.wait()?;
                *whole = output;
                self.near.as_mut().expect("it was started there").parts[at] = input;
            }
            Gather::Packed(call) => {
                let (input, output) = call.wait()?;
                *whole = self.rooms.pop().expect("another unit was not released");
                whole.resize(cut.len(), 0.0);
                unpack(cut, self.sharing.travel.gather, &output, whole);
                self.packs.push((input, output));
            }
            Gather::Half(call) => {
                let (input, output) = call.wait()?;
                if self.sharing.stage < Stage::Fsdp {
                    *narrow = output;
                } else {
                    *whole = self.rooms.pop().expect("another unit was not released");
                    whole.resize(output.len(), 0.0);
                    self.precision.widen(&output, whole);
                    self.halves.push((input, output));
                }
            }
        }
        self.waited += from.elapsed();
        Ok(())
    }
}

/// Parameters from all ranks, in 32 bits or 16.
pub(super) fn gather_call(cut: &Cut, precision: Precision) -> Call {
    let dtype = if precision == Precision::F32 { Dtype::F32 } else { Dtype::I16 };
    Call { dtype, ..cut.call(Collective::AllGather) }
}

/// Packed parameters from all ranks, and how many bytes they come to.
pub(super) fn packed_call(cut: &Cut, packing: Packing) -> (Call, usize) {
    let counts: Vec<usize> = cut.counts.iter().map(|count| packing.bytes(*count)).collect();
    let bytes = counts.iter().sum();
    let call = Call::moving(Collective::AllGather, Dtype::U8, 0);
    (Call { counts: Counts::PerRank(counts.into()), ..call }, bytes)
}

/// Every rank's packed part, as numbers.
fn unpack(cut: &Cut, packing: Packing, mut bytes: &[u8], mut whole: &mut [f32]) {
    for count in cut.counts.iter() {
        let (packed, rest) = bytes.split_at(packing.bytes(*count));
        let (part, others) = std::mem::take(&mut whole).split_at_mut(*count);
        packing.unpack(packed, part, |to, number| *to = number);
        (bytes, whole) = (rest, others);
    }
}

/// Memory for packed parameters of two units, if any travel so.
pub(super) fn packs(cuts: &[Cut], sharing: Sharing) -> Vec<(Vec<u8>, Vec<u8>)> {
    let packing = sharing.travel.gather;
    if packing == Packing::F32 {
        return Vec::new();
    }
    let part = cuts.iter().map(|cut| packing.bytes(cut.part.len())).max().unwrap_or(0);
    let whole = cuts.iter().map(|cut| packed_call(cut, packing).1).max().unwrap_or(0);
    (0..2).map(|_| (Vec::with_capacity(part), Vec::with_capacity(whole))).collect()
}
