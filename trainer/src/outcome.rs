//! What a run comes to.

use crate::offload::DiskUse;
use crate::runlog::RankEnd;
use serde::Serialize;

/// What a run came to.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Loss of each step of this run, before its update; the run log has them by step.
    #[serde(skip)]
    pub losses: Vec<f64>,
    /// Mean loss on text that was never trained on, where it was asked for.
    pub held_out: Option<f64>,
    /// Payload bytes this rank sent in steps.
    pub sent_bytes: u64,
    /// What the strategy's formula predicts for them.
    pub formula_bytes: u64,
    /// Wall time of the steps.
    pub seconds: f64,
    /// What its steps have cost this rank in files.
    pub disk: DiskUse,
    /// What formulas predict for that.
    pub disk_formula: DiskUse,
    /// Bytes sent and held by each rank.
    pub ranks: Vec<RankEnd>,
    /// How long the rank that waited least for others did, in ms, step by step. What others waited
    /// beyond that was for ranks that came later, not for bytes.
    pub exposed_ms: Vec<f64>,
}
