//! One rank's device in a bench: its buffers lie there, and their images on the host.

use std::fmt::Display;

use brigade_comm::device::{DeviceGroup, DeviceMessage, Way};
use brigade_comm::{Call, Communicator, Dtype, Error};
use brigade_cuda::{
    CaptureMode, Context, Cuda, CudaError, DeviceMemory, Event, Executable, Stream,
};
use brigade_schedule::Algorithm;

use crate::kind::Kind;

/// Copies of fewer bytes say nothing about how fast bytes can be moved.
const COPY_MIN: usize = 1 << 20;
/// At least so many times what the second cache holds is read and written in a round of copies.
const COPIED_CACHES: usize = 4;
/// So many copies are timed together.
const COPIES: usize = 8;
/// Buffers of copies begin at multiples of this.
const COPY_STEP: usize = 512;

/// Where buffers lie, and what is timed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In memory of the host.
    Host,
    /// In memory of devices.
    Device,
    /// There, and kept until the end: other processes may leave them open.
    Kept,
    /// There, with calls that were captured once and are replayed.
    Graph,
}

/// Buffers on a device, as long as the longest case, and what calls are enqueued into.
pub(crate) struct Device {
    group: DeviceGroup,
    stream: Stream,
    input: DeviceMemory,
    output: DeviceMemory,
    place: Place,
    graph: Option<Executable>,
}

/// Which buffers a call has, and where in them it begins.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    /// The buffer for input.
    Input,
    /// The buffer for output; in place, the only one.
    Output,
}

impl Device {
    /// This rank's device, by its number among the ranks, with room for so many bytes each way.
    pub(crate) fn open(
        comm: &Communicator,
        (input_bytes, output_bytes): (usize, usize),
        place: Place,
    ) -> Result<Self, Error> {
        let context = context(comm.rank()).map_err(failed("opening a device"))?;
        let group = comm.on_device(&context)?;
        if place == Place::Graph && !group.way().is_enqueued() {
            let what = "--graph needs ranks whose kernels run at the same time: threads of one \
                        process, on devices that have room for all of them, or processes that \
                        share no device"
                .to_owned();
            return Err(Error::Invalid { what });
        }
        if place == Place::Kept {
            if group.way() != Way::Met {
                let what = "--keep-open needs ranks that are processes and whose hosts meet: these \
                            open no buffers of each other's by calls";
                return Err(Error::Invalid { what: what.to_owned() });
            }
            group.keep_open();
        }
        let made = || -> Result<_, CudaError> {
            let input = DeviceMemory::new(&context, input_bytes)?;
            let output = DeviceMemory::new(&context, output_bytes)?;
            Ok((Stream::new(&context)?, input, output))
        };
        let (stream, input, output) = made().map_err(failed("allocating buffers"))?;
        // Allocating may wait for the device, where nobody's kernel may wait for us yet.
        comm.barrier()?;
        Ok(Self { group, stream, input, output, place, graph: None })
    }

    /// What carries the bytes, for tables.
    pub(crate) fn transport(&self) -> &'static str {
        match self.group.way() {
            Way::Together => "cuda",
            Way::Linked => "cuda, by schedules",
            Way::Met if self.place == Place::Kept => "cuda, hosts meet, buffers stay open",
            // As in C, by NCCL's names and in PyTorch, where nobody says how long they are kept.
            Way::Met => "cuda, hosts meet, buffers opened by each call",
            Way::Staged => "cuda through the host",
            Way::ByNodes => "cuda inside of nodes, hosts between",
        }
    }

    /// The schedule by which a call goes, if it goes by one.
    pub(crate) fn algorithm_for(&self, call: &Call) -> Result<Option<Algorithm>, Error> {
        self.group.algorithm_for(call)
    }

    /// Another case may begin.
    pub(crate) fn forget(&mut self) {
        self.graph = None;
    }

    /// Copy an image of the host to the device.
    pub(crate) fn upload(&mut self, side: Side, image: &[u8]) -> Result<(), Error> {
        let memory = match side {
            Side::Input => &mut self.input,
            Side::Output => &mut self.output,
        };
        memory.write(&self.stream, 0, image).map_err(failed("copying to the device"))
    }

    /// Copy from the device to an image on the host.
    pub(crate) fn download(&self, side: Side, image: &mut [u8]) -> Result<(), Error> {
        let memory = match side {
            Side::Input => &self.input,
            Side::Output => &self.output,
        };
        memory.read(&self.stream, 0, image).map_err(failed("copying from the device"))
    }

    /// Zeros in the first bytes of a buffer.
    pub(crate) fn clear(&self, side: Side, bytes: usize) -> Result<(), Error> {
        // SAFETY: the buffer is as long as the longest case, and waited for.
        unsafe { self.stream.fill(self.address((side, 0)), 0, bytes) }
            .and_then(|()| self.stream.synchronize())
            .map_err(failed("clearing a buffer"))
    }

    /// Microseconds of one copy of so many bytes within rank 0's device, by its engines, while no
    /// rank does anything else; none for too few. Every rank takes part.
    pub(crate) fn copy_us(&self, comm: &Communicator, bytes: usize) -> Result<Option<f64>, Error> {
        if bytes < COPY_MIN {
            return Ok(None);
        }
        comm.barrier()?;
        let us = if comm.rank() == 0 { self.timed_copies(bytes) } else { Ok(0.0) };
        comm.barrier()?;
        us.map(Some).map_err(failed("timing copies"))
    }

    /// Each copy has the length that is asked about, since what a copy takes beside its bytes
    /// counts for short ones. What the second cache holds would be copied faster than memory can
    /// be, so they go round buffers that are more than it holds by far.
    fn timed_copies(&self, bytes: usize) -> Result<f64, CudaError> {
        let context = self.group.context();
        let Round { parts, part, apart, places } =
            Round::of(bytes, context.memory()?.0, context.device().l2_bytes);
        let made = || DeviceMemory::new(context, places * apart);
        let [from, to] = [made()?, made()?];
        let mut place = (0..places).cycle();
        let mut copy = || -> Result<(), CudaError> {
            let at = (place.next().unwrap_or(0) * apart) as u64;
            // SAFETY: both are ours and as long, and waited for below.
            unsafe { self.stream.copy(to.address() + at, from.address() + at, part) }
        };
        // All of it has been used once then.
        (0..places.max(parts)).try_for_each(|_| copy())?;
        let (begin, end) = (Event::timed(context)?, Event::timed(context)?);
        self.stream.record(&begin)?;
        (0..parts * COPIES).try_for_each(|_| copy())?;
        self.stream.record(&end)?;
        end.synchronize()?;
        Ok(end.since(&begin)?.as_secs_f64() * 1e6 / COPIES as f64)
    }

    fn address(&self, (side, at): (Side, usize)) -> u64 {
        let memory = match side {
            Side::Input => &self.input,
            Side::Output => &self.output,
        };
        memory.address() + at as u64
    }

    /// Make a call, which `wait` waits for.
    pub(crate) fn start(
        &mut self,
        comm: &Communicator,
        call: &Call,
        input: (Side, usize),
        output: (Side, usize),
    ) -> Result<(), Error> {
        let (from, to) = (self.address(input), self.address(output));
        // SAFETY: the buffers are as long as the longest case, and waited for below.
        let enqueue = || unsafe { self.group.enqueue(call, from, to, &self.stream) };
        if self.place != Place::Graph {
            return enqueue();
        }
        if self.graph.is_none() {
            // What a first call makes cannot be captured.
            enqueue()?;
            self.group.mark(&self.stream)?.wait()?;
            self.graph = Some(captured(&self.stream, enqueue)?);
            // Making a graph launchable may wait for the device, where nobody's replay may wait
            // for us yet.
            return comm.barrier();
        }
        let graph = self.graph.as_mut().expect("captured before");
        // SAFETY: as above.
        unsafe { graph.launch(&self.stream) }.map_err(failed("replaying a call"))
    }

    /// Wait for all calls that were made.
    pub(crate) fn wait(&self) -> Result<(), Error> {
        self.group.mark(&self.stream)?.wait()
    }

    /// Send the input to the right neighbour while the output comes from the left one; `wait`
    /// waits for both.
    pub(crate) fn start_send_recv(&self, comm: &Communicator, bytes: usize) -> Result<(), Error> {
        let (ranks, rank) = (comm.size(), comm.rank());
        let (left, right) = ((rank + ranks - 1) % ranks, (rank + 1) % ranks);
        let list = [
            DeviceMessage::send(Dtype::U8, self.input.address(), bytes, right),
            DeviceMessage::recv(Dtype::U8, self.output.address(), bytes, left),
        ];
        // SAFETY: as for calls.
        unsafe { self.group.messages(&list, &self.stream) }
    }
}

/// How copies go round their buffers.
#[derive(Debug, PartialEq, Eq)]
struct Round {
    /// So many pieces are one copy: several where the device has no room for it as a whole.
    parts: usize,
    /// Bytes of a piece.
    part: usize,
    /// From one piece to the next.
    apart: usize,
    /// Pieces of each of two buffers.
    places: usize,
}

impl Round {
    /// Of copies of so many bytes, where so many are free and the second cache holds so many.
    fn of(bytes: usize, free_bytes: usize, l2_bytes: usize) -> Self {
        let parts = bytes.div_ceil((free_bytes / 4).max(COPY_MIN)).max(1);
        let part = bytes.div_ceil(parts);
        let apart = part.next_multiple_of(COPY_STEP);
        let places = (COPIED_CACHES * l2_bytes).div_ceil(2 * apart).max(1);
        Self { parts, part, apart, places }
    }
}

/// How many times a case's size a copy is that reads and writes as much of one device's memory as
/// the case must among ranks that share it, out of place.
pub(crate) fn copies(kind: Kind, ranks: usize) -> Option<f64> {
    let ranks = ranks as f64;
    match kind {
        Kind::AllReduce | Kind::AllGather | Kind::Broadcast | Kind::AllToAll | Kind::SendRecv => {
            Some(ranks)
        }
        // Everything is read, and one part of as many written.
        Kind::ReduceScatter | Kind::Reduce => Some((ranks + 1.0) / 2.0),
        Kind::Gather | Kind::Scatter => Some(1.0),
        _ => None,
    }
}

/// The context of a rank: ranks take the devices in turn.
fn context(rank: usize) -> Result<Context, CudaError> {
    let devices = Cuda::load()?.devices()?;
    let device = devices.get(rank % devices.len().max(1));
    let why = "there is no device that this process may use".to_owned();
    Context::new(device.ok_or(CudaError::Refused { why })?)
}

fn captured(stream: &Stream, enqueue: impl Fn() -> Result<(), Error>) -> Result<Executable, Error> {
    stream.begin_capture(CaptureMode::Thread).map_err(failed("capturing a call"))?;
    let enqueued = enqueue();
    let graph = stream.end_capture().map_err(failed("capturing a call"))?;
    enqueued?;
    let made = graph.instantiate().and_then(|mut graph| graph.upload(stream).map(|()| graph));
    made.map_err(failed("capturing a call"))
}

fn failed<E: Display>(what: &str) -> impl Fn(E) -> Error {
    move |error| Error::Invalid { what: format!("{what}: {error}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_as_long_as_they_should_and_go_round_more_than_the_cache() {
        let (mib, l2) = (1 << 20, 50 << 20);
        let of = |bytes, free| Round::of(bytes, free, l2);
        let whole = |part, places| Round { parts: 1, part, apart: part, places };
        assert_eq!(of(mib, 80 << 30), whole(mib, 100));
        assert_eq!(of(96 * mib, 80 << 30), whole(96 * mib, 2));
        assert_eq!(of(2048 * mib, 80 << 30), whole(2048 * mib, 1));
        let cut = Round { parts: 2, part: 1024 * mib, apart: 1024 * mib, places: 1 };
        assert_eq!(of(2048 * mib, 6 << 30), cut);
        assert_eq!(of(3 * mib + 1, 80 << 30).apart, 3 * mib + 512);
    }
}
