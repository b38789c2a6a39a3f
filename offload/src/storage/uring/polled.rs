//! Transfers whose completions are looked for, instead of announced by an interrupt.
//!
//! Setting such a ring up says nothing: a device without queues for it refuses each transfer later,
//! some only reads. So the first refusal on a device ends polling there, its transfers go to the
//! ordinary ring instead, and the reports say so.
//!
//! Nor are transfers polled for that the kernel cuts into several requests: it announces those by
//! interrupts anyway, and Linux 6.1 never tells a ring that polls of their end.

use std::io;
use std::time::Duration;

use super::super::engine::{Completion, Transfer};
use super::super::file::DEVICES;
use super::super::kind::Kind;
use super::super::namespace::longest_request;
use super::sys::{Ring, TransferEntry};
use crate::memory::Arena;

/// Looks at a device before the thread looks around: some 20 us. The kernel would look for ever.
const LOOKS: usize = 64;

/// A ring for direct reads and writes on devices that have not refused it.
pub(super) struct Polled {
    ring: Ring,
    /// By token: kept to be handed on after a refusal.
    under_way: Vec<Option<Transfer>>,
    in_flight: usize,
    devices: [Proof; DEVICES],
    /// The longest request of each device that was asked for.
    longest: [Option<usize>; DEVICES],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Proof {
    None,
    Completed,
    Refused,
}

impl Polled {
    pub(super) fn new(arena: &Arena, transfers: usize) -> io::Result<Self> {
        let mut ring = Ring::new_polled(transfers as u32)?;
        ring.register_arena(arena)?;
        let under_way = (0..transfers).map(|_| None).collect();
        let (devices, longest) = ([Proof::None; DEVICES], [None; DEVICES]);
        Ok(Self { ring, under_way, in_flight: 0, devices, longest })
    }

    /// Take a transfer in, or give it back when polling is not for it.
    pub(super) fn push(&mut self, transfer: Transfer) -> Option<Transfer> {
        let is_refused = self.devices[transfer.file.device()] == Proof::Refused;
        if is_refused || transfer.kind == Kind::Sync || !transfer.is_direct {
            return Some(transfer);
        }
        if transfer.window.is_some_and(|window| window.bytes() > self.longest(&transfer)) {
            return Some(transfer);
        }
        let token = transfer.token as usize;
        self.under_way[token] = Some(transfer.clone());
        self.ring.push(TransferEntry { transfer, held_file: None });
        self.in_flight += 1;
        None
    }

    /// The longest request that the transfer's device takes. Asked of the system once.
    fn longest(&mut self, transfer: &Transfer) -> usize {
        let known = &mut self.longest[transfer.file.device()];
        *known.get_or_insert_with(|| {
            longest_request(transfer.file.body().device()).unwrap_or(usize::MAX)
        })
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// Poll for a moment, or, without patience, once, until something completes. What a device
    /// refused to poll is handed to `refused`, and a sentence about every device that is new to
    /// polling to `news`.
    pub(super) fn turn(
        &mut self,
        has_patience: bool,
        done: &mut Vec<Completion>,
        mut refused: impl FnMut(Transfer),
        news: &mut Vec<String>,
    ) -> io::Result<()> {
        for _ in 0..if has_patience { LOOKS } else { 1 } {
            self.ring.enter(0, Duration::ZERO)?;
            if self.ring.has_completions() {
                break;
            }
        }
        let (under_way, devices, in_flight) =
            (&mut self.under_way, &mut self.devices, &mut self.in_flight);
        self.ring.completions(|token, result| {
            let transfer = under_way[token as usize].take().expect("completed once");
            *in_flight -= 1;
            let proof = &mut devices[transfer.file.device()];
            let path = transfer.file.path();
            if result == -libc::EOPNOTSUPP {
                if *proof != Proof::Refused {
                    news.push(format!("the device of {} cannot be polled", path.display()));
                }
                *proof = Proof::Refused;
                return refused(transfer);
            }
            if *proof == Proof::None && transfer.kind == Kind::Read && result > 0 {
                news.push(format!("the device of {} is polled", path.display()));
                *proof = Proof::Completed;
            }
            let result = usize::try_from(result).map_err(|_| -result);
            done.push(Completion { token: transfer.token, result });
        });
        Ok(())
    }
}
