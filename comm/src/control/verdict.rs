//! What the root decides for everybody, and why it may refuse someone.

use std::fmt;

use super::codec::{Fields, Malformed, Parts};

/// Why a world cannot go on. The first one stands, and it is the same on all ranks that the root
/// reaches: who finds one, or gives up, while the root is stopped has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// A rank ended without leaving, or nobody reaches it any more.
    Lost {
        /// Who.
        rank: usize,
        /// What was seen.
        how: String,
    },
    /// The root ended without saying so, and no rank was in its process.
    RootLost {
        /// What was seen.
        how: String,
    },
    /// Two ranks are in different calls where they should be in the same.
    Mismatch {
        /// One of them.
        rank_a: usize,
        /// Its call, with its number: `#17 barrier`.
        call_a: String,
        /// The other.
        rank_b: usize,
        /// Its call.
        call_b: String,
        /// The communicator.
        group: u64,
        /// The number of the first call about which they disagree, as far as that is known.
        seq: u64,
    },
    /// A rank gave up for all.
    Aborted {
        /// Who.
        rank: usize,
        /// Its reason.
        why: String,
    },
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Lost { rank, how } => write!(f, "rank {rank} is gone: {how}"),
            Verdict::RootLost { how } => {
                write!(f, "the process that brought the ranks together is gone: {how}")
            }
            Verdict::Mismatch { rank_a, call_a, rank_b, call_b, group, .. } => write!(
                f,
                "the ranks disagree in communicator {group}: \
                 rank {rank_a} calls {call_a}, rank {rank_b} calls {call_b}"
            ),
            Verdict::Aborted { rank, why } => write!(f, "rank {rank} aborted: {why}"),
        }
    }
}

impl Verdict {
    pub(super) fn encode(&self, parts: &mut Parts) {
        match self {
            Verdict::Lost { rank, how } => {
                parts.u8(1);
                parts.count(*rank);
                parts.text(how);
            }
            Verdict::RootLost { how } => {
                parts.u8(2);
                parts.text(how);
            }
            Verdict::Mismatch { rank_a, call_a, rank_b, call_b, group, seq } => {
                parts.u8(3);
                parts.count(*rank_a);
                parts.text(call_a);
                parts.count(*rank_b);
                parts.text(call_b);
                parts.u64(*group);
                parts.u64(*seq);
            }
            Verdict::Aborted { rank, why } => {
                parts.u8(4);
                parts.count(*rank);
                parts.text(why);
            }
        }
    }

    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        Ok(match fields.u8()? {
            1 => Verdict::Lost { rank: fields.u32()? as usize, how: fields.text()? },
            2 => Verdict::RootLost { how: fields.text()? },
            3 => Verdict::Mismatch {
                rank_a: fields.u32()? as usize,
                call_a: fields.text()?,
                rank_b: fields.u32()? as usize,
                call_b: fields.text()?,
                group: fields.u64()?,
                seq: fields.u64()?,
            },
            4 => Verdict::Aborted { rank: fields.u32()? as usize, why: fields.text()? },
            _ => return Err(Malformed { what: "a verdict of an unknown kind" }),
        })
    }
}

/// What a rank has said about a call that keeps it waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingReport {
    /// Who.
    pub rank: usize,
    /// The number of the call in its communicator.
    pub seq: u64,
    /// How long ago, in milliseconds, it said so.
    pub age_ms: u32,
    /// The call in words.
    pub description: String,
}

impl WaitingReport {
    pub(super) fn encode(&self, parts: &mut Parts) {
        parts.count(self.rank);
        parts.u64(self.seq);
        parts.u32(self.age_ms);
        parts.text(&self.description);
    }

    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            rank: fields.u32()? as usize,
            seq: fields.u64()?,
            age_ms: fields.u32()?,
            description: fields.text()?,
        })
    }
}

/// Why the root gives no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum Refusal {
    /// Two processes claim the same rank.
    DuplicateRank = 1,
    /// A rank that the world does not have.
    RankOutOfRange = 2,
    /// Processes disagree about the number of ranks.
    RanksDiffer = 3,
    /// Some ranks did not come in time.
    RanksMissing = 4,
    /// The other end speaks another version.
    Version = 5,
    /// The other end knows another secret.
    Secret = 6,
    /// The root was closed before everybody had come.
    RootClosed = 7,
    /// A rank cannot come, and nobody else will in its place: it is of the root's own process, or
    /// whoever runs the root knows.
    RankUnable = 8,
    /// Some processes seal what they say, others do not.
    EncryptionDiffers = 9,
}

impl Refusal {
    pub(super) fn decode(byte: u8) -> Result<Self, Malformed> {
        use Refusal::*;
        let mistakes =
            [DuplicateRank, RankOutOfRange, RanksDiffer, Version, Secret, EncryptionDiffers];
        let absences = [RanksMissing, RootClosed, RankUnable];
        (mistakes.into_iter().chain(absences))
            .find(|kind| *kind as u8 == byte)
            .ok_or(Malformed { what: "a refusal of an unknown kind" })
    }
}
