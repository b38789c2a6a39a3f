//! From a call to hops: the moves of its schedule, for a kernel that works windows out by itself.
//!
//! Pure, as `lower`. What a kernel gets has no list for every window: a hop names its block and
//! which pieces of it, and the same few hops do for all windows of a call, however long it is.
//! Each window is one lane's affair, from its first hop to its last, in program order.

use brigade_schedule::{Algorithm, Collective, Move, Program, Span, program};

use super::super::layout::{HOPS, Hop, HopKind, SLOT_BYTES};
use crate::call::{Call, Counts};
use crate::plan::{Places, Seat};

/// Windows have whole vectors of 16 bytes of every piece, whatever the type.
const UNIT: u64 = 64;
/// Pieces are not cut below this, as long as a call has more.
const PIECE_BYTES: u64 = 4 << 10;

/// A call by its schedule, on one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Linked {
    pub(super) algorithm: Algorithm,
    pub(super) hops: Vec<Hop>,
    /// Pieces of every block.
    pub(super) pieces: u32,
    /// Elements of each block in a window.
    pub(super) window: u64,
    pub(super) windows: u64,
    /// Bytes of scratch that each lane needs.
    pub(super) scratch_bytes: u64,
}

/// Link a call that makes sense, by the first of these algorithms that a kernel can carry out; none
/// if there is none. All ranks find the same.
pub(super) fn link(
    call: &Call,
    (ranks, rank): (u32, u32),
    lanes: u32,
    algorithms: impl IntoIterator<Item = Algorithm>,
) -> Option<Linked> {
    algorithms.into_iter().find_map(|algorithm| {
        let does = is_sequential(algorithm, call.collective)
            && (!call.is_uneven() || algorithm.suits_uneven(call.collective));
        does.then(|| link_by(call, algorithm, (ranks, rank), lanes)).flatten()
    })
}

/// Whether the moves of every rank may be carried out one after the other, with room for one on
/// each wire: a test tries them all.
fn is_sequential(algorithm: Algorithm, collective: Collective) -> bool {
    match algorithm {
        Algorithm::Hierarchical { .. } | Algorithm::NodeDoubling { .. } => false,
        Algorithm::Bruck => collective != Collective::AllToAll,
        _ => true,
    }
}

fn link_by(
    call: &Call,
    algorithm: Algorithm,
    (ranks, rank): (u32, u32),
    lanes: u32,
) -> Option<Linked> {
    let programs: Option<Vec<Program>> =
        (0..ranks).map(|rank| program(call.collective, algorithm, ranks, rank)).collect();
    let programs = programs?;
    let window = window(call, &programs, lanes)?;
    // How many hops a rank has does not depend on lengths, of which it knows only its own.
    let like = Call { counts: Counts::Even(1), ..call.clone() };
    let all_fit = programs.iter().all(|program| {
        let places = Places::of_window(&like, program, window);
        hops(&places, program, 1).is_some_and(|hops| hops.len() <= HOPS)
    });
    if !all_fit {
        return None;
    }
    let program = &programs[rank as usize];
    let places = Places::of_window(call, program, window);
    let hops = hops(&places, program, call.dtype.size() as u64)?;
    let (windows, scratch_bytes) = (places.windows(), places.area_bytes());
    Some(Linked { algorithm, hops, pieces: program.pieces, window, windows, scratch_bytes })
}

/// Elements of each block in a window: no move has more than a slot holds, and every lane has
/// something to do, where all ranks know how long the call is.
fn window(call: &Call, programs: &[Program], lanes: u32) -> Option<u64> {
    let elem_bytes = call.dtype.size() as u64;
    let pieces = u64::from(programs[0].pieces);
    let moves = programs.iter().flat_map(|program| &program.moves);
    let widest = moves.map(|one| u64::from(one.span().count)).max().unwrap_or(1);
    let unit = UNIT * pieces;
    let most = SLOT_BYTES as u64 / elem_bytes / widest * pieces / unit * unit;
    let least = PIECE_BYTES / elem_bytes * pieces;
    let longest = match &call.counts {
        Counts::Even(count) => *count as u64,
        Counts::PerRank(counts) if super::lower::knows_all(call.collective) => {
            counts.iter().copied().max().unwrap_or(0) as u64
        }
        Counts::PerRank(_) | Counts::PerPair { .. } => u64::MAX / 2,
    };
    let share = longest.div_ceil(u64::from(lanes)).max(least).next_multiple_of(unit);
    (most > 0).then_some(share.min(most))
}

/// The hops of one rank; none where a move sends what is not there.
fn hops(places: &Places<'_>, program: &Program, elem_bytes: u64) -> Option<Vec<Hop>> {
    let chunks = program.chunks();
    let written = vec![false; chunks as usize + program.scratch.len()];
    let mut writer = Writer { places, elem_bytes, written, hops: Vec::new() };
    for one in &program.moves {
        match *one {
            Move::Send { to, span } => writer.wired(HopKind::Send, to, span)?,
            Move::Recv { from, span } => writer.wired(HopKind::Recv, from, span)?,
            Move::Fold { from, span } => writer.wired(HopKind::Fold, from, span)?,
            Move::Merge { from, into } => {
                for (other, chunk) in from.chunks().zip(into.chunks()) {
                    let other = writer.operand(other)?;
                    let source = writer.operand(chunk)?;
                    writer.push(Hop { other, ..writer.hop(HopKind::Merge, chunk, source) });
                    writer.written[chunk as usize] = true;
                }
            }
        }
    }
    // What the caller shall have and no move wrote is the rank's own contribution.
    for chunk in 0..chunks {
        let Seat { input, output, .. } = places.seat(chunk);
        if input.is_some() && output.is_some() && !writer.written[chunk as usize] {
            let source = writer.operand(chunk)?;
            writer.push(writer.hop(HopKind::Copy, chunk, source));
        }
    }
    Some(pass_on(writer.hops))
}

/// What arrives and is sent at once, as it is then, becomes one hop.
fn pass_on(hops: Vec<Hop>) -> Vec<Hop> {
    let mut passed: Vec<Hop> = Vec::with_capacity(hops.len());
    // Whether the last hop is a whole move.
    let mut is_whole = false;
    for hop in hops {
        let begins = passed.last().is_none_or(|last| last.ends == 1 || !last.is_wired());
        if let Some(last) = passed.last_mut().filter(|last| is_whole && last.feeds(&hop)) {
            last.next = hop.peer + 1;
            is_whole = false;
            continue;
        }
        is_whole = begins && hop.ends == 1;
        passed.push(hop);
    }
    passed
}

struct Writer<'a> {
    places: &'a Places<'a>,
    elem_bytes: u64,
    written: Vec<bool>,
    hops: Vec<Hop>,
}

impl Writer<'_> {
    fn wired(&mut self, kind: HopKind, peer: u32, span: Span) -> Option<()> {
        for chunk in span.chunks() {
            let source = if kind == HopKind::Recv { 0 } else { self.operand(chunk)? };
            let hop = Hop { peer: peer as u8, ..self.hop(kind, chunk, source) };
            self.push(hop);
            self.written[chunk as usize] |= kind != HopKind::Send;
        }
        self.hops.last_mut()?.ends = 1;
        Some(())
    }

    fn hop(&self, kind: HopKind, chunk: u32, source: u64) -> Hop {
        let Seat { elems, piece, .. } = self.places.seat(chunk);
        let target = if kind == HopKind::Send { 0 } else { self.home(chunk) };
        let (from, to) = (piece as u16, piece as u16 + 1);
        Hop { kind, peer: 0, ends: 0, next: 0, from, to, elems, source, target, other: 0 }
    }

    /// Where the present value of a chunk lies.
    fn operand(&self, chunk: u32) -> Option<u64> {
        if self.written[chunk as usize] {
            return Some(self.home(chunk));
        }
        let input = self.places.seat(chunk).input?;
        Some(Hop::INPUT | (input * self.elem_bytes))
    }

    fn home(&self, chunk: u32) -> u64 {
        let Seat { output, scratch, .. } = self.places.seat(chunk);
        match output {
            Some(output) => Hop::OUTPUT | (output * self.elem_bytes),
            None => Hop::SCRATCH | scratch.unwrap_or(0),
        }
    }

    /// Pieces of a block that lie side by side are one hop.
    fn push(&mut self, hop: Hop) {
        let is_apart = |place: u64| place & Hop::SCRATCH != 0;
        if let Some(last) = self.hops.last_mut()
            && last.joins(&hop)
            && ![hop.source, hop.target].into_iter().any(is_apart)
        {
            last.to = hop.to;
            return;
        }
        self.hops.push(hop);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::device::layout::{RANKS, SLOTS};
    use crate::{Dtype, Op};

    /// What one rank waits for and does, move by move: whom it takes from, and whom it sends to.
    fn turns(hops: &[Hop]) -> Vec<(Option<u32>, Option<u32>)> {
        let whole = hops.iter().filter(|hop| hop.ends == 1);
        let turn = |hop: &Hop| match hop.kind {
            HopKind::Send => (None, Some(u32::from(hop.peer))),
            _ => (Some(u32::from(hop.peer)), u32::from(hop.next).checked_sub(1)),
        };
        whole.map(turn).collect()
    }

    /// Whether ranks that take such turns, for three windows, come to an end with room for so many
    /// moves on each wire.
    fn ends(ranks: &[Vec<(Option<u32>, Option<u32>)>], room: usize) -> bool {
        let mut at = vec![0; ranks.len()];
        let mut wires: HashMap<(u32, u32), usize> = HashMap::new();
        loop {
            let before = at.clone();
            for (rank, turns) in ranks.iter().enumerate() {
                let rank32 = rank as u32;
                while at[rank] < 3 * turns.len() {
                    let (from, to) = turns[at[rank] % turns.len()];
                    let on_wire = |wire| wires.get(&wire).copied().unwrap_or(0);
                    let is_there = from.is_none_or(|from| on_wire((from, rank32)) > 0);
                    let has_room = to.is_none_or(|to| on_wire((rank32, to)) < room);
                    if !is_there || !has_room {
                        break;
                    }
                    if let Some(from) = from {
                        *wires.entry((from, rank32)).or_default() -= 1;
                    }
                    if let Some(to) = to {
                        *wires.entry((rank32, to)).or_default() += 1;
                    }
                    at[rank] += 1;
                }
            }
            if before == at {
                return at.iter().zip(ranks).all(|(at, turns)| *at == 3 * turns.len());
            }
        }
    }

    /// What is passed on takes a slot before it gives one back.
    #[test]
    fn schedules_that_kernels_carry_out_end_with_as_many_slots() {
        for ranks in (2..=12).chain([16, 21, 32]) {
            for collective in Collective::ALL {
                let roots = if collective.root().is_some() { ranks.min(12) } else { 1 };
                for collective in (0..roots).map(|root| collective.with_root(root)) {
                    let call = Call::new(collective, Dtype::F32, Op::Sum, 100);
                    // Which number of servers is worth trying is not who names one's business.
                    let servers = (3..=ranks).map(|servers| Algorithm::ParameterServer { servers });
                    for algorithm in
                        Algorithm::all_for(collective, ranks).into_iter().chain(servers)
                    {
                        let of = |rank| link(&call, (ranks, rank), 4, [algorithm]);
                        let linked: Option<Vec<_>> = (0..ranks).map(of).collect();
                        let Some(linked) = linked else { continue };
                        let turns: Vec<_> = linked.iter().map(|one| turns(&one.hops)).collect();
                        assert!(ends(&turns, SLOTS), "{collective} by {algorithm}({ranks})");
                    }
                }
            }
        }
    }

    #[test]
    fn rings_pass_on_what_arrives_at_once() {
        let call = Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, 100_000);
        let linked = link(&call, (4, 1), 32, [Algorithm::Ring]).expect("a ring");
        // One is sent, five are passed on, one is kept.
        let kinds: Vec<_> = linked.hops.iter().map(|hop| (hop.kind, hop.next)).collect();
        let [fold, recv] = [(HopKind::Fold, 3), (HopKind::Recv, 3)];
        let last = (HopKind::Recv, 0);
        assert_eq!(kinds, [(HopKind::Send, 0), fold, fold, fold, recv, recv, last]);
    }

    /// What it states of blocks that it neither has nor sees is not looked at.
    #[test]
    fn who_gathers_nothing_has_windows_for_its_own_block_only() {
        for collective in [Collective::Gather { root: 0 }, Collective::Scatter { root: 0 }] {
            let counts = Counts::PerRank([1 << 50, 100, 1 << 50].into());
            let call = Call { counts, ..Call::moving(collective, Dtype::U8, 0) };
            let linked = link(&call, (3, 1), 32, [Algorithm::Direct]).expect("by everyone");
            assert_eq!(linked.windows, 1, "{collective}");
        }
    }

    #[test]
    fn every_call_of_as_many_ranks_as_there_may_be_is_linked_by_some_algorithm() {
        for ranks in 2..=RANKS as u32 {
            for collective in Collective::ALL {
                for dtype in [Dtype::U8, Dtype::F64] {
                    let call = Call::new(collective, dtype, Op::Sum, 100_000);
                    let all = Algorithm::all_for(collective, ranks);
                    let linked = link(&call, (ranks, ranks - 1), 32, all);
                    let linked = linked.unwrap_or_else(|| panic!("{call} among {ranks}"));
                    assert!(linked.hops.len() <= HOPS && linked.window % UNIT == 0, "{linked:?}");
                }
            }
        }
    }

    /// Both ends of a wire have the same moves, of the same lengths.
    #[test]
    fn what_one_end_of_a_wire_sends_the_other_one_takes() {
        type Moves = Vec<Vec<(u64, u16, u16)>>;
        fn on_wire(linked: &Linked, sends: bool, peer: u8) -> Moves {
            let is_ours = |hop: &&Hop| match (sends, hop.kind) {
                (true, HopKind::Send) | (false, HopKind::Recv | HopKind::Fold) => hop.peer == peer,
                (true, _) => hop.next == peer + 1,
                (false, _) => false,
            };
            let mut moves: Moves = vec![Vec::new()];
            for hop in linked.hops.iter().filter(is_ours) {
                let pieces = (hop.from..hop.to).map(|piece| (hop.elems, piece, piece + 1));
                moves.last_mut().expect("one is open").extend(pieces);
                if hop.ends == 1 {
                    moves.push(Vec::new());
                }
            }
            moves
        }
        for ranks in [2, 3, 5, 8] {
            for collective in Collective::ALL.into_iter().map(|it| it.with_root(1)) {
                let call = Call::new(collective, Dtype::F32, Op::Sum, 5000);
                for algorithm in Algorithm::all_for(collective, ranks) {
                    let of = |rank| link(&call, (ranks, rank), 16, [algorithm]);
                    let Some(all) = (0..ranks).map(of).collect::<Option<Vec<_>>>() else {
                        continue;
                    };
                    for (from, to) in
                        (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)))
                    {
                        let sent = on_wire(&all[from as usize], true, to as u8);
                        let taken = on_wire(&all[to as usize], false, from as u8);
                        assert_eq!(sent, taken, "{call} by {algorithm}({ranks}), {from} to {to}");
                    }
                }
            }
        }
    }
}
