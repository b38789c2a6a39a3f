//! A rank carries out its row: waits for what an action needs, computes, sends on what came of it.

use super::action::{Action, Kind};
use super::dry::Span;
use super::wires::Wires;
use crate::error::Error;
use std::time::{Duration, Instant};

/// What a rank does when its schedule says so: a model's passes, or something that takes as long.
pub trait Stages {
    /// Carry out an action that is about no message. What it needs is here, to be taken from
    /// `wires`, and what it comes to is put there.
    fn act(&mut self, action: Action, wires: &mut Wires) -> Result<(), Error>;

    /// Have a message leave: at once, unless it is not here yet.
    fn send(&mut self, action: Action, wires: &mut Wires) -> Result<(), Error> {
        wires.carry(action)
    }

    /// Have everything leave that was to be sent: this rank is about to wait.
    fn flush(&mut self, _wires: &mut Wires) -> Result<(), Error> {
        Ok(())
    }

    /// How long the last actions have waited since this was asked last: for other ranks that share
    /// the stage, and for files.
    fn take_waited(&mut self) -> [Duration; 2] {
        [Duration::ZERO; 2]
    }
}

/// Carry out all of `row`; `spans` takes what computes, from `begun` on, without waiting.
pub fn run(
    row: &[Action],
    stages: &mut (impl Stages + ?Sized),
    wires: &mut Wires,
    begun: Instant,
    spans: &mut Vec<Span>,
) -> Result<(), Error> {
    spans.clear();
    for action in row.iter().copied() {
        match action.kind {
            Kind::SendF | Kind::SendB => stages.send(action, wires)?,
            Kind::RecvF | Kind::RecvB => wires.carry(action)?,
            Kind::WaitSendF | Kind::WaitSendB => {
                stages.flush(wires)?;
                wires.carry(action)?;
            }
            _ => compute(action, stages, wires, begun, spans)?,
        }
    }
    Ok(())
}

fn compute(
    action: Action,
    stages: &mut (impl Stages + ?Sized),
    wires: &mut Wires,
    begun: Instant,
    spans: &mut Vec<Span>,
) -> Result<(), Error> {
    if wires.lacks(action) {
        stages.flush(wires)?;
    }
    wires.expect(action)?;
    let begin = begun.elapsed();
    stages.act(action, wires)?;
    let [ranks, files] = stages.take_waited();
    wires.waited += ranks;
    if action.kind.computes() {
        let (begin, end) = (begin + ranks + files, begun.elapsed());
        spans.push(Span { action, begin: begin.as_secs_f64(), end: end.as_secs_f64() });
    }
    Ok(())
}
