//! The engine that runs on a simulated device: transfers end when the rates say.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::{Clock, SimulatedDevice};
use crate::storage::engine::{Completion, Engine, Transfer};
use crate::storage::kind::Kind;
use crate::storage::wake::Wake;

/// Transfers under way, by when they end.
pub(in crate::storage) struct Simulation {
    device: SimulatedDevice,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    next_number: u64,
    /// When the device is free again, for reads and for writes.
    free_at: [Duration; 2],
    bell: Arc<Bell>,
    /// Steps that were asked for before all was handed in that is under way.
    steps: u64,
}

struct UnderWay {
    due: Duration,
    /// Order of arrival, which decides where times are equal.
    number: u64,
    /// The event of the record that would have been next when it began.
    since: usize,
    transfer: Transfer,
}

#[derive(Default)]
struct Bell {
    is_rung: Mutex<bool>,
    rang: Condvar,
}

impl Simulation {
    pub(in crate::storage) fn new(device: SimulatedDevice) -> Self {
        let (under_way, bell) = (BinaryHeap::new(), Arc::<Bell>::default());
        device.steps.set_engine(Arc::clone(&bell) as Arc<dyn Wake>);
        let free_at = [Duration::ZERO; 2];
        Self { device, under_way, next_number: 0, free_at, bell, steps: 0 }
    }

    /// When a transfer that begins now will end, by the device's clock.
    fn due(&mut self, transfer: &Transfer) -> Duration {
        let (rates, now) = (self.device.rates(), self.device.elapsed());
        let rate = match transfer.kind {
            Kind::Read => rates.read_bytes_s,
            Kind::Write => rates.write_bytes_s,
            Kind::Sync => return now + rates.latency,
        };
        let bytes = transfer.window.map_or(0, |window| window.bytes());
        let lane = if rates.is_half_duplex { 0 } else { transfer.kind as usize };
        let start = self.free_at[lane].max(now);
        self.free_at[lane] = start + Duration::from_secs_f64(bytes as f64 / rate);
        self.free_at[lane] + rates.latency
    }

    /// Wait until the device's clock shows `due`, at most `limit`. False when the bell rang or the
    /// limit came first.
    fn wait_until(&mut self, due: Option<Duration>, limit: Duration) -> bool {
        if self.device.rates().clock == Clock::Stepped && self.device.steps.next(self.steps) {
            return due.is_some();
        }
        let left = match (due, self.device.rates().clock) {
            (Some(_), Clock::Virtual) if !limit.is_zero() => Duration::ZERO,
            (Some(due), Clock::Real) => due.saturating_sub(self.device.elapsed()).min(limit),
            _ => limit,
        };
        let is_rung = self.bell.is_rung.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut is_rung, _) = self
            .bell
            .rang
            .wait_timeout_while(is_rung, left, |is_rung| !*is_rung)
            .unwrap_or_else(PoisonError::into_inner);
        let was_rung = std::mem::take(&mut *is_rung);
        match (due, self.device.rates().clock) {
            (Some(due), Clock::Real) => due <= self.device.elapsed(),
            (Some(_), Clock::Virtual) => !was_rung && !limit.is_zero(),
            (_, Clock::Stepped) => {
                // It is taken after what was handed in before it.
                self.steps = self.device.steps.asked();
                false
            }
            (None, _) => false,
        }
    }
}

impl Engine for Simulation {
    fn push(&mut self, transfer: Transfer) {
        let (due, number) = (self.due(&transfer), self.next_number);
        let since = self.device.state().next_event();
        self.next_number += 1;
        self.under_way.push(Reverse(UnderWay { due, number, since, transfer }));
    }

    fn turn(
        &mut self,
        limit: Duration,
        _together: usize,
        done: &mut Vec<Completion>,
    ) -> Result<(), String> {
        let due = self.under_way.peek().map(|Reverse(first)| first.due);
        if !self.wait_until(due, limit) {
            return Ok(());
        }
        let mut now = self.device.elapsed();
        let mut state = self.device.state();
        if self.device.rates().clock != Clock::Real {
            state.now = state.now.max(due.unwrap_or_default());
            now = state.now;
        }
        while let Some(Reverse(first)) = self.under_way.peek()
            && first.due <= now
            && let Some(Reverse(UnderWay { since, transfer, .. })) = self.under_way.pop()
        {
            let Transfer { token, kind, file, offset, window, .. } = transfer;
            let result = state.carry_out(kind, &file.path(), offset, window, since);
            done.push(Completion { token, result });
        }
        Ok(())
    }

    fn forget(&mut self, _file_id: u32) {}

    fn bell(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.bell) as Arc<dyn Wake>
    }

    fn describe(&self) -> String {
        let rates = self.device.rates();
        let (read, write) = (rates.read_bytes_s / 1e9, rates.write_bytes_s / 1e9);
        let clock = match rates.clock {
            Clock::Real => "real",
            Clock::Virtual => "virtual",
            Clock::Stepped => "stepped",
        };
        format!("simulated device ({read} GB/s read, {write} GB/s write, {clock} time)")
    }
}

impl Wake for Bell {
    fn wake(&self) {
        *self.is_rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.rang.notify_one();
    }
}

impl PartialEq for UnderWay {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for UnderWay {}

impl PartialOrd for UnderWay {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for UnderWay {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}
