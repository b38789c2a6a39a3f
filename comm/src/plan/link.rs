//! The linker: from moves over chunks to steps over bytes.
//!
//! Three things happen here. Chunks become places: the first touch of a chunk reads the caller's
//! input, whatever is written goes to the chunk's home (the caller's output, or scratch), so that a
//! program written as if in place runs out of place without a copy in front. Runs of chunks that
//! lie side by side become one step. And moves that touch the same chunk, on different wires, get
//! the dependencies that the program's order implies.

use brigade_schedule::{Move, Program, Span};
use thiserror::Error;

use super::assemble::{Draft, assemble};
use super::places::{ChunkPlace, Places};
use super::{Channel, Kind, Need, Place, Plan, Space};
use crate::call::Call;
use crate::header::Header;

/// About the most steps a plan may have; beyond that windows grow instead.
const STEPS_MAX: usize = 1 << 18;

/// A program that does not fit its call.
#[derive(Debug, Error)]
pub(crate) enum LinkError {
    #[error("move {number} of {algorithm} sends chunk {chunk}, which rank {rank} does not hold")]
    NothingThere { number: usize, algorithm: String, chunk: u32, rank: u32 },
}

/// Link `program` to `call`. `window_bytes` is how much of the call is worked on at a time.
pub(crate) fn link(
    program: &Program,
    call: &Call,
    header: Header,
    window_bytes: u64,
    in_place: bool,
) -> Result<Plan, LinkError> {
    let mut window_bytes = window_bytes;
    let mut places = Places::new(call, program, window_bytes, in_place);
    while are_many(&places, program) {
        window_bytes = window_bytes.saturating_mul(2);
        places = Places::new(call, program, window_bytes, in_place);
    }
    let mut linker = Linker::new(program, &places, in_place);
    let mut steps = Vec::new();
    for window in 0..places.windows() {
        linker.begin(window);
        linker.moves(&mut steps, window)?;
    }
    let scratch_bytes = places.scratch_bytes();
    let moves = program.moves.len() as u32;
    Ok(assemble(steps, header, call.dtype.size(), scratch_bytes, moves))
}

/// Whether a plan would have too many steps with windows as they are. They must be alike on all
/// ranks, so what they grow by is the number of ranks, not the moves of this one.
pub(super) fn are_many(places: &Places, program: &Program) -> bool {
    let moves_about = 4 * (u64::from(program.ranks) + 16);
    places.windows() > 1 && places.windows().saturating_mul(moves_about) > STEPS_MAX as u64
}

/// Who touched one place last, by step and the place's offset within that step.
#[derive(Clone, Default)]
struct Touched {
    writer: Option<(usize, u64)>,
    readers: Vec<(usize, u64)>,
    /// Whether those steps belong to an earlier window, of another shape.
    earlier: bool,
}

/// The touches of every chunk that is seen: as the caller brought it, and at home.
struct Touches {
    input: Vec<Touched>,
    home: Vec<Touched>,
}

impl Touches {
    fn new(count: usize) -> Self {
        Self { input: vec![Touched::default(); count], home: vec![Touched::default(); count] }
    }
}

/// Links one program, window by window, into a list of steps that others may add to as well.
pub(super) struct Linker<'a> {
    program: &'a Program,
    places: &'a Places<'a>,
    /// Scratch is used by windows in turn, so touches are kept for two windows.
    touches: [Touches; 2],
    /// By the numbers of chunks among those seen, as touches are.
    written: Vec<bool>,
    in_place: bool,
}

/// One side of a step: the chunk, and whether at home or as the caller brought it.
#[derive(Clone, Copy)]
struct Touch {
    chunk: u32,
    home: bool,
}

impl<'a> Linker<'a> {
    pub(super) fn new(program: &'a Program, places: &'a Places<'a>, in_place: bool) -> Self {
        let count = places.seen().count();
        let touches = [Touches::new(count), Touches::new(count)];
        Self { program, places, touches, written: vec![false; count], in_place }
    }

    /// All moves of a window that has begun.
    pub(super) fn moves(&mut self, steps: &mut Vec<Draft>, window: u64) -> Result<(), LinkError> {
        for (number, step) in self.program.moves.iter().enumerate() {
            match *step {
                Move::Send { to, span } => {
                    self.moving(steps, window, number, Channel::To(to), Kind::Send, span)?;
                }
                Move::Recv { from, span } => {
                    self.moving(steps, window, number, Channel::From(from), Kind::Recv, span)?;
                }
                Move::Fold { from, span } => {
                    self.moving(steps, window, number, Channel::From(from), Kind::Fold, span)?;
                }
                Move::Merge { from, into } => self.merge(steps, window, number, from, into)?,
            }
        }
        self.copy_untouched(steps, window);
        Ok(())
    }

    /// Turn to a window. What the window before the last one touched is forgotten, for its places
    /// with the caller are others, but for scratch: both use the same, so who writes there waits
    /// for those who touched it.
    pub(super) fn begin(&mut self, window: u64) {
        self.written.fill(false);
        let touches = &mut self.touches[(window % 2) as usize];
        touches.input.fill(Touched::default());
        for (chunk, touched) in self.places.seen().all().zip(&mut touches.home) {
            match self.places.chunk(chunk, window).home.space {
                Space::Scratch => touched.earlier = true,
                Space::Input | Space::Output | Space::Absolute => *touched = Touched::default(),
            }
        }
    }

    /// Steps of one send, receive or fold: one for each run of chunks that lie side by side.
    fn moving(
        &mut self,
        steps: &mut Vec<Draft>,
        window: u64,
        number: usize,
        channel: Channel,
        kind: Kind,
        span: Span,
    ) -> Result<(), LinkError> {
        let mut run: Option<Draft> = None;
        let total: u64 = span.chunks().map(|chunk| self.places.chunk(chunk, window).bytes).sum();
        for chunk in span.chunks() {
            let place = self.places.chunk(chunk, window);
            // Of an empty span one empty step remains: its header still tells the peer that we
            // came.
            if place.bytes == 0 && (total > 0 || chunk != span.first) {
                *self.written(chunk) |= kind != Kind::Send;
                continue;
            }
            let reads = kind != Kind::Recv;
            let source = if reads { Some(self.operand(chunk, &place, number)?) } else { None };
            let from = source.map_or(place.home, |(at, _)| at);
            let target = if kind == Kind::Send { from } else { place.home };
            let joins = run.as_ref().is_some_and(|run| {
                follows(run.source, run.bytes, from) && follows(run.target, run.bytes, target)
            });
            if !joins {
                steps.extend(run.take());
            }
            let step = steps.len();
            let draft = run.get_or_insert_with(|| Draft {
                channel,
                kind,
                source: from,
                target,
                bytes: 0,
                needs: Vec::new(),
                number,
                chunk,
            });
            let at = draft.bytes;
            draft.bytes += place.bytes;
            let mut needs = std::mem::take(&mut draft.needs);
            if let Some((_, home)) = source {
                self.touch(window, step, at, Touch { chunk, home }, false, &mut needs);
            }
            if kind != Kind::Send {
                let home = !self.aliases(&place);
                self.touch(window, step, at, Touch { chunk, home }, true, &mut needs);
                *self.written(chunk) = true;
            }
            run.as_mut().expect("a run is open").needs = needs;
        }
        steps.extend(run);
        Ok(())
    }

    fn merge(
        &mut self,
        steps: &mut Vec<Draft>,
        window: u64,
        number: usize,
        from: Span,
        into: Span,
    ) -> Result<(), LinkError> {
        for (other, chunk) in from.chunks().zip(into.chunks()) {
            let (other_place, place) =
                (self.places.chunk(other, window), self.places.chunk(chunk, window));
            let (other_at, other_home) = self.operand(other, &other_place, number)?;
            let (source, home) = self.operand(chunk, &place, number)?;
            let step = steps.len();
            let mut needs = Vec::new();
            let reads = [Touch { chunk: other, home: other_home }, Touch { chunk, home }];
            for read in reads {
                self.touch(window, step, 0, read, false, &mut needs);
            }
            let written = Touch { chunk, home: !self.aliases(&place) };
            self.touch(window, step, 0, written, true, &mut needs);
            *self.written(chunk) = true;
            steps.push(Draft {
                channel: Channel::Within,
                kind: Kind::Merge { other: other_at },
                source,
                target: place.home,
                bytes: place.bytes,
                needs,
                number,
                chunk,
            });
        }
        Ok(())
    }

    /// Let `step` read or write a whole block of a window that has begun; where it lies, and its
    /// bytes. What the step must wait for is complete before it begins.
    pub(super) fn whole_block(
        &mut self,
        (step, window): (usize, u64),
        block: u32,
        writes: bool,
        needs: &mut Vec<Need>,
    ) -> (Place, u64) {
        let pieces = self.program.pieces;
        let chunks = block * pieces..(block + 1) * pieces;
        let start = self.places.chunk(chunks.start, window).home;
        let mut bytes = 0;
        let mut touched = Vec::new();
        for chunk in chunks {
            let place = self.places.chunk(chunk, window);
            let touch = Touch { chunk, home: !self.aliases(&place) };
            self.touch(window, step, bytes, touch, writes, &mut touched);
            bytes += place.bytes;
        }
        needs.extend(touched.into_iter().map(|need| Need { from: u64::MAX, at: 0, ..need }));
        (start, bytes)
    }

    /// What the caller shall have and no move wrote is the rank's own contribution.
    fn copy_untouched(&mut self, steps: &mut Vec<Draft>, window: u64) {
        for chunk in self.places.seen().chunks() {
            let place = self.places.chunk(chunk, window);
            let (true, Some(source)) = (place.is_output, place.input) else { continue };
            if self.is_written(chunk) || place.bytes == 0 || self.aliases(&place) {
                continue;
            }
            steps.push(Draft {
                channel: Channel::Within,
                kind: Kind::Copy,
                source,
                target: place.home,
                bytes: place.bytes,
                needs: Vec::new(),
                number: self.program.moves.len(),
                chunk,
            });
        }
    }

    /// The number of a chunk among those seen.
    fn number(&self, chunk: u32) -> usize {
        self.places.seen().chunk(chunk).expect("what a move names is seen")
    }

    fn is_written(&self, chunk: u32) -> bool {
        self.written[self.number(chunk)]
    }

    fn written(&mut self, chunk: u32) -> &mut bool {
        let number = self.number(chunk);
        &mut self.written[number]
    }

    /// Where the present value of a chunk lies, and whether that is its home.
    fn operand(
        &self,
        chunk: u32,
        place: &ChunkPlace,
        number: usize,
    ) -> Result<(Place, bool), LinkError> {
        if self.is_written(chunk) {
            return Ok((place.home, !self.aliases(place)));
        }
        if self.aliases(place) {
            return Ok((place.home, false));
        }
        place.input.map(|at| (at, false)).ok_or_else(|| LinkError::NothingThere {
            number,
            algorithm: self.program.algorithm.to_string(),
            chunk,
            rank: self.program.rank,
        })
    }

    /// Whether a chunk's input and home are the same memory; then it is touched as
    /// input alone.
    fn aliases(&self, place: &ChunkPlace) -> bool {
        self.in_place && place.is_output && place.input.is_some_and(|at| at.at == place.home.at)
    }

    /// Record that `step` reads or writes a chunk, and collect what it must wait for.
    fn touch(
        &mut self,
        window: u64,
        step: usize,
        at: u64,
        Touch { chunk, home }: Touch,
        writes: bool,
        needs: &mut Vec<Need>,
    ) {
        let number = self.number(chunk);
        let touches = &mut self.touches[(window % 2) as usize];
        let list = if home { &mut touches.home } else { &mut touches.input };
        let touched = &mut list[number];
        let before = touched.writer.iter().chain(touched.readers.iter().filter(|_| writes));
        for &(other, other_at) in before.filter(|(other, _)| *other != step) {
            let need = if touched.earlier {
                Need { step: other as u32, from: u64::MAX, at: 0 }
            } else {
                Need { step: other as u32, from: other_at, at }
            };
            let implied = needs.iter().any(|known| {
                known.step == need.step
                    && (known.from == u64::MAX
                        || (known.from <= need.from
                            && known.at.wrapping_sub(known.from)
                                == need.at.wrapping_sub(need.from)))
            });
            if !implied {
                needs.push(need);
            }
        }
        touched.earlier = false;
        if writes {
            touched.writer = Some((step, at));
            touched.readers.clear();
        } else {
            touched.readers.push((step, at));
        }
    }
}

fn follows(place: Place, bytes: u64, next: Place) -> bool {
    place.space == next.space && place.at + bytes == next.at
}
