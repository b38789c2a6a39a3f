//! Messages between two ranks, alone or in groups that may all be in flight at once.

use std::fmt;

use crate::communicator::{Communicator, Shared};
use crate::dtype::Element;
use crate::plan::{Channel, Message, Place, Space};
use crate::typed::{bytes, bytes_mut};
use crate::work::Work;
use crate::{Dtype, Error};

/// Sends and receives that are carried out together, so that their order among different peers
/// does not matter. Between the same two ranks messages keep their order. Each has a type of its
/// own.
#[must_use = "messages that are listed travel when they are run or started"]
pub struct Messages<'a> {
    communicator: &'a Communicator,
    listed: List<'a>,
    problem: Option<Error>,
}

/// The messages themselves, by whether they leave this rank.
#[derive(Default)]
struct List<'a> {
    wired: Vec<Message>,
    to_self: Vec<(Dtype, &'a [u8])>,
    from_self: Vec<(Dtype, &'a mut [u8])>,
}

/// What came from whoever sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Who.
    pub source: usize,
    /// How many elements.
    pub count: usize,
}

impl Communicator {
    /// Send `data` to rank `to`, which must receive as many elements of the same type. Returns when
    /// `data` may be reused, which may be before it has arrived.
    ///
    /// # Errors
    ///
    /// Those of a call.
    ///
    /// ```
    /// # use brigade_comm::*;
    /// # at_once(Communicator::local_world(2, &Settings::default()).unwrap(), |comm| {
    /// let mut word = *b"hello";
    /// match comm.rank() {
    ///     0 => comm.send(&word, 1)?,
    ///     _ => comm.recv(&mut word, 0)?,
    /// }
    /// assert_eq!(&word, b"hello");
    /// # Ok::<(), Error>(()) }).unwrap().into_iter().for_each(Result::unwrap);
    /// ```
    pub fn send<T: Element>(&self, data: &[T], to: usize) -> Result<(), Error> {
        self.messages().send(data, to).run()
    }

    /// Receive `data` from rank `from`, which sends it by [`Communicator::send`].
    ///
    /// # Errors
    ///
    /// Those of a call.
    pub fn recv<T: Element>(&self, data: &mut [T], from: usize) -> Result<(), Error> {
        self.messages().recv(data, from).run()
    }

    /// Receive the next message of whichever other rank has one, into the first elements of
    /// `data`. No sender is passed over for ever: those behind the last one come first. Ranks that
    /// are in a collective have sent nothing yet.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a message of another type, or a longer one than `data`: it is still
    /// there, so that another call may receive it. Otherwise those of a call; one of a rank that
    /// left only once all others have.
    pub fn recv_any<T: Element>(&self, data: &mut [T]) -> Result<Received, Error> {
        self.recv_any_bytes(T::DTYPE, bytes_mut(data))
    }

    /// Like [`Communicator::recv_any`], of elements of a type known only at run time.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::recv_any`].
    pub fn recv_any_bytes(&self, dtype: Dtype, data: &mut [u8]) -> Result<Received, Error> {
        let shared = self.shared();
        shared.drain()?;
        let mut engine = shared.lock()?;
        let found = engine.await_any(dtype, data.len() as u64);
        let (peer, bytes) = found.map_err(|error| *error)?;
        let place =
            Place { space: Space::Absolute, at: data.as_mut_ptr().expose_provenance() as u64 };
        let message = Message { channel: Channel::From(peer), dtype, place, bytes };
        // SAFETY: the place is the beginning of a slice that is borrowed exclusively until we
        // return, and no shorter.
        let outcome = unsafe { engine.messages(&[message]) };
        shared.count(&engine, outcome.is_ok());
        outcome.map_err(|error| *error)?;
        Ok(Received { source: peer as usize, count: bytes as usize / dtype.size() })
    }

    /// A group of messages: add them, then [`run`](Messages::run).
    pub fn messages(&self) -> Messages<'_> {
        Messages { communicator: self, listed: List::default(), problem: None }
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
            self.listed.wired.push(Message { channel, dtype, place, bytes });
        } else {
            self.listed.to_self.push((dtype, data));
        }
        self
    }

    /// Add a message from rank `from`: the bytes of elements of a type known only at run time.
    pub fn recv_bytes(mut self, dtype: Dtype, data: &'a mut [u8], from: usize) -> Self {
        if self.is_wired(dtype, data.len(), from) {
            let place =
                Place { space: Space::Absolute, at: data.as_mut_ptr().expose_provenance() as u64 };
            let (channel, bytes) = (Channel::From(from as u32), data.len() as u64);
            self.listed.wired.push(Message { channel, dtype, place, bytes });
        } else {
            self.listed.from_self.push((dtype, data));
        }
        self
    }

    /// Whether a message goes over a wire; notes what is wrong with it, unless one before it is.
    fn is_wired(&mut self, dtype: Dtype, bytes: usize, peer: usize) -> bool {
        let size = self.communicator.size();
        let what = if peer >= size {
            Some(format!("message: rank {peer} of {size} ranks"))
        } else if !bytes.is_multiple_of(dtype.size()) {
            Some(format!("message: {bytes} bytes are no whole elements of {dtype}"))
        } else {
            None
        };
        self.problem = self.problem.take().or(what.map(Error::invalid));
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
        let list = self.checked()?;
        if list.is_empty() {
            return Ok(());
        }
        let shared = communicator.shared();
        shared.drain()?;
        list.run_now(shared)
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
        let list = self.checked()?;
        if list.is_empty() {
            return Ok(None);
        }
        let run = Box::new(move |shared: &Shared| list.run_now(shared));
        // SAFETY: the caller's promise.
        unsafe { communicator.start_body(run) }.map(Some)
    }

    /// Refuse messages that make no sense by themselves, as [`run`](Messages::run) would.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`].
    pub fn check(&self) -> Result<(), Error> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        let List { to_self, from_self, .. } = &self.listed;
        let sent = to_self.iter().map(|(dtype, data)| (*dtype, data.len()));
        let received = from_self.iter().map(|(dtype, data)| (*dtype, data.len()));
        if sent.clone().eq(received.clone()) {
            Ok(())
        } else {
            Err(unlike("group", sent, received))
        }
    }

    /// The messages, if they make sense by themselves.
    fn checked(self) -> Result<List<'a>, Error> {
        self.check()?;
        Ok(self.listed)
    }
}

impl fmt::Debug for Messages<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let List { wired, to_self, from_self } = &self.listed;
        let count = wired.len() + to_self.len() + from_self.len();
        let mut shown = f.debug_struct("Messages");
        shown.field("count", &count).field("problem", &self.problem).finish_non_exhaustive()
    }
}

/// What is wrong with messages to oneself, sent and received in one `group`: each a type and a
/// length in bytes.
#[cold]
pub(crate) fn unlike(
    group: &str,
    sent: impl Iterator<Item = (Dtype, usize)> + Clone,
    received: impl Iterator<Item = (Dtype, usize)> + Clone,
) -> Error {
    let (sends, receives) = (sent.clone().count(), received.clone().count());
    if sends != receives {
        return Error::invalid(format!(
            "messages to oneself are received in the same {group}: it sends {sends} of them and \
             receives {receives}"
        ));
    }
    let unlike = sent.zip(received).enumerate().find(|(_, (sent, received))| sent != received);
    let (at, ((sent, sent_bytes), (received, received_bytes))) = unlike.expect("two differ");
    Error::invalid(format!(
        "message {at} to oneself is sent as {sent_bytes} bytes of {sent} and received as \
         {received_bytes} bytes of {received}"
    ))
}

impl List<'_> {
    fn is_empty(&self) -> bool {
        self.wired.is_empty() && self.to_self.is_empty()
    }

    /// Carry them out on this thread, without regard to the queue.
    fn run_now(self, shared: &Shared) -> Result<(), Error> {
        for ((dtype, target), (_, source)) in self.from_self.into_iter().zip(self.to_self) {
            target.copy_from_slice(source);
            if dtype == Dtype::Bool {
                // The bytes may be anybody's, and a `bool` with another value is no `bool`.
                target.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
            }
        }
        let mut engine = shared.lock()?;
        // SAFETY: every place is the whole of a slice that is borrowed until we return, and the
        // slices to be written are borrowed exclusively, so none overlaps another.
        let outcome = unsafe { engine.messages(&self.wired) };
        shared.count(&engine, outcome.is_ok());
        outcome.map_err(|error| *error)
    }
}
