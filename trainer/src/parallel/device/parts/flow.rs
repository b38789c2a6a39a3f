//! Parameters and gradients on their way between devices whose ranks hold them in parts, beside
//! what computes.
//!
//! All calls go into one stream, in an order that is the same on every rank. What computes and
//! what calls wait for each other by events alone. Where the hosts must meet for a call, that of a
//! gradient is made when the device has something else to compute meanwhile.

use super::held::{Held, Turn};
use crate::device::Calls;
use crate::error::Error;
use crate::kernels::cuda::{Device, View};
use brigade_cuda::{Context, Event, Stream};
use std::collections::VecDeque;

/// Calls, and what they and the computing stream wait for.
pub(in super::super) struct Flow<'a> {
    calls: Calls<'a>,
    compute: Stream,
    rooms: Vec<Whole>,
    /// How often one of them has been let go of.
    releases: u64,
    /// Gradients, which share two rooms: they are there, and the room is free again.
    computed: [Event; 2],
    scattered: [Event; 2],
    /// Which room is next.
    room: usize,
    /// On their way, the first in front; the last may go out with the one behind it.
    sent: VecDeque<Turn>,
    is_waiting: bool,
    /// All parts are new, and all calls on the old ones are made.
    renewed: [Event; 2],
}

/// Room for the whole parameters of a group of units.
struct Whole {
    /// Whose they are, since the last update.
    holds: Option<usize>,
    is_in_use: bool,
    /// When it was let go of, and behind what.
    released: u64,
    used: Event,
    /// By unit of the group.
    gathered: Vec<Event>,
}

impl<'a> Flow<'a> {
    /// Beside this stream.
    pub(in super::super) fn new(
        calls: Calls<'a>,
        compute: &Stream,
        held: &Held,
    ) -> Result<Flow<'a>, Error> {
        let context = compute.context();
        let [rooms, units] = held.rooms();
        let room = |_| {
            let gathered = (0..units).map(|_| Event::new(context)).collect::<Result<_, _>>()?;
            let used = Event::new(context)?;
            Ok(Whole { holds: None, is_in_use: false, released: 0, used, gathered })
        };
        Ok(Flow {
            calls,
            compute: compute.clone(),
            rooms: (0..rooms).map(room).collect::<Result<_, Error>>()?,
            releases: 0,
            computed: two(context)?,
            scattered: two(context)?,
            room: 0,
            sent: VecDeque::new(),
            is_waiting: false,
            renewed: two(context)?,
        })
    }

    pub(in super::super) fn calls(&self) -> &Calls<'a> {
        &self.calls
    }

    pub(in super::super) fn calls_mut(&mut self) -> &mut Calls<'a> {
        &mut self.calls
    }

    /// Have the parameters of a unit's group on their way, if they are not here, and keep them
    /// until they are `used`.
    pub(in super::super) fn ask(&mut self, held: &Held, unit: usize) -> Result<(), Error> {
        if held.unit(unit).whole.is_none() { self.room_of(held, unit).map(drop) } else { Ok(()) }
    }

    /// A unit's parameters, for what is computed next, until they are `used`.
    pub(in super::super) fn params(&mut self, held: &Held, unit: usize) -> Result<View, Error> {
        if let Some(whole) = held.unit(unit).whole {
            return Ok(whole);
        }
        let room = self.room_of(held, unit)?;
        let (_, group) = held.group(unit);
        self.compute.wait(&self.rooms[room].gathered[unit - group.start])?;
        Ok(held.room(room, unit))
    }

    /// The room of a unit's group. Of those that nobody uses it takes what was let go of first.
    fn room_of(&mut self, held: &Held, unit: usize) -> Result<usize, Error> {
        let (group, units) = held.group(unit);
        if let Some(at) = self.rooms.iter().position(|room| room.holds == Some(group)) {
            self.rooms[at].is_in_use = true;
            return Ok(at);
        }
        let free = self.rooms.iter_mut().enumerate().filter(|(_, room)| !room.is_in_use);
        let oldest = free.min_by_key(|(_, room)| room.released);
        let (at, room) = oldest.expect("as many rooms as groups that are whole at a time");
        (room.holds, room.is_in_use) = (Some(group), true);
        self.calls.wait(&room.used)?;
        for (unit, gathered) in units.zip(&room.gathered) {
            let own = held.unit(unit);
            self.calls.make(&own.gather(), own.inside, held.room(at, unit))?;
            self.calls.mark(gathered)?;
        }
        Ok(at)
    }

    /// What was computed so far is the last to use the parameters of a unit's group.
    pub(in super::super) fn used(&mut self, held: &Held, unit: usize) -> Result<(), Error> {
        let (group, _) = held.group(unit);
        let room = self.rooms.iter_mut().find(|room| room.holds == Some(group));
        let Some(room) = room.filter(|room| room.is_in_use) else { return Ok(()) };
        self.releases += 1;
        (room.is_in_use, room.released) = (false, self.releases);
        Ok(self.compute.record(&room.used)?)
    }

    /// Where backward of a slot leaves a unit's gradient, as parts. The unit that was in its way
    /// until now, if one was: what is computed next sees what became of its gradient.
    pub(in super::super) fn open(
        &mut self,
        held: &Held,
        device: &Device,
        (unit, slot): (usize, usize),
        is_last: bool,
    ) -> Result<(View, Option<usize>), Error> {
        let is_full = held.has_rooms() && held.sends(is_last) && self.sent.len() == 2;
        let settled = if is_full { self.settle(held, device)? } else { None };
        Ok((held.lane(Turn { unit, slot, room: self.room }), settled))
    }

    /// It is there: have it on its way, behind the one before; or, where lanes are added up first,
    /// what it has come to after the last.
    pub(in super::super) fn close(
        &mut self,
        held: &Held,
        device: &Device,
        (unit, slot): (usize, usize),
        is_last: bool,
    ) -> Result<(), Error> {
        let turn = Turn { unit, slot, room: self.room };
        if held.adds_up() && slot > 0 {
            device.add(held.outgoing(turn), held.lane(turn))?;
        }
        if !held.sends(is_last) {
            return Ok(());
        }
        if let Some([pack, _]) = held.packs(turn) {
            device.to_bf16(pack, held.outgoing(turn))?;
        }
        self.compute.record(&self.computed[self.room])?;
        self.flush(held)?;
        self.sent.push_back(turn);
        (self.is_waiting, self.room) = (true, 1 - self.room);
        Ok(())
    }

    /// Whatever goes out with the next gradient goes now.
    pub(in super::super) fn flush(&mut self, held: &Held) -> Result<(), Error> {
        if !std::mem::take(&mut self.is_waiting) {
            return Ok(());
        }
        let turn = *self.sent.back().expect("a gradient is on its way");
        self.calls.wait(&self.computed[turn.room])?;
        let packs = held.packs(turn);
        let [from, to] = packs.unwrap_or_else(|| [held.outgoing(turn), held.incoming(turn)]);
        self.calls.make(&held.unit(turn.unit).scatter(packs.is_some()), from, to)?;
        self.calls.mark(&self.scattered[turn.room])
    }

    /// What is computed next sees what became of the gradient that has been on its way for longest,
    /// if one is: its unit.
    pub(in super::super) fn settle(
        &mut self,
        held: &Held,
        device: &Device,
    ) -> Result<Option<usize>, Error> {
        if self.sent.len() == 1 {
            self.flush(held)?;
        }
        let Some(turn) = self.sent.pop_front() else { return Ok(None) };
        self.compute.wait(&self.scattered[turn.room])?;
        let sum = held.grads(turn.unit);
        match held.packs(turn) {
            Some([_, pieces]) => {
                device.add_bf16(sum, pieces, turn.slot == 0 || held.adds_up())?;
            }
            None if held.incoming(turn) == sum => {}
            None => device.add(sum, held.incoming(turn))?,
        }
        Ok(Some(turn.unit))
    }

    /// This rank's part of a unit is updated: everyone gets it who keeps the unit whole.
    pub(in super::super) fn share(&mut self, held: &Held, unit: usize) -> Result<(), Error> {
        let own = held.unit(unit);
        let Some(whole) = own.whole else { return Ok(()) };
        self.compute.record(&self.computed[unit % 2])?;
        self.calls.wait(&self.computed[unit % 2])?;
        self.calls.make(&own.gather(), own.inside, whole)
    }

    /// All parts are new: whatever is computed or gathered next is of them.
    pub(in super::super) fn renew(&mut self) -> Result<(), Error> {
        for room in &mut self.rooms {
            (room.holds, room.is_in_use) = (None, false);
        }
        let [new, made] = &self.renewed;
        self.compute.record(new)?;
        self.calls.wait(new)?;
        self.calls.mark(made)?;
        Ok(self.compute.wait(made)?)
    }
}

fn two(context: &Context) -> Result<[Event; 2], Error> {
    Ok([Event::new(context)?, Event::new(context)?])
}
