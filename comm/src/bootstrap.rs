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
mod drawing;
mod error;
mod hub;
pub(crate) mod id;
mod listen;
mod meet;
mod names;
mod outbox;
mod process;
mod proof;
mod root;
mod roster;
mod site;
pub mod store;
pub(crate) mod sys;
mod target;
mod vigil;
mod wish;

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::control::{Control, Member, RANKS_MAX};
use crate::launch::{Launch, RootSpec};
use by_store::join_by_store;
use claims::Claim;
pub use error::JoinError;
use error::system;
pub use id::{ID_BYTES, IdError, UniqueId};
pub use meet::Joined;
use meet::join;
use process::process_token;
pub use root::Root;
pub(crate) use site::Site;
use target::Target;
pub(crate) use vigil::Patience;
use vigil::Vigil;
use wish::{CardMaker, Wish, draw};

/// Join the world that `me` describes and wait until all its ranks have come, at most until
/// `deadline`, without a word meanwhile. `card` (at most
/// [`CARD_BYTES_MAX`](crate::control::CARD_BYTES_MAX) bytes) goes to all of them. What is said to
/// the root is sealed if this rank shall `encrypt`, as all do or none.
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
