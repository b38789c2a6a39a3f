//! The cache over real memory and real devices. Where there are none, each test says so and ends.

use std::time::{Duration, Instant};

use brigade_verbs::{Access, Completion, CompletionQueue, Limits, Memory, Path, QueuePair, Remote};

use super::*;
use crate::rdma::Settings;
use crate::rdma::local::Place;
use crate::rdma::port;
use crate::rdma::unmap::tests::sys::{Deed, Mapped};

/// What one write carries at most.
const PIECE: usize = 32 << 10;
const LIMIT: Duration = Duration::from_secs(60);

fn place() -> Option<Place> {
    if let Err(why) = unmap::probe() {
        println!("skipped: {why}");
        return None;
    }
    match port::find(&Settings::default()) {
        Ok(found) => found.addresses.into_iter().next(),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// A connection of a device to itself, and memory at its other end.
struct Loop {
    domain: Arc<ProtectionDomain>,
    near: QueuePair,
    _far: QueuePair,
    done: Arc<CompletionQueue>,
    target: MemoryRegion,
}

impl Loop {
    fn new(place: &Place) -> Result<Loop, VerbsError> {
        let domain = ProtectionDomain::new(&place.device)?;
        let done = CompletionQueue::new(&place.device, 16, None)?;
        let access = Access::Everything;
        let limits = Limits { sends: 4, receives: 1, inline_bytes: 64, access };
        let pair = || QueuePair::new(&domain, place.port, &done, &done, limits);
        let (near, far) = (pair()?, pair()?);
        for (one, other) in [(&near, &far), (&far, &near)] {
            one.connect(&Path {
                port: place.port,
                gid_index: place.gid_index,
                mtu: place.address.mtu,
                gid: place.address.gid,
                lid: place.address.lid,
                number: other.number(),
                our_start: 0,
                their_start: 0,
                timeout: 15,
                retries: 6,
                receiver_retries: 6,
                service_level: 0,
                traffic_class: 0,
                reads: 1,
            })?;
        }
        let target = MemoryRegion::new(&domain, &Memory::zeroed(PIECE), Access::Write)?;
        Ok(Loop { domain, near, _far: far, done, target })
    }

    /// What a device reads at a place of a region.
    fn read(&self, lent: &Lent, bytes: usize) -> Vec<u8> {
        let remote = Remote { address: self.target.address(), key: self.target.remote_key() };
        let from = (&*lent.region, lent.offset, bytes);
        self.near.post_write(1, from, remote, None).expect("there is room");
        let started = Instant::now();
        let mut batch = [Completion::default(); 1];
        while self.done.poll(&mut batch).expect("a queue") == 0 {
            assert!(started.elapsed() < LIMIT, "a write does not complete");
            std::thread::yield_now();
        }
        assert!(batch[0].status().is_success(), "{}", batch[0].status());
        let mut held = vec![0; bytes];
        self.target.memory().read(0, &mut held);
        held
    }
}

/// A caller that gets memory, fills it, lends parts of it, and gives it back, in all ways.
fn caller(place: &Place, cache: &Cache, seed: u64, rounds: usize) -> usize {
    let mut rng = fastrand::Rng::with_seed(seed);
    let device = Loop::new(place).expect("a connection of a device to itself");
    let (mut refused, mut moved) = (0, 0);
    let mut mapped = Mapped::new(8 * PIECE);
    for round in 0..rounds {
        let note = format!("seed {seed}, round {round}");
        match rng.u32(0..6) {
            0 => mapped = Mapped::new(rng.usize(2..16) * PIECE),
            1 => mapped.act(0, mapped.bytes, Deed::Empty),
            2 => mapped.act(PIECE, PIECE, Deed::MapOver),
            3 => moved += u32::from(mapped.resize(rng.usize(2..16) * PIECE, None)),
            _ => {}
        }
        let value = rng.u8(1..);
        mapped.fill(value);
        // A vector beside it, which mostly comes to lie where an earlier one was.
        let vector = vec![!value; 4 * PIECE + rng.usize(0..PIECE)];
        for (start, bytes, value) in
            [(mapped.start, mapped.bytes, value), (vector.as_ptr().addr(), vector.len(), !value)]
        {
            let offset = rng.usize(0..bytes - PIECE);
            let length = rng.usize(1..PIECE);
            let place = start + offset;
            // While others change memory, nobody can tell, and the caller would copy.
            let lent = (0..1000).find_map(|_| {
                let lent = cache.region(&device.domain, place, length);
                refused += usize::from(lent.is_none());
                lent.or_else(|| {
                    std::thread::sleep(Duration::from_micros(100));
                    None
                })
            });
            let lent = lent.unwrap_or_else(|| panic!("{note}: it is never lent"));
            let held = device.read(&lent, length);
            assert!(held.iter().all(|byte| *byte == value), "{note}: {value}, not {}", held[0]);
        }
    }
    println!("seed {seed}: memory was resized {moved} times");
    refused
}

#[test]
fn devices_send_what_callers_have_there_now() {
    const CALLERS: u64 = 3;
    const ROUNDS: usize = 60;
    let Some(place) = place() else { return };
    let cache = Cache::new(8 << 20);
    let begin = fastrand::u64(..1 << 32);
    println!("seeds from {begin}");
    let refused: usize = std::thread::scope(|scope| {
        let (place, cache) = (&place, &cache);
        let callers: Vec<_> = (0..CALLERS)
            .map(|index| scope.spawn(move || caller(place, cache, begin + index, ROUNDS)))
            .collect();
        callers.into_iter().map(|caller| caller.join().expect("no panic")).sum()
    });
    let counters = cache.lending();
    println!("{counters:?}, {refused} refused");
    assert_eq!(counters.hits + counters.misses, CALLERS * 2 * ROUNDS as u64);
    assert!(counters.hits > 0 && counters.invalidated > 0 && counters.misses > 0);
}

#[test]
fn what_cannot_be_lent_is_refused() {
    let Some(place) = place() else { return };
    let device = Loop::new(&place).expect("a connection of a device to itself");
    let cache = Cache::new(4 << 20);
    let vector = vec![1_u8; 1 << 20];
    let start = vector.as_ptr().addr();
    assert!(cache.region(&device.domain, start, vector.len()).is_some());
    let code = "text of the program".as_ptr().addr();
    assert!(cache.region(&device.domain, code, 16).is_none(), "it cannot be written");
    assert!(cache.region(&device.domain, start, 5 << 20).is_none(), "more than the bound");
    assert!(cache.region(&device.domain, start, 0).is_none(), "nothing");
    let off = Cache::new(0);
    assert!(off.region(&device.domain, start, vector.len()).is_none(), "it is switched off");
    assert_eq!(off.lending(), LendingStats::default());
}
