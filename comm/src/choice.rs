//! Which algorithm a call goes by, and why.

use std::fmt;

use brigade_schedule::Algorithm;

/// The algorithm of a call, and what decided for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What the call is carried out by.
    pub algorithm: Algorithm,
    /// Why it is that one.
    pub reason: Reason,
}

/// What decided for an algorithm, in the order in which it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The settings want folds in rank order, which one algorithm does.
    Ordered,
    /// The settings name it.
    Named,
    /// A rule of the settings' tuning does.
    Rule,
    /// The ranks lie on several nodes, between which others send more or take more steps.
    Nodes,
    /// The call is short: a step more costs more than the bytes it saves.
    Short,
    /// The call is long: a step more costs less than the bytes it saves.
    Long,
}

impl fmt::Display for Reason {
    /// The rest of a sentence that begins with the algorithm.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ordered => "folds in rank order, as is asked for (BRIGADE_ORDERED)",
            Self::Named => "is asked for (BRIGADE_ALGORITHM)",
            Self::Rule => "is what a rule says (BRIGADE_TUNING)",
            Self::Nodes => "sends less between nodes than others, or takes fewer steps there",
            Self::Short => "takes few steps, which count where there are few bytes",
            Self::Long => "sends few bytes, which count more than steps where there are many",
        })
    }
}
