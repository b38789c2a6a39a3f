//! Direct: everyone writes to everyone at once, and what is folded is folded where it arrives.

use crate::write::Group;
use crate::{Collective, Program, Span};

/// One step. P-1 messages a rank, so for few ranks or short vectors. n = all blocks of a rank.
///
/// | collective | steps | bytes sent per rank |
/// |---|---|---|
/// | all-reduce | 1 | n(P-1): every rank folds everything, in rank order |
/// | reduce-scatter, all-gather, all-to-all | 1 | n(P-1)/P |
/// | broadcast, scatter | 1 | n(P-1), n(P-1)/P at the root |
/// | reduce, gather | 1 | n, n/P at the others |
/// | barrier | 1 | 0 |
pub(crate) fn write(program: &mut Program) -> Option<()> {
    let (ranks, rank, whole) = (program.ranks, program.rank, Span::one(0));
    match program.collective {
        Collective::AllReduce => {
            program.after().for_each(|peer| program.send(peer, [whole]));
            fold_in_rank_order(program, whole);
        }
        Collective::ReduceScatter => {
            let world = Group::world(program);
            reduce_scatter(program, &world);
        }
        Collective::AllGather => {
            let world = Group::world(program);
            all_gather(program, &world);
        }
        Collective::AllToAll => {
            program.after().for_each(|to| program.send(to, [Span::one(rank * ranks + to)]));
            program.before().for_each(|from| program.recv(from, [Span::one(from * ranks + rank)]));
        }
        Collective::Barrier => {
            program.after().for_each(|peer| program.send(peer, [whole]));
            program.before().for_each(|peer| program.recv(peer, [whole]));
        }
        Collective::Broadcast { root } if rank == root => {
            program.after().for_each(|peer| program.send(peer, [whole]));
        }
        Collective::Broadcast { root } => program.recv(root, [whole]),
        Collective::Reduce { root } if rank == root => {
            program.after().for_each(|peer| program.fold(peer, [whole]));
        }
        Collective::Reduce { root } => program.send(root, [whole]),
        Collective::Gather { root } if rank == root => {
            program.after().for_each(|peer| program.recv(peer, [Span::one(peer)]));
        }
        Collective::Gather { root } => program.send(root, [Span::one(rank)]),
        Collective::Scatter { root } if rank == root => {
            program.after().for_each(|peer| program.send(peer, [Span::one(peer)]));
        }
        Collective::Scatter { root } => program.recv(root, [Span::one(rank)]),
    }
    Some(())
}

/// Direct, but folded strictly in rank order, `((x0 ⊕ x1) ⊕ x2) ⊕ ...`: the bits of a sequential
/// sum.
///
/// | collective | steps | bytes sent per rank |
/// |---|---|---|
/// | all-reduce (reduce-scatter, then all-gather) | 2 | 2n(P-1)/P |
/// | reduce-scatter | 1 | n(P-1)/P |
/// | reduce | 1 | n |
pub(crate) fn ordered(program: &mut Program) -> Option<()> {
    let (rank, whole) = (program.rank, Span::one(0));
    match program.collective {
        Collective::AllReduce => {
            program.pieces = program.ranks;
            program.after().for_each(|peer| program.send(peer, [Span::one(peer)]));
            fold_in_rank_order(program, Span::one(rank));
            let world = Group::world(program);
            all_gather(program, &world);
        }
        Collective::ReduceScatter => {
            program.after().for_each(|peer| program.send(peer, [Span::one(peer)]));
            fold_in_rank_order(program, Span::one(rank));
        }
        Collective::Reduce { root } if rank == root => fold_in_rank_order(program, whole),
        Collective::Reduce { root } => program.send(root, [whole]),
        _ => return None,
    }
    Some(())
}

/// Everyone else sends its contribution to `span`; fold them all as `((x0 ⊕ x1) ⊕ x2) ⊕ ...`, also
/// for operators that do not commute. What comes before this rank's own contribution is folded in
/// scratch.
fn fold_in_rank_order(program: &mut Program, span: Span) {
    let (ranks, rank) = (program.ranks, program.rank);
    if rank > 0 {
        let scratch = program.scratch_like(span);
        program.recv(0, [scratch]);
        (1..rank).for_each(|peer| program.fold(peer, [scratch]));
        program.merge(scratch, span);
    }
    (rank + 1..ranks).for_each(|peer| program.fold(peer, [span]));
}

/// After this, member `i` has the fold of part `i`.
pub(crate) fn reduce_scatter(program: &mut Program, group: &Group) {
    let (me, size) = (group.me, group.size());
    for step in 1..size {
        program.send(group.rank(me + step), group.parts(me + step, 1));
    }
    for step in 1..size {
        program.fold(group.rank(me + size - step), group.parts(me, 1));
    }
}

/// Member `i` has part `i`; after this everyone has every part.
pub(crate) fn all_gather(program: &mut Program, group: &Group) {
    let (me, size) = (group.me, group.size());
    for step in 1..size {
        program.send(group.rank(me + step), group.parts(me, 1));
    }
    for step in 1..size {
        program.recv(group.rank(me + size - step), group.parts(me + size - step, 1));
    }
}
