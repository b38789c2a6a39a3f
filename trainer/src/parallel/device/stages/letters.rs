//! Letters between the stages of ranks, as they lie on a device.

use crate::kernels::cuda::{Room, View};
use crate::parallel::pipeline::Needs;

/// Room for letters on the device, [n × c] each.
pub(super) struct Letters {
    /// In turn: what came up, where the hosts carry letters, and what is on its way out.
    pub(super) incoming: [View; 2],
    pub(super) outgoing: [View; 2],
    /// Such as stay on this rank.
    pub(super) local: Vec<View>,
}

impl Letters {
    pub(super) fn take(room: &mut Room, letter: usize, needs: &Needs, is_direct: bool) -> Letters {
        // A rank that is alone with its stages sends nothing.
        let travels = if needs.sends + needs.receives > 0 { letter } else { 0 };
        let mut two = |letter: usize| [0; 2].map(|_| room.take(letter, 4));
        let (incoming, outgoing) = (two(if is_direct { 0 } else { travels }), two(travels));
        let local = (0..needs.local).map(|_| room.take(letter, 4)).collect();
        Letters { incoming, outgoing, local }
    }
}
