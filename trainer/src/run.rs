//! A run, from its first step to its last: all that its parts work with.

use crate::args::Args;
use crate::checkpoint::Written;
use crate::data::Corpus;
use crate::model::Gpt;
use crate::offload::DiskUse;
use crate::parallel::Strategy;
use crate::precision::LossScale;
use crate::records::Records;
use crate::report::Report;
use brigade_comm::Communicator;

/// Everything around a strategy while it trains.
pub(crate) struct Run<'a> {
    pub(crate) args: &'a Args,
    pub(crate) model: &'a Gpt,
    pub(crate) world: Option<&'a Communicator>,
    /// Whether this is rank 0, which prints and writes files for all.
    pub(crate) is_first: bool,
    pub(crate) corpus: Corpus,
    pub(crate) strategy: Box<dyn Strategy + 'a>,
    /// That of the state it began with, which is kept for a run of f16 if this is none.
    pub(crate) scale: Option<LossScale>,
    /// What its steps have cost in files.
    pub(crate) disk: DiskUse,
    /// What the steps should have moved.
    pub(crate) disk_formula: DiskUse,
    /// The most that this rank held for it in a step.
    pub(crate) peak_bytes: u64,
    /// The most until it had its strategy.
    pub(crate) start_bytes: u64,
    /// What is known of the checkpoint that this one goes on from.
    pub(crate) resumed: Option<Written>,
    pub(crate) report: Report<'a>,
    pub(crate) records: Records,
}
