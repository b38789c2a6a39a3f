//! Waiting for what a transport opens to a member, a wire or a window, and for members of a group
//! that it joins: it hears all that a wait in the middle of a call hears. Only the deadline is the
//! transport's, which knows better what did not come.

use std::time::Duration;

use brigade_transports::{Endpoint, Group, Port, TransportError};

use super::{At, PASSED_ON_WAIT, Stall, Standstill, Watch, error_of};
use crate::Error;
use crate::header::Header;
use crate::run::Stop;

/// The longest sleep of one who waits for a wire.
const NAP: Duration = Duration::from_millis(20);

/// What is waited for.
pub(crate) struct Opening<'a> {
    /// The member to whom it leads.
    pub(crate) peer: u32,
    /// Which endpoint serves it.
    pub(crate) route: usize,
    /// `wire`, say.
    pub(crate) what: &'a str,
    /// What it is for.
    pub(crate) name: &'a str,
}

/// What a group is joined over.
pub(crate) struct Joining<'a> {
    pub(crate) port: &'a dyn Port,
    pub(crate) transport: &'a str,
    /// What it is for: `split: joining`, say.
    pub(crate) name: &'a str,
}

impl Watch {
    /// Join a group, whose members are those of this watch. Whoever waits for one that is late
    /// hears of the others. Who has left is no reason to stop: what a group meets in stays open for
    /// those who come late, for a while. Who could not join is one.
    ///
    /// # Errors
    ///
    /// [`Error::Join`] if the transport cannot, here or on another member, [`Error::Transport`] if
    /// the system has no more of something; otherwise why to wait no longer.
    pub(crate) fn await_joining(
        &self,
        endpoints: &mut [Box<dyn Endpoint>],
        joining: &Joining<'_>,
        group: &Group<'_>,
    ) -> Result<Box<dyn Endpoint>, Error> {
        let name = format!("{} over {}", joining.name, joining.transport);
        let (mut heard, mut late) = (None, None);
        let header = &Header::of_message(self.group);
        let mut stall = Stall::begin();
        let joined = joining.port.join_while(group, &mut |member| {
            late = Some(member);
            let doing = format!("waiting for rank {}", self.members[member]);
            let at = At::Member(member as u32, &doing);
            heard = self.hear(endpoints, &name).err().or_else(|| self.unjoined(&name));
            self.report(&mut stall, &Standstill { at, name: &name, header });
            heard.is_none()
        });
        self.goes_on();
        joined.map_err(|error| heard.unwrap_or_else(|| self.judge_joining(late, &error, &name)))
    }

    /// Why a group could not be joined. Whoever of its members died meanwhile is named as in a
    /// call.
    fn judge_joining(&self, late: Option<usize>, error: &TransportError, during: &str) -> Error {
        if let Some(verdict) = self.control.await_verdict(PASSED_ON_WAIT) {
            return error_of(verdict, during);
        }
        // Where no root is left there is no other word of a death.
        if let TransportError::PeerGone { peer, how } = error
            && !self.control.hears()
        {
            return self.judge_gone(self.members[*peer], how.clone(), during);
        }
        let member = match error {
            TransportError::PeerGone { peer, .. } | TransportError::Corrupt { peer, .. } => {
                Some(*peer)
            }
            _ => late,
        };
        let with = member.map(|member| format!(" with rank {}", self.members[member]));
        let during = format!("{during}{}", with.unwrap_or_default());
        match error.is_exhausted() {
            true => Error::Transport { source: error.clone(), during },
            false => Error::join(format!("{during}: {error}")),
        }
    }

    /// Ask `open` until it gives something or fails.
    ///
    /// # Errors
    ///
    /// The outer one: why to wait no longer. The inner one: the transport's.
    pub(crate) fn await_opening<T>(
        &self,
        endpoints: &mut [Box<dyn Endpoint>],
        opening: &Opening<'_>,
        mut open: impl FnMut(&mut dyn Endpoint) -> Result<Option<T>, TransportError>,
    ) -> Result<Result<T, TransportError>, Error> {
        let &Opening { peer, route, what, name } = opening;
        if let Some(opened) = open(&mut *endpoints[route]).transpose() {
            return Ok(opened);
        }
        let doing = format!("waiting for a {what} to rank {}", self.members[peer as usize]);
        // The call has sent nothing yet, so there is nothing to compare with the others' calls.
        let header = &Header::of_message(self.group);
        let still = Standstill { at: At::Member(peer, &doing), name, header };
        let mut stall = Stall::begin();
        loop {
            endpoints[route].doorbell().arm();
            if let Some(opened) = open(&mut *endpoints[route]).transpose() {
                endpoints[route].doorbell().disarm();
                self.goes_on();
                return Ok(opened);
            }
            // A bell that fails is one that does not ring: we look again after the nap.
            let _ = endpoints[route].doorbell().wait(NAP);
            // What has opened counts before anything that may be heard of others.
            if let Some(opened) = open(&mut *endpoints[route]).transpose() {
                self.goes_on();
                return Ok(opened);
            }
            self.listen(&mut stall, endpoints, &still)?;
        }
    }

    /// Why a wire to or from a member could not be opened. One that dies or leaves at this moment
    /// hangs up on us in whatever way.
    pub(crate) fn judge_opening(&self, peer: u32, error: TransportError, during: &str) -> Error {
        if let TransportError::PeerGone { peer, how } = error {
            return self.judge_gone(self.members[peer], how, during);
        }
        let to = self.members[peer as usize];
        if let Some(heard) = self.hear_about(to, PASSED_ON_WAIT, during) {
            return heard;
        }
        let TransportError::Timeout { what, waited_ms } = error else {
            return self.judge(Stop::Wire(error), during);
        };
        let rank = self.world_rank();
        let place = format!("rank {rank}, {during}: no wire to rank {to}: {what}");
        self.give_up(Error::Timeout { place, waited_ms, others: self.others() })
    }
}
