//! Rings: every rank speaks to its two neighbours only.
//!
//! ```text
//! reduce-scatter among 4; the digit is the part that moves along the arrow in that step
//!         0 ──→ 1 ──→ 2 ──→ 3 ──→ 0
//! step 1     3     0     1     2         send part me-1, fold part me-2
//! step 2     2     3     0     1         send part me-2, fold part me-3
//! step 3     1     2     3     0         send part me-3, fold part me: complete
//! ```

use crate::write::Group;
use crate::{Collective, Program, Span};

/// One ring, or two of opposite directions that share every block evenly.
///
/// | collective | steps | bytes sent per rank |
/// |---|---|---|
/// | all-reduce | 2(P-1) | 2n(P-1)/P |
/// | reduce-scatter, all-gather | P-1 | n(P-1)/P |
/// | broadcast, reduce (a chain; one ring only) | P-1, streaming | n |
///
/// Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
/// Two rings cost the same bytes and use both directions of every link.
pub(crate) fn write(program: &mut Program, lanes: u32) -> Option<()> {
    match program.collective {
        Collective::AllReduce => {
            program.pieces = program.ranks * lanes;
            let rings = rings(program, lanes);
            reduce_scatter(program, &rings);
            all_gather(program, &rings);
        }
        Collective::ReduceScatter => {
            program.pieces = lanes;
            let rings = rings(program, lanes);
            reduce_scatter(program, &rings);
        }
        Collective::AllGather => {
            program.pieces = lanes;
            let rings = rings(program, lanes);
            all_gather(program, &rings);
        }
        Collective::Broadcast { root } if lanes == 1 => chain_from(program, root),
        Collective::Reduce { root } if lanes == 1 => chain_to(program, root),
        _ => return None,
    }
    Some(())
}

/// The rings: the first runs upwards, the second downwards; member `i`'s part of lane `l` is chunk
/// `i * lanes + l`, whether chunks are pieces of one vector or of a block per rank.
fn rings(program: &Program, lanes: u32) -> Vec<Group> {
    let members: Vec<u32> = (0..program.ranks).collect();
    let lane = |lane| {
        let chunk = |i| [Span::one(i * lanes + lane)];
        let group = Group::new(members.clone(), program.rank, chunk);
        if lane == 0 { group } else { group.reversed() }
    };
    (0..lanes).map(lane).collect()
}

/// After this, member `i` of every ring has the fold of part `i`.
fn reduce_scatter(program: &mut Program, rings: &[Group]) {
    let size = rings[0].size();
    for step in 1..size {
        for ring in rings {
            program.send(ring.rank(ring.me + 1), ring.parts(ring.me + size - step, 1));
            program.fold(ring.rank(ring.me + size - 1), ring.parts(ring.me + size - step - 1, 1));
        }
    }
}

/// Member `i` of every ring has part `i`; after this everyone has every part.
fn all_gather(program: &mut Program, rings: &[Group]) {
    let size = rings[0].size();
    for step in 1..size {
        for ring in rings {
            program.send(ring.rank(ring.me + 1), ring.parts(ring.me + size - step + 1, 1));
            program.recv(ring.rank(ring.me + size - 1), ring.parts(ring.me + size - step, 1));
        }
    }
}

/// The root's vector runs down the line; each rank passes on what is still arriving.
fn chain_from(program: &mut Program, root: u32) {
    let line = Group::rooted(program, root, |_, _| 0);
    if line.me > 0 {
        program.recv(line.rank(line.me - 1), [Span::one(0)]);
    }
    if line.me + 1 < line.size() {
        program.send(line.rank(line.me + 1), [Span::one(0)]);
    }
}

/// The sum runs up the line to the root and grows at each rank.
fn chain_to(program: &mut Program, root: u32) {
    let line = Group::rooted(program, root, |_, _| 0);
    if line.me + 1 < line.size() {
        program.fold(line.rank(line.me + 1), [Span::one(0)]);
    }
    if line.me > 0 {
        program.send(line.rank(line.me - 1), [Span::one(0)]);
    }
}
