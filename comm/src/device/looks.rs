//! How one waits for a device: by looks that leave room for those who work.

use std::time::{Duration, Instant};

/// How often one who waits for the device looks before it lets others run between looks.
const LOOKS: u32 = 4096;
/// How long it has waited before it sleeps: a nap takes some 70 us, which is little of that.
const AWAKE: Duration = Duration::from_millis(4);
/// How long it asks to sleep then.
pub(super) const NAP: Duration = Duration::from_micros(20);

/// Pauses between two looks for each further rank of the process, and at most: a driver lets one of
/// its threads in at a time, and one that launches shall not find it full of those who only look.
const PAUSES: usize = 16;
const PAUSES_MAX: usize = 128;

/// Looks at a device that have begun.
pub(super) struct Looks {
    count: u32,
    pub(super) begun: Instant,
    pauses: usize,
}

impl Looks {
    /// Of one of so many ranks in this process.
    pub(super) fn begin(ranks: usize) -> Self {
        let pauses = (PAUSES * (ranks - 1)).clamp(1, PAUSES_MAX);
        Self { count: 0, begun: Instant::now(), pauses }
    }

    /// Stand aside until the next one; whether there have been many.
    pub(super) fn rest(&mut self) -> bool {
        self.count += 1;
        match self.count {
            _ if self.begun.elapsed() > AWAKE => std::thread::sleep(NAP),
            ..LOOKS => (0..self.pauses).for_each(|_| std::hint::spin_loop()),
            _ => std::thread::yield_now(),
        }
        self.count >= LOOKS
    }
}
