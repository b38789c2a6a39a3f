//! What goes from stage to stage of a device's rank. Between stages of the rank it stays on the
//! device; to and from other ranks it goes through pinned memory and the hosts' `Wires`, on streams
//! of its own, while the device computes.
//!
//! A host that waited for each letter to come down before it gave its device the next computation
//! would leave the device without any: so a letter leaves when that has been given to the device,
//! or when this rank is about to wait itself.

use crate::device::Wire;
use crate::error::Error;
use crate::kernels::cuda::{Device, Room, View};
use crate::parallel::pipeline::{Action, Kind, Needs, Shape, Wires};
use brigade_cuda::{Event, Stream};
use std::collections::VecDeque;

/// Room for letters on the device, [n × c] each.
pub(super) struct Letters {
    /// In turn: what came up, and what is on its way down.
    incoming: [View; 2],
    outgoing: [View; 2],
    /// Such as stay on this rank.
    local: Vec<View>,
}

impl Letters {
    pub(super) fn take(room: &mut Room, letter: usize, needs: &Needs) -> Letters {
        // A rank that is alone with its stages sends nothing.
        let travels = if needs.sends + needs.receives > 0 { letter } else { 0 };
        let mut two = || [0; 2].map(|_| room.take(travels, 4));
        let (incoming, outgoing) = (two(), two());
        Letters {
            incoming,
            outgoing,
            local: (0..needs.local).map(|_| room.take(letter, 4)).collect(),
        }
    }
}

/// A letter that is on its way down.
struct Leaving {
    /// What it came from.
    action: Action,
    /// How it is to be sent, once the schedule has said so.
    send: Option<Action>,
}

/// The mail of one rank.
pub(super) struct Mail {
    shape: Shape,
    wire: Wire,
    letters: Letters,
    /// After the last use of what came up.
    used: [Event; 2],
    /// Where letters are on the host while they change hands.
    desk: Vec<f32>,
    /// How many came up, and went down.
    counts: [usize; 2],
    leaving: VecDeque<Leaving>,
    /// What stages get from others of this rank, [forward, backward][stage × micro-batch].
    inbox: [Vec<Option<View>>; 2],
}

impl Mail {
    /// Beside this stream.
    pub(super) fn new(
        compute: &Stream,
        shape: &Shape,
        letters: Letters,
        letter: usize,
    ) -> Result<Mail, Error> {
        let event = || Event::new(compute.context());
        let none = || vec![None; shape.stages() * shape.micros];
        Ok(Mail {
            shape: shape.clone(),
            wire: Wire::new(compute, 4 * letter)?,
            letters,
            used: [event()?, event()?],
            desk: vec![0.0; letter],
            counts: [0; 2],
            leaving: VecDeque::new(),
            inbox: [none(), none()],
        })
    }

    /// Have what `action` needs in this place, before what is computed next.
    pub(super) fn take(
        &mut self,
        action: Action,
        to: View,
        device: &Device,
        wires: &mut Wires,
    ) -> Result<(), Error> {
        let Some(source) = self.shape.source(action) else { return Ok(()) };
        if self.shape.is_local(source, action.stage) {
            let at = self.place(action.stage, action);
            let letter = self.inbox[back(action)][at].take().expect("a checked schedule");
            self.letters.local.push(letter);
            return device.copy(to, letter);
        }
        let at = self.counts[0] % 2;
        let room = self.letters.incoming[at];
        wires.take(action, &mut self.desk);
        self.wire.send(room, &self.desk, &self.used[at])?;
        device.copy(to, room)?;
        device.stream().record(&self.used[at])?;
        self.counts[0] += 1;
        Ok(())
    }

    /// What `action` came to is here; whoever writes there next does so behind what reads it.
    pub(super) fn put(
        &mut self,
        action: Action,
        from: View,
        device: &Device,
        wires: &mut Wires,
    ) -> Result<(), Error> {
        let Some(target) = self.shape.target(action) else { return Ok(()) };
        if self.shape.is_local(target, action.stage) {
            let letter = self.letters.local.pop().expect("as many as the schedule needs");
            let at = self.place(target, action);
            self.inbox[back(action)][at] = Some(letter);
            return device.copy(letter, from);
        }
        if self.wire.is_full() {
            self.leave(wires)?;
        }
        let room = self.letters.outgoing[self.counts[1] % 2];
        device.copy(room, from)?;
        self.wire.fetch(room)?;
        self.leaving.push_back(Leaving { action, send: None });
        self.counts[1] += 1;
        Ok(())
    }

    /// Have a letter leave as soon as it has come down.
    pub(super) fn send(&mut self, send: Action, wires: &mut Wires) -> Result<(), Error> {
        let is_it = |leaving: &&mut Leaving| {
            let of = leaving.action;
            let is_forward = (send.kind == Kind::SendF) == (of.kind == Kind::Forward);
            (of.stage, of.micro) == (send.stage, send.micro) && is_forward
        };
        match self.leaving.iter_mut().find(is_it) {
            Some(leaving) => leaving.send = Some(send),
            // It has been down for a while.
            None => wires.carry(send)?,
        }
        Ok(())
    }

    /// Wait for all letters that are on their way down, and have those leave that shall.
    pub(super) fn flush(&mut self, wires: &mut Wires) -> Result<(), Error> {
        while !self.leaving.is_empty() {
            self.leave(wires)?;
        }
        Ok(())
    }

    fn leave(&mut self, wires: &mut Wires) -> Result<(), Error> {
        let Leaving { action, send } = self.leaving.pop_front().expect("a letter is on its way");
        self.wire.take(&mut self.desk, 4)?;
        wires.put(action, &mut self.desk);
        send.map_or(Ok(()), |send| wires.carry(send))
    }

    /// Bytes of the host's memory.
    pub(super) fn bytes(&self) -> u64 {
        self.wire.bytes() + 4 * self.desk.len() as u64
    }

    /// Wait for all that is on its way between host and device.
    pub(super) fn settle(&self) -> Result<(), Error> {
        self.wire.settle()
    }

    fn place(&self, stage: usize, action: Action) -> usize {
        stage * self.shape.micros + action.micro
    }
}

/// Which of the boxes: that of forwards, or that of backwards.
fn back(action: Action) -> usize {
    usize::from(action.kind != Kind::Forward)
}
