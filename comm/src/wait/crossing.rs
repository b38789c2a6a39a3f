//! Two ranks that wait for each other, each with one message, and the same way round.

use super::{Standstill, Watch};

impl Watch {
    /// Where others wait, and what to do where that shows what a caller may not see, who knows its
    /// own call only.
    pub(super) fn others_and_hint(&self, still: &Standstill<'_>) -> String {
        let reports = self.control.waiting_reports(self.group);
        let peer = still.peer().map(|peer| self.members[peer as usize]);
        let of_peer = peer
            .filter(|peer| !self.has_left(*peer))
            .and_then(|peer| reports.iter().flatten().find(|report| report.rank == peer as usize));
        let hint = of_peer.and_then(|it| hint(still.name, self.world_rank(), &it.description));
        let others = self.others_of(reports.as_deref());
        format!("{others}{}", hint.unwrap_or_default())
    }
}

/// What to do if rank `me` and its peer both send first, or both receive, as far as the peer has
/// reported what it waits for.
fn hint(name: &str, me: u32, reported: &str) -> Option<String> {
    let (way, both, other) = match name {
        _ if name.starts_with("send to ") => ("send to", "send", "receive"),
        _ if name.starts_with("receive from ") => ("receive from", "receive", "send"),
        _ => return None,
    };
    // Behind the type there is the next one in a group of messages.
    let dtype = reported.strip_prefix(&format!("{way} {me} of "))?;
    let is_alone = !name.contains(", ") && !dtype.contains(", ");
    is_alone.then(|| {
        format!(
            ": if both {both} first, one of them has to {other} first, or each puts both messages \
             into a group"
        )
    })
}
