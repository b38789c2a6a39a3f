//! Bruck's algorithms: ceil(log2 P) steps around a circle, for any number of ranks.

use crate::write::{Group, join};
use crate::{Collective, Program, Span};

/// Bruck's algorithms. With d = ceil(log2 P), n = all blocks of a rank:
///
/// | collective | steps | bytes sent per rank |
/// |---|---|---|
/// | all-gather | d | n(P-1)/P |
/// | all-to-all | d | about n·d/2: each block travels once per bit of its distance |
///
/// Bruck, Ho, Kipnis, Upfal and Weathersby 1997, "Efficient algorithms for all-to-all
/// communications in multiport message-passing systems". Blocks keep their names here, so the
/// rotations of the original are not needed.
pub(crate) fn write(program: &mut Program) -> Option<()> {
    match program.collective {
        Collective::AllGather => {
            let world = Group::world(program);
            spread(program, &world, |known, size| (2 * known).min(size));
        }
        Collective::AllToAll => all_to_all(program),
        _ => return None,
    }
    Some(())
}

/// All-gather around a circle: a member that knows the parts of `known` members from itself on
/// learns the next ones from the member at that distance, until it knows `more(known, size)`, which
/// is at most twice as many.
pub(crate) fn spread(program: &mut Program, group: &Group, more: impl Fn(u32, u32) -> u32) {
    let (me, size) = (group.me, group.size());
    let mut known = 1;
    while known < size {
        let new = more(known, size) - known;
        program.send(group.rank(me + size - known), group.parts(me, new));
        program.recv(group.rank(me + known), group.parts(me + known, new));
        known += new;
    }
}

/// A block for the rank at distance j moves 2^k further in step k if bit k of j is set. Before step
/// k, the one for distance j that is here came from the rank j mod 2^k before this one.
fn all_to_all(program: &mut Program) {
    let (ranks, rank) = (program.ranks, program.rank);
    let mut hop = 1;
    while hop < ranks {
        let moving = |holder: u32| {
            let blocks = (hop..ranks).filter(|distance| distance & hop != 0).map(|distance| {
                let source = (holder + ranks - distance % hop) % ranks;
                Span::one(source * ranks + (source + distance) % ranks)
            });
            join(blocks)
        };
        let (next, last) = ((rank + hop) % ranks, (rank + ranks - hop) % ranks);
        program.send(next, moving(rank));
        program.recv(last, moving(last));
        hop *= 2;
    }
}
