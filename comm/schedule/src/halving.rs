//! Recursive halving: what is still open halves in each step, as does the distance.

use crate::write::Group;
use crate::{Collective, Program, doubling, tree};

/// Recursive halving; an all-reduce then doubles back. With d = ceil(log2 P):
///
/// | collective | steps | bytes sent per rank |
/// |---|---|---|
/// | all-reduce | 2d | 2n(P-1)/P |
/// | reduce-scatter | d | n(P-1)/P |
/// | broadcast (scatter, then all-gather) | 2d | at most 2n(P-1)/P |
///
/// Rabenseifner 2004, "Optimization of collective reduction operations"; for P that is no power of
/// two, Träff 2024, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", which needs
/// no folding of surplus ranks before and after and so sends the optimal bytes for every P.
/// Broadcast: van de Geijn's, as in Thakur, Rabenseifner and Gropp 2005.
pub(crate) fn write(program: &mut Program) -> Option<()> {
    match program.collective {
        Collective::AllReduce => {
            program.pieces = program.ranks;
            let world = Group::world(program);
            reduce_scatter(program, &world);
            doubling::all_gather(program, &world);
        }
        Collective::ReduceScatter => {
            let world = Group::world(program);
            reduce_scatter(program, &world);
        }
        Collective::Broadcast { root } => {
            program.pieces = program.ranks;
            let world = Group::rooted(program, root, |i, _| i);
            tree::scatter(program, &world);
            doubling::all_gather(program, &world);
        }
        _ => return None,
    }
    Some(())
}

/// After this, member `i` has the fold of part `i`.
pub(crate) fn reduce_scatter(program: &mut Program, group: &Group) {
    if group.size().is_power_of_two() {
        exchange(program, group)
    } else {
        circulate(program, group)
    }
}

/// Powers of two: partners exchange halves of what both still hold, far partners first.
fn exchange(program: &mut Program, group: &Group) {
    let mut half = group.size() / 2;
    while half > 0 {
        let mine = group.me & !(half - 1);
        let peer = group.rank(group.me ^ half);
        program.send(peer, group.parts(mine ^ half, half));
        program.fold(peer, group.parts(mine, half));
        half /= 2;
    }
}

/// Any number: a member that holds the `held` parts from its own on keeps the first `half` of them,
/// and sends the others to the member at that distance, whose first parts they are.
fn circulate(program: &mut Program, group: &Group) {
    let (me, size) = (group.me, group.size());
    let mut held = size;
    while held > 1 {
        let half = held.div_ceil(2);
        program.send(group.rank(me + half), group.parts(me + half, held - half));
        program.fold(group.rank(me + size - half), group.parts(me, held - half));
        held = half;
    }
}
