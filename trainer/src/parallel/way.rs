//! What `--strategy` names: ways to train, of which one of each kind may be combined.

use super::Stage;
use crate::error::Error;
use clap::ValueEnum;
use serde::Serialize;

/// A way to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Every rank holds the whole state
    Ddp,
    /// Moments are held in parts
    Zero1,
    /// Also gradients
    Zero2,
    /// Also parameters
    #[value(alias = "zero3")]
    Fsdp,
}

/// The ways of a run, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    /// What ranks with other samples hold in parts.
    pub data: Stage,
}

impl Way {
    /// As it is written.
    pub fn name(self) -> String {
        self.to_possible_value().expect("no way is hidden").get_name().to_string()
    }

    fn data(self) -> Option<Stage> {
        match self {
            Way::Ddp => Some(Stage::Ddp),
            Way::Zero1 => Some(Stage::Zero1),
            Way::Zero2 => Some(Stage::Zero2),
            Way::Fsdp => Some(Stage::Fsdp),
        }
    }
}

impl Ways {
    /// Sort `ways` by kind.
    ///
    /// Errors: `Setting` for two of the same kind.
    pub fn of(ways: &[Way]) -> Result<Ways, Error> {
        Ok(Ways { data: one(ways, Way::data)?.unwrap_or_default() })
    }
}

/// The only one of a kind, if there is any.
fn one<T>(ways: &[Way], kind: impl Fn(Way) -> Option<T>) -> Result<Option<T>, Error> {
    let mut found = ways.iter().filter_map(|way| kind(*way).map(|it| (way, it)));
    let Some((first, it)) = found.next() else { return Ok(None) };
    match found.next() {
        None => Ok(Some(it)),
        Some((second, _)) => {
            let (first, second) = (first.name(), second.name());
            Err(Error::setting("strategy", format!("{first} and {second} exclude each other")))
        }
    }
}
