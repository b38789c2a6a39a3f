//! Memory for whole units, where a rank does not keep them.

use super::{Shards, Unit};
use crate::error::Error;
use crate::offload::Disk;

impl Shards<'_> {
    /// Have room for the parameters of all units at once, which are always asked for in order.
    pub fn widen(&mut self) {
        let ([whole, part], units) = (self.longest(), self.units.len());
        for (rooms, longest) in [(&mut self.rooms, whole), (&mut self.parts, part)] {
            if !rooms.is_empty() {
                rooms.resize_with(units, || Vec::with_capacity(longest));
            }
        }
        self.go_one_way();
    }

    /// Parameters of all units are always asked for in order: forward's, once and again.
    pub fn go_one_way(&mut self) {
        self.disk.iter_mut().for_each(Disk::go_one_way);
    }

    /// Have the parameters of all units here, or on their way from other ranks.
    pub fn summon(&mut self) -> Result<(), Error> {
        (self.first..self.first + self.units.len()).try_for_each(|unit| match self.group {
            Some(_) => self.prefetch(unit),
            None => self.arrive(unit),
        })
    }

    /// Elements of the longest unit, and of the longest that this rank updates.
    pub(super) fn longest(&self) -> [usize; 2] {
        let longest = |len: fn(&Unit) -> usize| self.units.iter().map(len).max().unwrap_or(0);
        [longest(|unit| unit.cut.len()), longest(|unit| unit.moments.len())]
    }
}
