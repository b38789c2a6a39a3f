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
/// At least so many times what the second cache holds is copied.
const COPIED_CACHES: usize = 4;
/// So many copies are timed together.
const COPIES: u32 = 8;

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
        // What the second cache holds would be copied faster than memory can be.
        let copied = bytes.max(COPIED_CACHES * self.group.context().device().l2_bytes);
        comm.barrier()?;
        let us = if comm.rank() == 0 { self.timed_copies(copied) } else { Ok(0.0) };
        comm.barrier()?;
        let us = us.map_err(failed("timing copies"))?;
        Ok(Some(us * bytes as f64 / copied as f64))
    }

    fn timed_copies(&self, bytes: usize) -> Result<f64, CudaError> {
        let context = self.group.context();
        let (begin, end) = (Event::timed(context)?, Event::timed(context)?);
        let [from, to] = [DeviceMemory::new(context, bytes)?, DeviceMemory::new(context, bytes)?];
        for turn in 0..=COPIES {
            if turn == 1 {
                self.stream.record(&begin)?;
            }
            // SAFETY: both are ours and as long, and waited for below.
            unsafe { self.stream.copy(to.address(), from.address(), bytes) }?;
        }
        self.stream.record(&end)?;
        end.synchronize()?;
        Ok(end.since(&begin)?.as_secs_f64() * 1e6 / f64::from(COPIES))
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

/// How many copies of a case's size read and write as much of one device's memory as the case must
/// among ranks that share it, out of place.
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
