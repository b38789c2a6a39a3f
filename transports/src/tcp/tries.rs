//! What came of dialling a peer's addresses, and when to do it again.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::TransportError;

/// For how long after the first failure it is tried again: what stands longer, like a missing
/// route, is worth being told.
const PASSING: Duration = Duration::from_secs(3);
/// The same where all addresses refuse: mostly the peer is gone, and others wait to hear of it.
pub(super) const REFUSED: Duration = Duration::from_millis(300);
/// Between two tries, at first and at the most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// What went wrong with which address.
#[derive(Default)]
pub(super) struct Failures {
    pub(super) tried: Vec<(SocketAddr, String)>,
    pub(super) refused: usize,
    pub(super) late: Vec<SocketAddr>,
    /// One that is the peer had our proof, and hung up. It may have ended at that very moment, or
    /// cut us off because we took too long; whoever does it twice knows another secret.
    pub(super) is_denied: bool,
    /// Nobody answers, and the peer waits for us to be done with that.
    pub(super) yields: bool,
    /// The peer has answered, and nothing will change that.
    pub(super) gone: Option<TransportError>,
}

impl Failures {
    pub(super) fn note_io(&mut self, address: SocketAddr, error: &io::Error) {
        self.refused += usize::from(error.kind() == io::ErrorKind::ConnectionRefused);
        self.note(address, &error.to_string());
    }

    pub(super) fn note(&mut self, address: SocketAddr, why: &str) {
        self.tried.push((address, why.to_owned()));
    }

    pub(super) fn has(&self, address: SocketAddr) -> bool {
        self.tried.iter().any(|(tried, _)| *tried == address)
    }

    /// All of it, each reason once, behind the addresses that have it.
    pub(super) fn text(&self) -> String {
        let mut reasons: Vec<(&str, String)> = Vec::new();
        for (address, why) in &self.tried {
            match reasons.iter_mut().find(|(known, _)| known == why) {
                Some((_, addresses)) => *addresses += &format!(", {address}"),
                None => reasons.push((why, address.to_string())),
            }
        }
        let reasons = reasons.into_iter().map(|(why, addresses)| format!("{addresses}: {why}"));
        reasons.collect::<Vec<_>>().join("; ")
    }
}

/// When to try again.
#[derive(Default)]
pub(super) struct Tries {
    first: Option<Instant>,
    pause: Duration,
    /// The last one was denied.
    was_denied: bool,
}

impl Tries {
    /// How long to wait before the next try; `None` if there is no point in one.
    pub(super) fn pause(&mut self, failures: &Failures, deadline: Instant) -> Option<Duration> {
        let now = Instant::now();
        let first = *self.first.get_or_insert(now);
        let patience = match failures.tried.len() {
            tried if tried == failures.refused => REFUSED,
            _ => PASSING,
        };
        let was_denied = std::mem::replace(&mut self.was_denied, failures.is_denied);
        let is_denied = was_denied && failures.is_denied;
        let is_final = is_denied || failures.gone.is_some() || failures.tried.is_empty();
        self.pause = (2 * self.pause).clamp(PAUSES.0, PAUSES.1);
        let next = now + self.pause;
        (!is_final && next < deadline.min(first + patience)).then_some(self.pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_told_once() {
        let mut failures = Failures::default();
        for (address, why) in [("[::1]:7", "refused"), ("1.2.3.4:7", "no route")] {
            failures.note(address.parse().expect("an address"), why);
        }
        failures.note("[fe80::1]:7".parse().expect("an address"), "refused");
        assert_eq!(failures.text(), "[::1]:7, [fe80::1]:7: refused; 1.2.3.4:7: no route");
        assert_eq!(Failures::default().text(), "");
    }
}
