//! What goes from stage to stage: activations forward, gradients back, each in a buffer that is
//! handed over. Between ranks it travels while both compute.
//!
//! Calls of a communicator run one after the other, so each way between two ranks has one of its
//! own: a receive that waits for its message never holds up a send.

use super::action::{Action, Kind};
use super::schedule::Schedule;
use super::shape::Shape;
use crate::error::Error;
use crate::trace::{self, Lane};
use brigade_comm::{Communicator, Owned};
use std::time::{Duration, Instant};

/// A buffer on its way.
enum Letter {
    /// It is here.
    Here(Vec<f32>),
    /// It comes from another rank.
    Coming(Owned<f32>),
    /// It goes to another rank, and the memory comes back.
    Going(Owned<f32>),
}

/// One way between two ranks of the pipeline; in its communicator `from` is 0 and `to` is 1.
struct Way {
    from: usize,
    to: usize,
    comm: Communicator,
}

/// The mail of one rank.
pub struct Wires {
    rank: usize,
    shape: Shape,
    ways: Vec<Way>,
    /// What each stage gets, [forward, backward][stage × micro-batch].
    inbox: [Vec<Option<Letter>>; 2],
    /// What each stage has sent, the same.
    outbox: [Vec<Option<Letter>>; 2],
    /// Buffers that nothing is in.
    free: Vec<Vec<f32>>,
    /// How long anybody had to wait for messages.
    pub(super) waited: Duration,
}

impl Wires {
    /// Wires for `schedule` on this rank of `group`, and `letters` buffers of `len` elements.
    /// Collective.
    pub fn open(
        group: Option<&Communicator>,
        schedule: &Schedule,
        shape: &Shape,
        letters: usize,
        len: usize,
    ) -> Result<Wires, Error> {
        let rank = group.map_or(0, Communicator::rank);
        let mut ways = Vec::new();
        for round in rounds(schedule, shape) {
            let group = group.expect("a rank alone sends nothing");
            let mine = round.iter().position(|(from, to)| [*from, *to].contains(&rank));
            let key = mine.map_or(0, |at| i32::from(round[at].1 == rank));
            if let Some(comm) = group.split(mine.map(|at| at as u32), key)? {
                let (from, to) = round[mine.expect("who is in no pair gets no communicator")];
                ways.push(Way { from, to, comm });
            }
        }
        let none = || (0..shape.stages() * shape.micros).map(|_| None).collect::<Vec<_>>();
        Ok(Wires {
            rank,
            shape: shape.clone(),
            ways,
            inbox: [none(), none()],
            outbox: [none(), none()],
            free: (0..letters).map(|_| vec![0.0; len]).collect(),
            waited: Duration::ZERO,
        })
    }

    /// Carry out an action that is about messages.
    pub fn carry(&mut self, action: Action) -> Result<(), Error> {
        let at = self.place(action.stage, action.micro);
        let back = usize::from(matches!(action.kind, Kind::SendB | Kind::RecvB | Kind::WaitSendB));
        match action.kind {
            Kind::RecvF | Kind::RecvB => {
                let room = self.room();
                let source = self.shape.source(action).expect("a checked schedule");
                let from = self.shape.rank_of[source];
                let coming = self.way(from, self.rank).recv_owned(room, 0)?;
                self.inbox[back][at] = Some(Letter::Coming(coming));
            }
            Kind::SendF | Kind::SendB => {
                let Some(Letter::Here(data)) = self.outbox[back][at].take() else {
                    unreachable!("{action} sends what has been computed");
                };
                let target = self.shape.target(action).expect("a checked schedule");
                let to = self.shape.rank_of[target];
                let going = self.way(self.rank, to).send_owned(data, 1)?;
                self.outbox[back][at] = Some(Letter::Going(going));
            }
            Kind::WaitSendF | Kind::WaitSendB => {
                let Some(Letter::Going(going)) = self.outbox[back][at].take() else {
                    unreachable!("{action} waits for what was sent");
                };
                let from = Instant::now();
                let _waiting = trace::span(Lane::Waiting, "until sent: micro-batch", action.micro);
                let (data, _) = going.wait()?;
                self.waited += from.elapsed();
                self.free.push(data);
            }
            _ => unreachable!("{action} is about no message"),
        }
        Ok(())
    }

    /// Whether what `action` needs is still on its way.
    pub fn lacks(&self, action: Action) -> bool {
        let letter = &self.inbox[back(action)][self.place(action.stage, action.micro)];
        let is_coming = matches!(letter, Some(Letter::Coming(coming)) if !coming.is_done());
        self.shape.source(action).is_some() && is_coming
    }

    /// Wait until what `action` needs is here.
    pub fn expect(&mut self, action: Action) -> Result<(), Error> {
        if self.shape.source(action).is_none() {
            return Ok(());
        }
        let at = self.place(action.stage, action.micro);
        let letter = &mut self.inbox[back(action)][at];
        if let Some(Letter::Coming(coming)) = letter.take_if(|it| matches!(it, Letter::Coming(_))) {
            let from = Instant::now();
            let _waiting = trace::span(Lane::Waiting, "for micro-batch", action.micro);
            let (_, data) = coming.wait()?;
            self.waited += from.elapsed();
            *letter = Some(Letter::Here(data));
        }
        Ok(())
    }

    /// Put what `action` needs in the place of `buffer`, unless it needs nothing.
    pub fn take(&mut self, action: Action, buffer: &mut Vec<f32>) {
        if self.shape.source(action).is_none() {
            return;
        }
        let at = self.place(action.stage, action.micro);
        let Some(Letter::Here(data)) = self.inbox[back(action)][at].take() else {
            unreachable!("{action} begins when its input is here");
        };
        self.free.push(std::mem::replace(buffer, data));
    }

    /// Hand over what `action` came to, unless nobody wants it; `buffer` is another one then.
    pub fn put(&mut self, action: Action, buffer: &mut Vec<f32>) {
        let Some(target) = self.shape.target(action) else { return };
        let room = self.room();
        let data = Some(Letter::Here(std::mem::replace(buffer, room)));
        if self.shape.is_local(target, action.stage) {
            let at = self.place(target, action.micro);
            self.inbox[back(action)][at] = data;
        } else {
            let at = self.place(action.stage, action.micro);
            self.outbox[back(action)][at] = data;
        }
    }

    /// Payload bytes that this rank has sent over them.
    pub fn sent_bytes(&self) -> u64 {
        self.ways.iter().map(|way| way.comm.stats().sent_bytes).sum()
    }

    /// Bytes of buffers. Ask when nothing is on its way.
    pub fn bytes(&self) -> u64 {
        self.free.iter().map(|buffer| 4 * buffer.len() as u64).sum()
    }

    fn place(&self, stage: usize, micro: usize) -> usize {
        stage * self.shape.micros + micro
    }

    fn room(&mut self) -> Vec<f32> {
        self.free.pop().expect("as many buffers as the schedule needs")
    }

    fn way(&self, from: usize, to: usize) -> &Communicator {
        let way = self.ways.iter().find(|way| (way.from, way.to) == (from, to));
        &way.expect("every message of the schedule has a way").comm
    }
}

/// Which of the boxes: that of forwards, or that of backwards.
fn back(action: Action) -> usize {
    usize::from(action.kind != Kind::Forward)
}

/// The ways that a schedule uses, in rounds in which no rank has more than one: the even pairs of
/// neighbours, the odd ones, the pair that closes the ring; and the same the other way round.
fn rounds(schedule: &Schedule, shape: &Shape) -> Vec<Vec<(usize, usize)>> {
    let mut rounds: Vec<Vec<(usize, usize)>> = Vec::new();
    for rank in 0..schedule.rows.len() {
        for (_, action) in schedule.actions(rank) {
            if !matches!(action.kind, Kind::SendF | Kind::SendB) {
                continue;
            }
            let target = shape.target(action).expect("a checked schedule");
            let way = (rank, shape.rank_of[target]);
            if rounds.iter().flatten().any(|it| *it == way) {
                continue;
            }
            let meets = |other: &(usize, usize)| {
                [other.0, other.1].iter().any(|rank| [way.0, way.1].contains(rank))
            };
            match rounds.iter_mut().find(|round| !round.iter().any(meets)) {
                Some(round) => round.push(way),
                None => rounds.push(vec![way]),
            }
        }
    }
    rounds
}
