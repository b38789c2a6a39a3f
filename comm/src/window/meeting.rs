//! How the windows of a group come to know each other.
//!
//! Each rank exposes its memory to a group of its own making, tells the others where it is, and
//! imports theirs. What one of them cannot do, all hear of, so that none waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use brigade_transports::{Bells, Endpoint, LocalWindow, RemoteWindow, WindowMemory};

use super::{Ends, Mutex, Window, WindowSize};
use crate::communicator::derive_group;
use crate::control::History;
use crate::wait::Watch;
use crate::world::Links;
use crate::{Communicator, Error};

/// What a rank says of its window: its size, the length of what follows, and then a descriptor, or
/// why it has none.
const RECORD_BYTES: usize = 512;
const HEAD_BYTES: usize = 8 + 8 + 1 + 2;
const SAID_MAX: usize = RECORD_BYTES - HEAD_BYTES;
/// More memory, and more counters, are a mistake in a size.
const BYTES_MAX: usize = isize::MAX as usize / 4;
const SIGNALS_MAX: usize = 1 << 20;
/// Colours of divisions have 32 bits, and lists of survivors the highest one.
const GROUPS_OF_WINDOWS: u64 = 1 << 62;

/// Make the window of this rank, with all others.
pub(super) fn meet(communicator: &Communicator, size: WindowSize) -> Result<Window, Error> {
    meet_stating(communicator, size, size)
}

/// Make a window of size `size` and state that it is `stated`, which is the same except in tests.
fn meet_stating(
    communicator: &Communicator,
    size: WindowSize,
    stated: WindowSize,
) -> Result<Window, Error> {
    let shared = communicator.shared();
    let number = shared.splits.fetch_add(1, Ordering::Relaxed);
    let group = derive_group(shared.group, number, GROUPS_OF_WINDOWS);
    let me = communicator.rank();
    let Links { mut endpoints, names, routes, local_ranks } =
        shared.world.join(&shared.members, me, group, &shared.settings)?;
    let exposed = expose(&mut endpoints, &names, size);
    let records = tell(communicator, stated, exposed.as_ref().map(|it| &it.descriptor[..]))?;
    let memory = exposed.map_err(Error::invalid)?.memory;
    let told = parse(&records)?;
    let sizes = told.iter().map(|(size, _)| *size).collect();
    let import = |(rank, (stated, said)): (usize, &(WindowSize, &[u8]))| {
        routes[rank].map(|route| import(&mut *endpoints[route], rank, *stated, said)).transpose()
    };
    let imported: Result<Vec<_>, String> = told.iter().enumerate().map(import).collect();
    parse(&tell(communicator, size, imported.as_ref().map(|_| &[][..]))?)?;
    let remotes = imported.map_err(Error::invalid)?;
    let watch = Watch {
        control: Arc::clone(&shared.world.control),
        members: Arc::clone(&shared.members),
        me: me as u32,
        group,
        history: History::default(),
        report_after: shared.settings.report_after,
        timeout: shared.settings.timeout,
    };
    let bells = Bells::join(&mut endpoints);
    let own_signals = (0..size.signals).map(|_| AtomicU64::new(0)).collect();
    let (memory, ends) = (Mutex::new(memory), Mutex::new(Ends { endpoints, bells }));
    Ok(Window { remotes, memory, ends, watch, local_ranks, sizes, own_signals })
}

/// Expose memory over the only transport there is, or say why that cannot be.
fn expose(
    endpoints: &mut [Box<dyn Endpoint>],
    names: &[&str],
    size: WindowSize,
) -> Result<LocalWindow, String> {
    let WindowSize { bytes, signals } = size;
    if bytes > BYTES_MAX || signals > SIGNALS_MAX {
        return Err(format!("no window has {bytes} bytes and {signals} signals"));
    }
    match endpoints {
        [] => {
            let memory = Box::new(Alone { memory: vec![0; bytes] });
            Ok(LocalWindow { descriptor: Vec::new(), memory })
        }
        [only] => {
            let windows = only.windows().ok_or_else(|| {
                let name = names[0];
                format!("{name} has no windows; shm has, and rdma where devices have atomics")
            })?;
            let window = windows.expose(bytes, signals).map_err(|error| error.to_string())?;
            let length = window.descriptor.len();
            let fits = length <= SAID_MAX;
            fits.then_some(window).ok_or_else(|| format!("a descriptor of {length} bytes"))
        }
        _ => Err(format!("there are no windows over {} at once", names.join(" and "))),
    }
}

fn import(
    endpoint: &mut dyn Endpoint,
    rank: usize,
    stated: WindowSize,
    descriptor: &[u8],
) -> Result<Mutex<Box<dyn RemoteWindow>>, String> {
    let windows = endpoint.windows().expect("it has exposed one");
    let imported = windows.import(rank, descriptor);
    let imported = imported.map_err(|error| format!("the window of rank {rank}: {error}"))?;
    // Later calls are held against what was stated, and the transport trusts them.
    let (bytes, signals) = imported.size();
    if stated != (WindowSize { bytes, signals }) {
        return Err(format!(
            "the window of rank {rank}: it states {} bytes and {} signals, but its descriptor has \
             {bytes} bytes and {signals} signals",
            stated.bytes, stated.signals
        ));
    }
    Ok(Mutex::new(imported))
}

/// Tell the others something of this rank's window, or why there is none; what all said.
fn tell(
    communicator: &Communicator,
    size: WindowSize,
    said: Result<&[u8], &String>,
) -> Result<Vec<u8>, Error> {
    let is_well = said.is_ok();
    let said = said.unwrap_or_else(|why| &why.as_bytes()[..why.len().min(SAID_MAX)]);
    let mut record = Vec::with_capacity(RECORD_BYTES);
    record.extend((size.bytes as u64).to_le_bytes());
    record.extend((size.signals as u64).to_le_bytes());
    record.push(u8::from(is_well));
    record.extend((said.len() as u16).to_le_bytes());
    record.extend(said);
    record.resize(RECORD_BYTES, 0);
    let mut records = vec![0; RECORD_BYTES * communicator.size()];
    communicator.all_gather(&record, &mut records)?;
    Ok(records)
}

/// What all ranks said, if all of them can.
fn parse(records: &[u8]) -> Result<Vec<(WindowSize, &[u8])>, Error> {
    let records = records.chunks_exact(RECORD_BYTES).enumerate();
    records.map(|(rank, record)| parse_one(rank, record)).collect()
}

/// What a rank said: from the network, so anything.
fn parse_one(rank: usize, record: &[u8]) -> Result<(WindowSize, &[u8]), Error> {
    let word = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes"));
    let length = usize::from(u16::from_le_bytes([record[17], record[18]]));
    let said = &record[HEAD_BYTES..][..length.min(SAID_MAX)];
    if record[16] != 1 {
        let why = String::from_utf8_lossy(said);
        return Err(Error::invalid(format!("a window: on rank {rank} {why}")));
    }
    let fits = |word: u64, most: usize| usize::try_from(word).ok().filter(|&it| it <= most);
    let (bytes, signals) = (fits(word(0), BYTES_MAX), fits(word(8), SIGNALS_MAX));
    match (bytes, signals) {
        (Some(bytes), Some(signals)) => Ok((WindowSize { bytes, signals }, said)),
        _ => Err(Error::invalid(format!(
            "a window: rank {rank} states {} bytes and {} signals, and at most {BYTES_MAX} bytes \
             and {SIGNALS_MAX} signals are possible",
            word(0),
            word(8)
        ))),
    }
}

/// The window of a rank that has nobody beside it.
struct Alone {
    memory: Vec<u8>,
}

impl WindowMemory for Alone {
    fn read(&self, offset: usize, target: &mut [u8]) {
        target.copy_from_slice(&self.memory[offset..][..target.len()]);
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.memory[offset..][..bytes.len()].copy_from_slice(bytes);
    }

    fn signal(&self, _: usize) -> u64 {
        // Nobody else adds to a counter.
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    /// What a rank with a window of this size and a descriptor of three bytes says.
    fn record(bytes: u64, signals: u64) -> Vec<u8> {
        let mut record = [&bytes.to_le_bytes()[..], &signals.to_le_bytes(), &[1, 3, 0]].concat();
        record.extend(b"abc");
        record.resize(RECORD_BYTES, 0);
        record
    }

    #[test]
    fn a_size_that_no_window_has_is_an_error_with_its_rank_and_numbers() {
        let largest = record(BYTES_MAX as u64, SIGNALS_MAX as u64);
        let size = WindowSize { bytes: BYTES_MAX, signals: SIGNALS_MAX };
        assert_eq!(parse(&largest).expect("the largest window"), [(size, &b"abc"[..])]);
        for (bytes, signals) in
            [(u64::MAX, 0), (BYTES_MAX as u64 + 1, 2), (7, SIGNALS_MAX as u64 + 1), (1, u64::MAX)]
        {
            let records = [record(10, 1), record(bytes, signals)].concat();
            let error = parse(&records).expect_err("no window is so large");
            assert!(error.is_recoverable(), "{error}");
            let stated = format!("{bytes} bytes and {signals} signals");
            let text = error.to_string();
            assert!(text.contains("rank 1 states") && text.contains(&stated), "{text}");
            assert!(text.contains(&format!("at most {BYTES_MAX} bytes")), "{text}");
        }
    }

    #[test]
    fn a_rank_that_states_another_size_than_it_exposes_is_named_to_all() {
        for transport in ["loopback", "shm"] {
            for stated in [[11, 2], [10, 3], [9, 2], [1 << 40, 2]] {
                let settings = Settings { transport: transport.into(), ..Settings::default() };
                let world = Communicator::local_world(3, &settings).expect("a world");
                std::thread::scope(|scope| {
                    for member in world {
                        scope.spawn(move || another_size(&member, stated));
                    }
                });
            }
        }
    }

    /// Rank 1 states a size that is not its own.
    fn another_size(member: &Communicator, [bytes, signals]: [usize; 2]) {
        let size = WindowSize { bytes: 10, signals: 2 };
        let stated = if member.rank() == 1 { WindowSize { bytes, signals } } else { size };
        let error = meet_stating(member, size, stated).map(|_| ()).expect_err("it is not so");
        assert!(error.is_recoverable(), "{error}");
        let text = error.to_string();
        let states = format!("states {bytes} bytes and {signals} signals");
        for part in ["on rank 0", "of rank 1", &states, "has 10 bytes and 2 signals"] {
            assert!(text.contains(part), "rank {}: {part} is not in: {text}", member.rank());
        }
        let window = meet(member, size).expect("the group goes on");
        window.put(1, 0, &[1; 10]).expect("a put");
        member.barrier().expect("the window is not needed any more");
    }

    #[test]
    fn no_record_of_a_peer_is_too_strange_to_be_read() {
        const SEED: u64 = 602;
        let mut rng = fastrand::Rng::with_seed(SEED);
        for round in 0..2000 {
            let mut strange = record(10, 1);
            for _ in 0..rng.usize(1..40) {
                // Mostly in front, where the numbers are.
                let end = if rng.bool() { HEAD_BYTES } else { RECORD_BYTES };
                strange[rng.usize(..end)] = rng.u8(..);
            }
            if let Ok(told) = parse(&strange) {
                let [(size, said)] = told[..] else { panic!("seed {SEED}, round {round}") };
                let fits = size.bytes <= BYTES_MAX && size.signals <= SIGNALS_MAX;
                assert!(fits && said.len() <= SAID_MAX, "seed {SEED}, round {round}: {size:?}");
            }
        }
    }
}
