//! How the survivors of a world that has ended go on without those who were lost.
//!
//! A verdict stands for ever, so the survivors make a world of their own, with a root and a control
//! star of their own. They meet over the wires that they still have: first in a group on which the
//! old world's verdict has no hold, in which the first survivor tells the others where its new root
//! is; then there. Who of them is lost meanwhile, or gives up, they hear from the old world's root,
//! if that is there.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use brigade_schedule::Collective;

use crate::bootstrap::{ID_BYTES, Patience, Root, UniqueId, rendezvous_with};
use crate::call::{Buffers, Call};
use crate::communicator::{Communicator, derive_group};
use crate::header::Purpose;
use crate::launch::{Launch, RootSpec};
use crate::wait::{PASSED_ON_WAIT, error_of};
use crate::{Dtype, Error, Settings};

/// What survivors do when they join a group.
const JOINING: &str = "shrink: joining";

impl Communicator {
    /// A communicator of this group's ranks but those in `excluded`, in a world of their own: what
    /// becomes of the excluded ranks, or has become of them, does not concern it. All ranks that
    /// are not excluded call this with the same list, whatever has happened to this communicator;
    /// the excluded ones, dead or alive, do not. Ranks keep their order.
    ///
    /// Cost: joining, twice.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a list that makes no sense, or that leaves out a rank that is known
    /// to be gone; [`Error::Join`] and those of a call if the others cannot come together in time,
    /// for instance because one more is lost.
    pub fn shrink(&self, excluded: &[usize]) -> Result<Communicator, Error> {
        self.shrink_with(excluded, self.settings().clone())
    }

    /// Like [`Communicator::shrink`], with other settings than this communicator's. Those about
    /// transports mean nothing here: they were opened when the world came together.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::shrink`].
    pub fn shrink_with(
        &self,
        excluded: &[usize],
        settings: Settings,
    ) -> Result<Communicator, Error> {
        let (me, size) = (self.rank(), self.size());
        if let Some(wrong) = excluded.iter().find(|rank| **rank >= size) {
            return Err(Error::invalid(format!("shrink: rank {wrong} of {size} ranks")));
        }
        if excluded.contains(&me) {
            let what = format!("shrink: rank {me} excludes itself; the others go on without it");
            return Err(Error::invalid(what));
        }
        let shared = self.shared();
        let deadline = Instant::now() + settings.join_patience();
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
        let patience = Settings { timeout: settings.join_patience(), ..settings.clone() };
        let meeting = Self::of_members(&world, members, group, Arc::new(patience), JOINING)?;
        let control = &world.control;
        // Who is lost between two steps is lost in this call all the same.
        let judged = |error| control.verdict().map_or(error, |verdict| error_of(verdict, JOINING));
        let (_root, spec) = meeting.share_root().map_err(judged)?;
        let (rank, ranks) = (meeting.rank(), meeting.size());
        let launch = Launch { rank, ranks, local_rank: None, root: spec };
        let mut cards = |_: &[u8; 32]| Ok(shared.world.own_cards());
        let patience =
            Patience { meeting: Some(Arc::clone(control)), ..settings.patience_until(deadline) };
        let joined = rendezvous_with(&launch, &mut cards, patience);
        let joined = joined.map_err(|error| match control.await_verdict(PASSED_ON_WAIT) {
            Some(verdict) => error_of(verdict, JOINING),
            None => Error::join(format!("shrink: {error}")),
        })?;
        let world = Arc::new(shared.world.anew(rank as u32, &joined.cards, joined.control));
        let everybody: Arc<[u32]> = (0..ranks as u32).collect();
        let anew = derive_group(group, number, digest);
        Self::of_members(&world, everybody, anew, Arc::new(settings), JOINING)
            .map_err(|error| world.without_us(error))
    }

    /// The first rank opens a root, which is there until all have met; all learn where it is.
    fn share_root(&self) -> Result<(Option<Arc<Root>>, RootSpec), Error> {
        if self.size() == 1 {
            return Ok((None, RootSpec::Alone));
        }
        let (mut bytes, mut root) = ([0; ID_BYTES], Ok(None));
        if self.rank() == 0 {
            match UniqueId::create(None) {
                Ok((id, opened)) => (bytes, root) = (id.to_bytes(), Ok(Some(opened.shared()))),
                // The others get an id that is none, and need not wait for long.
                Err(error) => root = Err(Error::join(error)),
            }
        }
        let call = Call::moving(Collective::Broadcast { root: 0 }, Dtype::U8, ID_BYTES);
        self.shared().run_for(Purpose::Shrink, &call, Buffers::InPlace(&mut bytes))?;
        let root = root?;
        let id = UniqueId::from_bytes(bytes).map_err(|error| {
            Error::join(format!("the first of the remaining ranks has opened no root: {error}"))
        })?;
        Ok((root, RootSpec::Id(id)))
    }
}
