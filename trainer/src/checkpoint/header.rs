//! What a file of a state says beside its tensors, and which of their numbers no run comes to.

use crate::error::Error;
use crate::layout::Config;
use crate::precision::LossScale;
use crate::state::Array;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Settings of the run that wrote a checkpoint, by flag.
pub type Course = BTreeMap<String, String>;

/// What a file says beside its tensors: JSON in a single field, because several would be written in
/// an order of their own each time, and equal states shall be equal files.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Header {
    /// Steps made; those that f16 skipped count, too.
    pub(crate) step: usize,
    pub(crate) config: Config,
    pub(crate) course: Course,
    /// Of runs of f16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) loss_scale: Option<LossScale>,
}

impl Header {
    /// As it is written.
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).expect("a header is numbers and words")
    }

    /// Read what was written to `path`.
    ///
    /// Errors: `Checkpoint` for what is no header.
    pub(crate) fn parse(text: &str, path: &Path) -> Result<Header, Error> {
        let header: Header = serde_json::from_str(text).map_err(|e| Error::checkpoint(path, e))?;
        header.check(path).map(|()| header)
    }

    /// Refuse what no run comes to.
    pub(super) fn check(&self, path: &Path) -> Result<(), Error> {
        match self.loss_scale.is_some_and(|scale| !scale.is_sound(self.step)) {
            true => Err(Error::checkpoint(path, "has a loss scale that no run comes to")),
            false => Ok(()),
        }
    }

    /// Refuse the state of another model.
    pub(crate) fn require(&self, config: &Config, path: &Path) -> Result<(), Error> {
        // How many of no experts a row goes to makes no difference.
        let top = if self.config.experts == 0 { config.top } else { self.config.top };
        if (Config { top, ..self.config }) == *config {
            return Ok(());
        }
        Err(Error::checkpoint(path, format!("is of {}, not of {config}", self.config)))
    }
}

/// The field of the header.
pub(super) const HEADER: &str = "brigade";

/// One of the numbers of an array that no run comes to: none at all, or a square below 0.
pub(crate) fn strange(array: Array, values: &[f32]) -> Option<f32> {
    let is_strange = |value: &&f32| !value.is_finite() || (array == Array::Square && **value < 0.0);
    values.iter().find(is_strange).copied()
}
