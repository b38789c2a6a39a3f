//! What the checker says about schedules that are wrong, written by hand and as small as they get.

use brigade_schedule::{
    Algorithm, Collective, Fault, Move, Program, Report, Span, check, check_programs,
};

fn send(to: u32, chunk: u32) -> Move {
    Move::Send { to, span: Span::one(chunk) }
}

fn recv(from: u32, chunk: u32) -> Move {
    Move::Recv { from, span: Span::one(chunk) }
}

fn fold(from: u32, chunk: u32) -> Move {
    Move::Fold { from, span: Span::one(chunk) }
}

fn merge(from: u32, into: u32) -> Move {
    Move::Merge { from: Span::one(from), into: Span::one(into) }
}

/// What is proved of programs with these moves; each has one scratch chunk like chunk 0.
fn proof(collective: Collective, algorithm: Algorithm, moves: &[&[Move]]) -> Result<Report, Fault> {
    let ranks = moves.len() as u32;
    let of_rank = |(rank, moves): (u32, &&[Move])| Program {
        collective,
        algorithm,
        ranks,
        rank,
        pieces: 1,
        scratch: vec![0],
        moves: moves.to_vec(),
    };
    let programs: Vec<Program> = (0..).zip(moves).map(of_rank).collect();
    check_programs(&programs)
}

/// What is said about such programs.
fn said(collective: Collective, algorithm: Algorithm, moves: &[&[Move]]) -> String {
    proof(collective, algorithm, moves).map_or_else(|fault| fault.to_string(), |_| "right".into())
}

fn all_reduce(moves: &[&[Move]]) -> String {
    said(Collective::AllReduce, Algorithm::Direct, moves)
}

#[test]
fn an_exchange_is_right() {
    assert_eq!(all_reduce(&[&[send(1, 0), fold(1, 0)], &[send(0, 0), fold(0, 0)]]), "right");
}

#[test]
fn two_that_both_wait_first_are_told_of_the_circle() {
    let said = all_reduce(&[&[fold(1, 0), send(1, 0)], &[fold(0, 0), send(0, 0)]]);
    assert!(said.starts_with("deadlock on wires that hold half a chunk: rank "), "{said}");
    assert!(said.contains("rank 1, move 1 (chunk 0) waits for rank 1, move 0 (chunk 0)"), "{said}");
    assert!(said.ends_with("waits for the first"), "{said}");
}

#[test]
fn what_goes_well_only_on_long_wires_is_a_deadlock() {
    // Both exchange and fold two chunks, but in opposite order: each needs room for its second
    // chunk before it may take the first one that arrives, which the other sent second.
    let one = [send(1, 0), send(1, 1), fold(1, 1), fold(1, 0)];
    let other = [send(0, 1), send(0, 0), fold(0, 0), fold(0, 1)];
    let apart = said(Collective::ReduceScatter, Algorithm::Direct, &[&one, &other]);
    assert!(apart.starts_with("deadlock on wires that hold half a chunk"), "{apart}");
    let same_order = [send(0, 0), send(0, 1), fold(0, 0), fold(0, 1)];
    let one = [send(1, 0), send(1, 1), fold(1, 0), fold(1, 1)];
    let together = said(Collective::ReduceScatter, Algorithm::Direct, &[&one, &same_order]);
    assert_eq!(together, "right");
}

#[test]
fn what_is_sent_must_be_taken() {
    let said = all_reduce(&[&[send(1, 0), fold(1, 0)], &[send(0, 0)]]);
    assert_eq!(said, "rank 0, move 0: chunk 0 has no counterpart at rank 1");
}

#[test]
fn names_must_name_something() {
    let nowhere = all_reduce(&[&[send(2, 0)], &[]]);
    assert_eq!(nowhere, "rank 0, move 0: rank 2 is no peer");
    let oneself = all_reduce(&[&[send(0, 0)], &[]]);
    assert_eq!(oneself, "rank 0, move 0: rank 0 is no peer");
    let beyond = all_reduce(&[&[merge(2, 0)], &[]]);
    assert!(beyond.contains("is not a run of the 2 chunks"), "{beyond}");
    let itself = all_reduce(&[&[merge(0, 0)], &[]]);
    assert!(itself.contains("unequal or overlapping"), "{itself}");
}

#[test]
fn lengths_are_told_apart_even_if_they_might_agree() {
    let moves: [&[Move]; 2] = [&[send(1, 0), recv(1, 1)], &[send(0, 1), recv(0, 1)]];
    let said = said(Collective::AllGather, Algorithm::Direct, &moves);
    assert_eq!(said, "rank 0, move 0: chunk 0 is given chunk 1, of another length");
}

#[test]
fn nothing_can_be_sent_from_an_empty_chunk() {
    let said = all_reduce(&[&[send(1, 1)], &[recv(0, 1)]]);
    assert_eq!(said, "rank 0, move 0: chunk 1 is used while nothing is in it");
}

#[test]
fn every_contribution_counts_once() {
    let none = all_reduce(&[&[], &[]]);
    assert_eq!(none, "rank 0 ends with x0 in chunk 0, not with every rank's contribution once");
    let exchange = [send(1, 0), fold(1, 0), send(1, 0), fold(1, 0)];
    let answer = [send(0, 0), fold(0, 0), send(0, 0), fold(0, 0)];
    let twice = all_reduce(&[&exchange, &answer]);
    assert!(twice.starts_with("rank 0 ends with ((x0 ⊕ x1) ⊕ (x0 ⊕ x1)) in chunk 0"), "{twice}");
}

#[test]
fn ranks_must_agree_on_the_order_of_folds() {
    let moves: [&[Move]; 3] = [
        &[send(1, 0), send(2, 0), fold(1, 0), fold(2, 0)],
        &[send(0, 0), send(2, 0), fold(0, 0), fold(2, 0)],
        &[send(0, 0), send(1, 0), fold(0, 0), fold(1, 0)],
    ];
    let said = all_reduce(&moves);
    assert_eq!(said, "chunk 0: rank 2 computes ((x0 ⊕ x2) ⊕ x1), rank 0 computes ((x0 ⊕ x1) ⊕ x2)");
}

#[test]
fn ordered_means_rank_order() {
    let moves: [&[Move]; 3] = [&[fold(2, 0), fold(1, 0)], &[send(0, 0)], &[send(0, 0)]];
    let reduce = Collective::Reduce { root: 0 };
    assert_eq!(said(reduce, Algorithm::Direct, &moves), "right");
    let said = said(reduce, Algorithm::Ordered, &moves);
    let want = "rank 0 ends with ((x0 ⊕ x2) ⊕ x1) in chunk 0, not with the fold in rank order";
    assert_eq!(said, want);
}

/// A fold puts what arrives on the right, a merge puts it on the left: either in place of the other
/// adds up to the same numbers, but not in rank order.
#[test]
fn an_operand_on_the_other_side_is_not_rank_order() {
    let (folded, merged) = ([fold(1, 0)], [recv(1, 1), merge(1, 0)]);
    let above: [(&[Move], bool); 2] = [(&folded, true), (&merged, false)];
    let (folded, merged) = ([fold(0, 0)], [recv(0, 1), merge(1, 0)]);
    let below: [(&[Move], bool); 2] = [(&folded, false), (&merged, true)];
    for (root, cases) in [(0, above), (1, below)] {
        for (moves, in_rank_order) in cases {
            let sends = [send(root, 0)];
            let of_rank = |rank| if rank == root { moves } else { &sends };
            let both = [of_rank(0), of_rank(1)];
            let reduce = Collective::Reduce { root };
            let report = proof(reduce, Algorithm::Direct, &both).unwrap();
            assert_eq!(report.in_rank_order, in_rank_order, "{both:?}");
            let ordered = proof(reduce, Algorithm::Ordered, &both);
            assert_eq!(ordered.is_ok(), in_rank_order, "{both:?}");
        }
    }
}

#[test]
fn only_what_is_ordered_claims_to_be_for_any_number_of_ranks() {
    for ranks in 2..=9 {
        for collective in Collective::ALL.into_iter().filter(|c| c.folds()) {
            let report = check(collective, Algorithm::Ordered, ranks).unwrap();
            assert!(report.in_rank_order, "{collective} among {ranks}");
        }
        let doubling = check(Collective::AllReduce, Algorithm::Doubling, ranks).unwrap();
        assert!(!doubling.in_rank_order, "{ranks} ranks swap operands");
    }
}

#[test]
fn a_barrier_hears_everyone() {
    let moves: [&[Move]; 3] =
        [&[send(1, 0), recv(2, 0)], &[send(2, 0), recv(0, 0)], &[send(0, 0), recv(1, 0)]];
    let said = said(Collective::Barrier, Algorithm::Direct, &moves);
    assert_eq!(said, "rank 0 ends with (x0 ⊕ x2) in chunk 0, not with word from every rank");
}

#[test]
fn what_there_is_not_is_said() {
    let said = check(Collective::Barrier, Algorithm::Ring, 4).unwrap_err().to_string();
    assert_eq!(said, "ring cannot do barrier among 4 ranks");
    assert!(check(Collective::AllReduce, Algorithm::Ring, 0).is_err());
    assert!(check_programs(&[]).is_err());
}
