//! The parameter server: the baseline that all-reduce algorithms are compared with.

use crate::{Collective, Program, Span};

/// Every vector is cut into a piece per server; ranks `0..servers` serve, and work as well.
///
/// | collective | steps | bytes sent per rank |
/// |---|---|---|
/// | all-reduce, s servers | 2 | n at a worker, n(P-1)/s more at a server (and n/s fewer) |
///
/// Li et al. 2014, "Scaling distributed machine learning with the parameter server".
pub(crate) fn write(program: &mut Program, servers: u32) -> Option<()> {
    if program.collective != Collective::AllReduce || servers == 0 || servers > program.ranks {
        return None;
    }
    program.pieces = servers;
    let rank = program.rank;
    let other_servers = || (0..servers).filter(move |&server| server != rank);
    other_servers().for_each(|server| program.send(server, [Span::one(server)]));
    if rank < servers {
        program.before().for_each(|worker| program.fold(worker, [Span::one(rank)]));
        program.after().for_each(|worker| program.send(worker, [Span::one(rank)]));
    }
    other_servers().for_each(|server| program.recv(server, [Span::one(server)]));
    Some(())
}
