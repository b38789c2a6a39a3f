//! What goes from stage to stage of a device's rank. Between stages of the rank it stays on the
//! device; to and from other ranks it goes by `Post`, while the device computes.
//!
//! A host that waited for each letter to be gone before it gave its device the next computation
//! would leave the device without any: so a letter leaves when that has been given to the device,
//! or when this rank is about to wait itself.

use super::post::{LEAVING, Post};
use crate::error::Error;
use crate::kernels::cuda::{Device, View};
use crate::parallel::pipeline::{Action, Kind, Shape, Wires};
use std::collections::VecDeque;

/// A letter that is on its way out.
struct Leaving {
    /// What it came from.
    action: Action,
    /// How it is to be sent, once the schedule has said so.
    send: Option<Action>,
}

/// The mail of one rank.
pub(super) struct Mail {
    shape: Shape,
    post: Post,
    /// Room for letters that stay on this rank, which nothing is in.
    local: Vec<View>,
    leaving: VecDeque<Leaving>,
    /// What stages get from others of this rank, [forward, backward][stage × micro-batch].
    inbox: [Vec<Option<View>>; 2],
}

impl Mail {
    /// Of these stages, with room for what stays.
    pub(super) fn new(shape: &Shape, post: Post, local: Vec<View>) -> Mail {
        let none = || vec![None; shape.stages() * shape.micros];
        let (shape, leaving) = (shape.clone(), VecDeque::new());
        Mail { shape, post, local, leaving, inbox: [none(), none()] }
    }

    /// Numbers that hosts hand over for each letter.
    pub(super) fn numbers(&self) -> usize {
        self.post.numbers()
    }

    /// One clause: that letters go from device to device.
    pub(super) fn describe(&self) -> &'static str {
        if let Post::Devices(_) = self.post { ", letters from device to device" } else { "" }
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
            self.local.push(letter);
            return device.copy(to, letter);
        }
        self.post.take(action, to, device, wires)
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
            let letter = self.local.pop().expect("as many as the schedule needs");
            let at = self.place(target, action);
            self.inbox[back(action)][at] = Some(letter);
            return device.copy(letter, from);
        }
        if self.leaving.len() == LEAVING {
            self.leave(wires)?;
        }
        self.post.begin(action, from, device)?;
        self.leaving.push_back(Leaving { action, send: None });
        Ok(())
    }

    /// Have a letter leave as soon as it is gone from the device.
    pub(super) fn send(&mut self, send: Action, wires: &mut Wires) -> Result<(), Error> {
        let is_it = |leaving: &&mut Leaving| {
            let of = leaving.action;
            let is_forward = (send.kind == Kind::SendF) == (of.kind == Kind::Forward);
            (of.stage, of.micro) == (send.stage, send.micro) && is_forward
        };
        match self.leaving.iter_mut().find(is_it) {
            Some(leaving) => leaving.send = Some(send),
            // It has been gone for a while.
            None => wires.carry(send)?,
        }
        Ok(())
    }

    /// Wait for all letters that are on their way out, and have those leave that shall.
    pub(super) fn flush(&mut self, wires: &mut Wires) -> Result<(), Error> {
        while !self.leaving.is_empty() {
            self.leave(wires)?;
        }
        Ok(())
    }

    fn leave(&mut self, wires: &mut Wires) -> Result<(), Error> {
        let Leaving { action, send } = self.leaving.pop_front().expect("a letter is on its way");
        self.post.finish(action, wires)?;
        send.map_or(Ok(()), |send| wires.carry(send))
    }

    /// Bytes of the host's memory.
    pub(super) fn bytes(&self) -> u64 {
        self.post.bytes()
    }

    /// Wait for all that is on its way.
    pub(super) fn settle(&self) -> Result<(), Error> {
        self.post.settle()
    }

    /// The end of all steps. Collective over the pipeline's ranks.
    pub(super) fn close(&mut self) -> Result<(), Error> {
        self.post.close()
    }

    fn place(&self, stage: usize, action: Action) -> usize {
        stage * self.shape.micros + action.micro
    }
}

/// Which of the boxes: that of forwards, or that of backwards.
fn back(action: Action) -> usize {
    usize::from(action.kind != Kind::Forward)
}
