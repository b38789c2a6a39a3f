//! How the ranks of a job find each other, before anything else is known.
//!
//! One rank (or the launcher) runs the *root*: a listener that everybody can find, by a
//! [`UniqueId`], by a file that holds one, or by an address. Whoever comes proves that it knows the
//! job's secret, says its rank and hands over an opaque card; when all have come everybody gets
//! all cards. The same connections then carry the control plane, see [`crate::control`].
//!
//! Bootstrap knows ranks, hosts and processes. It does not know what is on the cards.

mod bell;
mod by_store;
mod claims;
mod conn;
mod dial;
mod hub;
pub(crate) mod id;
mod listen;
mod names;
mod outbox;
mod proof;
mod root;
mod roster;
mod site;
pub mod store;
pub(crate) mod sys;
mod target;
mod vigil;

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use brigade_transports::{MAKE_THREAD, remedy};
use thiserror::Error;

use crate::control::{CARD_BYTES_MAX, Control, Member, RANKS_MAX, Refusal};
use crate::launch::{Launch, RootSpec};
use by_store::join_by_store;
use claims::Claim;
use dial::{Seat, Wish, dial};
pub use id::{ID_BYTES, IdError, UniqueId};
pub use root::Root;
pub(crate) use site::Site;
use store::StoreError;
use target::Target;
pub(crate) use vigil::Patience;
use vigil::{Outlook, Vigil};

/// How many bytes tell a process from all others, and how many of them its threads draw once.
const TOKEN_BYTES: usize = 16;
const DRAWN_BYTES: usize = 12;
/// How long nothing may be heard of the root's machine by those who are not told.
const SILENCE: Duration = Duration::from_secs(10);

/// A world whose ranks have all come.
#[derive(Debug)]
pub struct Joined {
    /// The cards of all ranks, in their order.
    pub cards: Vec<Vec<u8>>,
    /// The processes of all ranks, in their order.
    pub members: Vec<Member>,
    /// A secret of this world alone, the same on all ranks; it has never travelled.
    pub secret: [u8; 32],
    /// The control plane, to be kept for as long as the world is used.
    pub control: Control,
}

/// Why a rank did not get into its world.
#[derive(Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The root gives no seat: what the job was started with does not fit together.
    #[error("{why}{}", hint(*kind))]
    Refused {
        /// What does not fit.
        kind: Refusal,
        /// The root's sentence; it names ranks, processes and hosts.
        why: String,
    },
    /// Nothing that answers like the root was found in time.
    #[error(
        "rank {rank} waited {} s for the root at {root} (at last: {last}): check that the root's \
         process runs and that its address can be reached from here", *waited_ms as f64 / 1e3
    )]
    Unreachable {
        /// Who was looking.
        rank: usize,
        /// Where.
        root: String,
        /// For how long.
        waited_ms: u64,
        /// How the last attempt ended.
        last: String,
    },
    /// The root cannot listen where it was told to.
    #[error(
        "the root cannot listen at {address}: {source}{}{}",
        more("socket", source),
        taken(source)
    )]
    Listen {
        /// Where.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// A unique id that is none.
    #[error(transparent)]
    Id(#[from] IdError),
    /// A store of PyTorch's that does not help.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The id has led this rank to its world before.
    #[error(
        "this process has joined as rank {rank} by this unique id before, and an id leads to one \
         world: keep the communicator that it gave, split it, or draw another id"
    )]
    Spent {
        /// The rank.
        rank: usize,
    },
    /// A card longer than [`CARD_BYTES_MAX`].
    #[error("a card of {bytes} bytes; at most {CARD_BYTES_MAX} are carried")]
    CardTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The rank has no card: there is no way to reach it.
    #[error("{why}")]
    NoCard {
        /// What was tried.
        why: String,
    },
    /// A rank that its own world does not have, or a world without a root.
    #[error("rank {rank} of {ranks} cannot join: {why}")]
    Contradiction {
        /// The rank.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// The system refused something that bootstrap cannot do without.
    #[error("{what} failed: {source}{}", more(MAKE_THREAD, source))]
    System {
        /// What.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}

impl std::fmt::Debug for JoinError {
    /// The sentence, as `Display` has it: what a `main` that returns an error prints.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // In one piece: that goes to standard error as it is, where other ranks print theirs.
        f.write_str(&self.to_string())
    }
}

impl JoinError {
    /// Whether somebody else listens there.
    fn is_taken(&self) -> bool {
        matches!(self, Self::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
    }

    /// Whether the system had no more of what joining takes.
    pub(crate) fn is_exhausted(&self) -> bool {
        match self {
            Self::Listen { source, .. } => remedy("socket", source).is_some(),
            Self::System { source, .. } => remedy(MAKE_THREAD, source).is_some(),
            _ => false,
        }
    }
}

/// What to do, behind what the system said.
fn more(call: &str, error: &io::Error) -> String {
    remedy(call, error).map_or(String::new(), |remedy| format!("; {remedy}"))
}

fn taken(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => ": has another process rank 0, too, or another job this port?",
        io::ErrorKind::PermissionDenied => {
            ": may this user listen there? Ports below 1024 are the administrator's"
        }
        _ => "",
    }
}

fn hint(kind: Refusal) -> &'static str {
    match kind {
        Refusal::DuplicateRank => ": give each a rank of its own",
        Refusal::RankOutOfRange | Refusal::RanksDiffer => ": start all with the same number",
        Refusal::RanksMissing => ": look at the missing processes' own output",
        Refusal::Version => ": use one version of the library in the whole job",
        Refusal::Secret => ": give all processes the same id or BRIGADE_SECRET",
        Refusal::EncryptionDiffers => ": set BRIGADE_ENCRYPT on all of them, or on none",
        Refusal::RootClosed | Refusal::RankUnable => "",
    }
}

/// Join the world that `me` describes and wait until all its ranks have come, at most until
/// `deadline`, without a word meanwhile. `card` (at most [`CARD_BYTES_MAX`] bytes) goes to all of
/// them. What is said to the root is sealed if this rank shall `encrypt`, as all do or none.
///
/// Cost: three round trips to the root, four to seal, and the table of all cards. Errors: see
/// [`JoinError`]; what concerns all ranks is told to all that have come, in the same words.
pub fn rendezvous(
    me: &Launch,
    card: Vec<u8>,
    deadline: Instant,
    encrypt: bool,
) -> Result<Joined, JoinError> {
    let patience = Patience { encrypt, ..Patience::silent(deadline) };
    rendezvous_with(me, &mut |_| Ok(card.clone()), patience)
}

/// Like [`rendezvous`], until somebody sets `called_off`: then it ends, within a moment, with what
/// has been in the way so far. Whoever has a seat waits for the root's word; close that.
pub fn rendezvous_unless(
    me: &Launch,
    card: Vec<u8>,
    deadline: Instant,
    encrypt: bool,
    called_off: Arc<AtomicBool>,
) -> Result<Joined, JoinError> {
    let called_off = Some(called_off);
    let patience = Patience { encrypt, called_off, ..Patience::silent(deadline) };
    rendezvous_with(me, &mut |_| Ok(card.clone()), patience)
}

/// What makes this rank's card, once the job's secret is known. Asked again when the root turned
/// out to be another one, with another secret.
pub(crate) type CardMaker<'a> = dyn FnMut(&[u8; 32]) -> Result<Vec<u8>, String> + 'a;

/// Like [`rendezvous`], for a card that cannot be made without the job's secret. The secret comes
/// from a root that has proved to know it, so one from a file of an earlier job is never used. Who
/// is waited for is told on the way.
pub(crate) fn rendezvous_with(
    me: &Launch,
    card: &mut CardMaker<'_>,
    patience: Patience,
) -> Result<Joined, JoinError> {
    let (rank, ranks) = (me.rank, me.ranks);
    let contradiction = |why| Err(JoinError::Contradiction { rank, ranks, why });
    if rank >= ranks || ranks > RANKS_MAX {
        return contradiction("ranks count from 0, and there is a limit to their number");
    }
    let member = Member { host: sys::host_name(), pid: std::process::id() };
    if ranks == 1 {
        let secret = proof::random().map_err(system("drawing a secret"))?;
        let (cards, members) = (vec![draw(card, &secret)?], vec![member]);
        return Ok(Joined { cards, members, secret, control: Control::alone() });
    }
    let claim = Claim::new(&me.root, rank);
    let process = process_token(claim.is_second()).map_err(system("drawing a token"))?;
    // The second of two threads opens no root: it comes to that of the first, and is refused there.
    let serves = rank == 0 && !claim.is_second();
    let Patience { report_after, silence, encrypt, .. } = patience;
    let site = patience.site.clone();
    let wish = Wish { rank, ranks, card, process, member, report_after, silence, encrypt };
    let mut vigil = Vigil::new(rank, patience);
    let vigil = &mut vigil;
    match (&me.root, serves) {
        (RootSpec::Alone, _) => contradiction("nothing says where its root is"),
        (RootSpec::Id(id), _) => join_once(id, wish, vigil),
        (RootSpec::IdFile(path), true) => {
            let (id, root) = UniqueId::create_on(&site)?;
            id.write_file(path)?;
            let joined = join(&Target::Id(&id), wish, Some(root.shared()), vigil);
            // Everybody has read it, or nobody needs it any more; a newer one is not ours.
            if UniqueId::read_file(path).is_ok_and(|now| now == id) {
                let _removed = std::fs::remove_file(path);
            }
            joined
        }
        (RootSpec::IdFile(path), _) => join(&Target::File(path), wish, None, vigil),
        (RootSpec::Address(address), true) => {
            let (listener, doubt) = listen::for_root(address, vigil)?;
            let secret = address.secret.bytes();
            let root = Root::serve(listener, secret, doubt);
            let root = root.map_err(system("starting the root"))?;
            let own = listen::own_address(root.address());
            join(&Target::Own(own, secret), wish, Some(root.shared()), vigil)
        }
        (RootSpec::Address(address), _) => join(&Target::Address(address), wish, None, vigil),
        (RootSpec::Store(store), _) => join_by_store((store, &site), rank, wish, vigil),
    }
}

/// Meet at the root of an id. A root serves one world, and is gone with it: who comes again would
/// look for it until the deadline.
fn join_once(id: &UniqueId, wish: Wish<'_>, vigil: &mut Vigil) -> Result<Joined, JoinError> {
    // Of each id what tells it from others, without the secret.
    static JOINED: Mutex<BTreeSet<(u32, usize, u64)>> = Mutex::new(BTreeSet::new());
    let joined = || JOINED.lock().unwrap_or_else(PoisonError::into_inner);
    // A child of a fork is another process.
    let (rank, me) = (wish.rank, (std::process::id(), wish.rank, id.mark()));
    if joined().contains(&me) {
        return Err(JoinError::Spent { rank });
    }
    let world = join(&Target::Id(id), wish, None, vigil)?;
    joined().insert(me);
    Ok(world)
}

/// The card for a world with this secret.
fn draw(card: &mut CardMaker<'_>, secret: &[u8; 32]) -> Result<Vec<u8>, JoinError> {
    let bytes = card(secret).map_err(|why| JoinError::NoCard { why })?;
    if bytes.len() > CARD_BYTES_MAX {
        return Err(JoinError::CardTooLong { bytes: bytes.len() });
    }
    Ok(bytes)
}

fn join(
    target: &Target<'_>,
    mut wish: Wish<'_>,
    root: Option<Arc<Root>>,
    vigil: &mut Vigil,
) -> Result<Joined, JoinError> {
    let seat = dial(target, &mut wish, vigil)?;
    let nonce = seat.table.nonce;
    let hub_rank = seat.table.hub_rank.map(|rank| rank as usize);
    let (members, cards): (Vec<Member>, _) = seat.table.seats.into_iter().unzip();
    conn::tune(&seat.stream, wish.silence).map_err(system("tuning the connection to the root"))?;
    let is_beside_root = |rank: &usize| hub_rank.is_some_and(|hub| members[hub] == members[*rank]);
    let beside_root = (0..wish.ranks).filter(is_beside_root).collect();
    let Seat { stream, decoder, sealer, .. } = seat;
    let mut control = Control::start(wish.rank, wish.ranks, beside_root, stream, decoder, sealer)
        .map_err(system("starting the control plane"))?;
    // Ranks beside rank 0 may outlive it, and others may have to be heard until then.
    if let Some(root) = root.or_else(|| Root::of_this_process(&nonce)) {
        control.keep(root);
    }
    Ok(Joined { cards, members, secret: seat.secret, control })
}

/// Bytes that are the same for all ranks of this process and different everywhere else. The number
/// of the process is among them, so that a fork is another process; for a rank that another thread
/// is, too, they are others.
fn process_token(is_second: bool) -> io::Result<[u8; TOKEN_BYTES]> {
    static DRAWN: OnceLock<[u8; DRAWN_BYTES]> = OnceLock::new();
    let drawn = match DRAWN.get() {
        Some(drawn) => drawn,
        None => {
            let drawn = proof::random()?;
            DRAWN.get_or_init(|| drawn)
        }
    };
    let pid = std::process::id();
    let mut token = [0; TOKEN_BYTES];
    token[..DRAWN_BYTES].copy_from_slice(drawn);
    // No process has a number with its highest bit set.
    token[DRAWN_BYTES..].copy_from_slice(&if is_second { !pid } else { pid }.to_le_bytes());
    Ok(token)
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> JoinError {
    move |source| JoinError::System { what, source }
}
