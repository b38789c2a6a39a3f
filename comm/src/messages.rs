//! Messages between two ranks, alone or in groups that may all be in flight at once.

use std::collections::VecDeque;

use crate::communicator::Communicator;
use crate::dtype::Element;
use crate::engine::Message;
use crate::plan::{Channel, Place, Space};
use crate::typed::{bytes, bytes_mut};
use crate::{Dtype, Error};

/// Sends and receives that are carried out together, so that their order among different peers
/// does not matter. Between the same two ranks messages keep their order.
pub struct Messages<'a> {
    communicator: &'a Communicator,
    list: Vec<Planned<'a>>,
    dtype: Option<Dtype>,
    problem: Option<Error>,
}

enum Planned<'a> {
    Send(u32, &'a [u8]),
    Recv(u32, &'a mut [u8]),
}

impl Communicator {
    /// Send `data` to rank `to`, which must receive as many elements of the same type. Returns when
    /// `data` may be reused, which may be before it has arrived.
    ///
    /// # Errors
    ///
    /// Those of a call.
    pub fn send<T: Element>(&self, data: &[T], to: usize) -> Result<(), Error> {
        self.messages().send(data, to).run()
    }

    /// Receive `data` from rank `from`.
    ///
    /// # Errors
    ///
    /// Those of a call.
    pub fn recv<T: Element>(&self, data: &mut [T], from: usize) -> Result<(), Error> {
        self.messages().recv(data, from).run()
    }

    /// A group of messages: add them, then [`run`](Messages::run).
    pub fn messages(&self) -> Messages<'_> {
        Messages { communicator: self, list: Vec::new(), dtype: None, problem: None }
    }
}

impl<'a> Messages<'a> {
    /// Add a message to rank `to`.
    pub fn send<T: Element>(mut self, data: &'a [T], to: usize) -> Self {
        self.note::<T>(to);
        self.list.push(Planned::Send(to as u32, bytes(data)));
        self
    }

    /// Add a message from rank `from`.
    pub fn recv<T: Element>(mut self, data: &'a mut [T], from: usize) -> Self {
        self.note::<T>(from);
        self.list.push(Planned::Recv(from as u32, bytes_mut(data)));
        self
    }

    fn note<T: Element>(&mut self, peer: usize) {
        let size = self.communicator.size();
        if peer >= size {
            self.problem = Some(Error::invalid(format!("message: rank {peer} of {size} ranks")));
        }
        if *self.dtype.get_or_insert(T::DTYPE) != T::DTYPE {
            let what = "messages of one group have one element type".to_owned();
            self.problem = Some(Error::invalid(what));
        }
    }

    /// Carry all of them out. Returns when everything has been received and everything sent may be
    /// reused.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a peer that does not exist, or a message to oneself that is not
    /// received in the same group; otherwise those of a call.
    pub fn run(self) -> Result<(), Error> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        let Some(dtype) = self.dtype else { return Ok(()) };
        let me = self.communicator.shared().rank;
        let mut to_self: VecDeque<&[u8]> = VecDeque::new();
        let (mut from_self, mut wired, mut names) = (VecDeque::new(), Vec::new(), Vec::new());
        for message in self.list {
            match message {
                Planned::Send(peer, data) if peer == me => to_self.push_back(data),
                Planned::Recv(peer, data) if peer == me => from_self.push_back(data),
                Planned::Send(peer, data) => {
                    names.push(format!("send to {peer}"));
                    wired.push(wire_message(
                        Channel::To(peer),
                        Space::Input,
                        data.as_ptr(),
                        data.len(),
                    ));
                }
                Planned::Recv(peer, data) => {
                    names.push(format!("receive from {peer}"));
                    let at = data.as_mut_ptr().cast_const();
                    wired.push(wire_message(Channel::From(peer), Space::Output, at, data.len()));
                }
            }
        }
        let lengths = |list: &VecDeque<&[u8]>| list.iter().map(|d| d.len()).collect::<Vec<_>>();
        let received: Vec<usize> = from_self.iter().map(|data: &&mut [u8]| data.len()).collect();
        if lengths(&to_self) != received {
            return Err(Error::invalid("messages to oneself must be received in the same group"));
        }
        for (target, source) in from_self.into_iter().zip(to_self) {
            target.copy_from_slice(source);
        }
        let name = format!("{} of {}", names.join(", "), dtype.name());
        let shared = self.communicator.shared();
        shared.progress.drain();
        let mut engine = shared.lock();
        // SAFETY: every place is the whole of a slice that is borrowed until we return, and the
        // slices to be written are borrowed exclusively, so none overlaps another.
        let outcome = unsafe { engine.messages(&wired, dtype, &name) };
        shared.count(&engine);
        outcome
    }
}

fn wire_message(channel: Channel, space: Space, at: *const u8, bytes: usize) -> Message {
    Message { channel, place: Place { space, at: at as u64 }, bytes: bytes as u64 }
}
