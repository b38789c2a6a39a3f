//! Trees: binomial ones, which are shallow, and a pair of binary ones, which keep every link busy.
//!
//! All trees are written for root 0; another root only renumbers the ranks, `(root + i) mod P`.
//!
//! ```text
//! binomial, 8 ranks          two binary trees over ranks 1..6, both fed by rank 0
//!        0                        4                3
//!     ┌──┼──┐                   ┌─┴──┐          ┌──┴─┐
//!     4  2  1                   2    6          1    5
//!    ┌┴┐ │                     ┌┴┐  ┌┘           └┐ ┌┴┐
//!    6 5 3                     1 3  5             2 4 6
//!    │
//!    7                         interior: 2 4 6    interior: 1 3 5
//! ```

use crate::write::Group;
use crate::{Collective, Program, Span};

/// Binomial trees. With d = ceil(log2 P):
///
/// | collective | steps | bytes sent per rank, at most |
/// |---|---|---|
/// | broadcast, reduce | d | n·d (root of a broadcast), n (any rank of a reduce) |
/// | all-reduce (reduce, then broadcast) | 2d | n·d |
/// | gather, scatter, n = all blocks | d | n/2 at a child of the root; n(P-1)/P at the root |
/// | barrier | 2d | 0 |
///
/// Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in
/// MPICH".
pub(crate) fn binomial(program: &mut Program) -> Option<()> {
    let whole = |_: u32, _: u32| vec![Span::one(0)];
    match program.collective {
        Collective::AllReduce => {
            let tree = Group::world(program);
            fan_in(program, &tree, Program::fold, whole);
            fan_out(program, &tree, whole);
        }
        Collective::Barrier => {
            let tree = Group::world(program);
            fan_in(program, &tree, Program::recv, whole);
            fan_out(program, &tree, whole);
        }
        Collective::Reduce { root } => {
            let tree = Group::rooted(program, root, |_, _| 0);
            fan_in(program, &tree, Program::fold, whole);
        }
        Collective::Broadcast { root } => {
            let tree = Group::rooted(program, root, |_, _| 0);
            fan_out(program, &tree, whole);
        }
        Collective::Gather { root } => {
            let tree = Group::rooted(program, root, |_, rank| rank);
            fan_in(program, &tree, Program::recv, |first, count| tree.parts(first, count));
        }
        Collective::Scatter { root } => {
            let tree = Group::rooted(program, root, |_, rank| rank);
            scatter(program, &tree);
        }
        _ => return None,
    }
    Some(())
}

/// Two binary trees, each for half of every vector. A rank that is interior in one tree is a leaf
/// in the other, so both directions of every rank's link are busy all the time. Rank 0 of the
/// numbering (the root) feeds both trees and is in neither.
///
/// | collective | steps | bytes sent per rank, at most |
/// |---|---|---|
/// | broadcast, reduce | ceil(log2 P), streaming | n |
/// | all-reduce (reduce, then broadcast behind it) | 2·ceil(log2 P), streaming | 2n |
///
/// Sanders, Speck and Träff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and
/// scan".
pub(crate) fn double(program: &mut Program) -> Option<()> {
    let (root, up, down) = match program.collective {
        Collective::AllReduce => (0, true, true),
        Collective::Reduce { root } => (root, true, false),
        Collective::Broadcast { root } => (root, false, true),
        _ => return None,
    };
    program.pieces = 2;
    let line = Group::rooted(program, root, |_, _| 0);
    let trees = [0, 1].map(|piece| (Span::one(piece), place(line.me, line.size(), piece == 1)));
    for (half, place) in trees.iter().filter(|_| up) {
        for &child in &place.children {
            program.fold(line.rank(child), [*half]);
        }
        if let Some(parent) = place.parent {
            program.send(line.rank(parent), [*half]);
        }
    }
    for (half, place) in trees.iter().filter(|_| down) {
        if let Some(parent) = place.parent {
            program.recv(line.rank(parent), [*half]);
        }
        for &child in &place.children {
            program.send(line.rank(child), [*half]);
        }
    }
    Some(())
}

/// What hangs below member `v` of a binomial tree: a subtree of at most this many members, itself
/// included.
fn reach(v: u32, size: u32) -> u32 {
    if v == 0 { size.next_power_of_two() } else { v & v.wrapping_neg() }
}

/// Everything runs to member 0. `subtree(v, count)` is what the subtree of members `v..v+count`
/// sends up, and `take` says what a parent does with it.
fn fan_in(
    program: &mut Program,
    tree: &Group,
    take: fn(&mut Program, u32, Vec<Span>),
    subtree: impl Fn(u32, u32) -> Vec<Span>,
) {
    let (v, size) = (tree.me, tree.size());
    let mut bit = 1;
    while bit < reach(v, size) && v + bit < size {
        let child = v + bit;
        take(program, tree.rank(child), subtree(child, bit.min(size - child)));
        bit *= 2;
    }
    if v > 0 {
        let parent = v - reach(v, size);
        program.send(tree.rank(parent), subtree(v, reach(v, size).min(size - v)));
    }
}

/// Everything runs from member 0, the largest subtree first.
fn fan_out(program: &mut Program, tree: &Group, subtree: impl Fn(u32, u32) -> Vec<Span>) {
    let (v, size) = (tree.me, tree.size());
    let mut bit = reach(v, size);
    if v > 0 {
        program.recv(tree.rank(v - bit), subtree(v, bit.min(size - v)));
    }
    while bit > 1 {
        bit /= 2;
        let child = v + bit;
        if child < size {
            program.send(tree.rank(child), subtree(child, bit.min(size - child)));
        }
    }
}

/// Binomial scatter from member 0: every member ends with its own part.
pub(crate) fn scatter(program: &mut Program, tree: &Group) {
    fan_out(program, tree, |first, count| tree.parts(first, count));
}

/// The neighbours of a member in a binary tree.
struct Place {
    parent: Option<u32>,
    children: Vec<u32>,
}

/// The place of member `v` among `size` in the first tree or in the second one, which is the first
/// one mirrored (if members 1..size are even in number) or shifted by one (if odd): either way odd
/// and even members change roles. Member 0 stands above the top of both.
fn place(v: u32, size: u32, second: bool) -> Place {
    let others = size - 1;
    let even = others.is_multiple_of(2);
    let there = |x: u32| match x {
        x if x == 0 || !second => x,
        x if even => others + 1 - x,
        1 => others,
        x => x - 1,
    };
    let back = |x: u32| match x {
        x if x == 0 || !second => x,
        x if even => others + 1 - x,
        x if x == others => 1,
        x => x + 1,
    };
    let Place { parent, children } = in_order(there(v), size);
    Place { parent: parent.map(back), children: children.into_iter().map(back).collect() }
}

/// The in-order binary tree over 1..size: the height of a member is the number of zeros its number
/// ends with, so odd ones are leaves; member 0 has the top as its only child.
fn in_order(v: u32, size: u32) -> Place {
    if v == 0 {
        let top = (size > 1).then(|| 1 << (size - 1).ilog2());
        return Place { parent: None, children: top.into_iter().collect() };
    }
    let bit = v & v.wrapping_neg();
    let above = (v ^ bit) | (bit << 1);
    let parent = Some(if above < size { above } else { v ^ bit });
    let left = (bit > 1).then(|| v - bit / 2);
    let right = (0..bit.ilog2()).rev().map(|power| v + (1 << power)).find(|&right| right < size);
    Place { parent, children: left.into_iter().chain(right).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_member_but_the_root_is_interior_twice_and_parents_know_their_children() {
        for size in 1..200 {
            for v in 0..size {
                let places = [place(v, size, false), place(v, size, true)];
                if v > 0 {
                    let leaves = places.iter().filter(|place| place.children.is_empty());
                    assert!(leaves.count() >= 1, "member {v} of {size} is interior twice");
                }
                for (second, place_here) in [(false, &places[0]), (true, &places[1])] {
                    assert_eq!(place_here.parent.is_none(), v == 0);
                    for &child in &place_here.children {
                        assert_eq!(place(child, size, second).parent, Some(v));
                    }
                    if let Some(parent) = place_here.parent {
                        assert!(place(parent, size, second).children.contains(&v));
                    }
                }
            }
        }
    }
}
