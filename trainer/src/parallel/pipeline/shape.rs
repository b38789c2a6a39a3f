//! What a schedule is about, if it makes sense: every stage on one rank, and each micro-batch once
//! forward and once backward through every stage, in this order.

use super::action::{Action, Kind};
use super::schedule::{Fault, Schedule};
use std::collections::HashSet;

/// The size of a pipeline, and where its stages are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Micro-batches of a step.
    pub micros: usize,
    /// The rank of each stage.
    pub rank_of: Vec<usize>,
}

impl Shape {
    /// Of `schedule`, in either dialect.
    ///
    /// Errors: the first thing that makes no sense, and where it is.
    pub fn of(schedule: &Schedule) -> Result<Shape, Fault> {
        let mut homes: Vec<Option<usize>> = Vec::new();
        let mut seen: HashSet<Action> = HashSet::new();
        let mut micros = 0;
        for rank in 0..schedule.rows.len() {
            for (at, action) in schedule.actions(rank) {
                let fault = |problem: String| Fault::at(rank, at, action, problem);
                if homes.len() <= action.stage {
                    homes.resize(action.stage + 1, None);
                }
                let home = *homes[action.stage].get_or_insert(rank);
                if home != rank {
                    return Err(fault(format!("stage {} is on rank {home}", action.stage)));
                }
                if let Some(missing) = missing(&seen, action) {
                    return Err(fault(format!("{missing} does not come before it")));
                }
                if action.kind.has_micro() && !seen.insert(action) {
                    return Err(fault("it is done a second time".to_string()));
                }
                if let Some(twin) = twin(action).filter(|twin| seen.contains(twin)) {
                    return Err(fault(format!("{twin} has done that")));
                }
                micros = micros.max(action.micro + 1);
            }
        }
        let shape = |(stage, home): (usize, Option<usize>)| {
            home.ok_or_else(|| Fault::of_all(format!("no rank has stage {stage}")))
        };
        let rank_of: Vec<usize> =
            homes.into_iter().enumerate().map(shape).collect::<Result<_, _>>()?;
        let shape = Shape { micros, rank_of };
        shape.count(schedule, &seen)?;
        Ok(shape)
    }

    /// How many stages there are.
    pub fn stages(&self) -> usize {
        self.rank_of.len()
    }

    /// The stage that `action` gets its input from, if any: the one before in forward, the one
    /// after in backward.
    pub fn source(&self, action: Action) -> Option<usize> {
        match action.kind {
            Kind::Forward | Kind::RecvF => action.stage.checked_sub(1),
            Kind::Backward | Kind::Input | Kind::RecvB => {
                Some(action.stage + 1).filter(|stage| *stage < self.stages())
            }
            _ => None,
        }
    }

    /// The stage that what `action` computes or sends is for, if any.
    pub fn target(&self, action: Action) -> Option<usize> {
        match action.kind {
            Kind::Forward | Kind::SendF => {
                Some(action.stage + 1).filter(|stage| *stage < self.stages())
            }
            Kind::Backward | Kind::Input | Kind::SendB => action.stage.checked_sub(1),
            _ => None,
        }
    }

    /// Whether two stages are on one rank, so that nothing is sent between them.
    pub fn is_local(&self, stage: usize, other: usize) -> bool {
        self.rank_of[stage] == self.rank_of[other]
    }

    /// Everything is there.
    fn count(&self, schedule: &Schedule, seen: &HashSet<Action>) -> Result<(), Fault> {
        if let Some(rank) = (0..schedule.rows.len()).find(|rank| !self.rank_of.contains(rank)) {
            return Err(Fault::of_all(format!("rank {rank} has nothing to do")));
        }
        // Before anything is counted up to numbers that a file may say: there are enough of them.
        let count = |kind: Kind| seen.iter().filter(|action| action.kind == kind).count();
        let (want, forwards) = (self.stages() * self.micros, count(Kind::Forward));
        let backwards = count(Kind::Backward) + count(Kind::Weight);
        if forwards == want && backwards == want {
            return Ok(());
        }
        let (stages, micros) = (self.stages(), self.micros);
        Err(Fault::of_all(format!(
            "{micros} micro-batches through {stages} stages are {want} forwards and as many whole \
             backwards, but there are {forwards} and {backwards}"
        )))
    }
}

/// What does the same as `action`, or all of it: a backward is whole or in two parts.
fn twin(action: Action) -> Option<Action> {
    let kind = match action.kind {
        Kind::Backward => Kind::Input,
        Kind::Input => Kind::Backward,
        _ => return None,
    };
    Some(Action { kind, ..action })
}

/// What must have been done on the same rank before `action`, and has not.
fn missing(seen: &HashSet<Action>, action: Action) -> Option<Action> {
    let is_missing = |kind: Kind| {
        let before = Action { kind, ..action };
        (!seen.contains(&before)).then_some(before)
    };
    match action.kind {
        Kind::Backward | Kind::Input | Kind::SendF => is_missing(Kind::Forward),
        Kind::Weight => is_missing(Kind::Input),
        Kind::SendB => is_missing(Kind::Backward).and_then(|_| is_missing(Kind::Input)),
        Kind::WaitSendF => is_missing(Kind::SendF),
        Kind::WaitSendB => is_missing(Kind::SendB),
        _ => None,
    }
}
