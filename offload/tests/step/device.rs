//! A home in virtual time: a device of fixed rates, and a clock that only waiting moves.
//!
//! The pipeline cannot tell it from a device: what it does not wait for takes no time, and what it
//! waits for has been going on since it was started. So the overlap of a step is a number without
//! noise.

use brigade_offload::memory::Buffer;
use brigade_offload::step::{Arrival, Home, Piece};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// Nanoseconds since the begin, moved by whoever waits or computes.
pub(crate) type Clock = Rc<Cell<u64>>;

/// What shall go wrong, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A read or write of this piece is not even started.
    Refused { is_write: bool, array: usize, chunk: usize },
    /// It ends badly.
    Failed { is_write: bool, array: usize, chunk: usize },
    /// It never ends.
    Stuck { is_write: bool, array: usize, chunk: usize },
}

/// What the tests find in the error of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) Fault);

/// Arrays on a device.
pub(crate) struct Device {
    pub(crate) clock: Clock,
    /// As read.
    pub(crate) old: Vec<Vec<u8>>,
    /// As written; what was never written is empty.
    pub(crate) new: Vec<Vec<u8>>,
    /// Nanoseconds a byte.
    pub(crate) read_ns: f64,
    pub(crate) write_ns: f64,
    /// When the device is free again, for reads and for writes.
    free: [f64; 2],
    pub(crate) fault: Option<Fault>,
    /// Every piece in order, and whether it was written.
    pub(crate) log: Vec<(bool, Piece)>,
    pub(crate) under_way: Rc<RefCell<UnderWay>>,
}

/// Transfers that were started and not waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnderWay {
    pub(crate) now: usize,
    /// Chunks at once, at the most.
    pub(crate) most: usize,
}

/// A transfer under way.
pub(crate) struct Transfer {
    clock: Clock,
    done_ns: u64,
    memory: Buffer,
    outcome: Outcome,
    under_way: Rc<RefCell<UnderWay>>,
}

enum Outcome {
    Good,
    Bad(Broken),
    Never(Broken),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, as the test asks", self.0)
    }
}

impl std::error::Error for Broken {}

impl Device {
    pub(crate) fn new(arrays: Vec<Vec<u8>>, read_ns: f64, write_ns: f64) -> Self {
        let new = arrays.iter().map(|array| vec![0; array.len()]).collect();
        Self {
            clock: Clock::default(),
            old: arrays,
            new,
            read_ns,
            write_ns,
            free: [0.0; 2],
            fault: None,
            log: Vec::new(),
            under_way: Rc::default(),
        }
    }

    /// Bytes read and written.
    pub(crate) fn moved(&self) -> [u64; 2] {
        [false, true].map(|kind| {
            let of_kind = self.log.iter().filter(|(is_write, _)| *is_write == kind);
            of_kind.map(|(_, piece)| piece.bytes as u64).sum()
        })
    }

    fn start(&mut self, is_write: bool, piece: Piece, memory: Buffer) -> Result<Transfer, Broken> {
        let Piece { array, chunk, .. } = piece;
        let outcome = match self.fault {
            Some(fault) if fault == (Fault::Refused { is_write, array, chunk }) => {
                return Err(Broken(fault));
            }
            Some(fault) if fault == (Fault::Failed { is_write, array, chunk }) => {
                Outcome::Bad(Broken(fault))
            }
            Some(fault) if fault == (Fault::Stuck { is_write, array, chunk }) => {
                Outcome::Never(Broken(fault))
            }
            _ => Outcome::Good,
        };
        self.log.push((is_write, piece));
        let ns = if is_write { self.write_ns } else { self.read_ns };
        let free = &mut self.free[usize::from(is_write)];
        *free = free.max(self.clock.get() as f64) + ns * piece.bytes as f64;
        let mut under_way = self.under_way.borrow_mut();
        under_way.now += 1;
        under_way.most = under_way.most.max(under_way.now);
        Ok(Transfer {
            clock: Rc::clone(&self.clock),
            done_ns: *free as u64,
            memory,
            outcome,
            under_way: Rc::clone(&self.under_way),
        })
    }
}

impl Home for Device {
    type Error = Broken;
    type Read = Transfer;
    type Write = Transfer;

    fn read(&mut self, piece: Piece, mut memory: Buffer) -> Result<Transfer, Broken> {
        // Whoever looks before the read has ended shall see rubbish, not numbers of an older chunk.
        memory.fill(0xff);
        let from = piece.offset as usize;
        let source = &self.old[piece.array][from..from + piece.bytes];
        memory[..piece.bytes].copy_from_slice(source);
        self.start(false, piece, memory)
    }

    fn write(&mut self, piece: Piece, memory: Buffer) -> Result<Transfer, Broken> {
        let from = piece.offset as usize;
        let bytes = memory[..piece.bytes].to_vec();
        let transfer = self.start(true, piece, memory)?;
        self.new[piece.array][from..from + piece.bytes].copy_from_slice(&bytes);
        Ok(transfer)
    }
}

impl Arrival for Transfer {
    type Error = Broken;

    fn is_done(&self) -> bool {
        self.clock.get() >= self.done_ns && !matches!(self.outcome, Outcome::Never(_))
    }

    fn wait(self, limit: Duration) -> (Option<Buffer>, Result<(), Broken>) {
        let now = self.clock.get();
        self.under_way.borrow_mut().now -= 1;
        if let Outcome::Never(broken) = self.outcome {
            self.clock.set(now + limit.as_nanos() as u64);
            return (None, Err(broken));
        }
        self.clock.set(now.max(self.done_ns));
        let result = match self.outcome {
            Outcome::Bad(broken) => Err(broken),
            _ => Ok(()),
        };
        (Some(self.memory), result)
    }
}
