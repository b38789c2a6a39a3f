//! Messages between two ranks on memory of devices.

use brigade_cuda::Stream;

use super::kernels::launch;
use super::layout::{Letter, Messages, Parcel, Parcels, RANKS, SLOT_BYTES};
use super::way::Way;
use super::{Inner, State};
use crate::messages::unlike;
use crate::plan::{Channel, Message, Place, Space};
use crate::{Dtype, Error};

/// A block more for so many bytes.
const BLOCK_BYTES: usize = 32 << 10;
/// What errors call it.
const A_MESSAGE: &str = "a message on a device";

/// One message: elements in memory of a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMessage {
    peer: usize,
    sends: bool,
    address: u64,
    bytes: usize,
    dtype: Dtype,
}

impl DeviceMessage {
    /// `count` elements at `address` for rank `to`.
    pub fn send(dtype: Dtype, address: u64, count: usize, to: usize) -> Self {
        Self { peer: to, sends: true, address, bytes: count * dtype.size(), dtype }
    }

    /// `count` elements from rank `from`, to be written at `address`.
    pub fn recv(dtype: Dtype, address: u64, count: usize, from: usize) -> Self {
        Self { peer: from, sends: false, address, bytes: count * dtype.size(), dtype }
    }

    fn is_kin_of(&self, other: &Self) -> bool {
        self.peer == other.peer && self.sends == other.sends
    }
}

impl Inner {
    /// See [`super::DeviceGroup::messages`].
    ///
    /// # Safety
    ///
    /// As there.
    pub(super) unsafe fn messages(
        &self,
        messages: &[DeviceMessage],
        stream: &Stream,
    ) -> Result<(), Error> {
        self.watched.check()?;
        self.refuse_capture(&"a message", false, stream)?;
        let mut state = self.state();
        state.refuse_closed()?;
        self.check_messages(&mut state, messages)?;
        state.used(stream);
        // SAFETY: the caller's promise.
        let given = unsafe { self.give_messages(&mut state, messages, stream) };
        // Even if only a part was given.
        self.mark_last(&mut state, stream);
        given
    }

    /// Give the stream messages that make sense.
    ///
    /// # Safety
    ///
    /// As for [`super::DeviceGroup::messages`].
    unsafe fn give_messages(
        &self,
        state: &mut State,
        messages: &[DeviceMessage],
        stream: &Stream,
    ) -> Result<(), Error> {
        let own = self.group.rank as usize;
        let failed = |error| self.give_up(&A_MESSAGE, &error, stream);
        let to_self =
            |sends| messages.iter().filter(move |one| one.peer == own && one.sends == sends);
        for (from, to) in to_self(true).zip(to_self(false)) {
            // SAFETY: the caller vouches for both, which are equally long.
            unsafe { stream.copy(to.address, from.address, from.bytes) }.map_err(failed)?;
        }
        let wired: Vec<&DeviceMessage> = messages.iter().filter(|one| one.peer != own).collect();
        if wired.is_empty() {
            return Ok(());
        }
        if !self.way.is_enqueued() {
            // SAFETY: the caller's promise.
            return unsafe { self.stage_messages(&wired, stream) };
        }
        // Between the same two ranks messages keep their order: one each at a time.
        let turn = |at: usize| wired[..at].iter().filter(|one| one.is_kin_of(wired[at])).count();
        let turns: Vec<usize> = (0..wired.len()).map(turn).collect();
        for round in 0..=turns.iter().copied().max().unwrap_or(0) {
            let these = wired.iter().zip(&turns).filter(|(_, turn)| **turn == round);
            let letters: Vec<&DeviceMessage> = these.map(|(message, _)| *message).collect();
            state.posted = state.posted.wrapping_add(1);
            if self.way == Way::Linked {
                // SAFETY: the caller's promise.
                unsafe { self.post_parcels(state, &letters, stream)? };
            } else {
                // SAFETY: likewise.
                unsafe { self.post(state, &letters, stream)? };
            }
        }
        Ok(())
    }

    fn check_messages(&self, state: &mut State, messages: &[DeviceMessage]) -> Result<(), Error> {
        let (own, ranks) = (self.group.rank as usize, self.group.ranks as usize);
        for message in messages {
            if message.peer >= ranks {
                let peer = message.peer;
                return Err(Error::invalid(format!("message: rank {peer} of {ranks} ranks")));
            }
            if message.bytes > 0 {
                let (address, bytes) = (message.address, message.bytes);
                let refused = |readers: &_| self.refuse_unread("message", address, readers);
                state.ranges.of(&self.context, "message", (address, bytes), refused)?;
            }
        }
        let lengths = |sends| {
            let own = messages.iter().filter(move |one| one.peer == own && one.sends == sends);
            own.map(|one| (one.dtype, one.bytes))
        };
        if !lengths(true).eq(lengths(false)) {
            return Err(unlike("list", lengths(true), lengths(false)));
        }
        Ok(())
    }

    /// The signature of a message of this type, which errors can name from now on.
    fn learn_message(&self, dtype: Dtype) -> u32 {
        let signature = u32::from(dtype.code()) | 0x4d00;
        self.watched.learn(signature, format!("a message of {dtype}"));
        signature
    }

    /// Enqueue messages of which no two are alike, through slots.
    ///
    /// # Safety
    ///
    /// As for [`super::DeviceGroup::messages`].
    unsafe fn post_parcels(
        &self,
        state: &mut State,
        messages: &[&DeviceMessage],
        stream: &Stream,
    ) -> Result<(), Error> {
        let lanes = self.inboxes.lanes;
        let (mut parcel, mut blocks) = ([Parcel::default(); 2 * RANKS], 1);
        for (parcel, message) in parcel.iter_mut().zip(messages) {
            let bytes = message.bytes;
            let lanes = bytes.div_ceil(SLOT_BYTES).clamp(1, lanes as usize) as u32;
            blocks = blocks.max(lanes);
            let signature = self.learn_message(message.dtype);
            *parcel = Parcel {
                sends: u32::from(message.sends),
                peer: message.peer as u32,
                at: message.address,
                bytes: bytes as u64,
                signature,
                lanes,
            };
        }
        let (group, inbox, count) = (self.group, self.inboxes.at, messages.len() as u32);
        let argument = Parcels { group, inbox, lanes, count, call: state.posted, spare: 0, parcel };
        let loaded = state.kernels.moving();
        let kernels = loaded.messages.as_ref().expect("beside the kernels that fold nothing");
        // SAFETY: the argument is the kernel's; the caller vouches for the memory.
        unsafe { launch(&kernels.parcels, stream, (blocks, loaded.threads), &argument) }
            .map_err(|error| self.give_up(&A_MESSAGE, &error, stream))
    }

    /// Enqueue messages of which no two are alike, by address.
    ///
    /// # Safety
    ///
    /// As for [`super::DeviceGroup::messages`].
    unsafe fn post(
        &self,
        state: &mut State,
        messages: &[&DeviceMessage],
        stream: &Stream,
    ) -> Result<(), Error> {
        let loaded = state.kernels.moving();
        let kernels = loaded.messages.as_ref().expect("beside the kernels that fold nothing");
        let mut letter = [Letter::default(); 2 * RANKS];
        for (letter, message) in letter.iter_mut().zip(messages) {
            let signature = self.learn_message(message.dtype);
            *letter = Letter {
                sends: u32::from(message.sends),
                peer: message.peer as u32,
                at: message.address,
                bytes: message.bytes as u64,
                signature,
                spare: 0,
            };
        }
        let received = messages.iter().filter(|message| !message.sends);
        let longest = received.map(|message| message.bytes).max().unwrap_or(0);
        let blocks = longest.div_ceil(BLOCK_BYTES).clamp(1, self.blocks as usize) as u32;
        let (group, count) = (self.group, messages.len() as u32);
        let argument = Messages { group, count, call: state.posted, letter };
        // SAFETY: the argument is the kernel's; the caller vouches for the memory.
        unsafe { launch(&kernels.letters, stream, (blocks, loaded.threads), &argument) }
            .map_err(|error| self.give_up(&A_MESSAGE, &error, stream))
    }

    /// Carry messages out through the host.
    ///
    /// # Safety
    ///
    /// As for [`super::DeviceGroup::messages`].
    unsafe fn stage_messages(
        &self,
        messages: &[&DeviceMessage],
        stream: &Stream,
    ) -> Result<(), Error> {
        let failed = |error| self.give_up(&A_MESSAGE, &error, stream);
        // Copies of memory that is not pinned hold up others who use the device while they wait.
        self.settle(stream)?;
        let mut buffers: Vec<Vec<u8>> = messages.iter().map(|one| vec![0; one.bytes]).collect();
        for (message, buffer) in messages.iter().zip(&mut buffers).filter(|(one, _)| one.sends) {
            let target = buffer.as_mut_ptr() as u64;
            // SAFETY: the caller vouches for the message; the buffer is as long, and waited for.
            unsafe { stream.copy(target, message.address, message.bytes) }.map_err(failed)?;
        }
        self.settle(stream)?;
        let wired = messages.iter().zip(&mut buffers).map(|(message, buffer)| {
            let at = buffer.as_mut_ptr().expose_provenance() as u64;
            let peer = message.peer as u32;
            Message {
                channel: if message.sends { Channel::To(peer) } else { Channel::From(peer) },
                dtype: message.dtype,
                place: Place { space: Space::Absolute, at },
                bytes: message.bytes as u64,
            }
        });
        let wired: Vec<Message> = wired.collect();
        let shared = &self.watched.shared;
        shared.drain()?;
        let mut engine = shared.lock()?;
        // SAFETY: every place is the whole of a buffer of its own, which outlives the call.
        let outcome = unsafe { engine.messages(&wired) };
        shared.count(&engine, outcome.is_ok());
        drop(engine);
        outcome.map_err(|error| *error)?;
        for (message, buffer) in messages.iter().zip(&buffers).filter(|(one, _)| !one.sends) {
            let source = buffer.as_ptr() as u64;
            // SAFETY: likewise.
            unsafe { stream.copy(message.address, source, message.bytes) }.map_err(failed)?;
        }
        self.settle(stream)
    }
}
