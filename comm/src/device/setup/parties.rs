//! What the ranks of this process lend other processes, by group.
//!
//! The last rank of the process that leaves a group sees to all of it: a thread that has several
//! ranks ends their groups one after the other, and none of them may wait for the next one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brigade_cuda::DeviceMemory;

struct Party {
    /// The group's.
    number: u64,
    ranks: Vec<u32>,
    /// Whose, and what other processes may have open: it is not freed as long as it stands here.
    lent: Vec<(u32, Arc<DeviceMemory>)>,
}

static PARTIES: Mutex<Vec<Party>> = Mutex::new(Vec::new());

fn parties() -> MutexGuard<'static, Vec<Party>> {
    PARTIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A rank of this process has a group with ranks of others. All of them have, before any leaves.
pub(super) fn enter(number: u64, rank: u32) {
    let mut parties = parties();
    match parties.iter_mut().find(|party| party.number == number) {
        Some(party) => party.ranks.push(rank),
        None => parties.push(Party { number, ranks: vec![rank], lent: Vec::new() }),
    }
}

/// From now on other processes may have this open.
pub(super) fn lend(number: u64, rank: u32, memory: &Arc<DeviceMemory>) {
    let mut parties = parties();
    let party = parties.iter_mut().find(|party| party.number == number);
    party.expect("its ranks have entered").lent.push((rank, Arc::clone(memory)));
}

/// All others have closed what this rank has lent them.
pub(super) fn take_back(number: u64, rank: u32) {
    let mut parties = parties();
    if let Some(party) = parties.iter_mut().find(|party| party.number == number) {
        party.lent.retain(|(whose, _)| *whose != rank);
    }
}

/// A rank has closed all that it had opened. For the last one of this process: what they have lent.
pub(in crate::device) fn leave(number: u64, rank: u32) -> Option<Vec<Arc<DeviceMemory>>> {
    let mut parties = parties();
    let at = parties.iter().position(|party| party.number == number)?;
    parties[at].ranks.retain(|present| *present != rank);
    if !parties[at].ranks.is_empty() {
        return None;
    }
    let party = parties.swap_remove(at);
    Some(party.lent.into_iter().map(|(_, memory)| memory).collect())
}
