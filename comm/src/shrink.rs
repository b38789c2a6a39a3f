//! How the survivors of a world that has ended go on without those who were lost.
//!
//! A verdict stands for ever, so the survivors make a world of their own, with a root and a control
//! star of their own. They meet over the wires that they still have: first in a group on which the
//! old world's verdict has no hold, in which the first survivor tells the others where its new root
//! is; then there. Who of them is lost meanwhile, or gives up, they hear from the old world's root,
//! if that is there; who was lost before without a word, each finds out that calls all others.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use brigade_schedule::Algorithm;

use crate::bootstrap::{ID_BYTES, Joined, Patience, Root, UniqueId, rendezvous_with};
use crate::communicator::{Communicator, derive_group};
use crate::control::Verdict;
use crate::launch::{Launch, RootSpec};
use crate::purpose::Purpose;
use crate::wait::{PASSED_ON_WAIT, error_of};
use crate::world::World;
use crate::{Error, Settings};

/// What survivors do when they join a group.
const JOINING: &str = "shrink: joining";
/// So many survivors may have a wire to each other, which is two files each.
const ALL_JOINED_MAX: usize = 256;

impl Communicator {
    /// A communicator of this group's ranks but those in `excluded`, in a world of their own: what
    /// becomes of the excluded ranks, or has become of them, does not concern it. All ranks that
    /// are not excluded call this with the same list, whatever has happened to this communicator;
    /// the excluded ones, dead or alive, do not. Ranks keep their order.
    ///
    /// Cost: joining, twice, an all-gather of 128 bytes, and one of a byte.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a list that makes no sense, or that leaves out a rank that is known
    /// to be gone; [`Error::Join`] and those of a call if the others cannot come together in time,
    /// for instance because one more is lost. Who comes when another has given up hears that at
    /// once: all who try again meet, however often each of them has tried.
    pub fn shrink(&self, excluded: &[usize]) -> Result<Communicator, Error> {
        self.shrink_with(excluded, self.settings().clone())
    }

    /// Like [`Communicator::shrink`], with other settings than this communicator's. Those about
    /// transports mean nothing here: they were opened when the world came together, and who
    /// encrypts goes on to do so.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::shrink`].
    pub fn shrink_with(
        &self,
        excluded: &[usize],
        settings: Settings,
    ) -> Result<Communicator, Error> {
        let left = self.left_without(excluded)?;
        if settings.encrypt && !self.settings().encrypt {
            return Err(Error::invalid(
                "shrink: BRIGADE_ENCRYPT is asked for, and the wires that are there do not encrypt",
            ));
        }
        let settings = Settings { encrypt: self.settings().encrypt, ..settings };
        let shared = self.shared();
        let deadline = Instant::now() + settings.join_patience();
        let members: Arc<[u32]> = left.iter().map(|&rank| shared.members[rank]).collect();
        let digest =
            members.iter().fold(1, |digest, &rank| derive_group(digest, u64::from(rank), 0));
        // The end may have found some in a call that others had not begun, so that nothing but the
        // tries of this very list can be counted alike by all.
        let number = {
            let mut shrinks = shared.shrinks.lock().unwrap_or_else(PoisonError::into_inner);
            let tries = shrinks.entry(digest).or_insert(0);
            *tries += 1;
            *tries - 1
        };
        // Colours of divisions have 32 bits, so these groups are other ones.
        let group = derive_group(shared.group, number, digest | 1 << 63);

        let world = Arc::new(shared.world.meeting(&members));
        let joined = Self::meet(&world, members, group, &settings, deadline);
        let joined = joined.map_err(|error| {
            let excluded: Vec<u32> = excluded.iter().map(|&rank| shared.members[rank]).collect();
            suspecting(error, &excluded, shared.world.rank)
        })?;
        let everybody: Arc<[u32]> = (0..joined.cards.len() as u32).collect();
        let rank = left.iter().position(|&rank| rank == self.rank()).expect("we are left");
        let world = Arc::new(shared.world.anew(rank as u32, &joined.cards, joined.control));
        let anew = derive_group(group, number, digest);
        Self::of_members(&world, everybody, anew, Arc::new(settings), JOINING)
            .map_err(|error| world.without_us(error))
    }

    /// The ranks that are left, if the list makes sense.
    fn left_without(&self, excluded: &[usize]) -> Result<Vec<usize>, Error> {
        let (me, size) = (self.rank(), self.size());
        if let Some(wrong) = excluded.iter().find(|rank| **rank >= size) {
            return Err(Error::invalid(format!("shrink: rank {wrong} of {size} ranks")));
        }
        if excluded.contains(&me) {
            let what = format!("shrink: rank {me} excludes itself; the others go on without it");
            return Err(Error::invalid(what));
        }
        let left: Vec<usize> = (0..size).filter(|rank| !excluded.contains(rank)).collect();
        for &rank in &left {
            if let Some(gone) = self.gone(rank)? {
                let how = match gone {
                    Error::PeerLost { how, .. } => format!("is lost ({how})"),
                    _ => "has left".to_owned(),
                };
                let next = "exclude it, on all ranks that go on";
                return Err(Error::invalid(format!("shrink: rank {rank} {how}: {next}")));
            }
        }
        Ok(left)
    }

    /// Meet over the wires that are there, and then at the new root.
    fn meet(
        world: &Arc<World>,
        members: Arc<[u32]>,
        group: u64,
        settings: &Settings,
        deadline: Instant,
    ) -> Result<Joined, Error> {
        // Who of them died unnoticed is noticed by each that calls it, and where no root is left by
        // nobody else.
        let each_other = (members.len() <= ALL_JOINED_MAX).then_some(Algorithm::Direct);
        let patience = Settings {
            timeout: settings.join_patience(),
            algorithm: each_other,
            ..settings.clone()
        };
        let meeting = Self::of_members(world, members, group, Arc::new(patience), JOINING)
            .map_err(|error| world.without_us_in(group, error))?;
        let control = &world.control;
        // Who is lost between two steps is lost in this call all the same.
        let judged = |error| match control.verdict() {
            Some(lost @ Verdict::Lost { .. }) => error_of(lost, JOINING),
            _ => error,
        };
        let (_root, spec) = meeting.share_root(settings).map_err(judged)?;
        let (rank, ranks) = (meeting.rank(), meeting.size());
        let launch = Launch { rank, ranks, local_rank: None, root: spec };
        let mut cards = |_: &[u8; 32]| Ok(world.own_cards());
        let patience =
            Patience { meeting: Some(Arc::clone(control)), ..settings.patience_until(deadline) };
        rendezvous_with(&launch, &mut cards, patience).map_err(|error| {
            match control.await_verdict(PASSED_ON_WAIT) {
                Some(verdict) => error_of(verdict, JOINING),
                None => Error::join(format!("shrink: {error}")),
            }
        })
    }

    /// The first rank opens a root, which is there until all have met; all learn where it is.
    fn share_root(&self, settings: &Settings) -> Result<(Option<Arc<Root>>, RootSpec), Error> {
        if self.size() == 1 {
            return Ok((None, RootSpec::Alone));
        }
        let (mut mine, mut root) = ([0; ID_BYTES], Ok(None));
        if self.rank() == 0 {
            // Where ranks of this host have all ports that there are, it is any.
            match UniqueId::create_for(settings).or_else(|_| UniqueId::create(None)) {
                Ok((id, opened)) => (mine, root) = (id.to_bytes(), Ok(Some(opened.shared()))),
                // The others get an id that is none, and need not wait for long.
                Err(error) => root = Err(Error::join(error)),
            }
        }
        let all = self.shared().exchange(Purpose::Shrink, &mine)?;
        // What was said by one who has given up meanwhile is still there to be read, but this is
        // not: else its root would be looked for until the deadline, and never be there when it
        // tries again.
        self.shared().exchange(Purpose::Shrink, &[1])?;
        let root = root?;
        let first = all.first_chunk().expect("what the first rank said is in front");
        let id = UniqueId::from_bytes(*first).map_err(|error| {
            Error::join(format!("the first of the remaining ranks has opened no root: {error}"))
        })?;
        Ok((root, RootSpec::Id(id)))
    }
}

/// Ranks with different lists meet at different places, where nobody can tell that from being late.
/// The numbers are the world's, as those in other errors.
fn suspecting(error: Error, excluded: &[u32], rank: u32) -> Error {
    let question = format!("; do all that are left exclude {excluded:?}, as rank {rank} does?");
    match error {
        Error::Join { what } => Error::Join { what: what + &question },
        Error::Timeout { place, waited_ms, others } => {
            Error::Timeout { place, waited_ms, others: others + &question }
        }
        other => other,
    }
}
