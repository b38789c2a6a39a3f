//! How the windows of a group come to know each other.
//!
//! Each rank exposes its memory to a group of its own making, tells the others where it is, and
//! imports theirs. What one of them cannot do, all hear of, so that none waits for it.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use brigade_transports::WindowMemory;

use super::Window;
use super::held::{Held, Plain, room};
use super::size::WindowSize;
use super::ways::{MAKING, Opening};
use crate::aside::Aside;
use crate::communicator::derive_group;
use crate::control::History;
use crate::eagerness::Eagerness;
use crate::inside;
use crate::maker::Maker;
use crate::purpose::Purpose;
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
/// What a counter takes at the most: a cache line of its own.
const SIGNAL_BYTES_MAX: usize = 64;
/// Colours of divisions have 32 bits, and lists of survivors the highest one.
const GROUPS_OF_WINDOWS: u64 = 1 << 62;
/// The groups in which a rank asks those with a lower number.
const GROUPS_OF_DOWNWARD: u64 = GROUPS_OF_WINDOWS + 1;

impl Communicator {
    /// Expose memory to the other ranks, and get hold of theirs. Collective: every rank calls it,
    /// each with a size of its own, which may be nothing.
    ///
    /// Ranks write and read each other's memory by themselves over shared memory, and over RDMA
    /// where devices have atomics. Over everything else, and between ranks that reach each other by
    /// another transport than the owner's first one that can do that, they do so by messages that a
    /// thread of the owner carries out: the same in all that is promised here, but each costs the
    /// owner's host some time.
    ///
    /// Ranks that RDMA joins, of which one has a device without atomics and the other has not, make
    /// no window: [`Error::Invalid`] tells all of them which transport to leave out.
    ///
    /// Cost: joining, two small all-gathers, and the memory. Where there are messages, also two
    /// links to each such rank, and a thread for as long as the window lives.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] on every rank if one of them cannot, for want of memory say. Otherwise
    /// those of a call.
    ///
    /// ```
    /// # use brigade_comm::*;
    /// # at_once(Communicator::local_world(2, &Settings::default()).unwrap(), |comm| {
    /// // Rank 0 has eight bytes and a counter for the others, rank 1 has nothing.
    /// let size = [WindowSize { bytes: 8, signals: 1 }, WindowSize::default()][comm.rank()];
    /// let window = comm.window(size)?;
    /// let mut came = [0; 5];
    /// if comm.rank() == 1 {
    ///     window.put(0, 0, b"hello")?;
    ///     window.signal(0, 0, 1)?;
    /// } else {
    ///     window.wait(0, 1)?;
    ///     window.get(0, 0, &mut came)?;
    ///     assert_eq!(&came, b"hello");
    /// }
    /// comm.barrier()?; // Nobody needs the windows any more.
    /// # Ok::<(), Error>(()) }).unwrap().into_iter().for_each(Result::unwrap);
    /// ```
    pub fn window(&self, size: WindowSize) -> Result<Window, Error> {
        meet(self, size)
    }
}

/// Make the window of this rank, with all others.
fn meet(communicator: &Communicator, size: WindowSize) -> Result<Window, Error> {
    meet_stating(communicator, size, size)
}

/// Make a window of size `size` and state that it is `stated`, which is the same except in tests.
fn meet_stating(
    communicator: &Communicator,
    size: WindowSize,
    stated: WindowSize,
) -> Result<Window, Error> {
    let shared = communicator.shared();
    // Before it is counted, which all ranks do alike.
    inside::refuse(shared.number)?;
    let number = shared.splits.fetch_add(1, Ordering::Relaxed);
    let group_of = |kind| derive_group(shared.group, number, kind);
    let groups = [GROUPS_OF_WINDOWS, GROUPS_OF_DOWNWARD].map(group_of);
    let me = communicator.rank();
    let watch = Watch {
        control: Arc::clone(&shared.world.control),
        members: Arc::clone(&shared.members),
        me: me as u32,
        group: groups[0],
        history: History::default(),
        stands: AtomicBool::new(false),
        report_after: shared.settings.report_after,
        timeout: shared.settings.timeout,
    };
    let joined = shared.world.join(&watch, &shared.settings, MAKING);
    let joined = joined.map_err(|error| shared.world.without_us_in(groups[0], error));
    let mut links = match joined {
        // The others hear of it as of all that a rank cannot.
        Err(error @ (Error::Join { .. } | Error::Transport { .. })) => Err(error.to_string()),
        joined => Ok(joined?),
    };
    let exposed = links.as_mut().map_err(|why| why.clone()).and_then(|it| expose(it, size));
    let records = tell(communicator, stated, exposed.as_ref().map(|it| &it.said[..]))?;
    let told = parse(&records, &shared.members)?;
    let Exposed { native, memory, .. } = exposed.map_err(Error::invalid)?;
    let links = links.map_err(Error::invalid)?;
    let share = links.share;
    let sizes = told.iter().map(|(size, _)| *size).collect();
    let held = Arc::new(Held::new(memory, native.is_some(), size, watch));
    let mut opening = Opening { shared, me, groups, links, native, told: &told, held: &held };
    // What has ended the world the others hear anyway.
    let opened = match opening.open() {
        Err(error) if !error.is_recoverable() => return Err(error),
        opened => opened.map_err(|refusal| refusal.to_string()),
    };
    let records = tell(communicator, size, opened.as_ref().map(|_| &[][..]))?;
    parse(&records, &shared.members)?;
    let (ways, rest) = opened.map_err(Error::invalid)?;
    let waiting = Eagerness::among(share, Aside::of(me, shared.members.len(), share));
    let (rest, maker) = (Arc::new(rest), Maker::this());
    Ok(Window { ways, held, rest, ended: OnceLock::new(), waiting, sizes, maker })
}

/// A rank's own window, before the others know of it.
struct Exposed {
    /// The endpoint whose memory it is, if it is of one.
    native: Option<usize>,
    memory: Box<dyn WindowMemory>,
    /// The name of that transport, with its length in front, and what its peers need to know.
    said: Vec<u8>,
}

/// Expose memory of the first transport that has such for all whom it joins to us, or have memory
/// that nobody else reaches.
/// Errors: why that cannot be.
fn expose(links: &mut Links, size: WindowSize) -> Result<Exposed, String> {
    let WindowSize { bytes, signals } = size;
    if bytes > BYTES_MAX || signals > SIGNALS_MAX {
        return Err(format!("no window has {bytes} bytes and {signals} signals"));
    }
    // Some transports end the process for want of memory, so it is asked for before: the room is
    // given back, but the compiler shall not leave it out.
    drop(black_box(room(bytes + signals * SIGNAL_BYTES_MAX)?));
    for (at, endpoint) in links.endpoints.iter_mut().enumerate() {
        let Some(windows) = endpoint.windows().filter(|it| it.is_for_all()) else { continue };
        let window = windows.expose(bytes, signals).map_err(|error| error.to_string())?;
        let name = links.names[at];
        let said = [&[name.len() as u8][..], name.as_bytes(), &window.descriptor].concat();
        let length = said.len();
        return match length <= SAID_MAX {
            true => Ok(Exposed { native: Some(at), memory: window.memory, said }),
            false => Err(format!("a descriptor of {length} bytes")),
        };
    }
    Ok(Exposed { native: None, memory: Box::new(Plain::new(bytes)?), said: Vec::new() })
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
    communicator.shared().exchange(Purpose::Window, &record)
}

/// What all members said, if all of them can. `members`: the world's rank of each.
fn parse<'a>(records: &'a [u8], members: &[u32]) -> Result<Vec<(WindowSize, &'a [u8])>, Error> {
    let records = members.iter().zip(records.chunks_exact(RECORD_BYTES));
    records.map(|(rank, record)| parse_one(*rank, record)).collect()
}

/// What a rank said: from the network, so anything.
fn parse_one(rank: u32, record: &[u8]) -> Result<(WindowSize, &[u8]), Error> {
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
        assert_eq!(parse(&largest, &[7]).expect("the largest window"), [(size, &b"abc"[..])]);
        for (bytes, signals) in
            [(u64::MAX, 0), (BYTES_MAX as u64 + 1, 2), (7, SIGNALS_MAX as u64 + 1), (1, u64::MAX)]
        {
            let records = [record(10, 1), record(bytes, signals)].concat();
            let error = parse(&records, &[2, 3]).expect_err("no window is so large");
            assert!(error.is_recoverable(), "{error}");
            let stated = format!("{bytes} bytes and {signals} signals");
            let text = error.to_string();
            assert!(text.contains("rank 3 states") && text.contains(&stated), "{text}");
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
            if let Ok(told) = parse(&strange, &[2, 3]) {
                let [(size, said)] = told[..] else { panic!("seed {SEED}, round {round}") };
                let fits = size.bytes <= BYTES_MAX && size.signals <= SIGNALS_MAX;
                assert!(fits && said.len() <= SAID_MAX, "seed {SEED}, round {round}: {size:?}");
            }
        }
    }
}
