//! How newcomers join a group that is there already: a process in the place of one that was lost,
//! or more of them.
//!
//! Peers prove to each other that they know their world's secret, and newcomers know a new id's
//! only. So all come together in a new world, by that id, with ports of their own; what the old
//! group is for here is that its ranks learn the id from one another, and agree.

use std::sync::Arc;

use brigade_transports::Transport;

use crate::bootstrap::{ID_BYTES, UniqueId};
use crate::communicator::Communicator;
use crate::join::transports_for;
use crate::launch::{Launch, RootSpec};
use crate::purpose::Purpose;
use crate::wait::{PASSED_ON_WAIT, error_of};
use crate::{Error, Settings};

/// What ranks of the old group do when they join the new one.
const JOINING: &str = "grow: joining";
/// What each rank tells the others: how many there shall be, and the id, or zeros.
const TOLD_BYTES: usize = 8 + ID_BYTES;

impl Communicator {
    /// A communicator of this group's ranks, which keep their numbers, and of newcomers behind
    /// them: `ranks` in all, in a world of their own. Every rank of this group calls it; those that
    /// know the new `id` give it, which may be one of them. The newcomers, or whoever takes a free
    /// number, call [`Communicator::from_id`] with the same id and number of ranks. An id leads to
    /// one world, whose root must live as long as that: see [`UniqueId::create`]. This communicator
    /// stays as it is.
    ///
    /// Cost: an all-gather of 136 bytes a rank, and joining.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] on all ranks, with the rank that is wrong, if nobody knows an id, two
    /// know different ones, or `ranks` differ or are fewer than there are; [`Error::Join`] if not
    /// all come together in time, naming those that are missing; [`Error::PeerLost`] if a rank of
    /// this group is lost meanwhile; those of an all-gather. After a loss,
    /// [`Communicator::shrink`] first.
    pub fn grow(&self, ranks: usize, id: Option<&UniqueId>) -> Result<Communicator, Error> {
        self.grow_with(ranks, id, self.settings().clone())
    }

    /// Like [`Communicator::grow`], with other settings than this communicator's; all count.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::grow`].
    pub fn grow_with(
        &self,
        ranks: usize,
        id: Option<&UniqueId>,
        settings: Settings,
    ) -> Result<Communicator, Error> {
        let id = self.agreed_id(ranks, id)?;
        self.grow_to(&id, ranks, settings)
    }

    /// Like [`Communicator::grow_with`], over transports of the caller's own making, best first:
    /// for groups that joined by [`Communicator::join_over`].
    ///
    /// # Errors
    ///
    /// As for [`Communicator::grow`].
    pub fn grow_over(
        &self,
        ranks: usize,
        id: Option<&UniqueId>,
        settings: Settings,
        transports: &[Arc<dyn Transport>],
    ) -> Result<Communicator, Error> {
        let id = self.agreed_id(ranks, id)?;
        self.join_newcomers(&id, ranks, settings, |_, _| Ok(transports.to_vec()))
    }

    /// What [`Communicator::grow`] does first: every rank has the id that one of them was given,
    /// and all want as many ranks. Then each calls [`Communicator::grow_to`]. Where no rank was
    /// given any, all have none. The number and the bytes may be anybody's: what is wrong with them
    /// all ranks hear.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::grow`], but those of joining.
    pub fn agree_to_grow(
        &self,
        ranks: i64,
        id: Option<[u8; ID_BYTES]>,
    ) -> Result<Option<UniqueId>, Error> {
        let mut mine = [0; TOLD_BYTES];
        mine[..8].copy_from_slice(&ranks.to_le_bytes());
        mine[8..].copy_from_slice(&id.unwrap_or([0; ID_BYTES]));
        let all = self.shared().exchange(Purpose::Grow, &mine)?;
        agreed(all.as_chunks::<TOLD_BYTES>().0, &self.shared().members).map_err(Error::invalid)
    }

    /// What [`Communicator::grow`] does then: join the world of the `id` that all agreed on, where
    /// this rank keeps its number. A member of this group that is lost meanwhile is not waited for.
    ///
    /// # Errors
    ///
    /// [`Error::PeerLost`] for such a member; those of [`Communicator::from_id`].
    pub fn grow_to(
        &self,
        id: &UniqueId,
        ranks: usize,
        settings: Settings,
    ) -> Result<Communicator, Error> {
        self.join_newcomers(id, ranks, settings, transports_for)
    }

    fn join_newcomers(
        &self,
        id: &UniqueId,
        ranks: usize,
        settings: Settings,
        open: impl FnOnce(&Launch, &Settings) -> Result<Vec<Arc<dyn Transport>>, Error>,
    ) -> Result<Communicator, Error> {
        let root = if ranks == 1 { RootSpec::Alone } else { RootSpec::Id(id.clone()) };
        let launch = Launch { rank: self.rank(), ranks, local_rank: None, root };
        let transports = open(&launch, &settings)?;
        let shared = self.shared();
        let meeting = Arc::new(shared.world.control.meeting(&shared.members));
        let joined =
            Communicator::join_while(launch, settings, &transports, Some(Arc::clone(&meeting)));
        // Who is lost may be noticed here by how the new world fails, a moment before it is told.
        joined.map_err(|error| match meeting.await_verdict(PASSED_ON_WAIT) {
            Some(verdict) => error_of(verdict, JOINING),
            None => error,
        })
    }

    fn agreed_id(&self, ranks: usize, id: Option<&UniqueId>) -> Result<UniqueId, Error> {
        let ranks = i64::try_from(ranks).unwrap_or(i64::MAX);
        let nobody_knows =
            || Error::invalid("grow: no rank was given a unique id for the new world");
        self.agree_to_grow(ranks, id.map(UniqueId::to_bytes))?.ok_or_else(nobody_knows)
    }
}

/// The id that all go by, if there is one, or what is wrong with what ranks were given: the same
/// for each of them. `members`: the world's rank of each.
fn agreed(all: &[[u8; TOLD_BYTES]], members: &[u32]) -> Result<Option<UniqueId>, String> {
    let size = all.len() as i64;
    let wanted = |told: &[u8; TOLD_BYTES]| {
        let (ranks, _) = told.split_first_chunk().expect("a number is in front");
        i64::from_le_bytes(*ranks)
    };
    for (rank, ranks) in members.iter().zip(all.iter().map(wanted)) {
        let (first_rank, first) = (members[0], wanted(&all[0]));
        if ranks != first {
            return Err(format!(
                "grow: rank {first_rank} asks for {first} ranks, but rank {rank} for {ranks}"
            ));
        }
        if ranks < size {
            return Err(format!(
                "grow: {ranks} ranks, but there are {size}: shrink takes some away"
            ));
        }
    }
    let known = members.iter().zip(all).filter(|(_, told)| told[8..].iter().any(|byte| *byte != 0));
    let mut known = known.map(|(rank, told)| (rank, &told[8..]));
    let Some((first, id)) = known.next() else { return Ok(None) };
    if let Some((other, _)) = known.find(|(_, other)| *other != id) {
        return Err(format!("grow: rank {first} and rank {other} were given different unique ids"));
    }
    let id = id.try_into().expect("an id is behind the number");
    let wrong = |error| format!("grow: what rank {first} was given: {error}");
    UniqueId::from_bytes(id).map(Some).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBERS: &[u32] = &[2, 3];

    fn told(ranks: i64, id: Option<&UniqueId>) -> [u8; TOLD_BYTES] {
        let mut told = [0; TOLD_BYTES];
        told[..8].copy_from_slice(&ranks.to_le_bytes());
        if let Some(id) = id {
            told[8..].copy_from_slice(&id.to_bytes());
        }
        told
    }

    #[test]
    fn ranks_agree_on_one_id_or_hear_who_is_wrong() {
        let here = Some(std::net::Ipv4Addr::LOCALHOST.into());
        let ((id, _root), (other, _)) =
            (UniqueId::create(here).unwrap(), UniqueId::create(here).unwrap());
        let (id, other) = (Some(&id), Some(&other));
        for all in [[told(3, None), told(3, id)], [told(2, id), told(2, id)]] {
            assert_eq!(agreed(&all, MEMBERS).unwrap().as_ref(), id);
        }
        assert_eq!(agreed(&[told(3, None), told(3, None)], MEMBERS), Ok(None));
        for (all, what) in [
            ([told(3, id), told(3, other)], "rank 2 and rank 3 were given different"),
            ([told(3, id), told(4, None)], "rank 2 asks for 3 ranks, but rank 3 for 4"),
            ([told(1, id), told(1, None)], "1 ranks, but there are 2"),
            ([told(-1, id), told(-1, None)], "-1 ranks, but there are 2"),
            ([told(3, id), told(-7, None)], "rank 2 asks for 3 ranks, but rank 3 for -7"),
        ] {
            let problem = agreed(&all, MEMBERS).unwrap_err();
            assert!(problem.starts_with("grow: ") && problem.contains(what), "{problem}");
        }
        let mut broken = told(2, id);
        broken[9] = b'x';
        let problem = agreed(&[told(2, None), broken], MEMBERS).unwrap_err();
        assert!(problem.contains("what rank 3 was given: "), "{problem}");
    }
}
