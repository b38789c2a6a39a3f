//! How letters get from the device of one rank to that of another: there by themselves, into a
//! place in a window of the receiver's, of which its host then hears; or, where devices do not
//! reach each other, down through pinned memory, by the hosts' `Wires` and up again. Either on
//! streams of its own, while the device computes.

use super::letters::Letters;
use crate::device::Wire;
use crate::error::Error;
use crate::kernels::cuda::{Device, Room, View};
use crate::parallel::pipeline::{Action, Places, Shape, Wires};
use brigade_comm::device::DeviceWindow;
use brigade_cuda::{Event, Stream};

/// Letters that may be on their way out at once.
pub(super) const LEAVING: usize = 2;

/// One rank's.
pub(super) enum Post {
    Devices(Direct),
    Hosts(Through),
}

/// From device to device.
pub(super) struct Direct {
    /// Until it is closed.
    window: Option<DeviceWindow>,
    rank: usize,
    shape: Shape,
    places: Places,
    outgoing: [View; LEAVING],
    stream: Stream,
    /// Marks in the computing stream, and behind each letter.
    computed: Event,
    gone: [Event; LEAVING],
    /// Letters that have begun to leave, and that have left.
    counts: [usize; 2],
    /// What hosts hand over for each.
    note: Vec<f32>,
}

/// By way of the hosts.
pub(super) struct Through {
    wire: Wire,
    /// In turn: what came up, and what is on its way down.
    incoming: [View; 2],
    outgoing: [View; LEAVING],
    /// After the last use of what came up.
    used: [Event; 2],
    /// How many came up, and went down.
    counts: [usize; 2],
    /// Where letters are on the host while they change hands.
    desk: Vec<f32>,
}

impl Post {
    /// Numbers that hosts hand over for each letter, of a note or of all of it.
    pub(super) fn numbers(&self) -> usize {
        match self {
            Post::Devices(direct) => direct.note.len(),
            Post::Hosts(through) => through.desk.len(),
        }
    }

    /// What `action` needs from another rank is in this place before what is computed next.
    pub(super) fn take(
        &mut self,
        action: Action,
        to: View,
        device: &Device,
        wires: &mut Wires,
    ) -> Result<(), Error> {
        match self {
            Post::Devices(direct) => {
                wires.take(action, &mut direct.note);
                device.copy(to, direct.incoming(action, to.len()))
            }
            Post::Hosts(through) => through.take(action, to, device, wires),
        }
    }

    /// What `action` came to is on its way to another rank; whoever writes there next does so
    /// behind what reads it. There are no more than `LEAVING`.
    pub(super) fn begin(
        &mut self,
        action: Action,
        from: View,
        device: &Device,
    ) -> Result<(), Error> {
        match self {
            Post::Devices(direct) => direct.begin(action, from, device),
            Post::Hosts(through) => {
                let room = through.outgoing[through.counts[1] % LEAVING];
                through.counts[1] += 1;
                device.copy(room, from)?;
                through.wire.fetch(room)
            }
        }
    }

    /// Wait for the letter that began first, which was `action`'s, and give the wires what they
    /// carry.
    pub(super) fn finish(&mut self, action: Action, wires: &mut Wires) -> Result<(), Error> {
        match self {
            Post::Devices(Direct { gone, counts, note, .. }) => {
                gone[counts[1] % LEAVING].synchronize()?;
                counts[1] += 1;
                wires.put(action, note);
            }
            Post::Hosts(Through { wire, desk, .. }) => {
                wire.take(desk, 4)?;
                wires.put(action, desk);
            }
        }
        Ok(())
    }

    /// Bytes of the host's memory.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Post::Devices(_) => 0,
            Post::Hosts(Through { wire, desk, .. }) => wire.bytes() + 4 * desk.len() as u64,
        }
    }

    /// Wait for all that is on its way.
    pub(super) fn settle(&self) -> Result<(), Error> {
        match self {
            Post::Devices(direct) => Ok(direct.stream.synchronize()?),
            Post::Hosts(through) => through.wire.settle(),
        }
    }

    /// Nobody writes to anybody any more, or reads. Collective over the pipeline's ranks, who wait
    /// for this one also where its device has failed.
    pub(super) fn close(&mut self) -> Result<(), Error> {
        let settled = self.settle();
        if let Post::Devices(Direct { window, .. }) = self {
            window.take().map_or(Ok(()), DeviceWindow::close)?;
        }
        settled
    }
}

impl Direct {
    /// Bytes of a window with so many places for letters of so many numbers.
    pub(super) fn window_bytes(places: usize, letter: usize) -> usize {
        let mut one = Room::default();
        one.take(letter, 4);
        places * one.taken()
    }

    /// Of this rank, beside this stream.
    pub(super) fn new(
        compute: &Stream,
        window: DeviceWindow,
        (rank, shape, places): (usize, &Shape, Places),
        letters: &Letters,
    ) -> Result<Direct, Error> {
        let context = compute.context();
        let event = || Event::new(context);
        Ok(Direct {
            window: Some(window),
            rank,
            shape: shape.clone(),
            places,
            outgoing: letters.outgoing,
            stream: Stream::new(context)?,
            computed: event()?,
            gone: [event()?, event()?],
            counts: [0; 2],
            note: vec![0.0],
        })
    }

    fn begin(&mut self, action: Action, from: View, device: &Device) -> Result<(), Error> {
        let at = self.counts[0] % LEAVING;
        self.counts[0] += 1;
        let target = self.shape.target(action).expect("it goes to a stage");
        let to = self.shape.rank_of[target];
        let place = self.places.at((self.rank, to), action, action.stage);
        let window = self.window.as_ref().expect("no letter is behind the last step");
        let place = view(window.address_of(to), place, from.len());
        let room = self.outgoing[at];
        device.copy(room, from)?;
        device.stream().record(&self.computed)?;
        self.stream.wait(&self.computed)?;
        // SAFETY: the place is within the receiver's window, which it keeps until all have closed
        // theirs; it has read what was there (see `Places`), and reads this when its host has heard
        // of it. Nothing writes to the room before this letter has left.
        unsafe { self.stream.copy(place.address(), room.address(), room.bytes()) }?;
        Ok(self.stream.record(&self.gone[at])?)
    }

    /// Where what `action` needs has come to.
    fn incoming(&self, action: Action, len: usize) -> View {
        let source = self.shape.source(action).expect("it comes from a stage");
        let place = self.places.at((self.shape.rank_of[source], self.rank), action, source);
        let window = self.window.as_ref().expect("no letter is behind the last step");
        view(window.address(), place, len)
    }
}

impl Through {
    /// Beside this stream.
    pub(super) fn new(
        compute: &Stream,
        letters: &Letters,
        letter: usize,
    ) -> Result<Through, Error> {
        let event = || Event::new(compute.context());
        Ok(Through {
            wire: Wire::new(compute, 4 * letter)?,
            incoming: letters.incoming,
            outgoing: letters.outgoing,
            used: [event()?, event()?],
            counts: [0; 2],
            desk: vec![0.0; letter],
        })
    }

    fn take(
        &mut self,
        action: Action,
        to: View,
        device: &Device,
        wires: &mut Wires,
    ) -> Result<(), Error> {
        let at = self.counts[0] % 2;
        let room = self.incoming[at];
        wires.take(action, &mut self.desk);
        self.wire.send(room, &self.desk, &self.used[at])?;
        device.copy(to, room)?;
        device.stream().record(&self.used[at])?;
        self.counts[0] += 1;
        Ok(())
    }
}

/// A place in a window.
fn view(window: u64, place: usize, len: usize) -> View {
    let before = Direct::window_bytes(1, len) * place;
    Room::at(window + before as u64).take(len, 4)
}
