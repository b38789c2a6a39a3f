//! Opening a queue pair between two addresses, and naming it in messages.

use std::sync::Arc;

use brigade_verbs::{CompletionQueue, Limits, Path, ProtectionDomain, QueuePair, Status};

use super::card::Address;
use super::failed;
use super::frame::Half;
use super::local::{Local, Place};
use crate::TransportError;

/// Packet counters have 24 bits.
const START_BITS: u32 = 24;

/// A queue pair from one of our addresses, and where its completions go.
pub(super) struct End {
    pub(super) pair: QueuePair,
    /// What came of what we posted.
    pub(super) sends: Arc<CompletionQueue>,
    /// What has arrived.
    pub(super) arrivals: Arc<CompletionQueue>,
    /// Where our packets begin to count.
    pub(super) start: u32,
    /// The largest packet, as verbs count it: that may go out, and once connected, that do.
    mtu: u8,
    /// Which row of our card.
    place: usize,
}

impl End {
    /// Make one at the `place`-th of our addresses, with all its receives posted. What it sends
    /// wakes nobody.
    pub(super) fn open(
        local: &Local,
        place: usize,
        limits: Limits,
        arrivals: Arc<CompletionQueue>,
    ) -> Result<End, TransportError> {
        let device = &local.places[place].device;
        let sends = CompletionQueue::new(device, limits.sends, None).map_err(failed)?;
        End::with(local, place, limits, (sends, arrivals))
    }

    /// Make one whose completions go to these queues: of what it sends, and of what arrives.
    pub(super) fn with(
        local: &Local,
        place: usize,
        limits: Limits,
        (sends, arrivals): (Arc<CompletionQueue>, Arc<CompletionQueue>),
    ) -> Result<End, TransportError> {
        let at = &local.places[place];
        let domain = domain(local, place);
        let pair = QueuePair::new(domain, at.port, &sends, &arrivals, limits).map_err(failed)?;
        for _ in 0..limits.receives {
            pair.post_receive(0).map_err(failed)?;
        }
        let start = fastrand::u32(..1 << START_BITS);
        // It may have changed since the card was written.
        let mtu = at.port_now().map_or(at.address.mtu, |now| now.mtu.min(at.address.mtu));
        Ok(End { pair, sends, arrivals, start, mtu, place })
    }

    /// What the other end must know.
    pub(super) fn half(&self) -> Half {
        Half { number: self.pair.number(), start: self.start, mtu: self.mtu }
    }

    /// The domain that it belongs to.
    pub(super) fn domain<'a>(&self, local: &'a Local) -> &'a Arc<ProtectionDomain> {
        domain(local, self.place)
    }

    /// Connect it to a queue pair of a peer's at one of its addresses.
    pub(super) fn connect(
        &mut self,
        local: &Local,
        theirs: &Address,
        half: &Half,
    ) -> Result<(), TransportError> {
        let Local { settings, places, .. } = local;
        let Place { device, port, gid_index, .. } = &places[self.place];
        self.mtu = self.mtu.min(theirs.mtu).min(half.mtu);
        let path = Path {
            port: *port,
            gid_index: *gid_index,
            mtu: self.mtu,
            gid: theirs.gid,
            lid: theirs.lid,
            number: half.number,
            our_start: self.start,
            their_start: half.start & ((1 << START_BITS) - 1),
            timeout: settings.timeout,
            retries: settings.retries,
            receiver_retries: settings.receiver_retries,
            service_level: settings.service_level,
            traffic_class: settings.traffic_class,
            reads: device.reads_max().clamp(1, 16),
        };
        self.pair.connect(&path).map_err(failed)
    }

    /// What has become of our port since the path was opened, if that may be why it failed.
    pub(super) fn fact(&self, local: &Local) -> Option<String> {
        let Some(now) = local.places[self.place].port_now() else {
            return Some("the device does not answer any more, ".into());
        };
        if !now.is_active {
            Some("the port is not active: look at its cable and its interface; ".into())
        } else if now.mtu < self.mtu {
            let (now, opened) = (128_u32 << now.mtu, 128_u32 << self.mtu);
            Some(format!("the port's MTU is {now} now, the path was opened with {opened}; "))
        } else {
            None
        }
    }

    /// The error of a work request that failed on the way to `peer`.
    pub(super) fn blame(
        &self,
        local: &Local,
        theirs: &Address,
        peer: usize,
        status: Status,
    ) -> TransportError {
        let Place { device, port, address, .. } = &local.places[self.place];
        let fact = self.fact(local).unwrap_or_default();
        let how = format!(
            "{status}; {fact}on queue pair {} of {} port {port}, from GID {} to GID {} of member \
             {peer}",
            self.pair.number(),
            device.name(),
            address.gid,
            theirs.gid,
        );
        // Those that only our side can be blamed for.
        if matches!(status.0, 1..=4 | 6..=8 | 19..=21) || status == Status::SILENT {
            let call = "a work request";
            return TransportError::System { call, errno: libc::EIO, what: how };
        }
        TransportError::PeerGone { peer, how }
    }
}

/// An error of [`End::blame`] with more to say.
pub(super) fn also(mut error: TransportError, more: &str) -> TransportError {
    if let TransportError::PeerGone { how: text, .. } | TransportError::System { what: text, .. } =
        &mut error
    {
        text.push_str(more);
    }
    error
}

/// The domain of the `place`-th of our addresses.
pub(super) fn domain(local: &Local, place: usize) -> &Arc<ProtectionDomain> {
    &local.domains[usize::from(local.places[place].address.device)]
}
