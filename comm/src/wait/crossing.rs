//! Two ranks that wait for each other, each with one message, and the same way round.

use super::{Standstill, Watch};

impl Watch {
    /// What the others last said, and what to do where that shows what a caller may not see, who
    /// knows its own call only.
    pub(super) fn others_and_hint(&self, still: &Standstill<'_>) -> String {
        let others = self.others();
        let peer = still.peer().map(|peer| self.members[peer as usize]);
        let hint = peer.and_then(|peer| hint(still.name, self.world_rank(), peer, &others));
        format!("{others}{}", hint.unwrap_or_default())
    }
}

/// What to do if rank `me` and `peer` both send first, or both receive, as far as the `others` have
/// said.
fn hint(name: &str, me: u32, peer: u32, others: &str) -> Option<String> {
    let (way, both, other) = match name {
        _ if name.starts_with("send to ") => ("send to", "send", "receive"),
        _ if name.starts_with("receive from ") => ("receive from", "receive", "send"),
        _ => return None,
    };
    let (_, behind) = others.split_once(&format!("rank {peer} last reported {way} {me} of "))?;
    // Behind the type comes how long ago that was; in a group of messages the next one.
    let (_dtype, age) = behind.split_once(", ")?;
    let is_alone = !name.contains(", ") && age.starts_with(|first: char| first.is_ascii_digit());
    is_alone.then(|| {
        format!(
            ": if both {both} first, one of them has to {other} first, or each puts both messages \
             into a group"
        )
    })
}
