//! Ranks that find each other's root through a store of PyTorch's.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::JoinError;
use super::id::UniqueId;
use super::meet::{Joined, join};
use super::site::Site;
use super::store::StoreClient;
use super::target::Target;
use super::vigil::Vigil;
use super::wish::Wish;
use crate::launch::{JobSecret, StoreAddress};

/// How long a store may take to forget an id.
const FORGETTING: Duration = Duration::from_secs(2);

/// Meet through a store of PyTorch's. Ranks that meet there several times look for each world under
/// a key of its own: all of them make their worlds in the same order. One that did not come to be
/// for any of them is looked for again: some may have tried that more often than others. Where one
/// came to be for some, and the last gave up in that very moment, they no longer count alike.
pub(super) fn join_by_store(
    (store, site): (&StoreAddress, &Site),
    rank: usize,
    wish: Wish<'_>,
    vigil: &mut Vigil,
) -> Result<Joined, JoinError> {
    // How many worlds each rank of this process has met there.
    static MET: Mutex<BTreeMap<(String, usize), u64>> = Mutex::new(BTreeMap::new());
    let met = || MET.lock().unwrap_or_else(PoisonError::into_inner);
    let place = (store.to_string() + &store.key, rank);
    let worlds = met().get(&place).copied().unwrap_or(0);
    let key = format!("{}/{worlds}", store.key);
    let mut client = StoreClient::connect_watched(&store.host, store.port, vigil)?;
    let job = store.secret.as_ref().map(JobSecret::bytes);
    let joined = join_by_key((&mut client, &key), (rank, site, job), wish, vigil)?;
    met().insert(place, worlds + 1);
    Ok(joined)
}

/// The same, where rank 0 leaves the id of its root under this key. Who knows the job's secret, if
/// there is one, takes it for another than who reads the store.
fn join_by_key(
    (client, key): (&mut StoreClient, &str),
    (rank, site, job): (usize, &Site, Option<[u8; 32]>),
    wish: Wish<'_>,
    vigil: &mut Vigil,
) -> Result<Joined, JoinError> {
    let keyed = |id: UniqueId| job.as_ref().map_or(id.clone(), |job| id.keyed(job));
    if rank > 0 {
        let text = client.get_watched(key, vigil)?;
        let id: UniqueId = String::from_utf8_lossy(&text).trim().parse()?;
        return join(&Target::Id(&keyed(id)), wish, None, vigil);
    }
    let (id, root) = UniqueId::create_keyed(site, job.as_ref())?;
    client.set(key, id.to_string().as_bytes(), vigil.deadline())?;
    let joined = join(&Target::Id(&keyed(id)), wish, Some(root.shared()), vigil);
    // Everybody has read it, or nobody needs it any more. It holds a secret.
    let _removed = client.delete(key, Instant::now() + FORGETTING);
    joined
}
