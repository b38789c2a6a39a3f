//! Pairwise exchange: in step i a rank sends to the i-th rank after it and takes from the i-th
//! before.

use crate::{Collective, Program, Span};

/// Pairwise exchange; every block goes straight to where it belongs. n = all blocks of a rank.
///
/// | collective | steps | bytes sent per rank |
/// |---|---|---|
/// | reduce-scatter, all-gather, all-to-all | P-1 | n(P-1)/P |
///
/// Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in
/// MPICH".
pub(crate) fn write(program: &mut Program) -> Option<()> {
    let (ranks, rank) = (program.ranks, program.rank);
    for (next, last) in program.after().zip(program.before()) {
        match program.collective {
            Collective::ReduceScatter => {
                program.send(next, [Span::one(next)]);
                program.fold(last, [Span::one(rank)]);
            }
            Collective::AllGather => {
                program.send(next, [Span::one(rank)]);
                program.recv(last, [Span::one(last)]);
            }
            Collective::AllToAll => {
                program.send(next, [Span::one(rank * ranks + next)]);
                program.recv(last, [Span::one(last * ranks + rank)]);
            }
            _ => return None,
        }
    }
    let covered = matches!(
        program.collective,
        Collective::ReduceScatter | Collective::AllGather | Collective::AllToAll
    );
    covered.then_some(())
}
