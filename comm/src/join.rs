//! How a rank gets its first communicator, and who it is there.

use std::sync::Arc;
use std::time::Instant;

use brigade_transports::Transport;

use crate::bootstrap::{IdError, JoinError, Joined, Patience, Root, UniqueId, rendezvous_with};
use crate::communicator::Communicator;
use crate::control::{Control, Refusal};
use crate::launch::{Launch, RootSpec};
use crate::numbers::beyond;
use crate::threads::at_once;
use crate::transports::{refuse_open, refuse_unknown, transports, transports_in_process};
use crate::world::{Ports, World};
use crate::{Error, Settings, say};

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
    /// that cannot be used; [`Error::Exhausted`] if this process may not have the threads or files
    /// that it takes; [`Error::Join`] if the ranks cannot come together in time, naming those that
    /// are missing.
    pub fn from_env() -> Result<Self, Error> {
        let joined = || {
            let launch = Launch::discover().map_err(|error| Error::invalid(error.to_string()))?;
            Self::join(launch, Settings::from_env()?)
        };
        // What is misspelled may be why.
        joined().inspect_err(|_| Settings::warn_of_unknown_variables())
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
        let transports = transports_for(&launch, &settings)?;
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
        Self::join_while(launch, settings, transports, None)
    }

    /// The same, as long as those who meet have no verdict.
    pub(crate) fn join_while(
        launch: Launch,
        settings: Settings,
        transports: &[Arc<dyn Transport>],
        meeting: Option<Arc<Control>>,
    ) -> Result<Self, Error> {
        let (rank, ranks) = (launch.rank, launch.ranks);
        if ranks == 0 || rank >= ranks {
            return Err(Error::invalid(format!("rank {}", beyond(rank, ranks))));
        }
        refuse_open(&settings, transports)?;
        if settings.encrypt && launch.root.is_open_to_all() {
            return Err(Error::invalid(
                "BRIGADE_ENCRYPT is set, and whoever knows the job's name has the keys: set \
                 BRIGADE_SECRET or BRIGADE_SECRET_FILE, the same on all ranks",
            ));
        }
        if settings.encrypt && rank == 0 && ranks > 1 {
            launch.root.warn_of_short_secret();
        }
        Met::meet(&launch, &settings, transports, meeting)?.join(settings)
    }

    /// `ranks` communicators of one group, for as many threads of this process. Over the transport
    /// in memory nothing leaves the process; any other is really used.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::from_env`]; beside who is missing it says what kept one of them.
    ///
    /// ```
    /// use brigade_comm::{Communicator, Settings, at_once};
    ///
    /// let world = Communicator::local_world(3, &Settings::default()).expect("a world");
    /// let ranks = at_once(world, |comm| comm.rank()).expect("three threads");
    /// assert_eq!(ranks, [0, 1, 2]);
    /// ```
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
        refuse_open(settings, transports)?;
        let here = Some(std::net::Ipv4Addr::LOCALHOST.into());
        let (id, root) = UniqueId::create(here).map_err(|error| {
            let is_exhausted = error.is_exhausted();
            NotMet { error, is_exhausted }
        })?;
        // All of them keep it; until they do, this does.
        let _root = root.shared();
        let meet = |rank| {
            let spec = if ranks == 1 { RootSpec::Alone } else { RootSpec::Id(id.clone()) };
            Met::meet(
                &Launch { rank, ranks, local_rank: Some(rank), root: spec },
                settings,
                transports,
                None,
            )
        };
        let met = all_met(at_once(0..ranks, meet)?)?;
        let join = |met: Met| met.join(settings.clone());
        at_once(met, join)?.into_iter().collect()
    }

    /// This rank's number in the group.
    pub fn rank(&self) -> usize {
        self.shared().rank as usize
    }

    /// How many ranks the group has.
    pub fn size(&self) -> usize {
        self.shared().ranks as usize
    }
}

impl UniqueId {
    /// Like [`UniqueId::create`], on a port of [`Settings::ports`] and for those who come by the
    /// interfaces of [`Settings::interface`], where these say something. Where this host has no
    /// such interface, it is each rank that says so.
    ///
    /// # Errors
    ///
    /// `Listen`, also where all these ports are taken; `System`.
    pub fn create_for(settings: &Settings) -> Result<(UniqueId, Root), JoinError> {
        Self::create_on(&settings.site())
    }
}

/// The transports that the settings name, for a rank of this launch.
pub(crate) fn transports_for(
    launch: &Launch,
    settings: &Settings,
) -> Result<Vec<Arc<dyn Transport>>, Error> {
    refuse_unknown(settings)?;
    if launch.ranks == 1 { Ok(Vec::new()) } else { transports(settings) }
}

/// What a rank has once all have come.
struct Met {
    rank: usize,
    ranks: usize,
    ports: Ports,
    joined: Joined,
}

impl Met {
    fn meet(
        launch: &Launch,
        settings: &Settings,
        transports: &[Arc<dyn Transport>],
        meeting: Option<Arc<Control>>,
    ) -> Result<Self, NotMet> {
        let patience = settings.patience_until(Instant::now() + settings.join_patience());
        let patience = Patience { meeting, ..patience };
        let (rank, ranks) = (launch.rank, launch.ranks);
        let transports = (ranks > 1).then_some(transports);
        let mut doors = Doors { transports, opened: None, is_exhausted: false };
        let mut card = |secret: &[u8; 32]| doors.card(secret).map_err(|error| error.to_string());
        let joined = rendezvous_with(launch, &mut card, patience).map_err(|error| {
            let is_exhausted = doors.is_exhausted || error.is_exhausted();
            NotMet { error, is_exhausted }
        })?;
        let (_, ports) = doors.opened.expect("nobody joins without a card");
        Ok(Self { rank, ranks, ports, joined })
    }

    fn join(self, settings: Settings) -> Result<Communicator, Error> {
        let Self { rank, ranks, ports, joined } = self;
        let world = World::new(rank as u32, ports, &joined.cards, joined.control);
        let (world, members) = (Arc::new(world), (0..ranks as u32).collect());
        let settings = Arc::new(settings);
        let tuning = settings.tuning.as_ref().filter(|_| rank == 0 && ranks > 1);
        if let Some(told) = tuning.and_then(|tuning| tuning.is_for_others(ranks as u32)) {
            say::warn(&told);
        }
        Communicator::of_members(&world, members, WORLD_GROUP, settings, "joining")
            .map_err(|error| world.without_us(error))
    }
}

/// Why a rank has not met the others.
struct NotMet {
    error: JoinError,
    /// Whether the system had no more of what joining takes.
    is_exhausted: bool,
}

impl From<NotMet> for Error {
    /// What a user makes of it: nobody was waited for where the file for the id cannot be used.
    fn from(NotMet { error, is_exhausted }: NotMet) -> Self {
        match error {
            error if is_exhausted => Error::Exhausted { what: error.to_string() },
            JoinError::Id(IdError::File { .. }) => Error::invalid(error.to_string()),
            error => Error::join(error),
        }
    }
}

/// All ranks of a process that is the whole world, or what kept one from coming. The root may have
/// heard why; otherwise those that did come know only who did not, and no other process's output
/// would say more. What the system has no more of is what kept all of them.
fn all_met(outcomes: Vec<Result<Met, NotMet>>) -> Result<Vec<Met>, Error> {
    let mut met = Vec::with_capacity(outcomes.len());
    let (mut unable, mut missing, mut cause) = (None, None, None);
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(rank) => met.push(rank),
            Err(exhausted @ NotMet { is_exhausted: true, .. }) => return Err(exhausted.into()),
            Err(NotMet { error, .. }) => match error {
                JoinError::Refused { kind: Refusal::RankUnable, why } => unable = Some(why),
                JoinError::Refused { kind: Refusal::RanksMissing, why } => missing = Some(why),
                error => cause = cause.or(Some((rank, error))),
            },
        }
    }
    if let Some(why) = unable {
        return Err(Error::join(why));
    }
    match (missing, cause) {
        (None, None) => Ok(met),
        (Some(why), None) => Err(Error::join(why)),
        (None, Some((_, error))) => Err(NotMet { error, is_exhausted: false }.into()),
        (Some(why), Some((rank, error))) => {
            Err(Error::join(format!("{why}; rank {rank} itself: {error}")))
        }
    }
}

/// The ports of a rank, opened when the job's secret is known: peers prove it to each other.
struct Doors<'a> {
    /// None in a world of one rank.
    transports: Option<&'a [Arc<dyn Transport>]>,
    opened: Option<([u8; 32], Ports)>,
    /// Whether they could not be opened because the system has no more of something.
    is_exhausted: bool,
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
            Some(transports) => Ports::open(transports, *secret).inspect_err(|error| {
                self.is_exhausted = matches!(error, Error::Exhausted { .. });
            })?,
        };
        let card = ports.cards();
        self.opened = Some((*secret, ports));
        Ok(card)
    }
}
