//! Calls on memory of devices, put into streams that programs pass as pointers.
//!
//! Calls of one group must not run beside each other, but programs pass whichever stream they like:
//! here the streams are made to wait for each other, so that calls come in the order in which they
//! were made.

use std::sync::{Mutex, PoisonError};

use brigade_comm::device::cuda::{Context, CudaError, Event, Stream};
use brigade_comm::device::{DeviceGroup, DeviceMessage, DeviceShare, DeviceWork};
use brigade_comm::{Call, Communicator, Dtype, Error, at_once};

use crate::failure::{Cause, Failure, Outcome};
use crate::listed::What;
use crate::memory::Memory;

/// How many streams are remembered.
const KNOWN_MAX: usize = 16;
/// The default stream, and its other name.
const DEFAULT_STREAMS: [usize; 2] = [0, 1];
/// The default stream of whichever thread asks.
const OF_THE_THREAD: usize = 2;

/// A device group, and the streams that its calls were put into.
pub struct Streams {
    group: DeviceGroup,
    /// For calls in a default stream that ranks share.
    own: Stream,
    /// Whether another rank of this process is on the same device.
    shares: bool,
    /// The caller's streams.
    known: Mutex<Vec<Stream>>,
    /// Held while a call is put behind the last one, which may be in another stream.
    turn: Mutex<()>,
}

/// Calls of one group that were listed first.
#[derive(Default)]
pub struct Enqueued {
    /// Each with where its input and output begin, and its stream.
    collectives: Vec<(Call, [u64; 2], usize)>,
    messages: Vec<(DeviceMessage, usize)>,
}

/// The first rank that brings nothing, where each rank tells whether it does. Collective.
pub fn first_without(communicator: &Communicator, brings: bool) -> Outcome<Option<usize>> {
    let mut all = vec![0; communicator.size()];
    communicator.all_gather(&[u8::from(brings)], &mut all)?;
    Ok(all.iter().position(|brings| *brings == 0))
}

impl Streams {
    /// A communicator on devices, each rank with the context of its own, of which its calls get
    /// this share. Collective.
    pub fn new(
        communicator: &Communicator,
        context: &Context,
        share: DeviceShare,
    ) -> Outcome<Self> {
        // Once there is a group, kernels of other ranks may wait for this one.
        let made = Stream::new(context);
        let group = communicator.on_device_with(context, share)?;
        let own = made.map_err(|error| {
            // The others have the group, and would wait for this rank in its calls.
            communicator.abort(&error.to_string());
            said(error)
        })?;
        let shares = group.kernels_wait() && group.shares_device();
        let (known, turn) = (Mutex::default(), Mutex::default());
        Ok(Self { group, own, shares, known, turn })
    }

    /// The group.
    pub fn group(&self) -> &DeviceGroup {
        &self.group
    }

    /// Enqueue one call.
    ///
    /// # Safety
    ///
    /// The memory is what C must pass, until the stream has done the call; the stream is one of the
    /// group's device.
    pub unsafe fn run(&self, what: What, stream: usize) -> Outcome {
        if let What::Collective { call, memory } = &what {
            let [input, output] = memory.ranges().map(|(address, _)| address);
            // SAFETY: the caller's promise.
            return self.within(&[stream], |stream| unsafe {
                self.group.enqueue(call, input, output, stream)
            });
        }
        let Some(message) = message(&what) else { return Ok(()) };
        // SAFETY: the caller's promise.
        self.within(&[stream], |stream| unsafe { self.group.messages(&[message], stream) })
    }

    /// Enqueue calls that were listed: collectives in their order, then all messages at once.
    ///
    /// # Safety
    ///
    /// As for [`Streams::run`].
    pub unsafe fn run_all(&self, listed: &Enqueued) -> Outcome {
        for (call, [input, output], raw) in &listed.collectives {
            // SAFETY: the caller's promise.
            self.within(&[*raw], |stream| unsafe {
                self.group.enqueue(call, *input, *output, stream)
            })?;
        }
        if listed.messages.is_empty() {
            return Ok(());
        }
        let messages: Vec<DeviceMessage> = listed.messages.iter().map(|(one, _)| *one).collect();
        let mut raws: Vec<usize> = listed.messages.iter().map(|(_, raw)| *raw).collect();
        raws.sort_unstable();
        raws.dedup();
        // SAFETY: the caller's promise.
        self.within(&raws, |stream| unsafe { self.group.messages(&messages, stream) })
    }

    /// Enqueue the calls of several groups. Ranks that one thread has may wait for each other while
    /// they enqueue, so each gets a thread then. The default stream of this thread is none of those
    /// threads': calls in it go into the group's own stream, after what it has and before what it
    /// will have.
    ///
    /// # Safety
    ///
    /// As for [`Streams::run`].
    pub unsafe fn run_together(calls: &[(&Self, &Enqueued)]) -> Outcome {
        // SAFETY: the caller's promise.
        let run = |(streams, listed): (&Self, &Enqueued)| unsafe { streams.run_all(listed) };
        if let [alone] = calls {
            return run(*alone);
        }
        let here = |streams: &Self| streams.stream(OF_THE_THREAD);
        let mut moved = Vec::with_capacity(calls.len());
        for (streams, listed) in calls {
            let listed = listed.moved(OF_THE_THREAD, streams.own.raw().addr());
            if listed.is_some() {
                after(&streams.own, &here(streams)).map_err(said)?;
            }
            moved.push(listed);
        }
        let each = calls.iter().zip(&moved);
        let each =
            each.map(|((streams, listed), moved)| (*streams, moved.as_ref().unwrap_or(listed)));
        // All come to an end, and the first failure is told.
        let outcome = at_once(each, run)?.into_iter().collect();
        for ((streams, _), _) in calls.iter().zip(&moved).filter(|(_, moved)| moved.is_some()) {
            after(&here(streams), &streams.own).map_err(said)?;
        }
        outcome
    }

    /// Something to wait for what a stream has by now.
    ///
    /// # Safety
    ///
    /// The stream is one of the group's device.
    pub unsafe fn mark(&self, stream: usize) -> Outcome<DeviceWork> {
        Ok(self.group.mark(&self.stream(stream))?)
    }

    /// Do something that comes after what is in all of these streams, and before what will be.
    ///
    /// The default stream of a device is one for all its ranks, so none of them can wait there for
    /// another: a call in it has been carried out when this returns.
    fn within(&self, raws: &[usize], body: impl FnOnce(&Stream) -> Result<(), Error>) -> Outcome {
        if self.shares && raws.iter().any(|raw| DEFAULT_STREAMS.contains(raw)) {
            raws.iter().try_for_each(|raw| self.stream(*raw).synchronize()).map_err(said)?;
            self.in_turn(&self.own, body)?;
            return Ok(self.group.mark(&self.own)?.wait()?);
        }
        let Some((first, others)) = raws.split_first() else { return Ok(()) };
        let first = self.stream(*first);
        let before = |raw: &usize| after(&first, &self.stream(*raw));
        others.iter().try_for_each(before).map_err(said)?;
        self.in_turn(&first, body)?;
        others.iter().try_for_each(|raw| after(&self.stream(*raw), &first)).map_err(said)
    }

    /// Kernels of one group cannot run beside each other, so streams wait for each other, unless
    /// they are being captured: a graph has an order of its own.
    fn in_turn(&self, stream: &Stream, body: impl FnOnce(&Stream) -> Result<(), Error>) -> Outcome {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if stream.is_capturing().map_err(said)? {
            return Ok(body(stream)?);
        }
        // Also where it seems to be the same stream: one that is gone may have had that address. In
        // front of the first call it is no wait.
        let last = self.group.last();
        stream.wait(last).map_err(said)?;
        body(stream)?;
        match stream.is_borrowed() {
            // The group has.
            true => Ok(()),
            false => stream.record(last).map_err(said),
        }
    }

    /// A stream of the caller's.
    fn stream(&self, raw: usize) -> Stream {
        if raw == self.own.raw().addr() {
            return self.own.clone();
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.iter().find(|known| known.raw().addr() == raw) {
            return known.clone();
        }
        let handle = std::ptr::with_exposed_provenance_mut(raw);
        // SAFETY: C passes a stream of the device that the group was made with, and it is used
        // only while C passes it.
        let stream = unsafe { Stream::borrowed(self.group.context(), handle) };
        known.truncate(KNOWN_MAX - 1);
        known.insert(0, stream.clone());
        stream
    }
}

impl Enqueued {
    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.collectives.is_empty() && self.messages.is_empty()
    }

    /// The same with the calls of one stream in another, if there are any.
    fn moved(&self, from: usize, to: usize) -> Option<Self> {
        let raws = self.collectives.iter().map(|(.., raw)| *raw);
        if !raws.chain(self.messages.iter().map(|(_, raw)| *raw)).any(|raw| raw == from) {
            return None;
        }
        let instead = |raw: usize| if raw == from { to } else { raw };
        let collectives = self.collectives.iter();
        let collectives = collectives.map(|(call, at, raw)| (call.clone(), *at, instead(*raw)));
        let messages = self.messages.iter().map(|(message, raw)| (*message, instead(*raw)));
        Some(Self { collectives: collectives.collect(), messages: messages.collect() })
    }

    /// Add one.
    pub fn push(&mut self, what: What, stream: usize) {
        match what {
            What::Collective { call, memory } => {
                let at = memory.ranges().map(|(address, _)| address);
                self.collectives.push((call, at, stream));
            }
            what => self.messages.extend(message(&what).map(|message| (message, stream))),
        }
    }
}

/// What is no collective.
fn message(what: &What) -> Option<DeviceMessage> {
    let place = |memory: &Memory, dtype: Dtype| {
        let [(address, bytes), _] = memory.ranges();
        (address, bytes / dtype.size())
    };
    match what {
        What::Collective { .. } => None,
        What::Send { dtype, memory, peer } => {
            let (address, count) = place(memory, *dtype);
            Some(DeviceMessage::send(*dtype, address, count, *peer))
        }
        What::Recv { dtype, memory, peer } => {
            let (address, count) = place(memory, *dtype);
            Some(DeviceMessage::recv(*dtype, address, count, *peer))
        }
    }
}

/// What comes later in `stream` waits for what `other` has by now.
fn after(stream: &Stream, other: &Stream) -> Result<(), CudaError> {
    let event = Event::new(stream.context())?;
    other.record(&event)?;
    stream.wait(&event)
}

/// A failure of CUDA.
pub fn said(error: CudaError) -> Box<Failure> {
    Failure::new(Cause::System, error.to_string())
}

/// What a thread came to; its panic is ours.
pub fn ended<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
