//! A plan is a program linked to a call: offsets instead of chunks, wires instead of ranks.
//!
//! A plan has no addresses, so it outlives the buffers of any one call; and nothing is looked up
//! while it runs. Its steps are sorted by *pump*: one pump for each wire that the program uses and
//! one for moves within the rank. The steps of a pump happen in order; steps of different pumps
//! happen at the same time, held back only by the dependencies that the linker found.

mod assemble;
mod fuse;
mod link;
mod places;
mod seen;

pub(crate) use assemble::link_messages;
pub(crate) use fuse::{Phase, link_update};
pub(crate) use link::link;
pub(crate) use places::{Places, Seat};

use std::hash::{Hash, Hasher};

use crate::Dtype;
use crate::header::Header;

/// Where a place counts from: one of a call's three memories, or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// The caller's input.
    Input,
    /// The caller's output.
    Output,
    /// Memory of the communicator, kept between calls.
    Scratch,
    /// The caller's memory by its address, whose provenance was exposed: messages.
    Absolute,
}

/// A place in memory: byte `at` of `space`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) space: Space,
    pub(crate) at: u64,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Send `source`.
    Send,
    /// Receive into `target`.
    Recv,
    /// `target = source ⊕ arriving`.
    Fold,
    /// `target = other ⊕ source`, within the rank.
    Merge {
        /// The left operand, which is not overwritten.
        other: Place,
    },
    /// `target = source`, within the rank.
    Copy,
    /// The caller's function makes weights at `target` of gradients at `source`, within the rank.
    Update {
        /// How many elements of the shard come before these.
        first: u64,
        /// How many these are.
        elems: u64,
    },
}

/// One step: a stretch of memory that is contiguous wherever it is touched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    pub(crate) source: Place,
    pub(crate) target: Place,
    pub(crate) bytes: u64,
    /// Whether its target is written past the caches: nothing else in the call touches it, and the
    /// output is longer than what they hold.
    pub(crate) is_past_caches: bool,
    /// The dependencies of the step, as a range of [`Plan::needs`].
    pub(crate) needs: (u32, u32),
    /// Which move of the program this comes from, for error sentences.
    pub(crate) number: u32,
    /// The first chunk of that move, likewise.
    pub(crate) chunk: u32,
}

/// What a step must wait for: byte `from + k` of another step before its own byte `at + k`, for
/// every `k`. Once the other step is complete nothing more is needed of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) step: u32,
    pub(crate) from: u64,
    pub(crate) at: u64,
}

/// What a pump pumps through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Channel {
    /// The wire to a member.
    To(u32),
    /// The wire from a member.
    From(u32),
    /// The rank itself.
    Within,
}

/// The steps of one channel: `first..last` of [`Plan::steps`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pump {
    pub(crate) channel: Channel,
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// Payload of the whole call on this channel.
    pub(crate) bytes: u64,
}

/// One message between this rank and a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) channel: Channel,
    pub(crate) dtype: Dtype,
    pub(crate) place: Place,
    pub(crate) bytes: u64,
}

impl Message {
    pub(crate) fn is_receive(&self) -> bool {
        matches!(self.channel, Channel::From(_))
    }

    /// In words; `members`: the world's rank of each member of the group.
    pub(crate) fn words(&self, members: &[u32]) -> String {
        let what = match self.channel {
            Channel::To(peer) => format!("send to {}", members[peer as usize]),
            Channel::From(peer) => format!("receive from {}", members[peer as usize]),
            Channel::Within => "message to oneself".to_owned(),
        };
        format!("{what} of {}", self.dtype.name())
    }
}

impl Hash for Message {
    /// But for its place: one plan serves messages of the same shape wherever they lie.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.channel, self.dtype, self.bytes).hash(state);
    }
}

/// A linked program.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) steps: Box<[Step]>,
    pub(crate) needs: Box<[Need]>,
    pub(crate) pumps: Box<[Pump]>,
    /// What every wire of a collective starts with, and every message between two ranks, but for
    /// the call's number, the type of a message, and the payload bytes.
    pub(crate) header: Header,
    /// The types of messages between two ranks, by step: each step then has a header of its own, so
    /// that a peer may group its messages in another way. Empty for a collective, which has one
    /// header for each wire.
    pub(crate) message_types: Box<[Dtype]>,
    /// Bytes of an element.
    pub(crate) elem_bytes: usize,
    pub(crate) scratch_bytes: u64,
    /// Payload that this rank sends.
    pub(crate) sent_bytes: u64,
    /// Moves in the program, for error sentences.
    pub(crate) moves: u32,
}

impl Plan {
    /// The memory that is kept for it elsewhere.
    pub(crate) fn heap_bytes(&self) -> usize {
        let Self { steps, needs, pumps, message_types, .. } = self;
        let lists = size_of_val(&**steps) + size_of_val(&**needs) + size_of_val(&**pumps);
        lists + size_of_val(&**message_types)
    }

    /// `header` as it stands in front of `step`.
    pub(crate) fn heading(&self, header: &Header, pump: &Pump, step: u32) -> Header {
        match self.message_types.get(step as usize) {
            Some(dtype) => header.of_type(*dtype).for_wire(self.steps[step as usize].bytes),
            None => header.for_wire(pump.bytes),
        }
    }
}
