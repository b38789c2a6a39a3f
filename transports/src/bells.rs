//! Sleeping at the bells of several endpoints at once.

use std::time::Duration;

use crate::{Endpoint, TransportError};

/// How long a sleep is where no bell hears all others: what another one rings shows after it.
const SHORT_NAP: Duration = Duration::from_micros(500);

/// How the bells of a list of endpoints are slept at. It belongs to that list, in that order.
///
/// As with one bell: arm, look at every wire once more, then wait (or disarm).
#[derive(Clone, Copy, Debug)]
pub struct Bells {
    /// The endpoint whose bell hears all others.
    ear: Option<usize>,
}

impl Bells {
    /// Make one bell of these endpoints hear the others, if one can. Costs some system calls where
    /// there are several, once.
    pub fn join(endpoints: &mut [Box<dyn Endpoint>]) -> Self {
        let count = endpoints.len();
        let mut hears = |ear: usize, other: usize| {
            let pair = endpoints.get_disjoint_mut([ear, other]);
            let [ear, other] = pair.expect("two different endpoints of the list");
            other.doorbell().descriptor().is_some_and(|fd| ear.doorbell().also_hears(fd))
        };
        let mut hears_all =
            |ear: &usize| (0..count).filter(|other| other != ear).all(|other| hears(*ear, other));
        Self { ear: (0..count).find(&mut hears_all) }
    }

    /// Whether one sleep covers all bells. Users need not know: without that a wait is short, and
    /// comes to the same. So tests ask, which would not notice.
    pub fn is_one_sleep(&self) -> bool {
        self.ear.is_some()
    }

    /// From now on, whatever moves a wire of any of the endpoints ends a wait.
    pub fn arm(&self, endpoints: &mut [Box<dyn Endpoint>]) {
        // The ear first: it forgets what it heard before. A bell that was armed earlier and rang
        // meanwhile would stay unheard, for it rings once.
        if let Some(ear) = self.ear {
            endpoints[ear].doorbell().arm();
        }
        for other in others(endpoints, self.ear) {
            other.doorbell().arm();
        }
    }

    /// Sleep until some bell rang since `arm`, or for `timeout`; for less where no sleep covers
    /// all. Disarms.
    ///
    /// # Errors
    ///
    /// The first that a bell has.
    pub fn wait(
        &self,
        endpoints: &mut [Box<dyn Endpoint>],
        timeout: Duration,
    ) -> Result<(), TransportError> {
        if endpoints.is_empty() {
            std::thread::sleep(timeout);
            return Ok(());
        }
        let at = self.ear.unwrap_or(0);
        let nap = if self.ear.is_some() { timeout } else { timeout.min(SHORT_NAP) };
        let slept = endpoints[at].doorbell().wait(nap);
        for other in others(endpoints, Some(at)) {
            other.doorbell().disarm();
        }
        slept
    }

    /// Stop listening without having slept.
    pub fn disarm(&self, endpoints: &mut [Box<dyn Endpoint>]) {
        endpoints.iter_mut().for_each(|endpoint| endpoint.doorbell().disarm());
    }
}

/// All endpoints but one.
fn others(
    endpoints: &mut [Box<dyn Endpoint>],
    but: Option<usize>,
) -> impl Iterator<Item = &mut Box<dyn Endpoint>> {
    let numbered = endpoints.iter_mut().enumerate();
    numbered.filter(move |(index, _)| Some(*index) != but).map(|(_, endpoint)| endpoint)
}
