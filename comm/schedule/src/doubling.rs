//! Recursive doubling: the distance doubles in each step, and so does what a rank knows.

use crate::write::Group;
use crate::{Collective, Program, Span, bruck};

/// Recursive doubling. With d = ceil(log2 P), and Q the largest power of two not above P:
///
/// | collective | steps | bytes sent per rank, at most |
/// |---|---|---|
/// | all-reduce, P = Q | d | n·d |
/// | all-reduce, P > Q | log2 Q + 2 | n·(log2 Q + 1) |
/// | all-gather | d | n(P-1)/P |
/// | barrier (dissemination) | d | 0 |
///
/// Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in
/// MPICH"; all-gather for other P: Träff 2024 (see halving) backwards; barrier: Hensgen, Finkel and
/// Manber 1988, "Two algorithms for barrier synchronization".
pub(crate) fn write(program: &mut Program) -> Option<()> {
    match program.collective {
        Collective::AllReduce => {
            let (rank, all) = (program.rank, (0..program.ranks).collect());
            let world = Group::new(all, rank, |_| [Span::one(0)]);
            all_reduce(program, &world);
        }
        Collective::AllGather => {
            let world = Group::world(program);
            all_gather(program, &world);
        }
        Collective::Barrier => disseminate(program),
        _ => return None,
    }
    Some(())
}

/// All members have the same part: partners exchange and fold all of it. Members beyond the largest
/// power of two hand theirs to a partner first, and get the result from it at the end.
pub(crate) fn all_reduce(program: &mut Program, group: &Group) {
    let (size, me) = (group.size(), group.me);
    let part = group.parts(me, 1);
    let all = || part.iter().copied();
    let core = 1 << size.ilog2();
    if me >= core {
        program.send(group.rank(me - core), all());
        program.recv(group.rank(me - core), all());
        return;
    }
    let surplus = Some(me + core).filter(|&surplus| surplus < size);
    if let Some(surplus) = surplus {
        program.fold(group.rank(surplus), all());
    }
    let mut distance = 1;
    while distance < core {
        let partner = group.rank(me ^ distance);
        program.send(partner, all());
        program.fold(partner, all());
        distance *= 2;
    }
    if let Some(surplus) = surplus {
        program.send(group.rank(surplus), all());
    }
}

/// Member `i` has part `i`; after this everyone has every part.
pub(crate) fn all_gather(program: &mut Program, group: &Group) {
    if !group.size().is_power_of_two() {
        return bruck::spread(program, group, halved_until);
    }
    let mut known = 1;
    while known < group.size() {
        let mine = group.me & !(known - 1);
        let peer = group.rank(group.me ^ known);
        program.send(peer, group.parts(mine, known));
        program.recv(peer, group.parts(mine ^ known, known));
        known *= 2;
    }
}

/// The number before `known` in the row size, ceil(size/2), ceil(size/4), ..., 1.
fn halved_until(known: u32, size: u32) -> u32 {
    let mut more = size;
    while more.div_ceil(2) > known {
        more = more.div_ceil(2);
    }
    more
}

/// In step k everyone tells the rank 2^k further on, and with it everything heard so far.
fn disseminate(program: &mut Program) {
    let (ranks, rank, word) = (program.ranks, program.rank, [Span::one(0)]);
    let mut distance = 1;
    while distance < ranks {
        program.send((rank + distance) % ranks, word);
        program.recv((rank + ranks - distance) % ranks, word);
        distance *= 2;
    }
}
