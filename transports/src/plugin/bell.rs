//! Sleeping until a wire may have moved. The plugins' interface has nothing to sleep at, so the
//! sleeper looks at its wires every so often, and the less often the longer it has slept.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::inlet::Inlet;
use super::outlet::{Outlet, lock};
use crate::{Doorbell, TransportError};

/// The first naps, and the last ones.
const NAP: Duration = Duration::from_micros(50);
const LONG_NAP: Duration = Duration::from_millis(1);

/// The doorbell of an endpoint.
#[derive(Default)]
pub(super) struct Bell {
    pub(super) outlets: Vec<Arc<Mutex<Outlet>>>,
    pub(super) inlets: Vec<Arc<Mutex<Inlet>>>,
    /// How often the steward has answered.
    pub(super) answers: Arc<AtomicU64>,
    /// How often anything had moved when it was armed.
    armed_at: u64,
}

impl Bell {
    /// Go on with all wires; how often anything has moved.
    fn look(&self) -> u64 {
        let outlets = self.outlets.iter().map(|outlet| {
            let mut outlet = lock(outlet);
            outlet.tend();
            outlet.moves()
        });
        let inlets = self.inlets.iter().map(|inlet| {
            let mut inlet = lock(inlet);
            inlet.tend();
            inlet.moves()
        });
        self.answers.load(Ordering::Acquire) + outlets.chain(inlets).sum::<u64>()
    }

    fn moves(&self) -> u64 {
        let outlets = self.outlets.iter().map(|outlet| lock(outlet).moves());
        let inlets = self.inlets.iter().map(|inlet| lock(inlet).moves());
        self.answers.load(Ordering::Acquire) + outlets.chain(inlets).sum::<u64>()
    }
}

impl Doorbell for Bell {
    fn arm(&mut self) {
        self.armed_at = self.moves();
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), TransportError> {
        let start = Instant::now();
        while self.look() == self.armed_at {
            let slept = start.elapsed();
            if slept >= timeout {
                break;
            }
            std::thread::sleep((slept / 8).clamp(NAP, LONG_NAP).min(timeout - slept));
        }
        Ok(())
    }

    fn disarm(&mut self) {}
}
