//! Calls on memory of devices: what a communicator has there, and whose memory a call is on.
//!
//! A communicator gets its device when it is made: that of the context which the calling thread
//! has, as with NCCL. Only a program that uses CUDA itself can have one, so whoever does not never
//! loads a driver here.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use brigade_comm::Communicator;
use brigade_comm::device::DeviceShare;
use brigade_cuda::{Context, Cuda, Place, Whereabouts};
use brigade_wall::listed::What;
use brigade_wall::streams::{Streams, first_without, said};
use brigade_wall::{Failure, Outcome};

/// What calls on memory of devices are put into; those on memory of the host do without.
pub type cudaStream_t = *mut c_void;

/// How many allocations are remembered.
const KNOWN_MAX: usize = 16;
const NO_CONTEXT: &str = "the thread that made the communicator had no context of CUDA: call \
                          cudaSetDevice before ncclCommInitRank";

/// What the thread that makes a communicator has: the context of a device, or why it has none; and
/// how much of the device its calls may take.
#[derive(Clone)]
pub(crate) struct Bound {
    context: Result<Context, String>,
    share: DeviceShare,
}

impl Bound {
    fn new(context: Result<Context, String>) -> Self {
        Self { context, share: DeviceShare::default() }
    }

    /// With so many blocks of a call, if a number is given.
    pub(crate) fn at_most(self, blocks: Option<u32>) -> Self {
        let share = blocks.map_or(self.share, |blocks| self.share.at_most(blocks));
        Self { share, ..self }
    }
}

/// What a member of a group has on devices.
pub(crate) struct OnDevice {
    cuda: Cuda,
    bound: Bound,
    there: Result<Streams, String>,
    /// Memory that the driver was asked about.
    known: Mutex<Vec<Whereabouts>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Host,
    Pinned,
    Device,
}

/// What the calling thread has of devices; `None` where the program does not use CUDA.
pub(crate) fn bound() -> Option<Bound> {
    let context = match Context::current() {
        Ok(Some(context)) => Some(Ok(context)),
        Ok(None) => Cuda::in_use().map(|_| Err(NO_CONTEXT.into())),
        Err(error) => Some(Err(error.to_string())),
    };
    context.map(Bound::new)
}

/// The number of a device as CUDA counts them; 0 without one.
pub(crate) fn number(bound: &Option<Bound>) -> c_int {
    match bound {
        Some(Bound { context: Ok(context), .. }) => context.device().ordinal as c_int,
        _ => 0,
    }
}

/// What so many ranks in this process have, with the devices of these numbers; without numbers they
/// take the devices in turn. `None` where the program does not use CUDA.
pub(crate) fn bound_all(ranks: usize, numbers: &[c_int]) -> Outcome<Option<Vec<Bound>>> {
    let Some(cuda) = Cuda::in_use() else { return Ok(None) };
    let devices = cuda.devices().map_err(said)?;
    let context = |rank: usize| -> Result<Context, String> {
        let turn = || (rank % devices.len().max(1)) as c_int;
        let number = numbers.get(rank).copied().unwrap_or_else(turn);
        let device = usize::try_from(number).ok().and_then(|number| devices.get(number));
        let device =
            device.ok_or_else(|| format!("there is no device with the number {number}"))?;
        Context::new(device).map_err(|error| error.to_string())
    };
    Ok(Some((0..ranks).map(|rank| Bound::new(context(rank))).collect()))
}

impl OnDevice {
    /// Find out which ranks have devices, and where all have one, open them to each other.
    /// Collective.
    pub(crate) fn meet(communicator: &Communicator, bound: Option<Bound>) -> Outcome<Option<Self>> {
        let has_one = bound.as_ref().is_some_and(|bound| bound.context.is_ok());
        let without = first_without(communicator, has_one)?;
        let (Some(bound), Ok(cuda)) = (bound, Cuda::load()) else { return Ok(None) };
        let there = match (&bound.context, without) {
            (Err(why), _) => Err(why.clone()),
            (Ok(_), Some(rank)) => {
                Err(format!("rank {rank} had no context of CUDA when the communicator was made"))
            }
            (Ok(context), None) => {
                let streams = Streams::new(communicator, context, bound.share);
                streams.map_err(|failure| failure.sentence)
            }
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
            Ok(there) => Ok(there.group().check()?),
            Err(_) => Ok(()),
        }
    }

    /// End calls on memory of devices, together with all ranks.
    pub(crate) fn close(&self) -> Outcome {
        match &self.there {
            Ok(there) => Ok(there.group().close()?),
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
        // What is shorter may be of one that was freed: another may lie there by now.
        let around = |range: &&Whereabouts| {
            range.start <= address && address.saturating_add(bytes as u64) <= end(range)
        };
        let found = match known.iter().find(around) {
            Some(range) => *range,
            None => {
                let found = self.cuda.where_is(address).map_err(said)?;
                // Of ordinary memory the driver knows no bounds, and what was known of these
                // addresses is gone.
                known.retain(|old| end(old) <= found.start || end(&found) <= old.start);
                // Nothing tells when pinned memory is let go where it lies.
                if found.bytes > 0 && found.place != Place::Pinned {
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

    /// Where calls on memory of devices go.
    pub(crate) fn streams(&self) -> Outcome<&Streams> {
        self.there.as_ref().map_err(|why| Failure::usage(why.clone()))
    }
}
