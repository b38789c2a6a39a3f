//! The executor: a call in flight is a cursor over a plan.
//!
//! [`Run::poll`] moves what can be moved now and returns; it never waits, never looks at a clock,
//! never allocates. Whoever polls decides how to wait, so the same code runs on threads, in
//! processes and in a test's virtual time.

mod peek;
mod send;
mod within;

use brigade_transports::{RecvWire, SendWire, TransportError};

use crate::extent::Memory;
use crate::header::{HEADER_BYTES, Header};
use crate::middle::Functions;
use crate::plan::{Channel, Kind, Plan, Pump, Step};
pub(crate) use peek::Peeked;

/// Messages up to this size leave in one piece with their header.
const JOINED_BYTES: usize = 1024;
/// A local move does this much at a time, so that a waiting wire is not left alone for long.
const WITHIN_BYTES: u64 = 256 << 10;
/// Progress of a step that is done, whatever its length.
const COMPLETE: u64 = u64::MAX;

/// The wires of a communicator, by member.
#[derive(Default)]
pub(crate) struct Wires {
    pub(crate) to: Vec<Option<Box<dyn SendWire>>>,
    pub(crate) from: Vec<Option<Box<dyn RecvWire>>>,
    /// What was taken from the wires to see what comes next; empty as long as nobody has looked.
    pub(crate) peeked: Vec<Peeked>,
}

/// What a poll came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poll {
    /// The call is complete on this rank.
    Done,
    /// Something moved; more may move at once.
    Moved,
    /// Nothing can move until a wire does.
    Idle,
}

/// Why a run cannot go on. Members are numbered as in the communicator.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A wire failed.
    Wire(TransportError),
    /// Another member is in another call.
    Mismatch { peer: u32, ours: Header, theirs: Header },
}

impl From<TransportError> for Stop {
    fn from(error: TransportError) -> Self {
        Self::Wire(error)
    }
}

/// A call in flight. Kept between calls, so that its lists are allocated once.
#[derive(Default)]
pub(crate) struct Run {
    progress: Vec<u64>,
    pumps: Vec<Position>,
    live: usize,
    joined: Joined,
    /// Whether the caller's function is not ready for what is ready for it: no wire will say when.
    pub(crate) awaits_update: bool,
}

/// What a turn within the rank came to.
enum Within {
    Moved,
    Idle,
    Awaits,
}

/// Where a short message meets its header, so that both leave in one piece.
struct Joined([u8; JOINED_BYTES]);

impl Default for Joined {
    fn default() -> Self {
        Self([0; JOINED_BYTES])
    }
}

/// How far a pump is.
///
/// | Field     | Who writes it                                                                |
/// |-----------|------------------------------------------------------------------------------|
/// | `step`    | `begin_next`, behind a step that is complete, or that a wire has taken whole |
/// | `taken`   | `send`; `begin_next` makes it 0; of a pump that sends nothing it stays 0     |
/// | `head`    | `push`, `greet`; `begin_next` makes it 0 where each step has a header        |
/// | `holds`   | `lend` sets it, `settle` takes it back                                       |
/// | `settled` | `lend` when it sets `holds`, then `settle`; means nothing without `holds`    |
///
/// What holds between polls, of the pump's own steps and their progress:
///
/// * Of steps after `step` no byte has moved. Those before it are complete, but for those from
///   `settled` on while the wire holds memory: these it has taken whole.
/// * A pump that sends and holds nothing has the progress `taken` at `step`. While it holds,
///   progress is what the wire has let go of, in each step from `settled` to `step`: who is to
///   write there waits for it. It is never more than was taken.
/// * What was taken of these steps and is no progress is at most what the wire's `held()` was when
///   it was last asked, with headers in between counted as if they were of a step, and what was
///   taken since.
/// * A body moves only once `head` is the whole header. In a collective that is the one in front of
///   the first step; among messages each step has its own.
#[derive(Clone, Copy)]
struct Position {
    /// The step at hand; `pump.last` when there is none any more.
    step: u32,
    /// Bytes of the step at hand that a sending wire has taken.
    taken: u64,
    /// Whether the wire holds memory that was lent to it: of steps from `settled` on.
    holds: bool,
    settled: u32,
    /// Bytes of the header that are through.
    head: u8,
    /// What this wire of a collective starts with, or the message at hand.
    header: Header,
    arriving: [u8; HEADER_BYTES],
}

impl Position {
    fn is_through(&self, pump: &Pump) -> bool {
        self.step == pump.last && !self.holds
    }
}

impl Run {
    /// Begin the call that `plan` describes. `header` is the plan's, with the call's number.
    pub(crate) fn start(&mut self, plan: &Plan, header: &Header) {
        self.progress.clear();
        self.progress.resize(plan.steps.len(), 0);
        self.pumps.clear();
        self.pumps.extend(plan.pumps.iter().map(|pump| Position {
            step: pump.first,
            taken: 0,
            holds: false,
            settled: pump.first,
            head: 0,
            header: plan.heading(header, pump, pump.first),
            arriving: [0; HEADER_BYTES],
        }));
        self.live = plan.pumps.len();
    }

    /// Move whatever can be moved now.
    ///
    /// # Safety
    ///
    /// `memory` holds for every place of `plan`, and nothing else touches it until the run is done
    /// or dropped; `plan` is the one that the run was started with.
    pub(crate) unsafe fn poll(
        &mut self,
        plan: &Plan,
        wires: &mut Wires,
        memory: &Memory,
        functions: &mut Functions<'_>,
    ) -> Result<Poll, Stop> {
        let mut moved = false;
        self.awaits_update = false;
        for (pump, position) in plan.pumps.iter().zip(self.pumps.iter_mut()) {
            if position.is_through(pump) {
                continue;
            }
            let (progress, joined) = (&mut self.progress[..], &mut self.joined);
            let mut turn = Turn { plan, pump, position, progress, joined, memory, functions };
            moved |= match pump.channel {
                // SAFETY: the caller vouches for memory and plan.
                Channel::To(peer) => unsafe { turn.send(wire(&mut wires.to, peer))? },
                Channel::From(peer) => {
                    let peeked = wires.peeked.get_mut(peer as usize);
                    let wire = wire(&mut wires.from, peer);
                    // SAFETY: likewise.
                    unsafe { turn.receive(wire, peeked, peer)? }
                }
                // SAFETY: likewise.
                Channel::Within => match unsafe { turn.within() } {
                    Within::Moved => true,
                    Within::Idle => false,
                    Within::Awaits => {
                        self.awaits_update = true;
                        false
                    }
                },
            };
            self.live -= usize::from(position.is_through(pump));
        }
        Ok(match (self.live, moved) {
            (0, _) => Poll::Done,
            (_, true) => Poll::Moved,
            (_, false) => Poll::Idle,
        })
    }

    /// What the run waits for first, for an error sentence: a receive if there is one. A step that
    /// is held back by another one waits for that one, not for its wire.
    pub(crate) fn waiting_for(&self, plan: &Plan) -> Option<(Channel, Step)> {
        let open = plan.pumps.iter().zip(&self.pumps).filter(|(pump, at)| !at.is_through(pump));
        let on_wire = open.filter(|(pump, at)| {
            if at.step == pump.last {
                return true;
            }
            let step = &plan.steps[at.step as usize];
            let done = self.progress[at.step as usize];
            let allowed = allowed(plan, &self.progress, step, at);
            let head_due = usize::from(at.head) < HEADER_BYTES;
            match pump.channel {
                Channel::From(_) => head_due || allowed.is_some_and(|allowed| allowed > done),
                Channel::To(_) => allowed.is_some_and(|allowed| head_due || allowed > done),
                Channel::Within => false,
            }
        });
        let oldest = |at: &Position| if at.holds { at.settled } else { at.step };
        let stuck = on_wire.map(|(pump, at)| (pump.channel, plan.steps[oldest(at) as usize]));
        stuck.min_by_key(|(channel, step)| (!matches!(channel, Channel::From(_)), step.number))
    }

    /// Whether anything of this call has come through a channel.
    pub(crate) fn has_begun(&self, plan: &Plan, channel: Channel) -> bool {
        plan.pumps.iter().zip(&self.pumps).any(|(pump, at)| pump.channel == channel && at.head > 0)
    }
}

fn wire<W: ?Sized>(wires: &mut [Option<Box<W>>], peer: u32) -> &mut W {
    wires[peer as usize].as_deref_mut().expect("wires are opened before a plan is run")
}

/// One pump's turn within one poll.
struct Turn<'a, 'f> {
    plan: &'a Plan,
    pump: &'a Pump,
    position: &'a mut Position,
    progress: &'a mut [u64],
    joined: &'a mut Joined,
    memory: &'a Memory,
    functions: &'a mut Functions<'f>,
}

impl Turn<'_, '_> {
    /// Take as much as has arrived and dependencies allow.
    ///
    /// # Safety
    ///
    /// As for [`Run::poll`].
    unsafe fn receive(
        &mut self,
        wire: &mut dyn RecvWire,
        mut peeked: Option<&mut Peeked>,
        peer: u32,
    ) -> Result<bool, Stop> {
        let mut moved = false;
        while self.position.step != self.pump.last {
            if usize::from(self.position.head) < HEADER_BYTES {
                moved |= self.greet(wire, peeked.as_deref_mut(), peer)?;
                if usize::from(self.position.head) < HEADER_BYTES {
                    return Ok(moved);
                }
            }
            let step = self.plan.steps[self.position.step as usize];
            let Some(allowed) = self.allowed(&step) else { return Ok(moved) };
            let done = self.progress[self.position.step as usize];
            let taken = if allowed == done {
                0
            } else {
                // SAFETY: the caller vouches for memory and plan.
                unsafe { self.take(wire, &step, done, allowed)? }
            };
            moved |= taken > 0;
            self.progress[self.position.step as usize] = done + taken;
            if done + taken < step.bytes {
                return Ok(moved);
            }
            self.complete();
        }
        Ok(moved)
    }

    /// Take the header, and compare it with ours once it is whole.
    fn greet(
        &mut self,
        wire: &mut dyn RecvWire,
        peeked: Option<&mut Peeked>,
        peer: u32,
    ) -> Result<bool, Stop> {
        let head = usize::from(self.position.head);
        let rest = &mut self.position.arriving[head..];
        let taken = match peeked.map_or(0, |peeked| peeked.give(rest)) {
            0 => wire.pull_into(rest)?,
            given => given,
        };
        assert!(head + taken <= HEADER_BYTES, "a wire hands out no more than it was asked for");
        self.position.head += taken as u8;
        let ours = self.position.header;
        if head + taken == HEADER_BYTES && self.position.arriving != *ours.bytes() {
            let theirs = Header::from_bytes(self.position.arriving);
            return Err(Stop::Mismatch { peer, ours, theirs });
        }
        Ok(taken > 0)
    }

    /// Bytes `done..allowed` of a receive or fold, as far as they have arrived.
    ///
    /// # Safety
    ///
    /// As for [`Run::poll`].
    unsafe fn take(
        &self,
        wire: &mut dyn RecvWire,
        step: &Step,
        done: u64,
        allowed: u64,
    ) -> Result<u64, Stop> {
        // SAFETY: source and target are `bytes` long, and `done` is less.
        let (source, target) = unsafe {
            let at = |place| self.memory.at(place).add(done as usize);
            (at(step.source).cast_const(), at(step.target))
        };
        let granule = self.plan.elem_bytes;
        let limit = (allowed - done) as usize;
        let taken = match step.kind {
            Kind::Fold => {
                let (reduction, mut at) = (self.functions.reduction, 0);
                let limit = limit - limit % granule;
                wire.pull(limit, granule, &mut |arrived: &[u8]| {
                    // Wires may be anybody's; one that hands out more must not write past the end.
                    assert!(arrived.len() <= limit - at && arrived.len().is_multiple_of(granule));
                    // SAFETY: these are at most `limit` bytes, whole elements, which fit what
                    // dependencies have settled of source and target.
                    unsafe {
                        let (operand, result) = (source.add(at), target.add(at));
                        let (arrived, count) = (arrived.as_ptr(), arrived.len() / granule);
                        match step.is_past_caches {
                            false => reduction.fold(operand, arrived, result, count),
                            true => reduction.fold_past(operand, arrived, result, (count, granule)),
                        }
                    }
                    at += arrived.len();
                })?
            }
            _ => {
                // SAFETY: the target is ours alone for these bytes.
                let target = unsafe { std::slice::from_raw_parts_mut(target, limit) };
                match step.is_past_caches {
                    false => wire.pull_into(target)?,
                    true => wire.pull_past_caches(target)?,
                }
            }
        };
        assert!(taken <= limit, "a wire hands out no more than it was asked for");
        Ok(taken as u64)
    }

    fn complete(&mut self) {
        self.progress[self.position.step as usize] = COMPLETE;
        self.begin_next();
    }

    fn begin_next(&mut self) {
        self.position.step += 1;
        self.position.taken = 0;
        let (plan, step) = (self.plan, self.position.step);
        if !plan.message_types.is_empty() && step != self.pump.last {
            self.position.head = 0;
            self.position.header = plan.heading(&self.position.header, self.pump, step);
        }
    }

    fn allowed(&self, step: &Step) -> Option<u64> {
        allowed(self.plan, self.progress, step, self.position)
    }
}

/// How many bytes of the step at `position` dependencies allow by now, or `None` if it may not even
/// begin.
#[inline]
fn allowed(plan: &Plan, progress: &[u64], step: &Step, position: &Position) -> Option<u64> {
    let mut allowed = step.bytes;
    for need in &plan.needs[step.needs.0 as usize..step.needs.1 as usize] {
        let before = progress[need.step as usize];
        if before != COMPLETE {
            allowed = allowed.min(need.at + before.saturating_sub(need.from));
            if step.bytes == 0 || (allowed == 0 && position.head == 0) {
                return None;
            }
        }
    }
    Some(allowed.max(progress[position.step as usize]))
}
