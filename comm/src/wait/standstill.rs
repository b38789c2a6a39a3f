//! Where a call stands still, and how that is said.

use crate::control::shortened;
use crate::header::Header;
use crate::plan::{Channel, Plan};
use crate::run::Run;

/// The most bytes of what is called, as a group of messages lists all of them: the sentence has
/// room for what others call.
const NAME_BYTES_MAX: usize = 128;

/// A call that does not move, for whoever must say so.
pub(crate) struct Standstill<'a> {
    pub(crate) at: At<'a>,
    pub(crate) name: &'a str,
    pub(crate) header: &'a Header,
}

/// How far a call is.
#[derive(Clone, Copy)]
pub(crate) enum At<'a> {
    /// At the steps of a plan.
    Step(&'a Run, &'a Plan),
    /// At something that only this member can go on with, in words.
    Member(u32, &'a str),
    /// Nowhere: it waits for whichever member comes first.
    Anyone,
}

impl Standstill<'_> {
    /// The member waited for.
    pub(super) fn peer(&self) -> Option<u32> {
        let (run, plan) = match self.at {
            At::Step(run, plan) => (run, plan),
            At::Member(peer, _) => return Some(peer),
            At::Anyone => return None,
        };
        match run.waiting_for(plan)? {
            (Channel::From(peer) | Channel::To(peer), _) => Some(peer),
            (Channel::Within, _) => None,
        }
    }

    /// The place in words.
    pub(super) fn place(&self, rank: u32, members: &[u32]) -> String {
        let name = shortened(self.name, NAME_BYTES_MAX);
        let (run, plan) = match self.at {
            At::Step(run, plan) => (run, plan),
            At::Member(_, doing) => return format!("rank {rank}, {name}: {doing}"),
            At::Anyone => return format!("rank {rank}, {name}: waiting for any of the others"),
        };
        let Some((channel, step)) = run.waiting_for(plan) else {
            return format!("rank {rank}, {name}");
        };
        let chunk = step.chunk;
        let doing = match channel {
            Channel::From(peer) => {
                let is_first =
                    self.header.sequence_if_collective().is_some() && !run.has_begun(plan, channel);
                let first = if is_first { " (its first in this call)" } else { "" };
                format!("waiting for chunk {chunk} from rank {}{first}", members[peer as usize])
            }
            Channel::To(peer) => {
                format!("no room for chunk {chunk} to rank {}", members[peer as usize])
            }
            Channel::Within => format!("working on chunk {chunk}"),
        };
        let (number, moves) = (step.number + 1, plan.moves);
        format!("rank {rank}, {name}, step {number} of {moves}: {doing}")
    }
}
