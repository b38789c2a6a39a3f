//! The checker is attacked: one move of one program is changed, and the checker must either find
//! the fault or be right that there is none. The plain executor is the judge, both ways round.

mod naive;

use std::collections::BTreeMap;

use brigade_schedule::{
    Algorithm, Collective, Fault, Move, Program, Span, check_programs, program,
};
use naive::{World, add, entangle, outputs, promised, run, scramble};

/// The seed of everything drawn by lot here.
const SEED: u64 = 20_261_121;

/// One change of one move: its name, and the moves after it.
type Mutant = (&'static str, Vec<Move>);

fn with_span(step: Move, change: impl Fn(Span) -> Option<Span>) -> Option<Move> {
    Some(match step {
        Move::Send { to, span } => Move::Send { to, span: change(span)? },
        Move::Recv { from, span } => Move::Recv { from, span: change(span)? },
        Move::Fold { from, span } => Move::Fold { from, span: change(span)? },
        Move::Merge { from, into } => Move::Merge { from, into: change(into)? },
    })
}

fn with_peer(step: Move, change: impl Fn(u32) -> u32) -> Option<Move> {
    match step {
        Move::Send { to, span } => Some(Move::Send { to: change(to), span }),
        Move::Recv { from, span } => Some(Move::Recv { from: change(from), span }),
        Move::Fold { from, span } => Some(Move::Fold { from: change(from), span }),
        Move::Merge { .. } => None,
    }
}

/// Every change of move `index` that we know.
fn mutants(program: &Program, index: usize) -> Vec<Mutant> {
    let step = program.moves[index];
    let replaced = |name, new: Option<Move>| {
        let mut moves = program.moves.clone();
        moves[index] = new?;
        Some((name, moves))
    };
    let first = |by: i32| {
        with_span(step, |span| {
            Some(Span { first: span.first.checked_add_signed(by)?, count: span.count })
        })
    };
    let count = |by: i32| {
        with_span(step, |span| {
            Some(Span { first: span.first, count: span.count.checked_add_signed(by)? })
        })
    };
    let kind = match step {
        Move::Recv { from, span } => Some(Move::Fold { from, span }),
        Move::Fold { from, span } => Some(Move::Recv { from, span }),
        Move::Merge { from, into } => Some(Move::Merge { from: into, into: from }),
        Move::Send { .. } => None,
    };
    let turned = match step {
        Move::Send { to: peer, span } => Some(Move::Fold { from: peer, span }),
        Move::Recv { from, span } | Move::Fold { from, span } => {
            Some(Move::Send { to: from, span })
        }
        Move::Merge { .. } => None,
    };
    let mut dropped = program.moves.clone();
    dropped.remove(index);
    let mut doubled = program.moves.clone();
    doubled.insert(index, step);
    let mut all = vec![("dropped", dropped), ("doubled", doubled)];
    all.extend(replaced("chunk + 1", first(1)));
    all.extend(replaced("chunk - 1", first(-1)));
    all.extend(replaced("count + 1", count(1)));
    all.extend(replaced("count - 1", count(-1)));
    all.extend(replaced("fold for take, operands swapped", kind));
    all.extend(replaced("other direction", turned));
    all.extend(replaced("next peer", with_peer(step, |peer| (peer + 1) % program.ranks)));
    if index + 1 < program.moves.len() && program.moves[index + 1] != step {
        let mut swapped = program.moves.clone();
        swapped.swap(index, index + 1);
        all.push(("swapped with the next", swapped));
    }
    all
}

/// Whether the executor finds the promise kept: in every run everything arrives, sums are right,
/// and ranks agree on the bits; what is ordered has those of a left fold, with operands that may
/// not be swapped. Also returns the bits of the last run.
fn keeps_promise(programs: &[Program], rng: &mut fastrand::Rng, short: bool) -> (bool, Vec<u64>) {
    let mut bits = Vec::new();
    for (elements, room) in [(2, 1), (1, 1), (3, 1), (5, 1), (4, 2), (1, 99)] {
        if short && (elements, room) != (2, 1) {
            continue;
        }
        let elements = if programs[0].collective == Collective::Barrier { 1 } else { elements };
        let length = |_| elements;
        let world = World { length: &length, room, fold: add };
        let Ok(held) = run(programs, &world, rng) else { return (false, bits) };
        let right = programs.iter().zip(&held).all(|(program, held)| {
            program.collective == Collective::Barrier && held[0] == [Some((1 << program.ranks) - 1)]
                || outputs(program, held) == promised(program, &world)
        });
        let is_ordered = programs[0].algorithm == Algorithm::Ordered;
        let world = World { fold: if is_ordered { entangle } else { scramble }, ..world };
        let Ok(held) = run(programs, &world, rng) else { return (false, bits) };
        let out: Vec<_> = programs.iter().zip(&held).map(|(p, held)| outputs(p, held)).collect();
        let same = programs[0].collective != Collective::AllReduce
            || out.iter().all(|other| *other == out[0]);
        bits = out.into_iter().flatten().map(|chunk| chunk[0].unwrap_or(0)).collect();
        let ordered = !is_ordered || bits == left_folds(programs);
        if !right || !same || !ordered {
            return (false, bits);
        }
    }
    (true, bits)
}

/// The first element of every output, folded in rank order.
fn left_folds(programs: &[Program]) -> Vec<u64> {
    let fold = |program: &Program| {
        let (collective, ranks, pieces) = (program.collective, program.ranks, program.pieces);
        let rank = program.rank;
        let takes = move |&chunk: &u32| collective.has_output(ranks, rank, chunk / pieces);
        let value = move |chunk| {
            let brought = (0..ranks).map(|r| naive::input(collective, r, chunk, 0));
            brought.reduce(entangle).unwrap()
        };
        (0..program.chunks()).filter(takes).map(value).collect::<Vec<_>>()
    };
    programs.iter().flat_map(fold).collect()
}

/// The move at the other end of the wire of `programs[rank].moves[index]`, a send.
fn counterpart(programs: &[Program], rank: usize, index: usize) -> Option<(usize, usize)> {
    let Move::Send { to, .. } = programs[rank].moves[index] else { return None };
    let same_wire = |step: &&Move| matches!(step, Move::Send { to: other, .. } if *other == to);
    let number = programs[rank].moves[..index].iter().filter(same_wire).count();
    let receives = |step: &Move| match step {
        Move::Recv { from, .. } | Move::Fold { from, .. } => *from == rank as u32,
        _ => false,
    };
    let mut there = programs[to as usize].moves.iter().enumerate().filter(|(_, s)| receives(s));
    there.nth(number).map(|(index, _)| (to as usize, index))
}

/// Attacks both ends of every wire alike, so that they still match and only values can tell.
fn attack_both_ends(programs: &mut [Program], bits: &[u64], tally: &mut Tally) {
    for rank in 0..programs.len() {
        for index in 0..programs[rank].moves.len() {
            let Some((peer, there)) = counterpart(programs, rank, index) else { continue };
            let here = mutants(&programs[rank], index);
            let there = mutants(&programs[peer], there);
            let both = ["dropped", "doubled", "chunk + 1", "chunk - 1"];
            for (name, moves) in here.into_iter().filter(|(name, _)| both.contains(name)) {
                let Some((_, other)) = there.iter().find(|(other, _)| *other == name) else {
                    continue;
                };
                let original = std::mem::replace(&mut programs[rank].moves, moves);
                let original_peer = std::mem::replace(&mut programs[peer].moves, other.clone());
                let name = BOTH[both.iter().position(|&one| one == name).unwrap()];
                judge(programs, Place { rank, index, name }, bits, tally);
                programs[rank].moves = original;
                programs[peer].moves = original_peer;
            }
        }
    }
}

/// The names of changes made at both ends of a wire.
const BOTH: [&str; 4] =
    ["both ends dropped", "both ends doubled", "both ends chunk + 1", "both ends chunk - 1"];

/// What became of the mutants: how many, by kind of change and verdict.
#[derive(Default)]
struct Tally(BTreeMap<(String, &'static str), u32>);

impl Tally {
    fn add(&mut self, verdict: impl Into<String>, name: &'static str) {
        *self.0.entry((verdict.into(), name)).or_default() += 1;
    }

    fn print(&self) {
        for ((verdict, name), count) in &self.0 {
            println!("{count:8}  {verdict:48}  {name}");
        }
    }
}

/// Which move of which rank was changed, and how.
#[derive(Clone, Copy, Debug)]
struct Place {
    rank: usize,
    index: usize,
    name: &'static str,
}

/// Why an accepted mutant does no harm; `None` if there is no reason that we know.
fn why_harmless(programs: &[Program], place: Place, same_bits: bool) -> Option<&'static str> {
    let program = &programs[place.rank];
    if place.name == "fold for take, operands swapped" {
        let barrier = program.collective == Collective::Barrier;
        return barrier.then_some("harmless: in a barrier, to take is to add to what is known");
    }
    if BOTH.contains(&place.name) {
        return same_bits.then_some("harmless: a message more or less that nobody needs");
    }
    if place.name != "swapped with the next" {
        return None;
    }
    let (a, b) = (program.moves[place.index], program.moves[place.index + 1]);
    if independent(a, b) {
        return same_bits.then_some("harmless: neither waits for the other");
    }
    if program.collective == Collective::Barrier {
        return Some("harmless: everyone is heard in this order too");
    }
    if matches!(program.collective, Collective::Broadcast { .. }) && same_bits {
        return Some("harmless: the root's data is put over the same data");
    }
    let folds = matches!((a, b), (Move::Fold { .. }, Move::Fold { .. }));
    (folds && !same_bits).then_some("harmless: folded in another order, for one owner")
}

/// Whether two moves of a rank happen at the same time: on different wires, and neither writes a
/// chunk that the other one touches.
fn independent(a: Move, b: Move) -> bool {
    let wire = |step: Move| (step.peer(), matches!(step, Move::Send { .. }));
    let meet = |x: Span, y: Span| x.first < y.end() && y.first < x.end();
    let writes = |step: Move| (!matches!(step, Move::Send { .. })).then_some(step.span());
    let touches = |step: Move| match step {
        Move::Merge { from, into } => [from, into],
        _ => [step.span(); 2],
    };
    let spoils = |x: Move, y: Move| {
        writes(x).is_some_and(|written| touches(y).iter().any(|&touched| meet(written, touched)))
    };
    wire(a) != wire(b) && !spoils(a, b) && !spoils(b, a)
}

/// Judges one mutant. An accepted one must keep the promise in every run. A refused one must break
/// it in a run, unless the fault is one that shows only for other lengths or that no run could
/// read.
fn judge(programs: &[Program], mutated: Place, bits: &[u64], tally: &mut Tally) {
    let Place { name, .. } = mutated;
    let mut rng = fastrand::Rng::with_seed(SEED);
    let what = || format!("{:?} {} {}", programs[0].collective, programs[0].algorithm, name);
    match check_programs(programs) {
        Ok(_) => {
            let (kept, new_bits) = keeps_promise(programs, &mut rng, false);
            assert!(kept, "a harmful mutant survived: {} {programs:#?}", what());
            let why = why_harmless(programs, mutated, new_bits == bits);
            let why = why.unwrap_or_else(|| panic!("unexplained: {mutated:?} {programs:#?}"));
            tally.add(why, name);
        }
        Err(Fault::Shape { .. }) => tally.add("caught: length", name),
        Err(Fault::Unmatched { .. }) => tally.add("caught: unmatched", name),
        Err(Fault::Malformed { .. }) => tally.add("caught: malformed", name),
        Err(fault @ (Fault::Strangers { .. } | Fault::Impossible { .. })) => panic!("{fault}"),
        Err(Fault::Deadlock { .. }) if programs[0].collective == Collective::Barrier => {
            tally.add("caught: deadlock", name);
        }
        Err(fault) => {
            let (kept, _) = keeps_promise(programs, &mut rng, true);
            assert!(!kept, "refused without need: {fault}: {} {programs:#?}", what());
            let kind = match fault {
                Fault::Deadlock { .. } => "caught: deadlock",
                Fault::Empty { .. } => "caught: empty",
                Fault::Wrong { .. } => "caught: wrong",
                _ => "caught: discord",
            };
            tally.add(kind, name);
        }
    }
}

/// Attacks every algorithm among `ranks`; one mutant in `sample` is made.
fn attack(ranks: u32, sample: u32, tally: &mut Tally) {
    let mut rng = fastrand::Rng::with_seed(SEED + u64::from(ranks));
    for collective in Collective::ALL.into_iter().map(|c| c.with_root(ranks / 2)) {
        for algorithm in Algorithm::all_for(collective, ranks) {
            let of_rank = |rank| program(collective, algorithm, ranks, rank).unwrap();
            let mut programs: Vec<Program> = (0..ranks).map(of_rank).collect();
            let (kept, bits) = keeps_promise(&programs, &mut rng, false);
            assert!(kept, "{collective} {algorithm} {ranks}");
            if ranks <= 6 {
                attack_both_ends(&mut programs, &bits, tally);
            }
            for rank in 0..ranks as usize {
                for index in 0..programs[rank].moves.len() {
                    for (name, moves) in mutants(&programs[rank], index) {
                        if rng.u32(..sample) == 0 {
                            let original = std::mem::replace(&mut programs[rank].moves, moves);
                            judge(&programs, Place { rank, index, name }, &bits, tally);
                            programs[rank].moves = original;
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn no_harmful_mutant_survives() {
    println!("seed {SEED}");
    let mut tally = Tally::default();
    for ranks in 2..=5 {
        attack(ranks, 1, &mut tally);
    }
    for ranks in 6..=9 {
        attack(ranks, 30, &mut tally);
    }
    tally.print();
    assert!(tally.0.values().sum::<u32>() > 10_000, "the attack was too weak to say anything");
}

#[test]
fn uneven_and_empty_chunks_end_up_right_on_short_wires() {
    println!("seed {SEED}");
    let mut rng = fastrand::Rng::with_seed(SEED);
    for ranks in 1..=9 {
        for collective in Collective::ALL.into_iter().map(|c| c.with_root(ranks / 2)) {
            for algorithm in Algorithm::all_for(collective, ranks) {
                let of_rank = |rank| program(collective, algorithm, ranks, rank).unwrap();
                let programs: Vec<Program> = (0..ranks).map(of_rank).collect();
                let lengths: Vec<_> = (0..programs[0].chunks()).map(|_| rng.usize(..4)).collect();
                let length = |chunk| lengths[chunk as usize];
                let world = World { length: &length, room: rng.usize(1..4), fold: add };
                let held = run(&programs, &world, &mut rng).unwrap();
                for (program, held) in programs.iter().zip(&held) {
                    let barrier = collective == Collective::Barrier;
                    let right = barrier || outputs(program, held) == promised(program, &world);
                    assert!(right, "{collective:?} {algorithm} {ranks}, lengths {lengths:?}");
                }
            }
        }
    }
}
