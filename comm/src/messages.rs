//! Messages between two ranks, alone or in groups that may all be in flight at once.

use crate::communicator::{Communicator, Shared};
use crate::dtype::Element;
use crate::plan::{Channel, Message, Place, Space};
use crate::typed::{bytes, bytes_mut};
use crate::work::Work;
use crate::{Dtype, Error};

/// Sends and receives that are carried out together, so that their order among different peers
/// does not matter. Between the same two ranks messages keep their order.
pub struct Messages<'a> {
    communicator: &'a Communicator,
    listed: List<'a>,
    dtype: Option<Dtype>,
    problem: Option<Error>,
}

/// The messages themselves, by whether they leave this rank.
#[derive(Default)]
struct List<'a> {
    wired: Vec<Message>,
    to_self: Vec<&'a [u8]>,
    from_self: Vec<&'a mut [u8]>,
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
        Messages { communicator: self, listed: List::default(), dtype: None, problem: None }
    }
}

impl<'a> Messages<'a> {
    /// Add a message to rank `to`.
    pub fn send<T: Element>(self, data: &'a [T], to: usize) -> Self {
        self.send_bytes(T::DTYPE, bytes(data), to)
    }

    /// Add a message from rank `from`.
    pub fn recv<T: Element>(self, data: &'a mut [T], from: usize) -> Self {
        self.recv_bytes(T::DTYPE, bytes_mut(data), from)
    }

    /// Add a message to rank `to`: the bytes of elements of a type known only at run time.
    pub fn send_bytes(mut self, dtype: Dtype, data: &'a [u8], to: usize) -> Self {
        if self.is_wired(dtype, data.len(), to) {
            let place =
                Place { space: Space::Absolute, at: data.as_ptr().expose_provenance() as u64 };
            let (channel, bytes) = (Channel::To(to as u32), data.len() as u64);
            self.listed.wired.push(Message { channel, place, bytes });
        } else {
            self.listed.to_self.push(data);
        }
        self
    }

    /// Add a message from rank `from`: the bytes of elements of a type known only at run time.
    pub fn recv_bytes(mut self, dtype: Dtype, data: &'a mut [u8], from: usize) -> Self {
        if self.is_wired(dtype, data.len(), from) {
            let place =
                Place { space: Space::Absolute, at: data.as_mut_ptr().expose_provenance() as u64 };
            let (channel, bytes) = (Channel::From(from as u32), data.len() as u64);
            self.listed.wired.push(Message { channel, place, bytes });
        } else {
            self.listed.from_self.push(data);
        }
        self
    }

    /// Whether a message goes over a wire; notes what is wrong with it.
    fn is_wired(&mut self, dtype: Dtype, bytes: usize, peer: usize) -> bool {
        let size = self.communicator.size();
        if peer >= size {
            self.problem = Some(Error::invalid(format!("message: rank {peer} of {size} ranks")));
        }
        if *self.dtype.get_or_insert(dtype) != dtype {
            let what = "messages of one group have one element type".to_owned();
            self.problem = Some(Error::invalid(what));
        }
        if !bytes.is_multiple_of(dtype.size()) {
            let what = format!("message: {bytes} bytes are no whole elements of {dtype}");
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
        let communicator = self.communicator;
        let Some((list, dtype)) = self.checked()? else { return Ok(()) };
        let shared = communicator.shared();
        shared.progress.drain();
        list.run_now(dtype, shared)
    }

    /// Start all of them, like [`Communicator::start`]. Without a message there is no work.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] at once, as for [`run`](Messages::run); everything else when the work is
    /// waited for.
    ///
    /// # Safety
    ///
    /// As for [`Communicator::start`], of the memory of all messages.
    pub unsafe fn start(self) -> Result<Option<Work<'static>>, Error> {
        let communicator = self.communicator;
        let Some((list, dtype)) = self.checked()? else { return Ok(None) };
        let run = Box::new(move |shared: &Shared| list.run_now(dtype, shared));
        // SAFETY: the caller's promise.
        unsafe { communicator.start_body(run) }.map(Some)
    }

    /// The messages, unless there are none, if they make sense by themselves.
    fn checked(self) -> Result<Option<(List<'a>, Dtype)>, Error> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        let List { to_self, from_self, .. } = &self.listed;
        let lengths = to_self.iter().map(|data| data.len());
        if !lengths.eq(from_self.iter().map(|data| data.len())) {
            return Err(Error::invalid("messages to oneself must be received in the same group"));
        }
        Ok(self.dtype.map(|dtype| (self.listed, dtype)))
    }
}

impl List<'_> {
    /// Carry them out on this thread, without regard to the queue.
    fn run_now(self, dtype: Dtype, shared: &Shared) -> Result<(), Error> {
        for (target, source) in self.from_self.into_iter().zip(self.to_self) {
            target.copy_from_slice(source);
        }
        let mut engine = shared.lock();
        // SAFETY: every place is the whole of a slice that is borrowed until we return, and the
        // slices to be written are borrowed exclusively, so none overlaps another.
        let outcome = unsafe { engine.messages(&self.wired, dtype) };
        shared.count(&engine, outcome.is_ok());
        outcome.map_err(|error| *error)
    }
}
