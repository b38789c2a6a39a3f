//! How the ranks of a group open their devices to each other: cards, boards, and a proof that what
//! one writes the others read.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use brigade_cuda::{Context, CudaError, DeviceMemory, Stream};
use brigade_schedule::Collective;

use super::card::{CARD_BYTES, Card, disagreement};
use super::inbox::{self, Inboxes};
use super::kernels::{Folding, Kernels};
use super::layout::{BLOCKS, Group, PACKETS_AT, RANKS, board_bytes};
use super::parties;
use super::sys::Desk;
use crate::call::{Buffers, Call};
use crate::communicator::Shared;
use crate::{Dtype, Error};

/// How long the proof may take, compilers and first launches included.
const PROOF_TIMEOUT: Duration = Duration::from_secs(20);

/// How calls of a group are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Kernels of all ranks run at the same time and find each other by flags: threads of one
    /// process, whose kernels fit their devices together. The host waits for nothing.
    Together,
    /// Kernels of all ranks run at the same time, and what one sends another goes through slots in
    /// the other's memory, by the call's schedule: processes that share no device, or threads for
    /// which an algorithm was named. The host waits for nothing.
    Linked,
    /// The host's ranks meet before and after kernels that wait for nobody: processes, whose
    /// kernels take turns on a device, or more ranks than a device has room for.
    Met,
    /// Through pinned memory of the host and the transports of the group: what always works.
    Staged,
}

impl Way {
    /// Whether calls go into a stream and nothing waits for them here, so that they can be
    /// captured.
    pub fn is_enqueued(self) -> bool {
        matches!(self, Self::Together | Self::Linked)
    }
}

/// What a rank has of its own before it knows the others.
pub(super) struct Opened {
    pub(super) context: Context,
    pub(super) stream: Stream,
    pub(super) board: Arc<DeviceMemory>,
    pub(super) desk: Desk,
    pub(super) kernels: Kernels,
}

impl Opened {
    fn new(context: &Context, ranks: usize) -> Result<Self, CudaError> {
        let stream = Stream::new(context)?;
        let board = Arc::new(DeviceMemory::new(context, board_bytes(ranks.min(RANKS)))?);
        clear(&stream, &board)?;
        let desk = Desk::new(context)?;
        let mut kernels = Kernels::default();
        kernels.load(context, Folding::NONE)?;
        stream.synchronize()?;
        show(&board);
        Ok(Self { context: context.clone(), stream, board, desk, kernels })
    }
}

/// What is known once all have shown their cards.
pub(super) struct Met {
    pub(super) opened: Opened,
    pub(super) cards: Vec<Card>,
    /// The boards of all ranks of this process: kernels of others may still look at a board whose
    /// rank has gone.
    pub(super) boards: Vec<Arc<DeviceMemory>>,
    pub(super) group: Group,
    /// Where packets lie on every board.
    pub(super) packets: [u64; RANKS],
    pub(super) inboxes: Inboxes,
    /// What all ranks can try, best first.
    pub(super) ways: Vec<Way>,
    /// At most so many blocks of each rank run at the same time.
    pub(super) blocks: u32,
}

/// Open this rank's device and hear of the others'. Collective; fails on all ranks alike.
pub(super) fn meet(shared: &Shared, context: &Context) -> Result<Met, Error> {
    let (rank, ranks) = (shared.rank, shared.ranks as usize);
    // Opening waits for the device, on which an earlier group's calls may wait for another rank.
    agree(shared, true)?;
    let opened = Opened::new(context, ranks);
    let card = opened.as_ref().ok().map(|opened| {
        let (context, board) = (&opened.context, opened.board.address());
        Card::of(context, board, &shared.settings)
    });
    let bytes = exchange(shared, &card.unwrap_or(Card::NONE).to_bytes())?;
    let cards: Vec<Card> = bytes.chunks_exact(CARD_BYTES).map(Card::from_bytes).collect();
    let opened = opened.map_err(|error| trouble("opening the device", &error))?;
    if let Some(failed) = cards.iter().position(|card| card.room == 0) {
        let failed = shared.members[failed];
        return Err(Error::join(format!("rank {failed} could not open its device")));
    }
    if let Some(why) = disagreement(&cards, &shared.members) {
        return Err(Error::join(why));
    }
    if cards.iter().any(|card| card.process != cards[rank as usize].process) {
        parties::enter(cards[0].number, rank);
    }
    let desk = opened.desk.address();
    let group = Group { rank, ranks: shared.ranks, desk, board: [0; RANKS] };
    let mut met = Met {
        opened,
        boards: Vec::new(),
        group,
        packets: [0; RANKS],
        inboxes: Inboxes::default(),
        ways: Vec::new(),
        blocks: room_for_each(&cards).clamp(1, BLOCKS as u32),
        cards,
    };
    if ranks <= RANKS {
        met.find_ways(shared)?;
    }
    met.ways.push(Way::Staged);
    Ok(met)
}

impl Met {
    /// What this rank can try and all others can, too, by the cards and by what can be opened.
    fn find_ways(&mut self, shared: &Shared) -> Result<(), Error> {
        let (context, cards) = (&self.opened.context, &self.cards);
        let own = &cards[self.group.rank as usize];
        let is_one_host = cards.iter().all(|card| card.host == own.host);
        let is_one_process = cards.iter().all(|card| card.process == own.process);
        let has_room = room_for_each(cards) > 0;
        let is_wished = cards.iter().any(Card::names_algorithm);
        let mut ways = Vec::new();
        if is_one_process && has_room && cards.iter().all(|card| reach(context, card).is_ok()) {
            self.boards = cards.iter().filter_map(|card| shown(card.board)).collect();
            for (peer, card) in cards.iter().enumerate() {
                self.group.board[peer] = card.board;
            }
            if self.boards.len() == cards.len() {
                ways.push(Way::Together);
            }
        }
        // From their cards all ranks find alike whether they open inboxes.
        let is_linked = is_one_host && has_room && cards.len() > 1 && is_each_of_one_process(cards);
        if is_linked && (is_wished || !is_one_process) {
            let (inboxes, is_good) = inbox::open(shared, &self.opened, cards, self.blocks)?;
            self.inboxes = inboxes;
            if is_good {
                self.group.board = self.inboxes.boards;
                ways.insert(if is_wished { 0 } else { ways.len() }, Way::Linked);
            }
        }
        if is_one_host {
            ways.push(Way::Met);
        }
        for (packets, board) in self.packets.iter_mut().zip(self.group.board) {
            *packets = board + PACKETS_AT;
        }
        if launches_wait() {
            // Whose kernel has not ended launches none for another rank.
            ways.retain(|way| !way.is_enqueued());
        }
        let mask = ways.iter().fold(0, |mask, way| mask | 1 << *way as u8);
        let common = exchange(shared, &[mask])?.into_iter().fold(u8::MAX, |all, one| all & one);
        ways.retain(|way| common & 1 << *way as u8 != 0);
        // Who has no use for inboxes makes no room for them. All ranks have some, or none has.
        if self.inboxes.lanes > 0 && !ways.contains(&Way::Linked) {
            self.inboxes.close(shared)?;
        }
        self.ways = ways;
        Ok(())
    }
}

/// As new: memory that no kernel uses.
pub(super) fn clear(stream: &Stream, memory: &DeviceMemory) -> Result<(), CudaError> {
    // SAFETY: the range is the memory, which nobody looks at now, and we wait.
    unsafe { stream.fill(memory.address(), 0, memory.bytes()) }?;
    stream.synchronize()
}

/// The boards and inboxes of this process.
static SHOWN: Mutex<Vec<Weak<DeviceMemory>>> = Mutex::new(Vec::new());

/// Let other ranks of this process keep it.
pub(super) fn show(memory: &Arc<DeviceMemory>) {
    let mut shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    shown.retain(|memory| memory.strong_count() > 0);
    shown.push(Arc::downgrade(memory));
}

/// What a rank of this process has shown.
pub(super) fn shown(address: u64) -> Option<Arc<DeviceMemory>> {
    let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    shown.iter().filter_map(Weak::upgrade).find(|memory| memory.address() == address)
}

/// Whether no device is shared by ranks of different processes, whose kernels take turns there.
fn is_each_of_one_process(cards: &[Card]) -> bool {
    let apart = |one: &Card, two: &Card| one.uuid != two.uuid || one.process == two.process;
    cards.iter().all(|one| cards.iter().all(|two| apart(one, two)))
}

/// How many blocks of each rank run at the same time where ranks share devices; zero if there is
/// not one for each.
fn room_for_each(cards: &[Card]) -> u32 {
    let sharing = |card: &Card| cards.iter().filter(|other| other.uuid == card.uuid).count();
    cards.iter().map(|card| card.room / sharing(card) as u32).min().unwrap_or(0)
}

/// Let kernels of this device reach the memory of another rank's of this process.
pub(super) fn reach(context: &Context, card: &Card) -> Result<(), CudaError> {
    if card.uuid == context.device().uuid {
        return Ok(());
    }
    let devices = context.device().cuda.devices()?;
    let device = devices.iter().find(|device| device.ordinal == card.ordinal);
    let device = device.ok_or_else(|| CudaError::Refused { why: "no such device".into() })?;
    if !context.device().link_to(device)?.reaches {
        let why = format!("device {} is out of reach", device.ordinal);
        return Err(CudaError::Refused { why });
    }
    context.reach(&Context::new(device)?)
}

/// Everybody's bytes, in the order of ranks; the same number of each. Ranks have met when it ends.
pub(super) fn exchange(shared: &Shared, mine: &[u8]) -> Result<Vec<u8>, Error> {
    let mut all = vec![0; mine.len() * shared.ranks as usize];
    let call = Call::moving(Collective::AllGather, Dtype::U8, mine.len());
    let buffers = Buffers::OutOfPlace { input: mine, output: &mut all };
    shared.progress.drain();
    shared.run_now(&call, buffers).map_err(|error| *error)?;
    Ok(all)
}

/// Whether it went well on all ranks.
pub(super) fn agree(shared: &Shared, went_well: bool) -> Result<bool, Error> {
    Ok(exchange(shared, &[u8::from(went_well)])?.iter().all(|&byte| byte == 1))
}

/// The bytes that `rank` shows in a proof.
pub(super) fn pattern(rank: u32, bytes: usize) -> Vec<u8> {
    let number = |at: usize| (at as u32).wrapping_mul(2_654_435_761) ^ rank.wrapping_mul(40_503);
    (0..bytes).map(|at| (number(at) >> 7) as u8).collect()
}

/// Whether the driver was told that launches return when their kernel has ended.
fn launches_wait() -> bool {
    let told = std::env::var_os("CUDA_LAUNCH_BLOCKING").unwrap_or_default();
    !told.is_empty() && told != "0"
}

/// Do something that may not come back before kernels end, as launches under tools for debugging:
/// no longer than a proof may take, after which kernels are told to.
pub(super) fn with_alarm<T>(desk: &Desk, body: impl FnOnce() -> T) -> T {
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(PROOF_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                desk.abort();
            }
        });
        let outcome = body();
        drop(done);
        outcome
    })
}

/// Wait until everything in `stream` is done; false when that takes longer than a proof may.
pub(super) fn ends_in_time(stream: &Stream) -> Result<bool, CudaError> {
    let deadline = Instant::now() + PROOF_TIMEOUT;
    while !stream.is_done()? {
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(true)
}

/// A failure of CUDA as the error of a call.
pub(super) fn trouble(during: &str, error: &CudaError) -> Error {
    let source = brigade_transports::TransportError::Refused { why: error.to_string() };
    Error::Transport { source, during: during.to_owned() }
}
