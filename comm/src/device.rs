//! Calls on memory of devices, in the order of a stream.
//!
//! A [`DeviceGroup`] is what a communicator has on devices: each rank brings the context of its
//! own, and several ranks may share one. A call is enqueued into a stream of the caller's and
//! returns; what comes behind it in the stream sees its result. The rooms, from the bottom:
//!
//! | room | what it knows |
//! |---|---|
//! | `layout`, `kernels` | what kernels and host both look into, and the kernels |
//! | `sys`, `watch` | words that kernels write when they wait, and the clock that they lack |
//! | `looks` | how the host waits for a device |
//! | `exchange`, `share`, `way` | what hosts tell each other, of a device's parts and of ways |
//! | `setup`: `card`, `shown`, `parties` | what ranks tell, show and lend each other |
//! | `setup`: `reached`, `inbox`, `readers` | who reaches whom |
//! | `plans`: `lower` | a call as steps on everybody's buffers, or as packets: pure |
//! | `plans`: `link`, `slotted` | a call as hops of its schedule: pure |
//! | `plans`: `facts` | calls made before, and the memory that they name |
//! | `room` | memory that they need beside it |
//! | `ways`: `slots`, `lent`; `messages` | the ways to carry out a call, and messages |
//! | `ways`: `proof` | which way it is to be, proved with a pattern |
//! | `staged`: `pieces`, `relay` | what goes through hosts, a piece at a time |
//! | `nodes`: `legs` | calls in legs: inside of nodes, and between them |
//! | `work`, `ending` | waiting for what was enqueued, and the end, after which memory is freed |
//! | `window` | memory that all ranks reach, for a program's own use |
//!
//! Where all ranks are threads of one process, a call is one kernel: ranks find each other's
//! buffers by flags in device memory and nothing waits on the host, so calls can be captured in
//! graphs. Where they are processes with devices of their own, a call is one kernel too, and what
//! one rank sends another goes through slots in the other's memory. Kernels of different processes
//! take turns on a device that they share, so they cannot wait for each other: there the ranks'
//! hosts meet before and after. What ranks cannot reach at all goes through pinned memory of the
//! host.

mod ending;
mod exchange;
mod kernels;
mod layout;
mod looks;
mod messages;
mod nodes;
mod plans;
mod room;
mod setup;
mod share;
mod staged;
mod sys;
mod watch;
mod way;
mod ways;
mod window;
mod work;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brigade_cuda::{Context, DeviceMemory, Event, Stream};
use brigade_schedule::Algorithm;
use brigade_transports::{MAKE_THREAD, TransportError};

/// The driver, contexts, streams and memory that calls are made with.
pub use brigade_cuda as cuda;
pub use kernels::sources;
pub use messages::DeviceMessage;
pub use share::DeviceShare;
pub use way::Way;
pub use window::DeviceWindow;
pub use work::DeviceWork;

use crate::Error;
use crate::call::Call;
use crate::communicator::{Communicator, Shared};
use kernels::Kernels;
use layout::{Group, RANKS};
use nodes::Nodes;
use plans::facts::Facts;
use plans::{Plan, Plans, Ranges, Ready};
use room::Room;
use setup::Met;
use setup::card::Card;
use setup::inbox::Inboxes;
use staged::relay::Staging;
use watch::{Watched, Watcher};
use ways::lent::Imports;
use work::Events;

/// What a communicator has on devices. Calls are made in the same order on all ranks, like those
/// of the communicator itself, and take their turn with them. Calls in different streams must not
/// run beside each other: let the one stream wait for the other.
///
/// A rank that frees memory of a device, other than to a pool, or that allocates or pins some, may
/// wait for everything on it. So do it while no rank of this process is in a call (between two
/// barriers), as with NCCL.
///
/// A group ends by [`DeviceGroup::close`] on all ranks. Dropping it waits for what was enqueued, no
/// longer than a call may take (and for all that this process has on the device, where calls lie in
/// graphs of somebody else's streams), and two seconds for other processes. What they still have
/// open is kept, and so is what calls may look at that do not end.
pub struct DeviceGroup {
    inner: Arc<Inner>,
    watcher: Option<Watcher>,
}

struct Inner {
    watched: Arc<Watched>,
    context: Context,
    way: Way,
    /// Whether what goes wrong from now on ends the group.
    is_proved: bool,
    cards: Vec<Card>,
    _boards: Vec<Arc<DeviceMemory>>,
    board: Arc<DeviceMemory>,
    group: Group,
    packets: [u64; RANKS],
    inboxes: Inboxes,
    blocks: u32,
    /// What longer calls go by, of ranks on several nodes.
    nodes: Option<Nodes>,
    /// For what the group does by itself.
    stream: Stream,
    /// Behind the last call in a stream of somebody else: calls come one behind the other.
    last: Event,
    events: Events,
    /// See [`DeviceGroup::keep_open`]; of the caller's memory only, not of scratch.
    keeps: AtomicBool,
    state: Mutex<State>,
}

/// What one call at a time uses.
struct State {
    kernels: Kernels,
    plans: Plans,
    ranges: Ranges,
    imports: Imports,
    staging: Staging,
    /// Where inputs are kept whose places others write to; the last is the longest.
    scratch: Vec<Room>,
    /// Streams that calls were enqueued into.
    streams: Vec<Stream>,
    /// Whether calls were put into streams of somebody else with no mark behind them, as those in
    /// graphs, which are launched by whom we do not know.
    is_unmarked: bool,
    /// Calls and kernels for messages so far.
    posted: u32,
    is_closed: bool,
    /// Whether calls had not ended when it was closed, so that nothing of it may go.
    is_running: bool,
}

impl Communicator {
    /// This group on devices: each rank brings the context of its own. Collective. Costs a
    /// compilation of kernels where no earlier run left one on disk, and a small exchange with
    /// everybody, who prove to each other that what one writes the others read.
    ///
    /// # Errors
    ///
    /// [`Error::Join`] and [`Error::Transport`] where a rank's device cannot be opened or has no
    /// memory left; otherwise those of a call.
    pub fn on_device(&self, context: &Context) -> Result<DeviceGroup, Error> {
        self.on_device_with(context, DeviceShare::default())
    }

    /// The same with a share of this rank's device, beside calls of other groups there. There must
    /// be one order of all calls, of whichever groups, in which each rank makes its own.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::on_device`].
    pub fn on_device_with(
        &self,
        context: &Context,
        share: DeviceShare,
    ) -> Result<DeviceGroup, Error> {
        let shared = self.shared();
        let mut met = setup::meet(shared, context, share)?;
        let ways = std::mem::take(&mut met.ways);
        let mut inner = Inner::new(shared, met);
        inner.find_way(&ways)?;
        inner.divide(self, share)?;
        inner.is_proved = true;
        let watcher = Watcher::start(&inner.watched).map_err(|error| {
            let source = TransportError::from_io(MAKE_THREAD, &error, "to watch its kernels");
            // The others have the group already, and would wait for this rank in it.
            inner
                .watched
                .end(Error::Transport { source, during: "opening a group on devices".to_owned() })
        })?;
        let number = inner.cards[0].number;
        if inner.cards.iter().any(|card| card.process != inner.cards[0].process) {
            shared.world.control.hold(number);
        }
        Ok(DeviceGroup { inner: Arc::new(inner), watcher: Some(watcher) })
    }
}

impl DeviceGroup {
    /// How calls are carried out.
    pub fn way(&self) -> Way {
        self.inner.way
    }

    /// The schedule by which a call goes, if it goes by one: with [`Way::Linked`], and then not if
    /// it is small. The same on all ranks.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a call that makes no sense.
    pub fn algorithm_for(&self, call: &Call) -> Result<Option<Algorithm>, Error> {
        Ok(match Plan::new(call, false, &self.inner.facts())?.ready {
            Ready::Linked(slotted) => Some(slotted.algorithm),
            _ => None,
        })
    }

    /// Whether another rank that is a thread of this process is on this rank's device: then the two
    /// must not share a stream, in which neither could wait for the other.
    pub fn shares_device(&self) -> bool {
        let own = &self.inner.cards[self.inner.group.rank as usize];
        let cards = self.inner.cards.iter();
        cards.filter(|card| (card.process, card.uuid) == (own.process, own.uuid)).count() > 1
    }

    /// Whether another rank is a thread of this process. Whoever allocates memory of a device, pins
    /// or frees some, or loads code may wait for that rank's device too, where they reach each
    /// other.
    pub fn shares_process(&self) -> bool {
        self.inner.ranks_here() > 1
    }

    /// Whether kernels of ranks wait for each other, so that those of two must not share a stream.
    pub fn kernels_wait(&self) -> bool {
        self.inner.way.is_enqueued() || self.inner.nodes.as_ref().is_some_and(Nodes::kernels_wait)
    }

    /// This rank's context.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Enqueue a call into `stream`: blocks of this rank's input from address `input`, of its
    /// output at `output`. In place is where NCCL has it: the same buffer, or the rank's own block
    /// of the larger one. With [`Way::Together`] and [`Way::Linked`] nothing waits here, except
    /// when a call of this kind is made for the first time, which cannot be captured; with the
    /// other ways the call is done when this returns, and never captured.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a call that makes no sense or memory that is not there, which
    /// leaves everything as it was; otherwise what ended the group.
    ///
    /// # Safety
    ///
    /// The buffers stay until the call is done, nobody writes to what is read, and nobody touches
    /// what is written; what the stream has before the call is what the buffers need.
    pub unsafe fn enqueue(
        &self,
        call: &Call,
        input: u64,
        output: u64,
        stream: &Stream,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.enqueue(call, input, output, stream) }
    }

    /// Like [`DeviceGroup::enqueue`], with something to wait for. Not for streams that are being
    /// captured.
    ///
    /// # Errors
    ///
    /// As for [`DeviceGroup::enqueue`].
    ///
    /// # Safety
    ///
    /// As for [`DeviceGroup::enqueue`].
    pub unsafe fn start(
        &self,
        call: &Call,
        input: u64,
        output: u64,
        stream: &Stream,
    ) -> Result<DeviceWork, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(call, input, output, stream)? };
        self.mark(stream)
    }

    /// Something to wait for what `stream` has by now.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a stream that is being captured, and what the driver says.
    pub fn mark(&self, stream: &Stream) -> Result<DeviceWork, Error> {
        DeviceWork::mark(&self.inner, stream)
    }

    /// Recorded behind each call in a stream of somebody else ([`Stream::borrowed`]) that is not
    /// captured: who has calls in streams of both kinds may record it behind the others, too.
    pub fn last(&self) -> &Event {
        &self.inner.last
    }

    /// Enqueue messages that may all be on their way at once. A message to oneself is received in
    /// the same list.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for messages that make no sense, otherwise what ended the group.
    ///
    /// # Safety
    ///
    /// As for [`DeviceGroup::enqueue`], of the memory of all messages.
    pub unsafe fn messages(
        &self,
        messages: &[DeviceMessage],
        stream: &Stream,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.messages(messages, stream) }
    }

    /// From now on this rank keeps memory that its calls are made on until the group is closed or
    /// dropped on all ranks of this process. With [`Way::Met`] other processes then leave it open,
    /// and need not open and close it for every call. Each rank decides for itself.
    pub fn keep_open(&self) {
        self.inner.keeps.store(true, Ordering::Relaxed);
        self.inner.nodes.iter().for_each(|nodes| nodes.inside.keep_open());
    }

    /// Why nothing can be called any more, if it is so: for those whose calls run in graphs.
    /// Costs two loads as long as all is well.
    ///
    /// # Errors
    ///
    /// What ended the group.
    pub fn check(&self) -> Result<(), Error> {
        self.inner.watched.check()
    }
}

impl Inner {
    fn new(shared: &Arc<Shared>, met: Met) -> Self {
        let Met { opened, cards, boards, group, packets, inboxes, blocks, .. } = met;
        let state = State {
            kernels: opened.kernels,
            plans: Plans::default(),
            ranges: Ranges::default(),
            imports: Imports::default(),
            staging: Staging::default(),
            scratch: Vec::new(),
            streams: Vec::new(),
            is_unmarked: false,
            posted: 0,
            is_closed: false,
            is_running: false,
        };
        Self {
            watched: Watched::new(Arc::clone(shared), opened.desk),
            context: opened.context,
            way: Way::Staged,
            is_proved: false,
            cards,
            _boards: boards,
            board: opened.board,
            group,
            packets,
            inboxes,
            blocks,
            nodes: None,
            stream: opened.stream,
            last: opened.last,
            events: Events::default(),
            keeps: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    /// How many ranks are threads of this process.
    fn ranks_here(&self) -> usize {
        let own = self.cards[self.group.rank as usize].process;
        self.cards.iter().filter(|card| card.process == own).count()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            rank: self.group.rank,
            ranks: self.group.ranks,
            way: self.way,
            group: &self.group,
            packets: &self.packets,
            blocks: self.blocks,
            is_one_device: self.cards.iter().all(|card| card.uuid == self.cards[0].uuid),
            inboxes: &self.inboxes,
            settings: &self.watched.shared.settings,
        }
    }
}
