//! How a group is divided into new ones.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::communicator::{Communicator, derive_group};
use crate::inside;
use crate::purpose::Purpose;
use crate::{Error, Settings};

/// What a rank says of itself when a group is split: its colour, or -1, and its key.
const WISH_BYTES: usize = 16;

impl Communicator {
    /// Divide the group: ranks that give the same colour become a new communicator, ordered by key
    /// and then by rank. `None` takes part in the division but in no new group.
    ///
    /// All groups of a world have one fate: an error that ends one of them, a lost rank or an abort
    /// ends the others as well, and the one that was divided. [`Communicator::shrink`] makes a
    /// group in a world of its own.
    ///
    /// Cost: one small all-gather, and joining. Collective: every member must call it.
    ///
    /// # Errors
    ///
    /// Those of a call, and [`Error::Join`] if this rank cannot join the new group, or hears that
    /// another could not, and why. Whoever had joined by then gets that from its first call that
    /// waits there. Other new groups, and this one, are as good as before.
    ///
    /// ```
    /// # use brigade_comm::*;
    /// # at_once(Communicator::local_world(2, &Settings::default()).unwrap(), |comm| {
    /// // Each rank for itself; all with one colour would be in one group.
    /// let alone = comm.split(Some(comm.rank() as u32), 0)?.expect("it gave a colour");
    /// assert_eq!((alone.rank(), alone.size()), (0, 1));
    /// # Ok::<(), Error>(()) }).unwrap().into_iter().for_each(Result::unwrap);
    /// ```
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Communicator>, Error> {
        self.split_with(color, key, self.settings().clone())
    }

    /// Like [`Communicator::split`], with other settings than this communicator's. Those about
    /// transports mean nothing here: they were opened when the world came together.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::split`].
    pub fn split_with(
        &self,
        color: Option<u32>,
        key: i32,
        settings: Settings,
    ) -> Result<Option<Communicator>, Error> {
        let shared = &**self.shared();
        // Before the divisions are counted, which all ranks do alike.
        inside::refuse(shared.number)?;
        let number = shared.splits.fetch_add(1, Ordering::Relaxed);
        let mut wish = [0; WISH_BYTES];
        wish[..8].copy_from_slice(&color.map_or(-1, i64::from).to_le_bytes());
        wish[8..].copy_from_slice(&i64::from(key).to_le_bytes());
        let wishes = shared.exchange(Purpose::Split, &wish)?;
        let Some(color) = color else { return Ok(None) };
        let members = mates(&wishes, i64::from(color)).map(|rank| shared.members[rank]).collect();
        let group = derive_group(shared.group, number, u64::from(color));
        let (world, settings) = (&shared.world, Arc::new(settings));
        Self::of_members(world, members, group, settings, "split: joining")
            .map(Some)
            .map_err(|error| world.without_us_in(group, error))
    }
}

/// Who wants this colour, in the order of the new group.
fn mates(wishes: &[u8], color: i64) -> impl Iterator<Item = usize> {
    let mut chosen: Vec<(i64, usize)> = Vec::new();
    for (rank, wish) in wishes.as_chunks::<WISH_BYTES>().0.iter().enumerate() {
        let [theirs, key] =
            [0, 8].map(|at| i64::from_le_bytes(wish[at..at + 8].try_into().expect("eight")));
        if theirs == color {
            chosen.push((key, rank));
        }
    }
    chosen.sort_by_key(|&(key, _)| key);
    chosen.into_iter().map(|(_, rank)| rank)
}
