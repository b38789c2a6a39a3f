//! Memory on every rank's device that this rank reaches: where it lies, of a rank in this process,
//! or opened, of one in another. And a proof that what others write there arrives.

use std::sync::{Arc, Mutex, PoisonError};

use brigade_cuda::{Context, CudaError, DeviceMemory, Opened, Stream};

use super::super::exchange::agree;
use super::card::Card;
use super::shown::{pattern, reach, shown};
use crate::Error;
use crate::communicator::Shared;

/// Bytes that ranks write into each other's memory before any kernel waits for some.
pub(in crate::device) const GREETING_BYTES: usize = 256;

/// By rank: where what it shows begins, as kernels and copies of this rank name it.
#[derive(Default)]
pub(in crate::device) struct Reached {
    pub(in crate::device) at: Vec<u64>,
    /// Of ranks in this process, whose memory stays until nobody here looks at it.
    kept: Vec<Arc<DeviceMemory>>,
    opened: Mutex<Vec<Opened>>,
}

impl Reached {
    /// What all these cards show.
    pub(in crate::device) fn of(
        context: &Context,
        rank: u32,
        cards: &[Card],
    ) -> Result<Self, CudaError> {
        let (mut reached, own) = (Self::default(), &cards[rank as usize]);
        for card in cards {
            let address = match card.process == own.process {
                true => reached.find(context, card)?,
                false => reached.open(context, card)?,
            };
            reached.at.push(address);
        }
        Ok(reached)
    }

    /// Of a rank in this process.
    fn find(&mut self, context: &Context, card: &Card) -> Result<u64, CudaError> {
        reach(context, card)?;
        let gone = || CudaError::Refused { why: "it has gone".into() };
        self.kept.push(shown(card.shows).ok_or_else(gone)?);
        Ok(card.shows)
    }

    /// Of a rank in another process.
    fn open(&mut self, context: &Context, card: &Card) -> Result<u64, CudaError> {
        // SAFETY: ranks keep what they show until we have said that we closed it.
        let opened = unsafe { Opened::open(context, &card.handle()) }?;
        let address = opened.address();
        self.opened.get_mut().unwrap_or_else(PoisonError::into_inner).push(opened);
        Ok(address)
    }

    /// Whether what others write arrives here, which says nothing of the others. A greeting of
    /// `from` goes so far behind where a rank's memory begins. Collective, also for a rank that
    /// does not reach all others.
    pub(in crate::device) fn is_proved(
        reached: Option<&Self>,
        shared: &Shared,
        stream: &Stream,
        place: impl Fn(u32) -> u64,
    ) -> Result<bool, Error> {
        let rank = shared.rank;
        let greeted = reached.is_some_and(|reached| reached.greet(stream, rank, &place).is_ok());
        // All have opened what they can, and written; nobody fails for himself before this.
        let all_greeted = agree(shared, greeted)?;
        // A kernel would wait long for what does not arrive.
        let hear = |reached: &Self| reached.hear(stream, rank, place).unwrap_or(false);
        Ok(all_greeted && reached.is_some_and(hear))
    }

    /// Put a pattern into everybody's memory, from device to device.
    fn greet(
        &self,
        stream: &Stream,
        rank: u32,
        place: impl Fn(u32) -> u64,
    ) -> Result<(), CudaError> {
        let greeting = pattern(rank, GREETING_BYTES);
        let [own, offset] = [self.at[rank as usize], place(rank)];
        // SAFETY: the places are as long, and nobody uses them before all have agreed; ours for
        // ourselves nobody ever does. We wait for the copies.
        unsafe {
            stream.copy(own + offset, greeting.as_ptr() as u64, GREETING_BYTES)?;
            for theirs in self.at.iter().filter(|theirs| **theirs != own) {
                stream.copy(theirs + offset, own + offset, GREETING_BYTES)?;
            }
        }
        stream.synchronize()
    }

    /// Whether the patterns of all others are here.
    fn hear(
        &self,
        stream: &Stream,
        rank: u32,
        place: impl Fn(u32) -> u64,
    ) -> Result<bool, CudaError> {
        let own = self.at[rank as usize];
        let mut heard = vec![[0; GREETING_BYTES]; self.at.len()];
        for (peer, bytes) in (0..).zip(&mut heard) {
            let target = bytes.as_mut_ptr() as u64;
            // SAFETY: the buffer is as long, and outlives the wait below.
            unsafe { stream.copy(target, own + place(peer), GREETING_BYTES) }?;
        }
        stream.synchronize()?;
        Ok((0..).zip(heard).all(|(peer, bytes)| pattern(peer, GREETING_BYTES) == bytes))
    }

    /// Close what was opened of other processes, which nothing of ours uses any more.
    pub(in crate::device) fn let_go(&self) {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Keep it open for good: something of ours does not end.
    pub(super) fn hold_on(&self) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(std::mem::take(&mut *opened));
    }
}
