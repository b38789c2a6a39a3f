//! Measuring one case on one rank: check, warm up, agree on a number of calls, time them.
//!
//! A sample is one call, waited for, begun together after a barrier; or the time of each of several
//! in a row, of which only the last is waited for where calls can be enqueued. Ranks tell each
//! other their samples through the communicator itself; all end up with the same record.

use std::time::Duration;

use brigade_comm::{Communicator, Error, Settings};
use brigade_schedule::Algorithm;

use crate::device::{Device, Place, copies};
use crate::kind::Case;
use crate::news::news;
use crate::record::Record;
use crate::reference::{Reference, lengths};
use crate::run::{Rooms, Run};
use crate::sys::Cpu;

/// How long the samples of one case take in all for `brigade bench`, when their number was not
/// given.
pub(crate) const BUDGET: Duration = Duration::from_millis(40);
/// At least so many samples, however long they take.
const CALLS_MIN: u64 = 5;
/// At most so many, however short they are.
const CALLS_MAX: u64 = 2000;

/// How samples are taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Method {
    /// So many samples; `None`: as many as fit the budget.
    pub(crate) calls: Option<u32>,
    /// How long the samples of one case may take in all, then.
    pub(crate) budget: Duration,
    /// So many samples before the first that counts, see [`Method::before`].
    pub(crate) warmup: u32,
    /// So many calls make a sample.
    pub(crate) in_a_row: u32,
    /// Whether the time of a call is also that of writing its input and reading its output.
    pub(crate) touch: bool,
    /// Whether every element is compared with the reference.
    pub(crate) check: bool,
    /// Whose processor time counts.
    pub(crate) cpu: Cpu,
    /// Where buffers lie.
    pub(crate) place: Place,
}

impl Method {
    /// How many samples come before the first that counts. The first of all makes what calls of its
    /// shape need, and waits for ranks that are late; by another it is judged how many fit.
    pub(crate) fn before(&self) -> u32 {
        samples_before(self.warmup, self.calls)
    }

    /// As where many algorithms are timed in turn; without a number of calls, as many as fit in
    /// 15 ms. Processor time is not asked for.
    pub(crate) fn quick(calls: Option<u32>) -> Self {
        Self {
            calls,
            budget: Duration::from_millis(15),
            warmup: 1,
            in_a_row: 1,
            touch: false,
            check: false,
            cpu: Cpu::Thread,
            place: Place::Host,
        }
    }
}

/// The same of what somebody asks for.
pub(crate) fn samples_before(warmup: u32, calls: Option<u32>) -> u32 {
    warmup.max(if calls.is_some() { 1 } else { 2 })
}

/// The same ranks, whose calls go by this algorithm where it can do them, or by size and nodes.
pub(crate) fn going_by(
    comm: &Communicator,
    algorithm: Option<Algorithm>,
) -> Result<Communicator, Error> {
    Ok(comm.split_with(Some(0), 0, freely(comm, algorithm))?.expect("every rank is of this colour"))
}

/// A group of this rank and that one, which does the same; none for who has no peer. Collective.
pub(crate) fn pair(
    comm: &Communicator,
    peer: Option<usize>,
) -> Result<Option<Communicator>, Error> {
    let color = peer.map(|peer| peer.min(comm.rank()) as u32);
    comm.split_with(color, 0, freely(comm, None))
}

fn freely(comm: &Communicator, algorithm: Option<Algorithm>) -> Settings {
    // What is ordered would go by no other.
    Settings { algorithm, tuning: None, ordered: false, ..comm.settings().clone() }
}

/// One rank, ready to measure.
pub(crate) struct Bench<'a> {
    comm: &'a Communicator,
    method: Method,
    rooms: Rooms,
}

impl<'a> Bench<'a> {
    /// A bench with memory for all of these cases.
    pub(crate) fn new(
        comm: &'a Communicator,
        method: Method,
        cases: &[Case],
    ) -> Result<Self, Error> {
        let (ranks, rank) = (comm.size(), comm.rank());
        let most = |side: fn((usize, usize)) -> usize| {
            let bytes = |case: &Case| side(lengths(case, ranks, rank)) * case.dtype.size();
            cases.iter().map(bytes).max().unwrap_or(0)
        };
        let (input, output) = (most(|both| both.0), most(|both| both.1));
        // In place, one arena holds both.
        let output = output.max(input);
        let device = match method.place {
            Place::Host => None,
            place => Some(Device::open(comm, (input, output), place)?),
        };
        Ok(Self { comm, method, rooms: Rooms::new((input, output), device, method.check) })
    }

    /// What part of a long case's time the device needs to move its bytes at all, in words: where
    /// buffers lie on devices. Every rank takes part.
    pub(crate) fn beside_copies(&self, record: &Record) -> Result<Option<String>, Error> {
        let Some(device) = &self.rooms.device else { return Ok(None) };
        let (bytes, ranks) = (record.bytes(), record.ranks);
        let Some(copies) = copies(record.case.kind, ranks) else { return Ok(None) };
        let bytes = (copies * bytes as f64) as usize;
        let copy_us = device.copy_us(self.comm, bytes)?;
        Ok(copy_us.map(|copy_us| {
            let (us, bytes) = (record.us(50), crate::size::show(bytes));
            format!(
                "this must move as much as one copy of {bytes} on the device: {copy_us:.1} us, \
                 {:.2} of its {us:.1} us",
                copy_us / us
            )
        }))
    }

    /// What carries the bytes, for tables.
    pub(crate) fn transport(&self) -> String {
        let of_device = self.rooms.device.as_ref().map(|device| device.transport().to_owned());
        of_device.unwrap_or_else(|| transport(self.comm))
    }

    /// The algorithm by which a case's calls go, if they go by one.
    pub(crate) fn algorithm_for(&self, case: &Case) -> Result<Option<Algorithm>, Error> {
        let call = case.call(self.comm.size(), self.comm.rank());
        match (&call, &self.rooms.device) {
            (Some(call), None) => self.comm.algorithm_for(call).map(Some),
            (Some(call), Some(device)) => device.algorithm_for(call),
            (None, _) => Ok(None),
        }
    }

    /// Measure a case out of place and, where there is such a thing, in place.
    pub(crate) fn measure(&mut self, case: &Case) -> Result<Vec<Record>, Error> {
        let (ranks, rank) = (self.comm.size(), self.comm.rank());
        let reference = self.method.check.then(|| Reference::new(case, ranks, rank));
        let mut records = vec![self.placement(case, reference.as_ref(), false)?];
        if case.kind.has_in_place() {
            records.push(self.placement(case, reference.as_ref(), true)?);
        }
        Ok(records)
    }

    /// Measure a case out of place.
    pub(crate) fn out_of_place(&mut self, case: &Case) -> Result<Record, Error> {
        self.placement(case, None, false)
    }

    fn placement(
        &mut self,
        case: &Case,
        reference: Option<&Reference>,
        in_place: bool,
    ) -> Result<Record, Error> {
        let (comm, method) = (self.comm, self.method);
        let (in_a_row, touch) = (method.in_a_row, method.touch);
        let mut run = Run::new(comm, &mut self.rooms, case, in_place);
        let wrong = reference.map(|reference| run.check(reference)).transpose()?;
        run.clear()?;
        let sent_before = comm.stats().sent_bytes;
        let mut last = run.timed(in_a_row, touch)?;
        let sent = (comm.stats().sent_bytes - sent_before) / u64::from(in_a_row);
        for _ in 1..method.before() {
            comm.barrier()?;
            last = run.timed(in_a_row, touch)?;
        }
        let calls = match method.calls {
            Some(calls) => u64::from(calls),
            None => {
                let slowest = news(comm, &[last.as_nanos() as u64])?;
                let slowest = slowest.iter().map(|of_rank| of_rank[0]).max().unwrap_or(1).max(1);
                let slowest = slowest * u64::from(in_a_row);
                (method.budget.as_nanos() as u64 / slowest).clamp(CALLS_MIN, CALLS_MAX)
            }
        };
        let mut told = vec![sent, wrong.unwrap_or(0), 0];
        let mut cpu = Duration::ZERO;
        for _ in 0..calls {
            comm.barrier()?;
            let cpu_before = method.cpu.used();
            told.push(run.timed(in_a_row, touch)?.as_nanos() as u64);
            cpu += method.cpu.used() - cpu_before;
        }
        told[2] = cpu.as_nanos() as u64 / u64::from(in_a_row);
        let algorithm = match (&run.call, &run.device) {
            (Some(call), None) => Some(comm.algorithm_for(call)?),
            (Some(call), Some(device)) => device.algorithm_for(call)?,
            (None, _) => None,
        };
        // Letting a graph go may wait for the device, where no call may wait for this rank yet.
        run.forget();
        let all = news(comm, &told)?;
        Ok(self.record(case, in_place, algorithm, &all))
    }

    /// Make one record of what all ranks tell: bytes sent, wrong elements, processor time, samples.
    fn record(
        &self,
        case: &Case,
        in_place: bool,
        algorithm: Option<Algorithm>,
        all: &[Vec<u64>],
    ) -> Record {
        let samples = 3..all[0].len();
        let slowest = |sample| all.iter().map(|told| told[sample]).max().unwrap_or(0);
        let mut sorted_ns: Vec<u64> = samples.map(slowest).collect();
        sorted_ns.sort_unstable();
        Record {
            case: case.clone(),
            ranks: all.len(),
            in_place,
            algorithm: match (algorithm, &self.rooms.device) {
                (Some(algorithm), _) => algorithm.to_string(),
                (None, Some(_)) => String::from("device"),
                (None, None) => String::from("none"),
            },
            transport: self.transport(),
            in_a_row: self.method.in_a_row,
            touched: self.method.touch,
            sorted_ns,
            cpu_ns: all.iter().map(|told| told[2]).sum(),
            sent_bytes: slowest(0),
            wrong: self.method.check.then(|| all.iter().map(|told| told[1]).sum()),
        }
    }
}

/// The names of the transports in use; `none` for a rank alone.
pub(crate) fn transport(comm: &Communicator) -> String {
    let served = comm.transports().into_iter().filter(|(_, members)| *members > 0);
    let names: Vec<_> = served.map(|(name, _)| name).collect();
    if names.is_empty() { String::from("none") } else { names.join("+") }
}
