//! One case in one placement: where its buffers lie, and its calls on them.
//!
//! Not here: how often it is called, and what is made of the times.

use std::hint::black_box;
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
    /// The bytes of the input in its buffer, which is that of the output if they are in place.
    input: (Side, Range<usize>),
    output: Range<usize>,
    /// The buffers, or what is seen of those on a device, if anything is.
    images: Option<Images<'a>>,
    pub(crate) device: Option<&'a mut Device>,
}

/// Input and output in memory of the host.
enum Images<'a> {
    /// Each in a buffer of its own.
    Apart { input: &'a mut [u8], output: &'a mut [u8] },
    /// Both in one.
    Together(&'a mut [u8]),
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
        let images = rooms.has_images.then(|| match is_in_place {
            true => Images::Together(rooms.output.bytes(input.end.max(output.end))),
            false => Images::Apart {
                input: rooms.input.bytes(input.end),
                output: rooms.output.bytes(output.end),
            },
        });
        let (call, device) = (case.call(ranks, rank), rooms.device.as_mut());
        Self { comm, call, input: (side, input), output, images, device }
    }

    pub(crate) fn forget(&mut self) {
        self.device.iter_mut().for_each(|device| device.forget());
    }

    /// So many calls, and how long each took here, together with what a program does with its
    /// buffers where they are touched.
    pub(crate) fn timed(&mut self, in_a_row: u32, touch: bool) -> Result<Duration, Error> {
        let start = Instant::now();
        for _ in 0..in_a_row {
            if touch {
                self.write_input();
            }
            self.start()?;
            if touch {
                self.read_output();
            }
        }
        self.wait()?;
        Ok(start.elapsed() / in_a_row)
    }

    /// Write what is there already: zeros.
    fn write_input(&mut self) {
        match self.images.as_mut().expect("what is touched lies on the host") {
            Images::Apart { input, .. } => input.fill(0),
            Images::Together(whole) => whole[self.input.1.clone()].fill(0),
        }
    }

    fn read_output(&self) {
        let output = match self.images.as_ref().expect("what is touched lies on the host") {
            Images::Apart { output, .. } => &output[..],
            Images::Together(whole) => &whole[self.output.clone()],
        };
        let words = output.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        black_box(words.fold(0, u64::wrapping_add));
    }

    fn wait(&self) -> Result<(), Error> {
        self.device.as_ref().map_or(Ok(()), |device| device.wait())
    }

    /// Make the call; one on the host is done then.
    fn start(&mut self) -> Result<(), Error> {
        if let Some(device) = &mut self.device {
            let (side, input) = &self.input;
            return match &self.call {
                Some(call) => {
                    let to = (Side::Output, self.output.start);
                    device.start(self.comm, call, (*side, input.start), to)
                }
                None => device.start_send_recv(self.comm, input.len()),
            };
        }
        match (&self.call, self.images.as_mut().expect("the host sees what it has")) {
            (Some(call), Images::Apart { input, output }) => {
                self.comm.run(call, Buffers::OutOfPlace { input, output })
            }
            (Some(call), Images::Together(whole)) => self.comm.run(call, Buffers::InPlace(whole)),
            (None, Images::Apart { input, output }) => send_recv(self.comm, input, output),
            (None, Images::Together(_)) => unreachable!("send-recv has no such placement"),
        }
    }

    /// Make the call on known data and count the wrong elements.
    ///
    /// # Panics
    ///
    /// If the rooms were not made to be checked.
    pub(crate) fn check(&mut self, reference: &Reference) -> Result<u64, Error> {
        const CHECKED: &str = "what is checked has images";
        match self.images.as_mut().expect(CHECKED) {
            Images::Apart { input, output } => {
                input.copy_from_slice(&reference.input);
                output.fill(STALE);
            }
            Images::Together(whole) => {
                whole.fill(STALE);
                whole[self.input.1.clone()].copy_from_slice(&reference.input);
            }
        }
        self.upload()?;
        self.start()?;
        self.wait()?;
        self.download()?;
        Ok(match self.images.as_ref().expect(CHECKED) {
            Images::Apart { input, output } => {
                reference.wrong_in(output) + reference.changed_in(input)
            }
            Images::Together(whole) => reference.wrong_in(&whole[self.output.clone()]),
        })
    }

    /// Zeros everywhere: the one value that no operator makes slow or strange by repetition.
    pub(crate) fn clear(&mut self) -> Result<(), Error> {
        match &mut self.images {
            Some(Images::Apart { input, output }) => {
                input.fill(0);
                output.fill(0);
            }
            Some(Images::Together(whole)) => whole.fill(0),
            None => {
                let device = self.device.as_ref().expect("they lie on the host or there");
                device.clear(self.input.0, self.input.1.end)?;
                return device.clear(Side::Output, self.output.end);
            }
        }
        self.upload()
    }

    /// Images to the device, where there are both.
    fn upload(&mut self) -> Result<(), Error> {
        let (Some(device), Some(images)) = (&mut self.device, &self.images) else { return Ok(()) };
        match images {
            Images::Apart { input, output } => {
                device.upload(Side::Input, input)?;
                device.upload(Side::Output, output)
            }
            Images::Together(whole) => device.upload(Side::Output, whole),
        }
    }

    /// Images from the device, where there are both.
    fn download(&mut self) -> Result<(), Error> {
        let (Some(device), Some(images)) = (&self.device, &mut self.images) else { return Ok(()) };
        match images {
            Images::Apart { input, output } => {
                device.download(Side::Input, input)?;
                device.download(Side::Output, output)
            }
            Images::Together(whole) => device.download(Side::Output, whole),
        }
    }
}

/// Send to the right neighbour while receiving from the left one.
fn send_recv(comm: &Communicator, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
    let (ranks, rank) = (comm.size(), comm.rank());
    let (left, right) = ((rank + ranks - 1) % ranks, (rank + 1) % ranks);
    comm.messages().send(input, right).recv(output, left).run()
}
