//! How a rank gets its first communicator.

use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_transports::Transport;

use crate::bootstrap::{IdError, JoinError, Root, UniqueId, rendezvous_with};
use crate::communicator::Communicator;
use crate::launch::{Launch, RootSpec};
use crate::transports::{refuse_unknown, transports, transports_in_process};
use crate::world::{Ports, World};
use crate::{Error, Settings};

/// Nobody waits longer for others to come, whatever was asked for: points in time have an end.
const JOIN_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The number of the group of all ranks.
const WORLD_GROUP: u64 = 1;

impl Communicator {
    /// The communicator of all ranks of this job, as its launcher's environment describes them:
    /// Brigade's own variables, torchrun's, Open MPI's, PMI's, Slurm's, a Kubernetes indexed job's;
    /// without any of them, a group of one. Who is late is told meanwhile, see
    /// [`Settings::report_after`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an environment or setting that cannot be read, and for an id's file
    /// that cannot be used; [`Error::Join`] if the ranks cannot come together in time, naming those
    /// that are missing.
    pub fn from_env() -> Result<Self, Error> {
        let launch = Launch::discover().map_err(|error| Error::invalid(error.to_string()))?;
        Self::join(launch, Settings::from_env()?)
    }

    /// The communicator of all ranks that hold the same unique id: rank `rank` of `ranks`.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::from_env`].
    pub fn from_id(
        id: &UniqueId,
        rank: usize,
        ranks: usize,
        settings: Settings,
    ) -> Result<Self, Error> {
        let root = if ranks == 1 { RootSpec::Alone } else { RootSpec::Id(id.clone()) };
        Self::join(Launch { rank, ranks, local_rank: None, root }, settings)
    }

    /// The communicator that `launch` describes.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::from_env`].
    pub fn join(launch: Launch, settings: Settings) -> Result<Self, Error> {
        refuse_unknown(&settings)?;
        let transports = if launch.ranks == 1 { Vec::new() } else { transports(&settings)? };
        Self::join_over(launch, settings, &transports)
    }

    /// Like [`Communicator::join`], over transports of the caller's own making, best first.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::from_env`].
    pub fn join_over(
        launch: Launch,
        settings: Settings,
        transports: &[Arc<dyn Transport>],
    ) -> Result<Self, Error> {
        Self::join_with_root(launch, settings, transports, None)
    }

    fn join_with_root(
        launch: Launch,
        settings: Settings,
        transports: &[Arc<dyn Transport>],
        root: Option<Arc<Root>>,
    ) -> Result<Self, Error> {
        let join_timeout = settings.join_timeout.min(JOIN_TIMEOUT_MAX);
        let settings = Settings { join_timeout, ..settings };
        let patience = settings.patience_until(Instant::now() + settings.join_timeout);
        let (rank, ranks) = (launch.rank, launch.ranks);
        if ranks == 0 || rank >= ranks {
            return Err(Error::invalid(format!("rank {rank} of {ranks} ranks")));
        }
        let transports = (ranks > 1).then_some(transports);
        let mut doors = Doors { transports, opened: None };
        let mut card = |secret: &[u8; 32]| doors.card(secret).map_err(|error| error.to_string());
        let joined = rendezvous_with(&launch, &mut card, patience).map_err(not_joined)?;
        let (_, ports) = doors.opened.expect("nobody joins without a card");
        let world = World::new(rank as u32, ports, &joined.cards, joined.control, root);
        let world = Arc::new(world);
        let members: Arc<[u32]> = (0..ranks as u32).collect();
        Self::of_members(&world, members, WORLD_GROUP, Arc::new(settings), "joining")
    }

    /// `ranks` communicators of one group, for as many threads of this process. Over the transport
    /// in memory nothing leaves the process; any other is really used.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::from_env`].
    pub fn local_world(ranks: usize, settings: &Settings) -> Result<Vec<Self>, Error> {
        Self::local_world_over(ranks, settings, &transports_in_process(ranks, settings)?)
    }

    /// Like [`Communicator::local_world`], over transports of the caller's own making.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::from_env`].
    pub fn local_world_over(
        ranks: usize,
        settings: &Settings,
        transports: &[Arc<dyn Transport>],
    ) -> Result<Vec<Self>, Error> {
        let here = Some(std::net::Ipv4Addr::LOCALHOST.into());
        let (id, root) = UniqueId::create(here).map_err(Error::join)?;
        let root = Arc::new(root);
        let join = |rank| {
            let spec = if ranks == 1 { RootSpec::Alone } else { RootSpec::Id(id.clone()) };
            let launch = Launch { rank, ranks, local_rank: Some(rank), root: spec };
            Self::join_with_root(launch, settings.clone(), transports, Some(Arc::clone(&root)))
        };
        std::thread::scope(|scope| {
            let join = &join;
            let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || join(rank))).collect();
            let joined = threads.into_iter().map(|thread| thread.join().expect("joining panicked"));
            joined.collect()
        })
    }
}

/// What a user makes of it: nobody was waited for where the file for the id cannot be used.
fn not_joined(error: JoinError) -> Error {
    match error {
        JoinError::Id(IdError::File { .. }) => Error::invalid(error.to_string()),
        error => Error::join(error),
    }
}

/// The ports of a rank, opened when the job's secret is known: peers prove it to each other.
struct Doors<'a> {
    /// None in a world of one rank.
    transports: Option<&'a [Arc<dyn Transport>]>,
    opened: Option<([u8; 32], Ports)>,
}

impl Doors<'_> {
    /// The cards of ports that were opened with this secret; those with another one are closed.
    fn card(&mut self, secret: &[u8; 32]) -> Result<Vec<u8>, Error> {
        if let Some((known, ports)) = &self.opened
            && known == secret
        {
            return Ok(ports.cards());
        }
        let ports = match self.transports {
            None => Ports::none(),
            Some(transports) => Ports::open(transports, *secret)?,
        };
        let card = ports.cards();
        self.opened = Some((*secret, ports));
        Ok(card)
    }
}
