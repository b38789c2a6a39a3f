//! A schedule carried out in no time: whether it comes to an end, and how long it would take.

use super::action::{Action, Kind};
use super::lower::stuck_at;
use super::schedule::{Fault, Schedule};
use super::shape::Shape;
use std::collections::HashMap;

/// An action and when it was done, in seconds since the step began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// What was done.
    pub action: Action,
    /// When it began: when a rank came to it and had what it needs.
    pub begin: f64,
    /// When it ended.
    pub end: f64,
}

/// What each rank did when.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// By rank; what takes no time is left out.
    pub rows: Vec<Vec<Span>>,
}

impl Timeline {
    /// What would happen if every action took as long as `seconds` says, and messages none.
    /// `schedule` has its messages: see `lower`.
    ///
    /// Errors: where ranks wait for each other for ever, messages that nobody receives, or such as
    /// come in another order than they are sent in.
    pub fn predict(
        schedule: &Schedule,
        shape: &Shape,
        seconds: impl Fn(Action) -> f64,
    ) -> Result<Timeline, Fault> {
        let ranks = schedule.rows.len();
        let mut run = DryRun { shape, done: HashMap::new(), wires: HashMap::new() };
        let rows: Vec<Vec<(usize, Action)>> =
            (0..ranks).map(|rank| schedule.actions(rank).collect()).collect();
        let (mut next, mut clock) = (vec![0; ranks], vec![0.0f64; ranks]);
        let mut line = Timeline { rows: vec![Vec::new(); ranks] };
        while (0..ranks).any(|rank| next[rank] < rows[rank].len()) {
            let before = next.clone();
            for rank in 0..ranks {
                while let Some(&(at, action)) = rows[rank].get(next[rank]) {
                    let ready = run.ready(action, clock[rank]);
                    let ready = ready.map_err(|problem| Fault::at(rank, at, action, problem))?;
                    let Some(begin) = ready else { break };
                    let end = begin + seconds(action);
                    if end > begin {
                        line.rows[rank].push(Span { action, begin, end });
                    }
                    run.done.insert(action, end);
                    clock[rank] = end;
                    next[rank] += 1;
                }
            }
            if next == before {
                let stuck = (0..ranks).filter_map(|rank| {
                    rows[rank].get(next[rank]).map(|(at, _)| (rank, *at, schedule.rows[rank][*at]))
                });
                return Err(stuck_at(stuck));
            }
        }
        match run.wires.values().find(|wire| wire.sent.len() != wire.posted.len()) {
            None => Ok(line),
            Some(Wire { sent, posted, .. }) => Err(Fault::of_all(match sent.get(posted.len()) {
                Some((recv, _)) => format!("nobody receives what is sent for {recv}"),
                None => format!("nobody sends what {} wants", posted[sent.len()]),
            })),
        }
    }

    /// When the last rank has done everything.
    pub fn end(&self) -> f64 {
        self.rows.iter().flatten().map(|span| span.end).fold(0.0, f64::max)
    }

    /// The share of all ranks' time, until the last is done, in which they compute nothing.
    pub fn bubble(&self) -> f64 {
        let spans = self.rows.iter().flatten().filter(|span| span.action.kind.computes());
        let (busy, end) = spans.fold((0.0, 0.0f64), |(busy, end), span| {
            (busy + span.end - span.begin, end.max(span.end))
        });
        1.0 - busy / (end * self.rows.len() as f64)
    }
}

/// Messages from one rank to another: what they are for, and when they left.
#[derive(Default)]
struct Wire {
    sent: Vec<(Action, f64)>,
    posted: Vec<Action>,
    /// Where in each of them something is: there may be a million.
    place_sent: HashMap<Action, usize>,
    place_posted: HashMap<Action, usize>,
}

impl Wire {
    fn send(&mut self, recv: Action, time: f64) {
        self.place_sent.entry(recv).or_insert(self.sent.len());
        self.sent.push((recv, time));
    }

    fn post(&mut self, recv: Action) {
        self.place_posted.entry(recv).or_insert(self.posted.len());
        self.posted.push(recv);
    }
}

struct DryRun<'a> {
    shape: &'a Shape,
    /// When each action ended.
    done: HashMap<Action, f64>,
    wires: HashMap<(usize, usize), Wire>,
}

impl DryRun<'_> {
    /// When `action` can begin on a rank that is free from `clock` on; none if not yet.
    fn ready(&mut self, action: Action, clock: f64) -> Result<Option<f64>, String> {
        let Action { stage, kind, micro } = action;
        let recv = |stage: usize, is_forward: bool| Action {
            stage,
            kind: if is_forward { Kind::RecvF } else { Kind::RecvB },
            micro,
        };
        match kind {
            Kind::Forward | Kind::Backward | Kind::Input => {
                let Some(source) = self.shape.source(action) else { return Ok(Some(clock)) };
                let from = match self.shape.is_local(source, stage) {
                    true => self.local(action, source),
                    false => self.arrival(recv(stage, kind == Kind::Forward), source)?,
                };
                Ok(from.map(|from| from.max(clock)))
            }
            Kind::SendF | Kind::SendB => {
                let target = self.shape.target(action).ok_or("there is no stage to send to")?;
                let wire = self.wire(stage, target)?;
                wire.send(recv(target, kind == Kind::SendF), clock);
                Ok(Some(clock))
            }
            Kind::RecvF | Kind::RecvB => {
                let source = self.shape.source(action).ok_or("there is no stage that sends it")?;
                self.wire(source, stage)?.post(action);
                Ok(Some(clock))
            }
            Kind::WaitSendF | Kind::WaitSendB => {
                let is_forward = kind == Kind::WaitSendF;
                let send = if is_forward { Kind::SendF } else { Kind::SendB };
                let target = self.shape.target(Action { kind: send, ..action });
                let target = target.ok_or("there is no stage to send to")?;
                let wire = self.wire(stage, target)?;
                let at = wire.place_sent.get(&recv(target, is_forward));
                Ok(at.filter(|at| **at < wire.posted.len()).map(|_| clock))
            }
            _ => Ok(Some(clock)),
        }
    }

    fn wire(&mut self, from: usize, to: usize) -> Result<&mut Wire, String> {
        let ranks = (self.shape.rank_of[from], self.shape.rank_of[to]);
        if ranks.0 == ranks.1 {
            return Err(format!("stages {from} and {to} are on one rank"));
        }
        Ok(self.wires.entry(ranks).or_default())
    }

    /// When another stage of the same rank has come to what `action` needs.
    fn local(&self, action: Action, source: usize) -> Option<f64> {
        let at = |kind: Kind| self.done.get(&Action { stage: source, kind, ..action }).copied();
        match action.kind {
            Kind::Forward => at(Kind::Forward),
            _ => at(Kind::Backward).or(at(Kind::Input)),
        }
    }

    /// When the message for `recv` has come.
    fn arrival(&mut self, recv: Action, source: usize) -> Result<Option<f64>, String> {
        let wire = self.wire(source, recv.stage)?;
        let at = wire.place_posted.get(&recv).copied();
        let at = at.ok_or_else(|| format!("{recv} does not come before it"))?;
        match wire.sent.get(at) {
            None => Ok(None),
            Some((it, time)) if *it == recv => Ok(Some(*time)),
            Some((it, _)) => Err(format!("{recv} would get what was sent for {it}")),
        }
    }
}
