//! The proof of a way: everybody's bytes arrive here, by a small call and by one that is not.
//!
//! A driver may let whoever allocates, pins or frees memory wait for everything on the device, and
//! hold up the other threads that use it: hence for kernels that wait for this rank. So all that a
//! proof needs is there before any rank's first kernel, and goes after the last.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use brigade_cuda::{CudaError, DeviceMemory, Stream};
use brigade_schedule::Collective;
use brigade_transports::{MAKE_THREAD, TransportError};

use super::super::Inner;
use super::super::exchange::{agree, trouble};
use super::super::plans::{Plans, Ranges};
use super::super::setup::shown::{clear, pattern};
use super::super::sys::Desk;
use super::super::way::Way;
use crate::call::Call;
use crate::{Dtype, Error};

/// What is done here, for errors.
const PROVING: &str = "proving a way";
/// How long the proof may take, compilers and first launches included.
const PROOF_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes that each rank shows the others before a way is trusted, in two calls.
const PROOF_BYTES: [usize; 2] = [16, 20_000];

/// What the calls of a proof are made on, for all ways that are tried.
struct Proof {
    rounds: Vec<Round>,
}

/// One call.
struct Round {
    bytes: usize,
    input: DeviceMemory,
    output: DeviceMemory,
}

impl Proof {
    fn new(inner: &Inner) -> Result<Self, CudaError> {
        let round = |bytes| {
            let mut input = DeviceMemory::new(&inner.context, bytes)?;
            input.write(&inner.stream, 0, &pattern(inner.group.rank, bytes))?;
            let output = DeviceMemory::new(&inner.context, bytes * inner.group.ranks as usize)?;
            // A call may begin with a copy, of any length; what the first ones of a process load is
            // there then.
            for bytes in [bytes, bytes - 1, 3] {
                // SAFETY: the output is at least as long, nobody else uses either, and we wait.
                unsafe { inner.stream.copy(output.address(), input.address(), bytes) }?;
            }
            inner.stream.synchronize()?;
            Ok(Round { bytes, input, output })
        };
        let rounds: Result<Vec<Round>, CudaError> = PROOF_BYTES.into_iter().map(round).collect();
        Ok(Self { rounds: rounds? })
    }

    /// Another way shows nothing by what the last one has written.
    fn clear(&self, stream: &Stream) -> Result<(), CudaError> {
        self.rounds.iter().try_for_each(|round| clear(stream, &round.output))
    }
}

impl Inner {
    /// Take the first of these ways by which everybody's bytes arrive. Collective.
    pub(in crate::device) fn find_way(&mut self, ways: &[Way]) -> Result<(), Error> {
        let shared = Arc::clone(&self.watched.shared);
        let is_tried = ways.iter().any(|way| *way != Way::Staged);
        // Who has no memory for it says so with the others below.
        let proof = if is_tried { Proof::new(self).ok() } else { None };
        for way in ways {
            self.way = *way;
            if self.way == Way::Staged {
                break;
            }
            let ready = proof.as_ref().filter(|proof| proof.clear(&self.stream).is_ok());
            // From here on kernels may wait for this rank.
            let all_ready = agree(&shared, ready.is_some())?;
            let proved = all_ready && ready.is_some_and(|proof| self.prove(proof));
            if agree(&shared, proved)? {
                break;
            }
            self.give_up_way()?;
        }
        drop(proof);
        // What lies there next may be shorter.
        self.state().ranges = Ranges::default();
        agree(&shared, true).map(drop)
    }

    /// Make the desk, the plans and the board as new: ranks may have come differently far, and the
    /// next way counts calls on the same boards. Collective, when no kernel is left.
    fn give_up_way(&mut self) -> Result<(), Error> {
        self.watched.desk.clear();
        self.state().plans = Plans::default();
        if self.way == Way::Linked {
            self.inboxes.close(&self.watched.shared)?;
        }
        // Whatever is wrong with the device ends the next proof, too.
        let _ = clear(&self.stream, &self.board);
        Ok(())
    }

    /// Whether everybody's bytes arrive here by the way at hand. Whatever fails here is the end of
    /// the way, not of the group.
    fn prove(&self, proof: &Proof) -> bool {
        let is_good = proof.rounds.iter().all(|round| self.prove_with(round).unwrap_or(false));
        // What others have used is freed once all have come here.
        self.state().imports.let_go();
        is_good
    }

    fn prove_with(&self, round: &Round) -> Result<bool, Error> {
        let (bytes, ranks) = (round.bytes, self.group.ranks);
        let failed = |error| trouble(PROVING, &error);
        let stream = &self.stream;
        let (from, to) = (round.input.address(), round.output.address());
        let call = Call::moving(Collective::AllGather, Dtype::U8, bytes);
        // SAFETY: both buffers are as long as the call says, and we wait for it; should it not end
        // by itself, it is made to.
        let enqueue = || unsafe { self.enqueue(&call, from, to, stream) };
        let enqueued = with_alarm(&self.watched.desk, enqueue).map_err(|error| {
            let source = TransportError::from_io(MAKE_THREAD, &error, "to end what hangs");
            Error::Transport { source, during: PROVING.to_owned() }
        })?;
        let in_time = enqueued.is_ok() && ends_in_time(stream).map_err(failed)?;
        if !in_time {
            self.watched.desk.abort();
        }
        stream.synchronize().map_err(failed)?;
        let mut arrived = vec![0; round.output.bytes()];
        round.output.read(stream, 0, &mut arrived).map_err(failed)?;
        let wanted = (0..ranks).flat_map(|rank| pattern(rank, bytes));
        Ok(in_time && wanted.eq(arrived) && !self.watched.desk.has_fault())
    }
}

/// Do something that may not come back before kernels end, as launches under tools for debugging:
/// no longer than a proof may take, after which kernels are told to.
fn with_alarm<T>(desk: &Desk, body: impl FnOnce() -> T) -> io::Result<T> {
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        std::thread::Builder::new().spawn_scoped(scope, move || {
            if is_done.recv_timeout(PROOF_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                desk.abort();
            }
        })?;
        let outcome = body();
        drop(done);
        Ok(outcome)
    })
}

/// Wait until everything in `stream` is done; false when that takes longer than a proof may.
fn ends_in_time(stream: &Stream) -> Result<bool, CudaError> {
    let deadline = Instant::now() + PROOF_TIMEOUT;
    while !stream.is_done()? {
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(true)
}
