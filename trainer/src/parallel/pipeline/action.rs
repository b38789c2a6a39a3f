//! The words of a pipeline schedule: `2F0` is the forward of micro-batch 0 through stage 2.
//!
//! They are those of torch.distributed.pipelining, so that schedules can be exchanged with it.

use std::fmt;
use std::str::FromStr;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `F`: forward.
    Forward,
    /// `B`: all of backward.
    Backward,
    /// `I`: backward, down to the gradient of the stage's input only.
    Input,
    /// `W`: the rest of it, the gradients of the stage's weights.
    Weight,
    /// Have the stage's parameters here.
    Unshard,
    /// Let go of them.
    Reshard,
    /// Add the gradients up over the ranks that share the stage.
    ReduceGrad,
    /// Until that is done.
    WaitReduceGrad,
    /// What forward came to leaves for the next stage.
    SendF,
    /// What the stage before came to may arrive from here on.
    RecvF,
    /// The gradient of the stage's input leaves for the stage before.
    SendB,
    /// That of its output may arrive from here on.
    RecvB,
    /// What was sent has been received.
    WaitSendF,
    /// The same for a gradient.
    WaitSendB,
}

const NAMES: [(Kind, &str); 14] = [
    (Kind::Forward, "F"),
    (Kind::Backward, "B"),
    (Kind::Input, "I"),
    (Kind::Weight, "W"),
    (Kind::Unshard, "UNSHARD"),
    (Kind::Reshard, "RESHARD"),
    (Kind::ReduceGrad, "REDUCE_GRAD"),
    (Kind::WaitReduceGrad, "WAIT_REDUCE_GRAD"),
    (Kind::SendF, "SEND_F"),
    (Kind::RecvF, "RECV_F"),
    (Kind::SendB, "SEND_B"),
    (Kind::RecvB, "RECV_B"),
    (Kind::WaitSendF, "WAIT_SEND_F"),
    (Kind::WaitSendB, "WAIT_SEND_B"),
];

impl Kind {
    /// Whether it computes.
    pub fn computes(self) -> bool {
        matches!(self, Kind::Forward | Kind::Backward | Kind::Input | Kind::Weight)
    }

    /// Whether it is about one micro-batch, not a whole stage.
    pub(super) fn has_micro(self) -> bool {
        use Kind::{ReduceGrad, Reshard, Unshard, WaitReduceGrad};
        !matches!(self, Unshard | Reshard | ReduceGrad | WaitReduceGrad)
    }

    /// A number for it, to be told to other ranks.
    pub(super) fn code(self) -> usize {
        NAMES.iter().position(|(kind, _)| *kind == self).expect("every kind has a name")
    }

    /// The kind of a number.
    pub(super) fn of_code(code: usize) -> Option<Kind> {
        NAMES.get(code).map(|(kind, _)| *kind)
    }

    fn name(self) -> &'static str {
        NAMES[self.code()].1
    }
}

/// One thing that a rank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Action {
    /// Stages are counted along the model, over all ranks.
    pub stage: usize,
    /// What is done.
    pub kind: Kind,
    /// For which micro-batch; 0 where it is for all of them.
    pub micro: usize,
}

/// More stages or micro-batches than anybody has are a damaged file.
const MAX: usize = 1 << 16;

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.stage, self.kind.name())?;
        if self.kind.has_micro() { write!(f, "{}", self.micro) } else { Ok(()) }
    }
}

impl FromStr for Action {
    type Err = String;

    /// As it is displayed.
    fn from_str(text: &str) -> Result<Action, String> {
        let wrong = || "no action, such as 2F0 or 1UNSHARD".to_string();
        let name = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let micro = text[name..].find(|c: char| c.is_ascii_digit());
        let micro = micro.map_or(text.len(), |at| name + at);
        let number = |text: &str| text.parse().ok().filter(|number| *number < MAX);
        let kind = NAMES.iter().find(|(_, it)| *it == &text[name..micro]).ok_or_else(wrong)?.0;
        let stage = number(&text[..name]).ok_or_else(wrong)?;
        match (kind.has_micro(), number(&text[micro..])) {
            (true, Some(micro)) => Ok(Action { stage, kind, micro }),
            (false, _) if micro == text.len() => Ok(Action { stage, kind, micro: 0 }),
            (true, None) if micro < text.len() => Err(wrong()),
            (true, None) => Err(format!("{} is of one micro-batch: which?", kind.name())),
            (false, _) => Err(format!("{} is of no single micro-batch", kind.name())),
        }
    }
}
