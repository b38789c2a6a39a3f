//! Every typed method, against a result that is spelled out element by element.
//!
//! Other tests go through [`Communicator::run`]; this one holds that the methods build the call
//! that their names promise, with counts of zero and blocks of different lengths.

use brigade_comm::{Communicator, Error, Op};

use crate::world::{TRANSPORTS, each_rank, over};

/// What no call may leave in an output, and what must stay where nothing is written.
const UNTOUCHED: i64 = -77;

/// Element `at` of what `source` brings for `target`; no two are alike.
fn element(source: usize, target: usize, at: usize) -> i64 {
    (source * 1_000_000 + target * 10_000 + at + 1) as i64
}

/// The block that `source` brings for `target`.
fn block(source: usize, target: usize, count: usize) -> Vec<i64> {
    (0..count).map(|at| element(source, target, at)).collect()
}

/// The sum over all ranks of what they bring for `target`.
fn sum(ranks: usize, target: usize, count: usize) -> Vec<i64> {
    (0..count).map(|at| (0..ranks).map(|source| element(source, target, at)).sum()).collect()
}

/// One vector for each block, one after another.
fn joined(counts: &[usize], block: impl Fn(usize, usize) -> Vec<i64>) -> Vec<i64> {
    counts.iter().enumerate().flat_map(|(rank, &count)| block(rank, count)).collect()
}

fn blank(count: usize) -> Vec<i64> {
    vec![UNTOUCHED; count]
}

/// The counts that a rank which is not the root must know: its own. The others are nonsense.
fn own_only(counts: &[usize], me: usize) -> Vec<usize> {
    let known = |(rank, &count): (usize, &usize)| if rank == me { count } else { usize::MAX };
    counts.iter().enumerate().map(known).collect()
}

fn check_folds(member: &Communicator, count: usize) -> Result<(), Error> {
    let (me, ranks) = (member.rank(), member.size());
    let (brought, want) = (block(me, 0, count), sum(ranks, 0, count));
    let mut data = brought.clone();
    member.all_reduce(&mut data, Op::Sum)?;
    assert_eq!(data, want, "all_reduce");
    let mut output = blank(count);
    member.all_reduce_into(&brought, &mut output, Op::Sum)?;
    assert_eq!(output, want, "all_reduce_into");
    let (mut first, mut second) = (block(me, 1, 2), brought.clone());
    member.all_reduce_many(&mut [&mut first, &mut [], &mut second], Op::Sum)?;
    assert_eq!((first, second), (sum(ranks, 1, 2), want.clone()), "all_reduce_many");
    let input = joined(&vec![count; ranks], |target, count| block(me, target, count));
    let mut output = blank(count);
    member.reduce_scatter(&input, &mut output, Op::Sum)?;
    assert_eq!(output, sum(ranks, me, count), "reduce_scatter");
    for root in 0..ranks {
        let mut data = brought.clone();
        member.reduce(&mut data, Op::Sum, root)?;
        assert_eq!(data, if me == root { &want[..] } else { &brought[..] }, "reduce to {root}");
    }
    Ok(())
}

fn check_moves(member: &Communicator, count: usize) -> Result<(), Error> {
    let (me, ranks) = (member.rank(), member.size());
    let even = vec![count; ranks];
    let brought = block(me, 0, count);
    let all = joined(&even, |source, count| block(source, 0, count));
    let mut output = blank(ranks * count);
    member.all_gather(&brought, &mut output)?;
    assert_eq!(output, all, "all_gather");
    let mut output = blank(ranks * count);
    member.all_to_all(&joined(&even, |target, count| block(me, target, count)), &mut output)?;
    assert_eq!(output, joined(&even, |source, count| block(source, me, count)), "all_to_all");
    for root in 0..ranks {
        let mut data = brought.clone();
        member.broadcast(&mut data, root)?;
        assert_eq!(data, block(root, 0, count), "broadcast from {root}");
        let mut output = blank(if me == root { ranks * count } else { 2 });
        member.gather(&brought, &mut output, root)?;
        assert_eq!(output, if me == root { &all[..] } else { &[UNTOUCHED; 2] }, "gather to {root}");
        let whole = joined(&even, |target, count| block(root, target, count));
        let mut output = blank(count);
        member.scatter(if me == root { &whole } else { &[] }, &mut output, root)?;
        assert_eq!(output, block(root, me, count), "scatter from {root}");
    }
    member.barrier()
}

/// The v forms with `counts[r]` elements for, or from, rank `r`.
fn check_uneven(member: &Communicator, counts: &[usize]) -> Result<(), Error> {
    let (me, ranks) = (member.rank(), member.size());
    let (mine, total) = (counts[me], counts.iter().sum());
    let brought = block(me, 0, mine);
    let input = joined(counts, |target, count| block(me, target, count));
    let mut output = blank(mine);
    member.reduce_scatter_v(&input, &mut output, counts, Op::Sum)?;
    assert_eq!(output, sum(ranks, me, mine), "reduce_scatter_v of {counts:?}");
    let all = joined(counts, |source, count| block(source, 0, count));
    let mut output = blank(total);
    member.all_gather_v(&brought, &mut output, counts)?;
    assert_eq!(output, all, "all_gather_v of {counts:?}");
    for root in 0..ranks {
        let known = if me == root { counts.to_vec() } else { own_only(counts, me) };
        let mut output = blank(if me == root { total } else { 2 });
        member.gather_v(&brought, &mut output, &known, root)?;
        assert_eq!(
            output,
            if me == root { &all[..] } else { &[UNTOUCHED; 2] },
            "gather_v to {root}"
        );
        let whole = joined(counts, |target, count| block(root, target, count));
        let mut output = blank(mine);
        member.scatter_v(if me == root { &whole } else { &[] }, &mut output, &known, root)?;
        assert_eq!(output, block(root, me, mine), "scatter_v of {counts:?} from {root}");
    }
    Ok(())
}

/// Every pair of ranks has a length of its own; `pair(source, target)` says which.
fn check_pairs(member: &Communicator, pair: fn(usize, usize) -> usize) -> Result<(), Error> {
    let (me, ranks) = (member.rank(), member.size());
    let to: Vec<usize> = (0..ranks).map(|target| pair(me, target)).collect();
    let from: Vec<usize> = (0..ranks).map(|source| pair(source, me)).collect();
    let input = joined(&to, |target, count| block(me, target, count));
    let mut output = blank(from.iter().sum());
    member.all_to_all_v(&input, &to, &mut output, &from)?;
    assert_eq!(output, joined(&from, |source, count| block(source, me, count)), "all_to_all_v");
    Ok(())
}

#[test]
fn typed_methods_do_what_their_names_say() {
    for transport in TRANSPORTS {
        for ranks in [3, 4] {
            each_rank(ranks, &over(transport), |member| {
                for count in [0, 1, 7] {
                    check_folds(&member, count).expect("folds");
                    check_moves(&member, count).expect("moves");
                }
            });
        }
    }
}

#[test]
fn typed_v_forms_take_uneven_and_empty_blocks() {
    for transport in TRANSPORTS {
        for ranks in [3, 4] {
            each_rank(ranks, &over(transport), |member| {
                let lists: [[usize; 4]; 4] = [[3, 0, 5, 1], [0, 0, 0, 0], [0, 9, 0, 2], [1; 4]];
                for counts in &lists {
                    check_uneven(&member, &counts[..member.size()]).expect("v forms");
                }
                check_pairs(&member, |source, target| (3 * source + 5 * target) % 4).expect("v");
                check_pairs(&member, |source, target| 7 * usize::from(target == source + 1))
                    .expect("v");
                check_pairs(&member, |_, _| 0).expect("v");
            });
        }
    }
}

#[test]
fn a_root_that_no_group_has_is_refused_by_every_rooted_method() {
    each_rank(3, &over("loopback"), |member| {
        for root in [3, usize::MAX] {
            let counts = [1, 1, 1];
            let (input, mut output) = ([1i64; 3], [0i64; 3]);
            let refusals = [
                member.broadcast(&mut output, root),
                member.reduce(&mut output, Op::Sum, root),
                member.gather(&input[..1], &mut output, root),
                member.gather_v(&input[..1], &mut output, &counts, root),
                member.scatter(&input, &mut output[..1], root),
                member.scatter_v(&input, &mut output[..1], &counts, root),
            ];
            for refusal in refusals {
                assert!(matches!(refusal, Err(Error::Invalid { .. })), "{refusal:?}");
            }
        }
        member.barrier().expect("refusals leave the group as it was");
    });
}

/// Where no tensor is small, nothing travels but the large ones themselves.
#[test]
fn a_list_without_short_tensors_has_no_call_for_them() {
    each_rank(2, &over("loopback"), |member| {
        let (mut first, mut second) = (vec![1i64; 9000], vec![2i64; 9000]);
        member.all_reduce_many(&mut [&mut first, &mut second], Op::Sum).expect("a list");
        member.all_reduce_many::<i64>(&mut [], Op::Sum).expect("an empty list");
        assert_eq!((first[8999], second[8999], member.stats().calls), (2, 4, 2));
    });
}
