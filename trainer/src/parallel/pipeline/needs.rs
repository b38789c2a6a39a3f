//! What a rank needs for its row of a schedule, counted before anything is allocated.

use super::action::{Action, Kind};
use super::schedule::{Fault, Schedule};
use super::shape::Shape;

/// Most of each at a time, on one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Of each stage, if it is this rank's.
    pub stages: Vec<StageNeeds>,
    /// Micro-batches between their forward and the end of their backward, over all its stages.
    pub live: usize,
    /// Stages whose parameters are whole, if they are held in parts.
    pub whole: usize,
    /// Inputs and gradients that are on their way from one stage to another.
    pub letters: usize,
    /// Of these, such as stay on this rank.
    pub local: usize,
    /// Messages that this rank sends in a step.
    pub sends: usize,
    /// Messages that it gets.
    pub receives: usize,
}

/// Most of each at a time, for one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageNeeds {
    /// Micro-batches between their forward and the end of their backward.
    pub live: usize,
    /// Micro-batches between the two parts of a split backward.
    pub owed: usize,
    /// How often its parameters are gathered, if they are held in parts.
    pub gathers: usize,
}

/// A number that goes up and down, and the most that it has been.
#[derive(Clone, Copy, Default)]
struct Level {
    now: isize,
    most: isize,
}

impl Level {
    fn add(&mut self, change: isize) {
        self.now += change;
        self.most = self.most.max(self.now);
    }

    fn most(self) -> usize {
        self.most as usize
    }
}

impl Needs {
    /// Of `rank`, in a schedule that has its messages.
    pub fn of(schedule: &Schedule, shape: &Shape, rank: usize) -> Needs {
        let none = vec![Level::default(); shape.stages()];
        let (mut live, mut owed) = (none.clone(), none);
        let [mut all, mut wholes, mut letters, mut local] = [Level::default(); 4];
        let mut whole = vec![false; shape.stages()];
        let mut gathers = vec![0; shape.stages()];
        let (mut sends, mut receives) = (0, 0);
        for (_, action) in schedule.actions(rank) {
            let stage = action.stage;
            if (action.kind.computes() || action.kind == Kind::Unshard) && !whole[stage] {
                (whole[stage], gathers[stage]) = (true, gathers[stage] + 1);
                wholes.add(1);
            }
            match action.kind {
                Kind::Forward => {
                    live[stage].add(1);
                    all.add(1);
                }
                Kind::Backward => {
                    live[stage].add(-1);
                    all.add(-1);
                }
                Kind::Input => owed[stage].add(1),
                Kind::Weight => {
                    owed[stage].add(-1);
                    live[stage].add(-1);
                    all.add(-1);
                }
                Kind::RecvF | Kind::RecvB => {
                    receives += 1;
                    letters.add(1);
                }
                Kind::WaitSendF | Kind::WaitSendB => letters.add(-1),
                Kind::SendF | Kind::SendB => sends += 1,
                Kind::Reshard => wholes.add(-isize::from(std::mem::take(&mut whole[stage]))),
                Kind::Unshard | Kind::ReduceGrad | Kind::WaitReduceGrad => {}
            }
            // What comes in is put in the place of what was there, which is free then; what goes
            // out leaves its place to something that was free.
            letters.add(-isize::from(shape.source(action).is_some() && action.kind.computes()));
            letters.add(isize::from(shape.target(action).is_some() && action.kind.computes()));
            let stays = |other: Option<usize>| other.is_some_and(|it| shape.is_local(it, stage));
            local.add(-isize::from(stays(shape.source(action)) && action.kind.computes()));
            local.add(isize::from(stays(shape.target(action)) && action.kind.computes()));
        }
        let stage = |stage: usize| {
            let (live, owed) = (live[stage].most(), owed[stage].most());
            StageNeeds { live, owed, gathers: gathers[stage] }
        };
        let stages = (0..shape.stages()).map(stage).collect();
        let [live, whole, letters, local] = [all, wholes, letters, local].map(Level::most);
        Needs { stages, live, whole, letters, local, sends, receives }
    }
}

/// Refuse a schedule in which a stage's gradients are not made in the order of micro-batches: then
/// their sum would have other bits.
pub fn require_order(schedule: &Schedule, shape: &Shape) -> Result<(), Fault> {
    for rank in 0..schedule.rows.len() {
        let mut next = vec![0; shape.stages()];
        for (at, action) in schedule.actions(rank) {
            let Action { stage, kind, micro } = action;
            if matches!(kind, Kind::Backward | Kind::Weight) {
                if micro != next[stage] {
                    let want = Action { micro: next[stage], ..action };
                    let problem = format!("--ordered adds {want} first");
                    return Err(Fault::at(rank, at, action, problem));
                }
                next[stage] += 1;
            }
        }
    }
    Ok(())
}
