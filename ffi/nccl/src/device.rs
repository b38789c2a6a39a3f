//! Calls on memory of devices: what a communicator has there, and whose memory a call is on.
//!
//! A communicator gets its device when it is made: that of the context which the calling thread
//! has, as with NCCL. Only a program that uses CUDA itself can have one, so whoever does not never
//! loads a driver here.

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use brigade_comm::device::{DeviceGroup, DeviceMessage, Way};
use brigade_comm::{Buffers, Call, Communicator, Dtype, Error};
use brigade_cuda::{Context, Cuda, CudaError, Event, Place, Stream, Whereabouts};
use brigade_schedule::Collective;
use brigade_wall::listed::What;
use brigade_wall::memory::Memory;
use brigade_wall::{Cause, Failure, Outcome};

use crate::collective::cudaStream_t;
use crate::comm::Member;

/// How many allocations and streams are remembered.
const KNOWN_MAX: usize = 16;
/// What a rank tells the others: whether it has a device, and which.
const CARD_BYTES: usize = 17;
/// The default stream, and its other name.
const DEFAULT_STREAMS: [usize; 2] = [0, 1];
const NO_CONTEXT: &str = "the thread that made the communicator had no context of CUDA: call \
                          cudaSetDevice before ncclCommInitRank";

/// What the thread that makes a communicator has: the context of a device, or why it has none.
pub(crate) type Bound = Result<Context, String>;

/// What a member of a group has on devices.
pub(crate) struct OnDevice {
    cuda: Cuda,
    bound: Bound,
    there: Result<There, String>,
    /// Memory that the driver was asked about.
    known: Mutex<Vec<Whereabouts>>,
}

/// A member whose ranks all have devices.
struct There {
    group: DeviceGroup,
    /// For calls in a default stream that ranks share.
    own: Stream,
    /// Whether another rank of this process is on the same device.
    shares: bool,
    /// The caller's streams.
    streams: Mutex<Vec<Stream>>,
    turn: Mutex<Turn>,
}

/// The last call, which the next one comes after, also in another stream.
struct Turn {
    event: Event,
    /// The stream that it is in; `None` before the first call.
    stream: Option<usize>,
}

/// Calls of one communicator on memory of devices that were listed first.
#[derive(Default)]
pub(crate) struct Enqueued {
    /// Each with where its input and output begin, and its stream.
    collectives: Vec<(Call, [u64; 2], usize)>,
    messages: Vec<(DeviceMessage, usize)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Host,
    Pinned,
    Device,
}

/// What the calling thread has of devices; `None` where the program does not use CUDA.
pub(crate) fn bound() -> Option<Bound> {
    match Context::current() {
        Ok(Some(context)) => Some(Ok(context)),
        Ok(None) => Cuda::in_use().map(|_| Err(NO_CONTEXT.into())),
        Err(error) => Some(Err(error.to_string())),
    }
}

/// The number of a device as CUDA counts them; 0 without one.
pub(crate) fn number(bound: &Option<Bound>) -> c_int {
    match bound {
        Some(Ok(context)) => context.device().ordinal as c_int,
        _ => 0,
    }
}

/// Whether an address leads to memory of a device, which the host cannot read.
pub(crate) fn is_out_of_reach(address: u64) -> bool {
    let place = Cuda::in_use().and_then(|cuda| cuda.where_is(address).ok());
    place.is_some_and(|found| matches!(found.place, Place::Device(_)))
}

/// Whether a call is on memory that the host cannot read.
pub(crate) fn is_on_device(what: &What) -> bool {
    what.memory().ranges().iter().any(|(address, bytes)| *bytes > 0 && is_out_of_reach(*address))
}

/// The members of a world in this process, with the devices of these numbers; without numbers they
/// take the devices in turn.
pub(crate) fn meet_all(world: Vec<Communicator>, numbers: &[c_int]) -> Outcome<Vec<Member>> {
    let Some(cuda) = Cuda::in_use() else {
        let alone = |communicator| Member { on_device: None, communicator, root: None };
        return Ok(world.into_iter().map(alone).collect());
    };
    let devices = cuda.devices().map_err(said)?;
    let bound = |rank: usize| -> Bound {
        let turn = || (rank % devices.len().max(1)) as c_int;
        let number = numbers.get(rank).copied().unwrap_or_else(turn);
        let device = usize::try_from(number).ok().and_then(|number| devices.get(number));
        let device =
            device.ok_or_else(|| format!("there is no device with the number {number}"))?;
        Context::new(device).map_err(|error| error.to_string())
    };
    std::thread::scope(|scope| {
        let join = |(rank, communicator)| {
            let bound = Some(bound(rank));
            scope.spawn(move || Member::new(communicator, None, bound))
        };
        let threads: Vec<_> = world.into_iter().enumerate().map(join).collect();
        threads.into_iter().map(ended).collect()
    })
}

/// What a thread came to; its panic is ours.
pub(crate) fn ended<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl OnDevice {
    /// Find out which ranks have devices, and where all have one, open them to each other.
    /// Collective.
    pub(crate) fn meet(communicator: &Communicator, bound: Option<Bound>) -> Outcome<Option<Self>> {
        let mut card = [0; CARD_BYTES];
        if let Some(Ok(context)) = &bound {
            card[0] = 1;
            card[1..].copy_from_slice(&context.device().uuid);
        }
        let mut cards = vec![0; CARD_BYTES * communicator.size()];
        let call = Call::moving(Collective::AllGather, Dtype::U8, CARD_BYTES);
        let buffers = Buffers::OutOfPlace { input: &card, output: &mut cards };
        communicator.run(&call, buffers)?;
        let (Some(bound), Ok(cuda)) = (bound, Cuda::load()) else { return Ok(None) };
        let mut cards = cards.chunks_exact(CARD_BYTES);
        let same = cards.clone().filter(|other| *other == card).count();
        let there = match (&bound, cards.position(|card| card[0] == 0)) {
            (Err(why), _) => Err(why.clone()),
            (Ok(_), Some(rank)) => {
                Err(format!("rank {rank} had no context of CUDA when the communicator was made"))
            }
            (Ok(context), None) => There::new(communicator, context, same > 1),
        };
        Ok(Some(Self { cuda, bound, there, known: Mutex::default() }))
    }

    /// What a part of the group begins with.
    pub(crate) fn bound(&self) -> Bound {
        self.bound.clone()
    }

    /// Whether calls can still be made.
    pub(crate) fn check(&self) -> Outcome {
        match &self.there {
            Ok(there) => Ok(there.group.check()?),
            Err(_) => Ok(()),
        }
    }

    /// Whether a call is on memory of devices, which it must then be on as a whole. Pinned memory
    /// of the host goes with either.
    pub(crate) fn takes(&self, what: &What) -> Outcome<bool> {
        let memory = what.memory();
        let mut kinds = [None; 2];
        for (kind, (address, bytes)) in kinds.iter_mut().zip(memory.ranges()) {
            if bytes > 0 {
                *kind = Some(self.kind(address, bytes)?);
            }
        }
        let has = |kind| kinds.contains(&Some(kind));
        if has(Kind::Host) && has(Kind::Device) {
            let [(input, _), (output, _)] = memory.ranges();
            let (one, other) = match kinds[0] {
                Some(Kind::Host) => ("the host", "a device"),
                _ => ("a device", "the host"),
            };
            return Err(Failure::argument(format!(
                "sendbuff ({input:#x}) lies in memory of {one} and recvbuff ({output:#x}) in \
                 memory of {other}: a call takes one kind"
            )));
        }
        match &self.there {
            Ok(_) => Ok(has(Kind::Device) || (has(Kind::Pinned) && !has(Kind::Host))),
            Err(why) if has(Kind::Device) => {
                Err(Failure::usage(format!("a call on memory of a device: {why}")))
            }
            Err(_) => Ok(false),
        }
    }

    /// Of which kind memory is: asked once for each allocation.
    fn kind(&self, address: u64, bytes: usize) -> Outcome<Kind> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let end = |range: &Whereabouts| range.start + range.bytes as u64;
        let around = |range: &&Whereabouts| range.start <= address && address < end(range);
        let found = match known.iter().find(around) {
            Some(range) => *range,
            None => {
                let found = self.cuda.where_is(address).map_err(said)?;
                // Of ordinary memory the driver knows no bounds, and what was known of these
                // addresses is gone.
                known.retain(|old| end(old) <= found.start || end(&found) <= old.start);
                if found.bytes > 0 {
                    known.truncate(KNOWN_MAX - 1);
                    known.insert(0, found);
                }
                found
            }
        };
        if found.bytes > 0 && end(&found) - address < bytes as u64 {
            return Err(Failure::argument(format!(
                "the memory at {address:#x} should have {bytes} bytes, but its allocation ends {} \
                 bytes from there",
                end(&found) - address
            )));
        }
        Ok(match found.place {
            Place::Host => Kind::Host,
            Place::Pinned => Kind::Pinned,
            Place::Device(_) | Place::Managed => Kind::Device,
        })
    }

    fn there(&self) -> Outcome<&There> {
        self.there.as_ref().map_err(|why| Failure::usage(why.clone()))
    }

    /// Enqueue one call.
    ///
    /// # Safety
    ///
    /// The memory is what C must pass, until the stream has done the call.
    pub(crate) unsafe fn run(&self, what: What, stream: cudaStream_t) -> Outcome {
        let mut enqueued = Enqueued::default();
        enqueued.push(what, stream);
        // SAFETY: the caller's promise.
        unsafe { self.run_all(&enqueued) }
    }

    /// Enqueue calls that were listed: collectives in their order, then all messages at once.
    ///
    /// # Safety
    ///
    /// As for [`OnDevice::run`].
    pub(crate) unsafe fn run_all(&self, listed: &Enqueued) -> Outcome {
        let there = self.there()?;
        for (call, [input, output], raw) in &listed.collectives {
            // SAFETY: the caller's promise.
            there.within(&[*raw], |stream| unsafe {
                there.group.enqueue(call, *input, *output, stream)
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
        there.within(&raws, |stream| unsafe { there.group.messages(&messages, stream) })
    }
}

impl There {
    fn new(communicator: &Communicator, context: &Context, same: bool) -> Result<Self, String> {
        let group = communicator.on_device(context).map_err(|error| error.to_string())?;
        let own = Stream::new(context).map_err(|error| error.to_string())?;
        let shares = same && group.way() == Way::Together;
        let event = Event::new(context).map_err(|error| error.to_string())?;
        let turn = Mutex::new(Turn { event, stream: None });
        Ok(Self { group, own, shares, streams: Mutex::default(), turn })
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
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if stream.is_capturing().map_err(said)? {
            return Ok(body(stream)?);
        }
        let raw = stream.raw().addr();
        if turn.stream.is_some_and(|last| last != raw) {
            stream.wait(&turn.event).map_err(said)?;
        }
        body(stream)?;
        turn.stream = Some(raw);
        stream.record(&turn.event).map_err(said)
    }

    /// A stream of the caller's.
    fn stream(&self, raw: usize) -> Stream {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = streams.iter().find(|known| known.raw().addr() == raw) {
            return known.clone();
        }
        let handle = std::ptr::with_exposed_provenance_mut(raw);
        // SAFETY: C passes a stream of the device that the communicator was made with, and it is
        // used only while C passes it.
        let stream = unsafe { Stream::borrowed(self.group.context(), handle) };
        streams.truncate(KNOWN_MAX - 1);
        streams.insert(0, stream.clone());
        stream
    }
}

impl Enqueued {
    pub(crate) fn is_empty(&self) -> bool {
        self.collectives.is_empty() && self.messages.is_empty()
    }

    pub(crate) fn push(&mut self, what: What, stream: cudaStream_t) {
        let raw = stream.expose_provenance();
        // One that no group has stays one that no group has.
        let rank = |peer: c_int| usize::try_from(peer).unwrap_or(usize::MAX);
        let place = |memory: &Memory, dtype: Dtype| {
            let [(address, bytes), _] = memory.ranges();
            (address, bytes / dtype.size())
        };
        match what {
            What::Collective { call, memory } => {
                let at = memory.ranges().map(|(address, _)| address);
                self.collectives.push((call, at, raw));
            }
            What::Send { dtype, memory, peer } => {
                let (address, count) = place(&memory, dtype);
                self.messages.push((DeviceMessage::send(dtype, address, count, rank(peer)), raw));
            }
            What::Recv { dtype, memory, peer } => {
                let (address, count) = place(&memory, dtype);
                self.messages.push((DeviceMessage::recv(dtype, address, count, rank(peer)), raw));
            }
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
pub(crate) fn said(error: CudaError) -> Box<Failure> {
    Failure::new(Cause::System, error.to_string())
}
