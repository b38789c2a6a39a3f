//! Calls of one communicator that were listed first, to be carried out together: first its
//! collectives, in their order, and then its messages, all at once.

use brigade_comm::{Call, Communicator, Dtype, Error, Messages, Work};

use crate::memory::Memory;

/// What is to be done.
pub enum What {
    /// A collective.
    Collective {
        /// Which.
        call: Call,
        /// On what.
        memory: Memory,
    },
    /// A message to a rank.
    Send {
        /// The type of its elements.
        dtype: Dtype,
        /// The elements.
        memory: Memory,
        /// To whom.
        peer: usize,
    },
    /// A message from a rank.
    Recv {
        /// The type of its elements.
        dtype: Dtype,
        /// Where they go.
        memory: Memory,
        /// From whom.
        peer: usize,
    },
}

impl What {
    /// What it is on.
    pub fn memory(&self) -> &Memory {
        match self {
            What::Collective { memory, .. }
            | What::Send { memory, .. }
            | What::Recv { memory, .. } => memory,
        }
    }
}

/// The list.
#[derive(Default)]
pub struct Listed {
    collectives: Vec<(Call, Memory)>,
    messages: Vec<What>,
}

impl Listed {
    /// Add one.
    pub fn push(&mut self, what: What) {
        match what {
            What::Collective { call, memory } => self.collectives.push((call, memory)),
            message => self.messages.push(message),
        }
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.collectives.is_empty() && self.messages.is_empty()
    }

    /// Refuse what makes no sense by itself, before anything is carried out.
    ///
    /// # Safety
    ///
    /// The memory is what C must pass.
    pub unsafe fn check(&self, communicator: &Communicator) -> Result<(), Error> {
        self.collectives.iter().try_for_each(|(call, _)| communicator.check(call))?;
        self.refuse_overlaps()?;
        // SAFETY: the caller's promise.
        unsafe { self.messages(communicator) }.check()
    }

    /// Refuse messages that are received where another one is received or sent.
    fn refuse_overlaps(&self) -> Result<(), Error> {
        let range = |(at, what): (usize, &What)| {
            let [(start, bytes), _] = what.memory().ranges();
            (start, start + bytes as u64, matches!(what, What::Recv { .. }), at)
        };
        let ranges = self.messages.iter().enumerate().map(range);
        let mut ranges: Vec<_> = ranges.filter(|(start, end, ..)| start < end).collect();
        ranges.sort_unstable();
        // Which of those before end last, of what is sent and of what is received.
        let (mut sent, mut received) = ((0, 0), (0, 0));
        for (start, end, is_received, at) in ranges {
            // Only what is sent may be sent twice.
            let last = if is_received { received.max(sent) } else { received };
            if last.0 > start {
                let (one, two) = (last.1.min(at), last.1.max(at));
                let what = format!(
                    "messages {one} and {two} of the group overlap: what is received lies apart \
                     from all else that is received or sent"
                );
                return Err(Error::Invalid { what });
            }
            let mine = if is_received { &mut received } else { &mut sent };
            *mine = (*mine).max((end, at));
        }
        Ok(())
    }

    /// Carry all out on this thread.
    ///
    /// # Safety
    ///
    /// The memory is what C must pass.
    pub unsafe fn run(&self, communicator: &Communicator) -> Result<(), Error> {
        for (call, memory) in &self.collectives {
            // SAFETY: the caller's promise.
            communicator.run(call, unsafe { memory.buffers() })?;
        }
        // SAFETY: the caller's promise.
        unsafe { self.messages(communicator) }.run()
    }

    /// Start all; what was started is in `works`, also after an error.
    ///
    /// # Safety
    ///
    /// The memory is what C must pass, until the works have ended.
    pub unsafe fn start(
        &self,
        communicator: &Communicator,
        works: &mut Vec<Work<'static>>,
    ) -> Result<(), Error> {
        for (call, memory) in &self.collectives {
            // SAFETY: the caller's promise.
            works.push(unsafe { communicator.start(call.clone(), memory.buffers()) }?);
        }
        // SAFETY: the caller's promise.
        works.extend(unsafe { self.messages(communicator).start() }?);
        Ok(())
    }

    /// # Safety
    ///
    /// As for [`Listed::run`].
    unsafe fn messages<'a>(&self, communicator: &'a Communicator) -> Messages<'a> {
        let mut messages = communicator.messages();
        for what in &self.messages {
            messages = match what {
                What::Send { dtype, memory, peer } => {
                    // SAFETY: the caller's promise.
                    messages.send_bytes(*dtype, unsafe { memory.read() }, *peer)
                }
                What::Recv { dtype, memory, peer } => {
                    // SAFETY: the caller's promise.
                    messages.recv_bytes(*dtype, unsafe { memory.written() }, *peer)
                }
                What::Collective { .. } => messages,
            };
        }
        messages
    }
}
