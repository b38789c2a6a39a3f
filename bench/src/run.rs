//! One case in one placement: where its buffers lie, and its calls on them.
//!
//! Not here: how often it is called, and what is made of the times.

use std::ops::Range;
use std::time::{Duration, Instant};

use brigade_comm::{Buffers, Call, Communicator, Error};

use crate::arena::Arena;
use crate::device::{Device, Side};
use crate::kind::Case;
use crate::reference::{Reference, in_place, lengths};

/// What lies in the output before a checked call, so that what was never written shows.
const STALE: u8 = 0xa5;

/// What a rank's cases lie in, one after the other.
pub(crate) struct Rooms {
    /// Buffers, or images of those that lie on a device; empty where nobody looks at these.
    input: Arena,
    output: Arena,
    pub(crate) device: Option<Device>,
    has_images: bool,
}

impl Rooms {
    /// Room for so many bytes each way, on the host or on a device. What lies there is looked at
    /// only if it is checked.
    pub(crate) fn new(
        (input, output): (usize, usize),
        device: Option<Device>,
        is_checked: bool,
    ) -> Self {
        let has_images = device.is_none() || is_checked;
        let arena = |bytes| Arena::new(if has_images { bytes } else { 0 });
        Self { input: arena(input), output: arena(output), device, has_images }
    }
}

/// One case in one placement, with its memory.
pub(crate) struct Run<'a> {
    comm: &'a Communicator,
    /// What is called; none for send-recv.
    pub(crate) call: Option<Call>,
    memory: Memory<'a>,
    /// Where the buffers themselves lie, if `memory` has only their images, or none.
    pub(crate) device: Option<&'a mut Device>,
}

/// Where input and output lie.
enum Memory<'a> {
    /// Each in a buffer of its own.
    Apart { input: &'a mut [u8], output: &'a mut [u8] },
    /// In one buffer, at these bytes of it.
    Together { whole: &'a mut [u8], input: Range<usize>, output: Range<usize> },
    /// On a device only, at these bytes of its buffers: in the same one if they are in place.
    Unseen { input: (Side, Range<usize>), output: Range<usize> },
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        comm: &'a Communicator,
        rooms: &'a mut Rooms,
        case: &Case,
        is_in_place: bool,
    ) -> Self {
        let (ranks, rank) = (comm.size(), comm.rank());
        let (side, (input, output)) = match is_in_place {
            true => (Side::Output, in_place(case, ranks, rank)),
            false => {
                let (input, output) = lengths(case, ranks, rank);
                (Side::Input, (0..input, 0..output))
            }
        };
        let bytes = case.dtype.size();
        let [input, output] = [input, output].map(|range| range.start * bytes..range.end * bytes);
        let memory = match (rooms.has_images, is_in_place) {
            (false, _) => Memory::Unseen { input: (side, input), output },
            (true, true) => {
                let whole = rooms.output.bytes(input.end.max(output.end));
                Memory::Together { whole, input, output }
            }
            (true, false) => Memory::Apart {
                input: rooms.input.bytes(input.end),
                output: rooms.output.bytes(output.end),
            },
        };
        Self { comm, call: case.call(ranks, rank), memory, device: rooms.device.as_mut() }
    }

    pub(crate) fn forget(&mut self) {
        self.device.iter_mut().for_each(|device| device.forget());
    }

    /// So many calls, and how long each took here.
    pub(crate) fn timed(&mut self, in_a_row: u32) -> Result<Duration, Error> {
        let start = Instant::now();
        for _ in 0..in_a_row {
            self.start()?;
        }
        self.wait()?;
        Ok(start.elapsed() / in_a_row)
    }

    fn wait(&self) -> Result<(), Error> {
        self.device.as_ref().map_or(Ok(()), |device| device.wait())
    }

    /// Make the call; one on the host is done then.
    fn start(&mut self) -> Result<(), Error> {
        if let Some(device) = &mut self.device {
            let Some(call) = &self.call else {
                return device.start_send_recv(self.comm, self.memory.input_bytes());
            };
            let (from, to) = match &self.memory {
                Memory::Apart { .. } => ((Side::Input, 0), (Side::Output, 0)),
                Memory::Together { input, output, .. } => {
                    ((Side::Output, input.start), (Side::Output, output.start))
                }
                Memory::Unseen { input: (side, input), output } => {
                    ((*side, input.start), (Side::Output, output.start))
                }
            };
            return device.start(self.comm, call, from, to);
        }
        match (&self.call, &mut self.memory) {
            (Some(call), Memory::Apart { input, output }) => {
                self.comm.run(call, Buffers::OutOfPlace { input, output })
            }
            (Some(call), Memory::Together { whole, .. }) => {
                self.comm.run(call, Buffers::InPlace(whole))
            }
            (None, Memory::Apart { input, output }) => send_recv(self.comm, input, output),
            (None, Memory::Together { .. }) => unreachable!("send-recv has no such placement"),
            (_, Memory::Unseen { .. }) => unreachable!("the host sees what it has"),
        }
    }

    /// Make the call on known data and count the wrong elements.
    pub(crate) fn check(&mut self, reference: &Reference) -> Result<u64, Error> {
        match &mut self.memory {
            Memory::Apart { input, output } => {
                input.copy_from_slice(&reference.input);
                output.fill(STALE);
            }
            Memory::Together { whole, input, .. } => {
                whole.fill(STALE);
                whole[input.clone()].copy_from_slice(&reference.input);
            }
            Memory::Unseen { .. } => unreachable!("what is checked has images"),
        }
        self.upload()?;
        self.start()?;
        self.wait()?;
        self.download()?;
        Ok(match &self.memory {
            Memory::Apart { input, output } => {
                reference.wrong_in(output) + reference.changed_in(input)
            }
            Memory::Together { whole, output, .. } => reference.wrong_in(&whole[output.clone()]),
            Memory::Unseen { .. } => unreachable!("what is checked has images"),
        })
    }

    /// Zeros everywhere: the one value that no operator makes slow or strange by repetition.
    pub(crate) fn clear(&mut self) -> Result<(), Error> {
        match &mut self.memory {
            Memory::Apart { input, output } => {
                input.fill(0);
                output.fill(0);
            }
            Memory::Together { whole, .. } => whole.fill(0),
            Memory::Unseen { input: (side, input), output } => {
                let device = self.device.as_ref().expect("it lies there");
                device.clear(*side, input.end)?;
                return device.clear(Side::Output, output.end);
            }
        }
        self.upload()
    }

    /// Images to the device.
    fn upload(&mut self) -> Result<(), Error> {
        let Some(device) = &mut self.device else { return Ok(()) };
        match &self.memory {
            Memory::Apart { input, output } => {
                device.upload(Side::Input, input)?;
                device.upload(Side::Output, output)
            }
            Memory::Together { whole, .. } => device.upload(Side::Output, whole),
            Memory::Unseen { .. } => unreachable!("there are none"),
        }
    }

    /// Images from the device.
    fn download(&mut self) -> Result<(), Error> {
        let Some(device) = &self.device else { return Ok(()) };
        match &mut self.memory {
            Memory::Apart { input, output } => {
                device.download(Side::Input, input)?;
                device.download(Side::Output, output)
            }
            Memory::Together { whole, .. } => device.download(Side::Output, whole),
            Memory::Unseen { .. } => unreachable!("there are none"),
        }
    }
}

impl Memory<'_> {
    fn input_bytes(&self) -> usize {
        match self {
            Self::Apart { input, .. } => input.len(),
            Self::Together { input, .. } | Self::Unseen { input: (_, input), .. } => input.len(),
        }
    }
}

/// Send to the right neighbour while receiving from the left one.
fn send_recv(comm: &Communicator, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
    let (ranks, rank) = (comm.size(), comm.rank());
    let (left, right) = ((rank + ranks - 1) % ranks, (rank + 1) % ranks);
    comm.messages().send(input, right).recv(output, left).run()
}
