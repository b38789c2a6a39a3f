//! Meeting at a root that is known: a seat there, and then the control plane over the same line.

use std::sync::Arc;

use super::conn;
use super::dial::{Seat, dial};
use super::error::{JoinError, system};
use super::root::Root;
use super::target::Target;
use super::vigil::Vigil;
use super::wish::Wish;
use crate::control::{Control, Member};

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

/// Have a seat at the root of this target, behind which `root` is if it is this rank's own.
pub(super) fn join(
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
