//! What `--strategy` names: ways to train, of which one of each kind may be combined.

use super::pipeline::Order;
use super::tensor::Split;
use super::{Axis, Mesh, Pace, Stage};
use crate::error::Error;
use clap::ValueEnum;
use serde::Serialize;

/// A way to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Every rank holds the whole state
    Ddp,
    /// The same, of tensors that all ranks agree to have ready, many in a call
    Horovod,
    /// Some ranks are servers: they hold the state, and wait for all others in each step
    Ps,
    /// Servers that wait for nobody who is not too far behind
    PsAsync,
    /// Moments are held in parts
    Zero1,
    /// Also gradients
    Zero2,
    /// Also parameters
    #[value(alias = "zero3")]
    Fsdp,
    /// Pipeline: all forwards, then all backwards
    Gpipe,
    /// Pipeline: each backward as soon as it can be
    #[value(name = "1f1b")]
    #[serde(rename = "1f1b")]
    OneFOneB,
    /// Pipeline: the same with several stages on each rank
    Interleaved,
    /// Pipeline: backward in two parts, of which one fills the bubble
    Zb1p,
    /// Pipeline: the same with two stages on each rank
    Zbv,
    /// Pipeline: the same two stages, each forward beside a backward
    #[value(name = "dualpipev")]
    DualPipeV,
    /// Heads and hidden numbers are divided (Megatron)
    Tp,
    /// Also the rows of the residual stream
    Sp,
    /// Tokens are divided; keys and values go round
    Ring,
    /// Matrices are divided over a square of ranks (SUMMA)
    #[value(name = "2d")]
    #[serde(rename = "2d")]
    Square,
    /// Over as many squares as a side is long, or fewer
    #[value(name = "2.5d")]
    #[serde(rename = "2.5d")]
    Squares,
    /// Over a cube of ranks
    #[value(name = "3d")]
    #[serde(rename = "3d")]
    Cube,
    /// Experts are divided, and samples; tokens travel to their experts
    Ep,
}

/// The ways of a run, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    /// What ranks with other samples hold in parts.
    pub data: Stage,
    /// Whether ranks agree on what is ready, and send it in common.
    pub is_fused: bool,
    /// How far workers are apart, if there are servers.
    pub pace: Option<Pace>,
    /// The order of a pipeline.
    pub pipeline: Option<Order>,
    /// How ranks with the same samples divide tensors or tokens.
    pub inside: Option<Split>,
}

impl Way {
    /// As it is written.
    pub fn name(self) -> String {
        self.to_possible_value().expect("no way is hidden").get_name().to_string()
    }

    fn data(self) -> Option<Stage> {
        match self {
            Way::Ddp | Way::Horovod | Way::Ps | Way::PsAsync => Some(Stage::Ddp),
            Way::Zero1 => Some(Stage::Zero1),
            Way::Zero2 => Some(Stage::Zero2),
            Way::Fsdp => Some(Stage::Fsdp),
            _ => None,
        }
    }

    fn pipeline(self) -> Option<Order> {
        match self {
            Way::Gpipe => Some(Order::Gpipe),
            Way::OneFOneB => Some(Order::OneFOneB),
            Way::Interleaved => Some(Order::Interleaved),
            Way::Zb1p => Some(Order::Zb1p),
            Way::Zbv => Some(Order::Zbv),
            Way::DualPipeV => Some(Order::DualPipeV),
            _ => None,
        }
    }

    fn inside(self) -> Option<Split> {
        match self {
            Way::Tp => Some(Split::Heads),
            Way::Sp => Some(Split::Sequence),
            Way::Ring => Some(Split::Ring),
            Way::Square => Some(Split::Square),
            Way::Squares => Some(Split::Squares),
            Way::Cube => Some(Split::Cube),
            Way::Ep => Some(Split::Experts),
            _ => None,
        }
    }
}

impl Ways {
    /// Sort `ways` by kind.
    ///
    /// Errors: `Setting` for two of the same kind.
    pub fn of(ways: &[Way]) -> Result<Ways, Error> {
        let data = one(ways, Way::data)?.unwrap_or_default();
        let pipeline = one(ways, Way::pipeline)?;
        let is_fused = ways.contains(&Way::Horovod);
        let pace = match ways {
            _ if ways.contains(&Way::Ps) => Some(Pace::Together),
            _ if ways.contains(&Way::PsAsync) => Some(Pace::Eventual),
            _ => None,
        };
        Ok(Ways { data, is_fused, pace, pipeline, inside: one(ways, Way::inside)? })
    }

    /// The axis of ranks that stand in no mesh.
    pub(crate) fn axis(&self) -> Axis {
        if self.inside.is_some() { Axis::Tp } else { Axis::Dp }
    }

    /// Whether ranks along tp, if there are any, have parts of tensors.
    pub(super) fn divide_tensors(&self) -> bool {
        self.inside != Some(Split::Ring)
    }

    /// Refuse ways that the mesh has no axis for, or that do not go with so many experts.
    pub(crate) fn suit(&self, mesh: &Mesh, experts: usize) -> Result<(), Error> {
        if self.inside.is_some() && mesh.ranks() > 1 && mesh.length(Axis::Tp) == 1 {
            let problem = format!("tensors are divided along tp, which {mesh} does not have");
            return Err(Error::setting("mesh", problem));
        }
        let (tp, has_ep) = (mesh.length(Axis::Tp), self.inside == Some(Split::Experts));
        let problem = match (experts > 0, has_ep) {
            (false, true) => {
                let some = 8_usize.next_multiple_of(tp);
                format!("there are none that --strategy ep could divide: add --experts {some}")
            }
            (true, false) if self.inside.is_some() || tp > 1 => {
                "are divided by --strategy ep, and by no other way to divide tensors".to_string()
            }
            _ => return Ok(()),
        };
        Err(Error::setting("experts", problem))
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
