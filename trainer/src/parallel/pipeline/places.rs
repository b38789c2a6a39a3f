//! Places in memory of the rank that gets a letter, for a sender that writes there by itself: one
//! whose last letter has been read for certain, without asking.
//!
//! What makes it certain is a letter that came back. Whoever sent it had computed it behind what
//! read the letters before, in one stream; so they had been read when it left. When a step ends,
//! every forward's letter has been answered by its backward; and the next step's first forward
//! answers all backwards of this one, before one of that step's can be sent. Where stages lie so
//! that a way has letters of both kinds, a first forward may come to the place of a backward of the
//! step before, ahead of any answer in its own: but then that backward's micro-batch had gone on to
//! the very stage that the forward is for, whose backward came back within the step. So what one
//! step has left is in nobody's way in the next.

use super::action::{Action, Kind};
use super::schedule::Schedule;
use super::shape::Shape;
use std::collections::{BTreeMap, HashMap};

/// What a stage computes: whether it is a forward, the stage, and the micro-batch.
type Output = (bool, usize, usize);

/// The place of every letter of a step.
#[derive(Clone, Debug, Default)]
pub struct Places {
    of: HashMap<Output, usize>,
    /// How many there are for letters from one rank to another.
    ways: BTreeMap<(usize, usize), usize>,
}

impl Places {
    /// Of a checked schedule.
    pub fn of(schedule: &Schedule, shape: &Shape) -> Places {
        let rows = (0..schedule.rows.len()).map(|rank| {
            let actions = schedule.actions(rank).map(|(_, action)| action);
            actions.filter(|action| makes(*action)).collect()
        });
        let rows: Vec<Vec<Action>> = rows.collect();
        let order = |row: &Vec<Action>| -> Vec<(Output, usize)> {
            row.iter().enumerate().map(|(at, action)| (output(*action, action.stage), at)).collect()
        };
        let order: HashMap<Output, usize> = rows.iter().flat_map(order).collect();
        let mut places = Places::default();
        for (rank, row) in rows.iter().enumerate() {
            places.give((rank, row), shape, &order);
        }
        places
    }

    /// Find places for all that a rank sends.
    fn give(
        &mut self,
        (rank, row): (usize, &[Action]),
        shape: &Shape,
        order: &HashMap<Output, usize>,
    ) {
        let other = |stage: Option<usize>| {
            let stage = stage.filter(|stage| shape.rank_of[*stage] != rank)?;
            Some((stage, shape.rank_of[stage]))
        };
        // By receiver: where in its row what is in each place is read.
        let mut live: BTreeMap<usize, Vec<Option<usize>>> = BTreeMap::new();
        for action in row.iter().copied() {
            if let Some((stage, sender)) = other(shape.source(action)) {
                let made = order[&output(action, stage)];
                for place in live.entry(sender).or_default() {
                    place.take_if(|read| *read <= made);
                }
            }
            let Some((stage, reader)) = other(shape.target(action)) else { continue };
            let places = live.entry(reader).or_default();
            let free = places.iter().position(Option::is_none).unwrap_or(places.len());
            places.resize(places.len().max(free + 1), None);
            places[free] = Some(order[&output(action, stage)]);
            self.of.insert(output(action, action.stage), free);
        }
        let counts = live.into_iter().map(|(reader, places)| ((rank, reader), places.len()));
        self.ways.extend(counts);
    }

    /// How many a rank has for letters of all others.
    pub fn count(&self, rank: usize) -> usize {
        self.ways.iter().filter(|((_, to), _)| *to == rank).map(|(_, count)| count).sum()
    }

    /// Which of them is for what `action` computes on rank `from`, if it is for rank `to`.
    pub fn at(&self, (from, to): (usize, usize), action: Action, stage: usize) -> usize {
        let before = self.ways.range((0, to)..(from, to));
        before.filter(|((_, other), _)| *other == to).map(|(_, count)| count).sum::<usize>()
            + self.of[&output(action, stage)]
    }
}

/// Whether something is computed that is needed elsewhere.
fn makes(action: Action) -> bool {
    action.kind.computes() && action.kind != Kind::Weight
}

/// What an action computes, or a neighbour of its stage does for the same micro-batch.
fn output(action: Action, stage: usize) -> Output {
    (action.kind == Kind::Forward, stage, action.micro)
}

#[cfg(test)]
mod tests {
    use super::super::{Cell, Order, Plan, generate};
    use super::*;

    /// Steps that the judge carries out.
    const STEPS: usize = 3;

    /// Carry a schedule out by clocks: each rank knows how far every other one had come when what
    /// it has heard of left, and nothing else. Whoever writes to a place knows that it was read.
    fn judge(plan: &Plan, places: &Places) {
        let shape = &plan.shape;
        let ranks = plan.schedule.rows.len();
        let rows: Vec<Vec<Action>> = (0..ranks)
            .map(|rank| plan.row(rank).into_iter().filter(|action| makes(*action)).collect())
            .collect();
        let mut clocks = vec![vec![0; ranks]; ranks];
        let mut left: HashMap<(usize, Output), Vec<usize>> = HashMap::new();
        // Who reads what is in a place, and when.
        let mut full: HashMap<(usize, usize), (usize, Output)> = HashMap::new();
        let mut read: HashMap<(usize, Output), usize> = HashMap::new();
        let mut next = vec![0; ranks];
        while (0..ranks).any(|rank| next[rank] < STEPS * rows[rank].len()) {
            let before = next.clone();
            for rank in 0..ranks {
                while next[rank] < STEPS * rows[rank].len() {
                    let (step, at) = (next[rank] / rows[rank].len(), next[rank] % rows[rank].len());
                    let action = rows[rank][at];
                    let source = shape.source(action).filter(|it| shape.rank_of[*it] != rank);
                    if let Some(source) = source {
                        let Some(known) = left.get(&(step, output(action, source))) else { break };
                        let known = known.clone();
                        clocks[rank].iter_mut().zip(known).for_each(|(to, of)| *to = of.max(*to));
                    }
                    next[rank] += 1;
                    clocks[rank][rank] = next[rank];
                    read.insert((step, output(action, action.stage)), next[rank]);
                    left.insert((step, output(action, action.stage)), clocks[rank].clone());
                    let target = shape.target(action).filter(|it| shape.rank_of[*it] != rank);
                    let Some(target) = target else { continue };
                    let to = shape.rank_of[target];
                    let place = places.at((rank, to), action, action.stage);
                    assert!(place < places.count(to), "{action}: {place}");
                    let letter = (step, output(action, target));
                    if let Some(last) = full.insert((to, place), letter) {
                        let is_known = read.get(&last).is_some_and(|at| *at <= clocks[rank][to]);
                        assert!(is_known, "{action} of step {step} into {place} of {to}: {last:?}");
                    }
                }
            }
            assert_ne!(next, before, "ranks wait for each other");
        }
    }

    #[test]
    fn nobody_writes_to_a_place_before_it_was_read_for_certain() {
        let mut plans = 0;
        for order in [
            Order::Gpipe,
            Order::OneFOneB,
            Order::Interleaved,
            Order::Zb1p,
            Order::Zbv,
            Order::DualPipeV,
        ] {
            let sizes = (2..6).flat_map(|ranks| (1..17).map(move |micros| (ranks, micros)));
            for (ranks, micros) in sizes {
                for chunks in [1, 2, 3] {
                    let Ok(schedule) = generate(order, ranks, chunks, micros) else { continue };
                    let plan = Plan::new(&schedule).unwrap();
                    let places = Places::of(&plan.schedule, &plan.shape);
                    judge(&plan, &places);
                    plans += 1;
                }
            }
        }
        assert!(plans > 300, "{plans}");
    }

    /// A schedule whose stages lie anywhere, and whose ranks do next whatever can be done.
    fn any_schedule(random: &mut fastrand::Rng) -> Schedule {
        let (ranks, micros) = (random.usize(1..5), random.usize(1..6));
        let stages = ranks + random.usize(0..4);
        let mut rank_of: Vec<usize> = (0..ranks).collect();
        rank_of.extend((ranks..stages).map(|_| random.usize(0..ranks)));
        random.shuffle(&mut rank_of);
        let mut rows = vec![Vec::new(); ranks];
        let mut done: Vec<Output> = Vec::new();
        while done.len() < 2 * stages * micros {
            let is_done = |is_forward, stage, micro| done.contains(&(is_forward, stage, micro));
            let all =
                (0..2 * stages * micros).map(|at| (at % 2 == 0, at / 2 / micros, at / 2 % micros));
            let can_be = |&(is_forward, stage, micro): &Output| match is_forward {
                _ if is_done(is_forward, stage, micro) => false,
                true => stage == 0 || is_done(true, stage - 1, micro),
                false if stage + 1 == stages => is_done(true, stage, micro),
                false => is_done(true, stage, micro) && is_done(false, stage + 1, micro),
            };
            let ready: Vec<Output> = all.filter(can_be).collect();
            let (is_forward, stage, micro) = ready[random.usize(0..ready.len())];
            let kind = if is_forward { Kind::Forward } else { Kind::Backward };
            rows[rank_of[stage]].push(Cell::One(Action { stage, kind, micro }));
            done.push((is_forward, stage, micro));
        }
        Schedule { rows }
    }

    #[test]
    fn nor_where_stages_lie_anywhere_and_ranks_do_what_they_can() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..400 {
            let plan = Plan::new(&any_schedule(&mut random)).unwrap();
            judge(&plan, &Places::of(&plan.schedule, &plan.shape));
        }
    }

    #[test]
    fn there_are_as_many_places_as_letters_may_be_on_their_way() {
        let counts = |order, ranks, micros| {
            let plan = Plan::new(&generate(order, ranks, 1, micros).unwrap()).unwrap();
            let places = Places::of(&plan.schedule, &plan.shape);
            (0..ranks).map(|rank| places.count(rank)).collect::<Vec<_>>()
        };
        // As many forwards as the rank before may be ahead, and backwards as the rank itself.
        assert_eq!(counts(Order::OneFOneB, 4, 12), [4, 4 + 3, 3 + 2, 2]);
        assert_eq!(counts(Order::Gpipe, 2, 5), [5, 5]);
    }
}
