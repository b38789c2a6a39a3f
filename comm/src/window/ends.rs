//! Where those sleep who wait for something of a window, and for how long.

use std::time::Duration;

use brigade_transports::{Bells, Endpoint};

/// The longest sleep of one who waits for a signal: a lost peer is noticed this much later, and so
/// is the first signal of another thread of this rank where only peers ring.
pub(super) const NAP: Duration = Duration::from_millis(20);
/// That of one who waits while another thread sleeps at the bells, or has signalled itself there.
pub(super) const SHORT_NAP: Duration = Duration::from_micros(500);

/// The transports' share of a window, and where to sleep.
pub(super) struct Ends {
    pub(super) endpoints: Vec<Box<dyn Endpoint>>,
    pub(super) bells: Bells,
}
