//! Calls in flight that own their memory.
//!
//! Where the lifetimes of a [`Scope`](crate::Scope) do not fit, as when one buffer of many travels
//! while its neighbours are worked on, a buffer can be given to the call and comes back at its end.

use brigade_schedule::Collective;

use crate::call::{Buffers, Call};
use crate::communicator::Communicator;
use crate::dtype::Element;
use crate::work::Work;
use crate::{Error, Op, typed};

/// A call in flight and the memory it works on. Dropping it waits for the end of the call.
#[must_use = "the memory comes back from `wait`"]
pub struct Owned<T: Element> {
    work: Work<'static>,
    input: Vec<T>,
    output: Vec<T>,
}

impl<T: Element> Owned<T> {
    /// Whether the call has ended, well or not.
    pub fn is_done(&self) -> bool {
        self.work.is_done()
    }

    /// Wait for the end of the call and take back its input and its output; of a call in place the
    /// input is empty.
    ///
    /// # Errors
    ///
    /// Those of the call; the memory is freed then.
    pub fn wait(mut self) -> Result<(Vec<T>, Vec<T>), Error> {
        self.work.wait()?;
        Ok((std::mem::take(&mut self.input), std::mem::take(&mut self.output)))
    }
}

impl<T: Element> Drop for Owned<T> {
    fn drop(&mut self) {
        // Whoever drops it does not want to know how it ended, only its memory must not go before.
        let _ = self.work.wait();
    }
}

impl Communicator {
    /// Start a call that reads `input` and writes `output`, and keeps both until it ends.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] at once, and the memory is freed; everything else when it is waited for.
    pub fn start_owned<T: Element>(
        &self,
        call: Call,
        input: Vec<T>,
        mut output: Vec<T>,
    ) -> Result<Owned<T>, Error> {
        same_type::<T>(&call)?;
        let buffers = Buffers::OutOfPlace {
            input: typed::bytes(&input),
            output: typed::bytes_mut(&mut output),
        };
        // SAFETY: the memory lies on the heap and belongs to the result, which hands it out or
        // frees it only when the call has ended.
        let work = unsafe { self.start(call, buffers) }?;
        Ok(Owned { work, input, output })
    }

    /// Start a call in place on `data`, which it keeps until it ends.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::start_owned`].
    pub fn start_owned_in_place<T: Element>(
        &self,
        call: Call,
        mut data: Vec<T>,
    ) -> Result<Owned<T>, Error> {
        same_type::<T>(&call)?;
        // SAFETY: as in `start_owned`.
        let work = unsafe { self.start(call, Buffers::InPlace(typed::bytes_mut(&mut data))) }?;
        Ok(Owned { work, input: Vec::new(), output: data })
    }

    /// Start an all-reduce of `data`, which it keeps until it ends. See
    /// [`Communicator::all_reduce`].
    ///
    /// # Errors
    ///
    /// As for [`Communicator::start_owned`].
    pub fn all_reduce_owned<T: Element>(&self, data: Vec<T>, op: Op) -> Result<Owned<T>, Error> {
        let call = Call::new(Collective::AllReduce, T::DTYPE, op, data.len());
        self.start_owned_in_place(call, data)
    }

    /// Start a message to another rank, which keeps `data` until it ends. See
    /// [`Communicator::send`].
    ///
    /// # Errors
    ///
    /// As for [`Communicator::start_owned`].
    pub fn send_owned<T: Element>(&self, data: Vec<T>, to: usize) -> Result<Owned<T>, Error> {
        // SAFETY: as in `start_owned`.
        let work = unsafe { self.messages().send(&data, to).start() }?;
        Ok(Owned { work: work.expect("a message is work"), input: data, output: Vec::new() })
    }

    /// Start to receive a message from another rank into `data`, which it keeps until it ends. See
    /// [`Communicator::recv`].
    ///
    /// # Errors
    ///
    /// As for [`Communicator::start_owned`].
    pub fn recv_owned<T: Element>(&self, mut data: Vec<T>, from: usize) -> Result<Owned<T>, Error> {
        // SAFETY: as in `start_owned`.
        let work = unsafe { self.messages().recv(&mut data, from).start() }?;
        Ok(Owned { work: work.expect("a message is work"), input: Vec::new(), output: data })
    }
}

/// Refuse a call of another type than its memory has: a `bool` of 2 would be no bool.
fn same_type<T: Element>(call: &Call) -> Result<(), Error> {
    if call.dtype == T::DTYPE {
        return Ok(());
    }
    let (call_type, memory) = (call.dtype.name(), T::DTYPE.name());
    Err(Error::invalid(format!("{call}: the call is of {call_type}, its memory of {memory}")))
}
