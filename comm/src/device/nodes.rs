//! Calls of ranks on several nodes, whose devices reach each other inside of each: what can stay in
//! a node does, and of what goes from node to node each rank's host carries an equal part.
//!
//! A rank is in two groups: that of its node, and that of the ranks which have its place in theirs,
//! its column. An all-reduce of n bytes by nodes of g ranks is a reduce-scatter inside, which
//! leaves n/g with each, an all-reduce of these along the column, and an all-gather inside. So n/g
//! pass through a host's memory for each rank, where the whole call through hosts takes n
//! ([`super::staged`]); and each of N nodes sends 2(N-1)/N · n in all, which is the least there is.
//! The host's algorithm for that is `hierarchical` (`brigade_schedule`).

mod legs;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use brigade_cuda::{Context, Stream};
use brigade_schedule::Collective;

use super::exchange::{agree, trouble};
use super::kernels::Folding;
use super::room::Room;
use super::setup::card::Card;
use super::share::DeviceShare;
use super::staged::pieces::{Pieces, UNIT_BYTES};
use super::staged::relay::{Relay, Staging};
use super::way::Way;
use super::{DeviceGroup, Inner};
use crate::call::{Call, Counts};
use crate::communicator::{Communicator, Shared};
use crate::nodes::numbers;
use crate::{Dtype, Error, Op};
use legs::{Divided, Legs, Part, divided};

/// Shorter calls are one of the hosts: three that follow each other take longer.
const LEAST_BYTES: usize = 64 << 10;

/// What is done here, for errors.
const OPENING: &str = "opening a group on devices";

/// How the ranks of a group lie on nodes, and the two groups that this rank is in.
pub(super) struct Nodes {
    pub(super) inside: DeviceGroup,
    /// What the ranks of this node speak by.
    inside_comm: Communicator,
    /// The hosts of the ranks which have this one's place.
    column: Communicator,
    /// The ranks of each node: as many on each.
    nodes: Vec<Vec<u32>>,
    /// This rank's node, and its place there.
    here: Place,
    /// Whether kernels inside wait for ranks that are threads of one process, on any rank.
    waits: bool,
    /// Whether vectors go in pieces, which overlap: on all nodes kernels inside wait for ranks of
    /// other processes only. Those of one process share the device's queues, in which what one
    /// thread has put for later may keep another one's from beginning.
    in_pieces: bool,
}

/// A node, and a place there.
#[derive(Clone, Copy)]
struct Place {
    node: u32,
    place: u32,
}

impl Inner {
    /// Have longer calls go by nodes, if they can and there is no way for all ranks. Collective.
    pub(super) fn divide(&mut self, comm: &Communicator, share: DeviceShare) -> Result<(), Error> {
        if self.way == Way::Staged {
            self.nodes = Nodes::open(comm, &self.cards, &self.context, share)?;
        }
        if self.nodes.is_some() {
            self.way = Way::ByNodes;
            // Shorter calls, which would have to ask for it each, find it.
            let pinned = self.state().staging.make_room(&self.context, (LEAST_BYTES, LEAST_BYTES));
            let shared = &self.watched.shared;
            let all_have = agree(shared, pinned.is_ok())?;
            pinned.map_err(|error| trouble(OPENING, &error))?;
            if !all_have {
                return Err(Error::join("another rank could not pin memory of its host"));
            }
        }
        Ok(())
    }
}

impl Nodes {
    /// Open the two groups, if the ranks lie on several nodes, equally many on each, and the
    /// devices of each node reach each other. Collective; all ranks have one, or none has.
    fn open(
        comm: &Communicator,
        cards: &[Card],
        context: &Context,
        share: DeviceShare,
    ) -> Result<Option<Self>, Error> {
        // Who wants an order, or an algorithm, wants that of the whole group.
        if comm.settings().ordered || cards.iter().any(Card::names_algorithm) {
            return Ok(None);
        }
        let Some(nodes) = alike(cards.iter().map(|card| card.host)) else { return Ok(None) };
        let here = Place::of(&nodes, comm.rank() as u32);
        // A column is in the order of its nodes, by which calls along it know their root.
        let part = |color| {
            let part = comm.split(Some(color), here.node as i32)?;
            Ok::<_, Error>(part.expect("who names a colour is in a part"))
        };
        let (inside_comm, column) = (part(here.node)?, part(here.place)?);
        // Ranks that go through their node's memory gain nothing; and where one cannot open a
        // group, all do without.
        let inside = inside_comm.on_device_with(context, share);
        let is_good = inside.as_ref().is_ok_and(|group| group.way() != Way::Staged);
        if !agree(comm.shared(), is_good)? {
            // What is let go of may wait for the device: nobody's next call is there before.
            drop((inside, inside_comm));
            agree(comm.shared(), true)?;
            return Ok(None);
        }
        let inside = inside?;
        let cards = &inside.inner.cards;
        let here_too = |card: &Card| cards.iter().filter(|it| it.process == card.process).count();
        let is_enqueued = inside.way().is_enqueued();
        let waits = is_enqueued && cards.iter().any(|card| here_too(card) > 1);
        let in_pieces = agree(comm.shared(), is_enqueued && !waits)?;
        Ok(Some(Self { inside, inside_comm, column, nodes, here, waits, in_pieces }))
    }

    /// Whether a call goes so: the same on all ranks.
    pub(super) fn takes(&self, call: &Call) -> bool {
        let Counts::Even(count) = call.counts else { return false };
        if call.collective.folds() {
            // Of whole numbers an average of averages is not the average.
            let is_one = !matches!(call.op, Op::Avg) || call.dtype.is_float();
            if !is_one || Folding::by(call.dtype, &call.op).is_none() {
                return false;
            }
        }
        let comes_apart = match call.collective {
            Collective::AllReduce | Collective::Broadcast { .. } | Collective::Reduce { .. } => {
                true
            }
            // Blocks of a node must lie side by side.
            Collective::AllGather | Collective::ReduceScatter => are_rows(&self.nodes),
            _ => false,
        };
        comes_apart && self.longest_bytes(call.collective, count, call.dtype) >= LEAST_BYTES
    }

    /// Carry out a call that is taken. It is done when this returns.
    ///
    /// # Safety
    ///
    /// As for [`DeviceGroup::enqueue`].
    pub(super) unsafe fn carry_out(
        &self,
        whole: &Inner,
        (staging, rooms): (&mut Staging, &mut Vec<Room>),
        call: &Call,
        (input, output): (u64, u64),
        stream: &Stream,
    ) -> Result<(), Error> {
        let Counts::Even(count) = call.counts else { unreachable!("such calls are not taken") };
        let (place, size) = (self.here.place as usize, call.dtype.size());
        let root = call.collective.root().map(|root| Place::of(&self.nodes, root));
        let pieces = self.pieces(call, count);
        let own: usize = pieces.iter().map(|piece| piece.part(place).1).sum();
        let is_of_blocks = call.collective.blocks(2) > 1;
        let across = Call {
            collective: root.map_or(call.collective, |root| call.collective.with_root(root.node)),
            // What is multiplied before it is added was so inside.
            op: if matches!(call.op, Op::PreMulSum(_)) { Op::Sum } else { call.op.clone() },
            counts: Counts::Even(if is_of_blocks { count } else { own }),
            dtype: call.dtype,
        };
        let room_elems = match call.collective {
            Collective::Reduce { .. } => own,
            _ if is_of_blocks => count * self.nodes.len(),
            _ => 0,
        };
        let before = self.sent_bytes();
        let column = self.column.shared();
        whole.pin(staging, (call, stream), across.buffer_elems(column.ranks, column.rank))?;
        let room = self.make_room(whole, rooms, (call, stream), room_elems * size)?;
        let part = if room_elems == 0 { Part::Output } else { Part::Room(room) };
        let relay = Relay::new(whole, column, staging, stream)?;
        let legs = Legs { nodes: self, call, across, relay, input, part, output, stream };
        let is_roots = root.is_some_and(|root| root.node == self.here.node);
        let at_root = |of: fn(u32) -> Collective| root.filter(|_| is_roots).map(|it| of(it.place));
        let scatter = || at_root(|root| Collective::Scatter { root });
        let gather = || at_root(|root| Collective::Gather { root });
        let (apart, together) = (Some(Collective::ReduceScatter), Some(Collective::AllGather));
        let bytes = (count * size) as u64;
        // SAFETY: the caller's promise, and the room is as long as the legs use of it.
        let done = unsafe {
            match call.collective {
                Collective::AllReduce => legs.of_vector(&pieces, apart, together),
                Collective::Broadcast { .. } => legs.of_vector(&pieces, scatter(), together),
                Collective::Reduce { .. } => legs.of_vector(&pieces, apart, gather()),
                Collective::AllGather => legs.all_gather(room, bytes),
                _ => legs.reduce_scatter(room, bytes),
            }
        };
        // Ranks of other nodes would wait for this one in the next leg.
        let done = done.map_err(|error| whole.watched.end(error));
        let settled = whole.settle(stream);
        done.and(settled)?;
        // A kernel that was told to end, or found the others in another call, has ended, too.
        self.inside.check().map_err(|error| whole.watched.end(error))?;
        whole.watched.check()?;
        if self.waits && matches!(call.collective, Collective::Reduce { .. }) {
            // Who has given away its part may be ahead of one who has not, and pin memory.
            agree(&self.inside.inner.watched.shared, true)?;
        }
        let sent = self.sent_bytes() - before;
        whole.watched.shared.sent_in_parts.fetch_add(sent, Ordering::Relaxed);
        Ok(())
    }

    /// A vector in pieces, which the ranks of a node divide.
    fn pieces(&self, call: &Call, count: usize) -> Vec<Divided> {
        let window = self.column.settings().window() as usize;
        let pieces = match self.in_pieces {
            true => Pieces::of(call, self.ranks() as u32, window),
            false => Pieces::one(count, call.dtype.size()),
        };
        divided(pieces, self.nodes[0].len(), UNIT_BYTES / call.dtype.size())
    }

    /// What this rank has sent in both groups.
    fn sent_bytes(&self) -> u64 {
        self.inside_comm.stats().sent_bytes + self.column.stats().sent_bytes
    }

    /// Whether kernels of several ranks of a node wait for each other.
    pub(super) fn kernels_wait(&self) -> bool {
        self.inside.way().is_enqueued()
    }

    /// Those whose kernels may wait for a rank that pins memory or takes some of its device.
    pub(super) fn waiting(&self) -> Option<&Arc<Shared>> {
        self.waits.then_some(self.inside_comm.shared())
    }

    /// Whether all ranks have had pinned memory for a call since the group was opened.
    pub(super) fn has_pinned(&self, call: &Call) -> bool {
        let Counts::Even(count) = call.counts else { return false };
        self.longest_bytes(call.collective, count, call.dtype) <= LEAST_BYTES
    }

    /// The longest buffer that a rank has for a call.
    fn longest_bytes(&self, collective: Collective, count: usize, dtype: Dtype) -> usize {
        let blocks = if collective.blocks(2) > 1 { self.ranks() } else { 1 };
        count * blocks * dtype.size()
    }

    fn ranks(&self) -> usize {
        self.nodes.len() * self.nodes[0].len()
    }

    /// So many bytes of the device's own memory: where they are. To take some may wait for all that
    /// runs on a device, so no rank may be in a call inside that waits for this one.
    fn make_room(
        &self,
        whole: &Inner,
        rooms: &mut Vec<Room>,
        call: (&Call, &Stream),
        bytes: usize,
    ) -> Result<u64, Error> {
        let has_room = bytes == 0 || rooms.last().is_some_and(|room| room.bytes() >= bytes);
        let takes = match self.waiting() {
            Some(shared) => !agree(shared, has_room)?,
            None => !has_room,
        };
        // Of a short call some ranks have nothing, and agree with the others all the same.
        let room = if bytes == 0 { 0 } else { whole.scratch(rooms, bytes, call)? };
        match self.waiting() {
            Some(shared) if takes => agree(shared, true).map(|_| room),
            _ => Ok(room),
        }
    }
}

impl Place {
    fn of(nodes: &[Vec<u32>], rank: u32) -> Self {
        let mut all = nodes.iter().enumerate().flat_map(|(node, ranks)| {
            ranks.iter().enumerate().map(move |(place, rank)| (node, place, *rank))
        });
        let found = all.find(|(.., other)| *other == rank);
        let (node, place, _) = found.expect("every rank is on a node");
        Self { node: node as u32, place: place as u32 }
    }
}

/// The ranks of each node, where there are several with as many ranks each, and more than one.
fn alike(hosts: impl Iterator<Item = u64>) -> Option<Vec<Vec<u32>>> {
    let mut nodes: Vec<Vec<u32>> = Vec::new();
    for (rank, node) in numbers(hosts.map(Some)).into_iter().enumerate() {
        nodes.resize(nodes.len().max(node + 1), Vec::new());
        nodes[node].push(rank as u32);
    }
    let each = nodes.first()?.len();
    let is_alike = nodes.iter().all(|ranks| ranks.len() == each);
    (nodes.len() > 1 && each > 1 && is_alike).then_some(nodes)
}

/// Whether the ranks of each node are numbered one behind the other.
fn are_rows(nodes: &[Vec<u32>]) -> bool {
    nodes.iter().all(|ranks| ranks.windows(2).all(|two| two[1] == two[0] + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_as_many_ranks_each_in_any_order() {
        let of = |places: &str| alike(places.chars().map(u64::from));
        assert_eq!(of("aabb"), Some(vec![vec![0, 1], vec![2, 3]]));
        assert_eq!(of("abcabc"), Some(vec![vec![0, 3], vec![1, 4], vec![2, 5]]));
        for places in ["", "a", "aaaa", "abcd", "aab", "aabbb", "aabbc"] {
            assert_eq!(of(places), None, "{places}");
        }
        assert!(are_rows(&of("aabb").unwrap()));
        assert!(!are_rows(&of("abab").unwrap()));
    }
}
