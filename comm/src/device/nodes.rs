//! Calls of ranks on several nodes, whose devices reach each other inside of each: what can stay in
//! a node does, and of what goes from node to node each rank's host carries an equal part.
//!
//! A rank is in two groups: that of its node, and that of the ranks which have its place in theirs,
//! its column. An all-reduce of n bytes by nodes of g ranks is a reduce-scatter inside, which
//! leaves n/g with each, an all-reduce of these along the column, and an all-gather inside. So n/g
//! pass through a host's memory for each rank, where the whole call through hosts takes n
//! ([`super::staged`]); and each of N nodes sends 2(N-1)/N · n in all, which is the least there is.
//! The host's algorithm for that is `hierarchical` (`brigade_schedule`).

use std::sync::atomic::Ordering;

use brigade_cuda::{Context, Stream};
use brigade_schedule::Collective;

use super::card::Card;
use super::exchange::agree;
use super::kernels::Folding;
use super::legs::Legs;
use super::room::Room;
use super::share::DeviceShare;
use super::way::Way;
use super::{DeviceGroup, Inner};
use crate::call::{Call, Counts};
use crate::communicator::Communicator;
use crate::nodes::numbers;
use crate::{Error, Op};

/// Shorter calls are one of the hosts: three that follow each other take longer.
const LEAST_BYTES: usize = 64 << 10;
/// Parts of a vector begin at multiples of so many bytes, so that kernels move long words.
const PART_BYTES: usize = 256;

/// How the ranks of a group lie on nodes, and the two groups that this rank is in.
pub(super) struct Nodes {
    pub(super) inside: DeviceGroup,
    pub(super) column: DeviceGroup,
    /// The ranks of each node: as many on each.
    pub(super) nodes: Vec<Vec<u32>>,
    /// This rank's node, and its place there.
    pub(super) here: Place,
    /// Whether kernels inside wait for ranks that are threads of one process, on any rank.
    waits: bool,
    /// What the groups speak by.
    comms: [Communicator; 2],
}

/// A node, and a place there.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) node: u32,
    pub(super) place: u32,
}

impl Inner {
    /// Have longer calls go by nodes, if they can and there is no way for all ranks. Collective.
    pub(super) fn divide(&mut self, comm: &Communicator, share: DeviceShare) -> Result<(), Error> {
        if self.way == Way::Staged {
            self.nodes = Nodes::open(comm, &self.cards, &self.context, share)?;
        }
        if self.nodes.is_some() {
            self.way = Way::ByNodes;
        }
        Ok(())
    }
}

impl Nodes {
    /// Open the two groups, if the ranks lie on several nodes, equally many on each, and the
    /// devices of each node reach each other. Collective; all ranks have one, or none has.
    pub(super) fn open(
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
        let open = |color| {
            let part = comm.split(Some(color), here.node as i32)?;
            let part = part.expect("who names a colour is in a part");
            Ok::<_, Error>((part.on_device_with(context, share)?, part))
        };
        // Ranks that go through their node's memory gain nothing; and where one cannot open a
        // group, all do without.
        let inside = open(here.node);
        let is_good = inside.as_ref().is_ok_and(|(group, _)| group.way() != Way::Staged);
        let column = if agree(comm.shared(), is_good)? { Some(open(here.place)) } else { None };
        let is_good = column.as_ref().is_some_and(Result::is_ok);
        if !agree(comm.shared(), is_good)? {
            // What is let go of may wait for the device: nobody's next call is there before.
            drop((inside, column));
            agree(comm.shared(), true)?;
            return Ok(None);
        }
        let (inside, inside_comm) = inside?;
        let (column, column_comm) = column.expect("agreed on")?;
        let cards = &inside.inner.cards;
        let here_too = |card: &Card| cards.iter().filter(|it| it.process == card.process).count();
        let waits = inside.way().is_enqueued() && cards.iter().any(|card| here_too(card) > 1);
        let comms = [inside_comm, column_comm];
        Ok(Some(Self { inside, column, nodes, here, waits, comms }))
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
        let blocks = match call.collective {
            Collective::AllReduce | Collective::Broadcast { .. } | Collective::Reduce { .. } => 1,
            // Blocks of a node must lie side by side.
            Collective::AllGather | Collective::ReduceScatter if are_rows(&self.nodes) => {
                self.nodes.len() * self.nodes[0].len()
            }
            _ => return false,
        };
        count * blocks * call.dtype.size() >= LEAST_BYTES
    }

    /// Carry out a call that is taken. It is done when this returns.
    ///
    /// # Safety
    ///
    /// As for [`DeviceGroup::enqueue`].
    pub(super) unsafe fn carry_out(
        &self,
        whole: &Inner,
        rooms: &mut Vec<Room>,
        call: &Call,
        (input, output): (u64, u64),
        stream: &Stream,
    ) -> Result<(), Error> {
        let Counts::Even(count) = call.counts else { unreachable!("such calls are not taken") };
        let size = call.dtype.size();
        let place = self.here.place as usize;
        let root = call.collective.root().map(|root| Place::of(&self.nodes, root));
        let parts = parts(count, self.nodes[0].len(), (PART_BYTES / size).max(1));
        let is_of_blocks = call.collective.blocks(2) > 1;
        let across = Call {
            collective: root.map_or(call.collective, |root| call.collective.with_root(root.node)),
            // What is multiplied before it is added was so inside.
            op: if matches!(call.op, Op::PreMulSum(_)) { Op::Sum } else { call.op.clone() },
            counts: Counts::Even(if is_of_blocks { count } else { parts[place] }),
            dtype: call.dtype,
        };
        let room_elems = match call.collective {
            Collective::Reduce { .. } => parts[place],
            _ if is_of_blocks => count * self.nodes.len(),
            _ => 0,
        };
        let before = self.sent_bytes();
        let room = self.make_room(whole, rooms, (call, stream), (&across, room_elems * size))?;
        let part = match room_elems {
            0 => output + (parts[..place].iter().sum::<usize>() * size) as u64,
            _ => room,
        };
        let parts = parts.into();
        let legs = Legs { nodes: self, call, across, parts, input, part, output, stream };
        // SAFETY: the caller's promise, and the room is as long as the legs use of it.
        let done = unsafe {
            match (call.collective, root) {
                (Collective::AllReduce, _) => legs.all_reduce(),
                (Collective::Broadcast { .. }, Some(root)) => legs.broadcast(root),
                (Collective::Reduce { .. }, Some(root)) => legs.reduce(root),
                (Collective::AllGather, _) => legs.all_gather((count * size) as u64),
                _ => legs.reduce_scatter((count * size) as u64),
            }
        };
        // Ranks of other nodes would wait for this one in the next leg.
        done.map_err(|error| whole.watched.end(error))?;
        whole.settle(stream)?;
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

    /// What this rank has sent in both groups.
    fn sent_bytes(&self) -> u64 {
        self.comms.iter().map(|comm| comm.stats().sent_bytes).sum()
    }

    /// Whether kernels of several ranks of a node wait for each other.
    pub(super) fn kernels_wait(&self) -> bool {
        self.inside.way().is_enqueued()
    }

    /// Room for the call along the column, pinned by the host, and of the device's own memory:
    /// where that is. To make some may wait for all that runs on a device, or hold up whoever
    /// shares this process, so no rank may be in a call inside that waits for this one.
    fn make_room(
        &self,
        whole: &Inner,
        rooms: &mut Vec<Room>,
        (call, stream): (&Call, &Stream),
        (across, room_bytes): (&Call, usize),
    ) -> Result<u64, Error> {
        let column = &*self.column.inner;
        let mut state = column.state();
        let (from, to) = across.buffer_elems(column.group.ranks, column.group.rank);
        let (from, to) = (from * call.dtype.size(), to * call.dtype.size());
        let has_room = rooms.last().is_some_and(|room| room.bytes() >= room_bytes);
        let has_room = state.staging.fits(from, to) && (has_room || room_bytes == 0);
        let inside = &self.inside.inner.watched.shared;
        let all_have = if self.waits { agree(inside, has_room)? } else { has_room };
        if !all_have {
            let pinned = state.staging.room(&column.context, from, to);
            pinned.map_err(|error| whole.give_up(call, &error, stream))?;
        }
        let room = match room_bytes {
            0 => 0,
            _ => whole.scratch(rooms, room_bytes, (call, stream))?,
        };
        if self.waits && !all_have {
            agree(inside, true)?;
        }
        Ok(room)
    }

    /// The groups that calls are made of.
    pub(super) fn groups(&self) -> [&DeviceGroup; 2] {
        [&self.inside, &self.column]
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

/// So many elements in as many parts as there are ranks, which begin at multiples of `unit`.
fn parts(count: usize, ranks: usize, unit: usize) -> Vec<usize> {
    let most = count.div_ceil(ranks).next_multiple_of(unit);
    let part = |rank: usize| count.saturating_sub(rank * most).min(most);
    (0..ranks).map(part).collect()
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

    #[test]
    fn parts_are_all_there_is_and_begin_at_multiples() {
        for (count, ranks, unit) in
            (0..300).flat_map(|count| [1, 2, 3, 8].map(|ranks| (count, ranks, 16)))
        {
            let parts = parts(count, ranks, unit);
            assert_eq!((parts.iter().sum::<usize>(), parts.len()), (count, ranks));
            let starts = parts.iter().scan(0, |at, part| Some(std::mem::replace(at, *at + part)));
            assert!(starts.zip(&parts).all(|(at, part)| *part == 0 || at % unit == 0), "{parts:?}");
        }
    }
}
