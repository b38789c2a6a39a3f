//! Windows: memory on every rank's device that all others reach, for copies and kernels of a
//! program's own.

use std::sync::Arc;

use brigade_cuda::{Context, CudaError, DeviceMemory, Stream};

use super::exchange::{agree, exchange};
use super::setup::card::{CARD_BYTES, Card};
use super::setup::reached::{GREETING_BYTES, Reached};
use super::setup::shown::show;
use super::share::DeviceShare;
use crate::Error;
use crate::communicator::{Communicator, Shared};

/// A window has no allocation of others' beside it: two of one such piece may be refused to who
/// opens both.
const PIECE_BYTES: usize = 2 << 20;

/// Memory on the device of every rank, which this rank's copies and kernels reach where it lies:
/// over NVLink or PCIe, or on the device that ranks share. It is not cleared. Who writes when, and
/// how others hear of it, is the program's affair.
///
/// Windows end by [`DeviceWindow::close`] on all ranks. One that is dropped keeps its memory until
/// the process ends, where other processes have it open.
pub struct DeviceWindow {
    shared: Arc<Shared>,
    reached: Reached,
    own: Arc<DeviceMemory>,
    /// Whether another process has it open.
    is_lent: bool,
}

impl Communicator {
    /// A window: `bytes` of this rank's device, which may be another number on each rank. None, on
    /// all ranks alike, where some rank does not reach another's, as on other machines, or has no
    /// memory left. Collective; some small exchanges, and each rank opens every other one's.
    ///
    /// # Errors
    ///
    /// Those of a call.
    pub fn device_window(
        &self,
        context: &Context,
        bytes: usize,
    ) -> Result<Option<DeviceWindow>, Error> {
        let (shared, rank) = (self.shared(), self.rank());
        // Allocating waits for the device, on which calls may wait for another rank.
        agree(shared, true)?;
        let made = make(context, DeviceWindow::allocated(bytes, self.size()));
        let card = made.as_ref().map_or(Card::NONE, |(own, _)| {
            let share = DeviceShare::default();
            Card::of(context, share, own.address(), &shared.settings)
        });
        // From here on others may have it open, whatever becomes of this rank.
        let made = made.map(|(own, stream)| {
            let (shared, reached) = (Arc::clone(shared), Reached::default());
            (DeviceWindow { shared, reached, own, is_lent: true }, stream)
        });
        let cards = exchange(shared, &card.to_bytes())?;
        let cards: Vec<Card> = cards.chunks_exact(CARD_BYTES).map(Card::from_bytes).collect();
        // From their cards all ranks find alike whether they open anything.
        let is_there = |card: &Card| card.room > 0 && card.host == cards[0].host;
        let Ok((mut window, stream)) = made else { return Ok(None) };
        let is_opened = cards.iter().all(is_there);
        window.is_lent = is_opened && cards.iter().any(|card| card.process != cards[rank].process);
        if !is_opened {
            return Ok(None);
        }
        let reached = Reached::of(context, rank as u32, &cards).ok();
        let place = |from: u32| u64::from(from) * GREETING_BYTES as u64;
        let is_good = Reached::is_proved(reached.as_ref(), shared, &stream, place)?;
        window.reached = reached.unwrap_or_default();
        if agree(shared, is_good)? {
            return Ok(Some(window));
        }
        window.close().map(|()| None)
    }
}

fn make(context: &Context, bytes: usize) -> Result<(Arc<DeviceMemory>, Stream), CudaError> {
    let own = Arc::new(DeviceMemory::new(context, bytes)?);
    show(&own);
    Ok((own, Stream::new(context)?))
}

impl DeviceWindow {
    /// Bytes of the device that a window of so many takes on each of so many ranks.
    pub const fn allocated(bytes: usize, ranks: usize) -> usize {
        let least = GREETING_BYTES * ranks;
        let room = if bytes > least { bytes } else { least };
        room.next_multiple_of(PIECE_BYTES)
    }

    /// Where this rank's part of it begins.
    pub fn address(&self) -> u64 {
        self.own.address()
    }

    /// Where that of `rank` begins, as this rank's copies and kernels name it.
    ///
    /// # Panics
    ///
    /// If there is no such rank.
    pub fn address_of(&self, rank: usize) -> u64 {
        self.reached.at[rank]
    }

    /// The end of it, when all that this rank has given its device for the others' memory is done:
    /// close that, and free its own once all have done likewise. Collective. Freeing may wait for
    /// the device.
    ///
    /// # Errors
    ///
    /// Those of a call: then the memory is kept until the process ends.
    pub fn close(mut self) -> Result<(), Error> {
        self.reached.let_go();
        agree(&self.shared, true)?;
        self.is_lent = false;
        Ok(())
    }
}

impl Drop for DeviceWindow {
    fn drop(&mut self) {
        if self.is_lent {
            std::mem::forget(Arc::clone(&self.own));
        }
    }
}
