//! Messages between two ranks, alone or in groups that may all be in flight at once.

use crate::communicator::Communicator;
use crate::dtype::Element;
use crate::plan::{Channel, Message, Place, Space};
use crate::typed::{bytes, bytes_mut};
use crate::{Dtype, Error};

/// Sends and receives that are carried out together, so that their order among different peers
/// does not matter. Between the same two ranks messages keep their order.
pub struct Messages<'a> {
    communicator: &'a Communicator,
    wired: Vec<Message>,
    to_self: Vec<&'a [u8]>,
    from_self: Vec<&'a mut [u8]>,
    dtype: Option<Dtype>,
    problem: Option<Error>,
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
        Messages {
            communicator: self,
            wired: Vec::new(),
            to_self: Vec::new(),
            from_self: Vec::new(),
            dtype: None,
            problem: None,
        }
    }
}

impl<'a> Messages<'a> {
    /// Add a message to rank `to`.
    pub fn send<T: Element>(mut self, data: &'a [T], to: usize) -> Self {
        let data = bytes(data);
        if self.is_wired::<T>(to) {
            let place =
                Place { space: Space::Absolute, at: data.as_ptr().expose_provenance() as u64 };
            let (channel, bytes) = (Channel::To(to as u32), data.len() as u64);
            self.wired.push(Message { channel, place, bytes });
        } else {
            self.to_self.push(data);
        }
        self
    }

    /// Add a message from rank `from`.
    pub fn recv<T: Element>(mut self, data: &'a mut [T], from: usize) -> Self {
        let data = bytes_mut(data);
        if self.is_wired::<T>(from) {
            let place =
                Place { space: Space::Absolute, at: data.as_mut_ptr().expose_provenance() as u64 };
            let (channel, bytes) = (Channel::From(from as u32), data.len() as u64);
            self.wired.push(Message { channel, place, bytes });
        } else {
            self.from_self.push(data);
        }
        self
    }

    /// Whether a message goes over a wire; notes what is wrong with it.
    fn is_wired<T: Element>(&mut self, peer: usize) -> bool {
        let size = self.communicator.size();
        if peer >= size {
            self.problem = Some(Error::invalid(format!("message: rank {peer} of {size} ranks")));
        }
        if *self.dtype.get_or_insert(T::DTYPE) != T::DTYPE {
            let what = "messages of one group have one element type".to_owned();
            self.problem = Some(Error::invalid(what));
        }
        peer != self.communicator.rank()
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
        let lengths = self.to_self.iter().map(|data| data.len());
        if !lengths.eq(self.from_self.iter().map(|data| data.len())) {
            return Err(Error::invalid("messages to oneself must be received in the same group"));
        }
        for (target, source) in self.from_self.into_iter().zip(self.to_self) {
            target.copy_from_slice(source);
        }
        let shared = self.communicator.shared();
        shared.progress.drain();
        let mut engine = shared.lock();
        // SAFETY: every place is the whole of a slice that is borrowed until we return, and the
        // slices to be written are borrowed exclusively, so none overlaps another.
        let outcome = unsafe { engine.messages(&self.wired, dtype) };
        shared.count(&engine, outcome.is_ok());
        outcome.map_err(|error| *error)
    }
}
