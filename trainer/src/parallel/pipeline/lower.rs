//! From a schedule of computations to one that a rank can carry out: who has which parameters when,
//! when gradients are added up, and who sends what in which order.
//!
//! The passes are those of torch.distributed.pipelining, and come to the same actions.

use super::action::{Action, Kind};
use super::schedule::{Cell, Fault, Schedule};
use super::shape::Shape;
use std::collections::{HashMap, HashSet};

/// Stages of a rank whose parameters may be whole at the same time.
const WHOLE_STAGES: usize = 3;

/// Add everything but computations to `schedule`. One that has messages gets no more of them, only
/// waits for those that it sends and never waits for.
///
/// Errors: computations in an order in which no rank can go on.
pub fn lower(schedule: &Schedule, shape: &Shape) -> Result<Schedule, Fault> {
    let no_idle = |row: &Vec<Cell>| -> Vec<Cell> {
        row.iter().copied().filter(|cell| *cell != Cell::Idle).collect()
    };
    let mut rows: Vec<Vec<Cell>> = schedule.rows.iter().map(no_idle).collect();
    if !schedule.has_messages() {
        for row in &mut rows {
            *row = with_reductions(&with_parameters(row), shape.micros);
        }
        rows = with_messages(&rows, shape)?;
    }
    Ok(Schedule { rows: rows.iter().map(|row| with_waits(row)).collect() })
}

fn of_stage(stage: usize, kind: Kind) -> Cell {
    Cell::One(Action { stage, kind, micro: 0 })
}

/// Parameters of the stages that are needed next are here; those of others are let go.
fn with_parameters(row: &[Cell]) -> Vec<Cell> {
    let mut whole: Vec<usize> = Vec::new();
    let mut out = Vec::new();
    for (cell, next) in row.iter().zip(stages_ahead(row)) {
        out.extend(
            whole.iter().filter(|stage| !next.contains(stage)).map(|s| of_stage(*s, Kind::Reshard)),
        );
        whole.retain(|stage| next.contains(stage));
        let new: Vec<usize> = next.into_iter().filter(|stage| !whole.contains(stage)).collect();
        out.extend(new.iter().map(|stage| of_stage(*stage, Kind::Unshard)));
        whole.extend(new);
        out.push(*cell);
    }
    out.extend(whole.into_iter().map(|stage| of_stage(stage, Kind::Reshard)));
    out
}

/// Which stages come next from each cell on, in their order: as many as may be whole, and one more
/// where a cell is of two and brings them there.
fn stages_ahead(row: &[Cell]) -> Vec<Vec<usize>> {
    // From the end on, with the cell in which each comes next: a file may have a million cells.
    let mut ahead: Vec<(usize, usize)> = Vec::new();
    let mut next = vec![Vec::new(); row.len()];
    for (at, cell) in row.iter().enumerate().rev() {
        for action in cell.actions().iter().rev() {
            ahead.retain(|(stage, _)| *stage != action.stage);
            ahead.insert(0, (action.stage, at));
        }
        ahead.truncate(WHOLE_STAGES + 1);
        let last = ahead.get(WHOLE_STAGES - 1).map_or(row.len(), |(_, last)| *last);
        let comes = ahead.iter().filter(|(_, at)| *at <= last);
        next[at] = comes.map(|(stage, _)| *stage).collect();
    }
    next
}

/// After the last backward of a stage its gradients are added up.
fn with_reductions(row: &[Cell], micros: usize) -> Vec<Cell> {
    let mut backwards: HashMap<usize, usize> = HashMap::new();
    let mut out = Vec::new();
    for cell in row {
        out.push(*cell);
        for action in cell.actions() {
            if matches!(action.kind, Kind::Backward | Kind::Weight) {
                let count = backwards.entry(action.stage).or_default();
                *count += 1;
                if *count == micros {
                    out.push(of_stage(action.stage, Kind::ReduceGrad));
                    out.push(of_stage(action.stage, Kind::WaitReduceGrad));
                }
            }
        }
    }
    out
}

/// Whoever sends also places the receive on the other rank, right then: so both ends of every wire
/// have one order, and none waits for a message that will not come.
fn with_messages(rows: &[Vec<Cell>], shape: &Shape) -> Result<Vec<Vec<Cell>>, Fault> {
    let mut out: Vec<Vec<Cell>> = vec![Vec::new(); rows.len()];
    let mut done: Vec<HashSet<Action>> = vec![HashSet::new(); rows.len()];
    let mut next = vec![0; rows.len()];
    let is_ready = |action: &Action, done: &HashSet<Action>| {
        let Some(source) = shape.source(*action) else { return true };
        let has =
            |stage: usize, kind: Kind| done.contains(&Action { stage, kind, micro: action.micro });
        match (action.kind, shape.is_local(source, action.stage)) {
            (Kind::Forward, true) => has(source, Kind::Forward),
            (Kind::Forward, false) => has(action.stage, Kind::RecvF),
            (_, true) => has(source, Kind::Backward) || has(source, Kind::Input),
            (_, false) => has(action.stage, Kind::RecvB),
        }
    };
    while (0..rows.len()).any(|rank| next[rank] < rows[rank].len()) {
        let mut goes_on = false;
        for rank in 0..rows.len() {
            let Some(cell) = rows[rank].get(next[rank]) else { continue };
            if !cell.actions().iter().all(|action| is_ready(action, &done[rank])) {
                continue;
            }
            out[rank].push(*cell);
            for action in cell.actions() {
                done[rank].insert(*action);
                let target = shape.target(*action).filter(|to| !shape.is_local(*to, action.stage));
                let Some(target) = target else { continue };
                let (send, recv) = match action.kind {
                    Kind::Forward => (Kind::SendF, Kind::RecvF),
                    _ => (Kind::SendB, Kind::RecvB),
                };
                out[rank].push(Cell::One(Action { kind: send, ..*action }));
                let recv = Action { stage: target, kind: recv, micro: action.micro };
                out[shape.rank_of[target]].push(Cell::One(recv));
                done[shape.rank_of[target]].insert(recv);
            }
            next[rank] += 1;
            goes_on = true;
        }
        if !goes_on {
            let stuck = (0..rows.len()).filter(|rank| next[*rank] < rows[*rank].len());
            return Err(stuck_at(stuck.map(|rank| (rank, next[rank], rows[rank][next[rank]]))));
        }
    }
    Ok(out)
}

/// Every message that is sent is waited for: after the backward that shows that it was received, or
/// else at the end.
fn with_waits(row: &[Cell]) -> Vec<Cell> {
    let actions = || row.iter().flat_map(|cell| cell.actions().iter().copied());
    let wait = |send: Action| {
        let kind = if send.kind == Kind::SendF { Kind::WaitSendF } else { Kind::WaitSendB };
        Action { kind, ..send }
    };
    let has: HashSet<Action> = actions().collect();
    let mut out = Vec::new();
    let (mut sent, mut owed) = (Vec::new(), HashSet::new());
    for cell in row {
        out.push(*cell);
        for action in cell.actions() {
            match action.kind {
                Kind::SendF | Kind::SendB if !has.contains(&wait(*action)) => {
                    sent.push(*action);
                    owed.insert(*action);
                }
                Kind::Backward | Kind::Input => {
                    let send = Action { kind: Kind::SendF, ..*action };
                    if owed.remove(&send) {
                        out.push(Cell::One(wait(send)));
                    }
                }
                _ => {}
            }
        }
    }
    let left = sent.into_iter().filter(|send| owed.contains(send));
    out.extend(left.map(|send| Cell::One(wait(send))));
    out
}

/// No rank can go on. `stuck`: ranks with the cell that each stands at.
pub(super) fn stuck_at(mut stuck: impl Iterator<Item = (usize, usize, Cell)>) -> Fault {
    let (rank, at, cell) = stuck.next().expect("some rank is not at its end");
    let others: Vec<String> =
        stuck.map(|(rank, at, cell)| format!("rank {rank} at {cell} (cell {})", at + 1)).collect();
    let problem = match others.is_empty() {
        true => "what it needs never comes".to_string(),
        false => format!("what it needs never comes; so stand {}", others.join(", ")),
    };
    Fault::at(rank, at, cell, problem)
}
