//! What can be wrong with a schedule, each in a sentence that says where.

use crate::{Algorithm, Collective};

/// What is wrong with a set of programs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No such schedule.
    #[error("{algorithm} cannot do {collective} among {ranks} ranks")]
    Impossible {
        /// What was asked for.
        collective: Collective,
        /// By which algorithm.
        algorithm: Algorithm,
        /// Among how many.
        ranks: u32,
    },
    /// The programs do not belong together: another collective, algorithm or cut than the first, or
    /// not the programs of ranks 0, 1, 2 and so on in order.
    #[error("program {index} of {count} does not belong to the first, at its place")]
    Strangers {
        /// Its place in the list.
        index: usize,
        /// How many programs there are.
        count: usize,
    },
    /// A move, or a scratch chunk's length, names something that is not there.
    #[error("rank {rank}, move {index}: {what}")]
    Malformed {
        /// Whose move.
        rank: u32,
        /// Which move; the number of moves if it is the scratch list.
        index: u32,
        /// What is not there.
        what: String,
    },
    /// One end of a wire moves more chunks than the other.
    #[error("rank {rank}, move {index}: chunk {chunk} has no counterpart at rank {peer}")]
    Unmatched {
        /// Whose move.
        rank: u32,
        /// Which move.
        index: u32,
        /// Which chunk of it.
        chunk: u32,
        /// The other end.
        peer: u32,
    },
    /// A chunk arrives, or is merged, where another length is expected.
    #[error("rank {rank}, move {index}: chunk {chunk} is given chunk {given}, of another length")]
    Shape {
        /// Whose move.
        rank: u32,
        /// Which move.
        index: u32,
        /// The chunk that is written.
        chunk: u32,
        /// The chunk that was sent or is merged.
        given: u32,
    },
    /// Moves wait for each other in a circle.
    #[error("deadlock on wires that hold {wires}: {circle}")]
    Deadlock {
        /// What the wires can hold.
        wires: &'static str,
        /// Who waits for whom.
        circle: String,
    },
    /// A chunk is read before anything was put into it.
    #[error("rank {rank}, move {index}: chunk {chunk} is used while nothing is in it")]
    Empty {
        /// Whose move.
        rank: u32,
        /// Which move.
        index: u32,
        /// Which chunk.
        chunk: u32,
    },
    /// An output is not what the collective promises.
    #[error("rank {rank} ends with {got} in chunk {chunk}, not with {want}")]
    Wrong {
        /// Whose output.
        rank: u32,
        /// Which chunk.
        chunk: u32,
        /// What is in it.
        got: String,
        /// What should be.
        want: String,
    },
    /// Two ranks end with different expressions of the same fold.
    #[error("chunk {chunk}: rank {rank} computes {got}, rank {other} computes {want}")]
    Discord {
        /// The chunk.
        chunk: u32,
        /// One rank.
        rank: u32,
        /// Its expression.
        got: String,
        /// Another rank.
        other: u32,
        /// Its expression.
        want: String,
    },
}
