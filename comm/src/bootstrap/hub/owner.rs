//! What whoever runs the root asks of it.

use std::time::Instant;

use super::{Hub, Stage};
use crate::bootstrap::bell::Ending;
use crate::bootstrap::roster::Failure;
use crate::control::Refusal;
use crate::control::frame::Frame;

impl Hub {
    /// Give up for all who wait, if they do so in vain.
    pub(super) fn hear_owner(&mut self) {
        let Some(why) = self.bell.called_off() else { return };
        let Stage::Gathering(roster) = &self.stage else { return };
        let kind = Refusal::RankUnable;
        let all = format!("{why}: {}", roster.missing());
        self.fail(Failure { kind, why: all }, Instant::now());
        // Who comes later is not to hear that it never came, nor that there is no root.
        let last_words = Frame::Refused { kind, why }.encode().into();
        self.stage = Stage::Failed { last_words, until: None };
    }

    /// Whether nobody needs a root that was told to end, or it has stayed for long enough.
    pub(super) fn may_end(&mut self, now: Instant) -> bool {
        let Stage::Sitting(court) = &self.stage else { return true };
        let ending = self.ending.get_or_insert_with(|| Ending::new(now));
        ending.is_due(now, (&court.holders(), &self.own), &self.place)
    }
}
