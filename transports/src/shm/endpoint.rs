//! One communicator's share: seats, wires, the bell, and the look at who has died.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::area::Area;
use super::bell::{Barrier, Bell, Door, Knocker, Ringer};
use super::held::Held;
use super::layout::Layout;
use super::probe::{Card, Name};
use super::sys;
use super::window::{Imported, Place, View};
use super::wire::{Leaving, Parts, Receiver, Sender};
use crate::{
    Cores, Doorbell, Endpoint, LocalWindow, RecvWire, RemoteWindow, SendWire, TransportError,
    Windows,
};

/// Who of a group is served by us: seats are members that are present, in order.
pub(super) struct Seats {
    /// For each seat: the member's index in the group, and its card.
    pub(super) taken: Vec<(usize, Card)>,
    /// Our seat.
    pub(super) ours: u32,
    /// What tells the group from others of the same members.
    pub(super) key: u64,
}

impl Seats {
    /// The seat of member `index`.
    ///
    /// # Panics
    /// When this transport does not serve that member: the caller has checked.
    fn of(&self, index: usize) -> u32 {
        let seat = self.taken.binary_search_by_key(&index, |(index, _)| *index);
        seat.unwrap_or_else(|_| panic!("member {index} is not served by shared memory")) as u32
    }

    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        self.taken.len() as u32
    }
}

/// A process that members other than ours live in.
struct Watch {
    pid: u32,
    /// Readable once the process has ended.
    process: Arc<OwnedFd>,
    seats: Vec<u32>,
}

/// The processes that groups of this one watch, by the name of a port that each has: one file for
/// each, or a hundred groups of eight ranks would take most of those that a process may have. A
/// name tells a process from a later one with the same number.
static PROCESSES: Held<Name, OwnedFd> = Held::new();

/// Our end of one group.
pub(super) struct ShmEndpoint {
    area: Arc<Area>,
    layout: Layout,
    seats: Seats,
    barrier: Barrier,
    bell: Bell,
    knocker: Arc<Knocker>,
    watches: Vec<Watch>,
    /// Whether any member was seen to have left, for wires whose other side was never opened.
    has_leaver: Arc<AtomicBool>,
    lost: Option<TransportError>,
}

impl ShmEndpoint {
    pub(super) fn new(area: Area, layout: Layout, seats: Seats) -> Self {
        let own = &seats.taken[seats.ours as usize].1;
        let area = Arc::new(area);
        // Judged from the cards, so that all members judge alike. Where members share cores they
        // sleep so often that a barrier reaching into all of them costs more than it spares.
        let all = || seats.taken.iter().map(|(_, card)| Some(&card.cores));
        let mut judged: Option<&Cores> = None;
        let reached = seats.taken.iter().all(|(_, card)| {
            // Most have the same cores, and so the same answer as the one before.
            let is_as_before = judged.replace(&card.cores) == Some(&card.cores);
            card.membarrier && (is_as_before || !card.cores.share(all()).is_crowded())
        });
        let barrier = if reached { Barrier::Sleeper } else { Barrier::Both };
        let door = Door::of(own, seats.key);
        let bell = Bell::new(area.shared(layout.bell(seats.ours)), barrier, door);
        let watches = watches(&seats);
        let (knocker, has_leaver) = Default::default();
        Self { area, layout, seats, barrier, bell, knocker, watches, has_leaver, lost: None }
    }

    fn ringer(&self, seat: u32) -> Ringer {
        let door = Door::of(&self.seats.taken[seat as usize].1, self.seats.key);
        let word = self.area.shared(self.layout.bell(seat));
        Ringer::new(word, self.barrier, door, Arc::clone(&self.knocker))
    }

    /// The ring from one seat to another, as seen by one of them, whose other is `peer`.
    fn parts(&self, from: u32, to: u32, peer: usize) -> Parts {
        let other = if from == self.seats.ours { to } else { from };
        Parts {
            slots: self.area.shared(self.layout.slots(from, to)),
            tail: self.area.shared(self.layout.tail(from, to)),
            payload: self.area.bytes(self.layout.payload(from, to), self.layout.ring_bytes),
            ring_bytes: self.layout.ring_bytes,
            piece_bytes: self.layout.piece_bytes,
            bell: self.ringer(other),
            peer,
            leaving: Leaving { seat: other, anybody: self.has_leaver.clone() },
            area: self.area.clone(),
        }
    }
}

/// Watch the processes of other members, each once. Where that cannot be done (another process
/// namespace, an old kernel) a death shows only as a deadline that passes.
fn watches(seats: &Seats) -> Vec<Watch> {
    let (_, own) = &seats.taken[seats.ours as usize];
    let mut watches: Vec<Watch> = Vec::new();
    for (seat, (_, card)) in seats.taken.iter().enumerate() {
        if card.pid == own.pid || card.pid_space != own.pid_space {
            continue;
        }
        let seat = seat as u32;
        if let Some(watch) = watches.iter_mut().find(|watch| watch.pid == card.pid) {
            watch.seats.push(seat);
        } else if let Ok(process) = PROCESSES.get_or(card.name, || sys::watch_process(card.pid)) {
            watches.push(Watch { pid: card.pid, process, seats: vec![seat] });
        }
    }
    watches
}

impl Endpoint for ShmEndpoint {
    fn connect(
        &mut self,
        to: usize,
        _: Instant,
    ) -> Result<Option<Box<dyn SendWire>>, TransportError> {
        let seat = self.seats.of(to);
        Ok(Some(Box::new(Sender::new(self.parts(self.seats.ours, seat, to)))))
    }

    fn receiver(&mut self, from: usize) -> Result<Box<dyn RecvWire>, TransportError> {
        let seat = self.seats.of(from);
        Ok(Box::new(Receiver::new(self.parts(seat, self.seats.ours, from))))
    }

    fn doorbell(&mut self) -> &mut dyn Doorbell {
        &mut self.bell
    }

    fn check(&mut self) -> Result<(), TransportError> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        if !self.has_leaver.load(Ordering::Relaxed) {
            let has_leaver = (0..self.seats.count()).any(|seat| self.area.has_left(seat));
            self.has_leaver.store(has_leaver, Ordering::Relaxed);
        }
        while !self.watches.is_empty() {
            let fds: Vec<_> = self.watches.iter().map(|watch| watch.process.as_fd()).collect();
            let ended = sys::first_readable(&fds, Duration::ZERO).map_err(|e| {
                TransportError::from_io("poll", &e, "looking for members that have died")
            })?;
            let Some(index) = ended else { return Ok(()) };
            // A process that left the group in good order may end: what it sent is still here.
            let watch = self.watches.swap_remove(index);
            if let Some(seat) = watch.seats.iter().find(|seat| !self.area.has_left(**seat)) {
                let how = format!("process {} ended", watch.pid);
                let (peer, _) = self.seats.taken[*seat as usize];
                let error = TransportError::PeerGone { peer, how };
                self.lost = Some(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    fn windows(&mut self) -> Option<&mut dyn Windows> {
        Some(self)
    }
}

impl Windows for ShmEndpoint {
    fn expose(&mut self, bytes: usize, signals: usize) -> Result<LocalWindow, TransportError> {
        let signals = u32::try_from(signals).expect("the caller has checked lengths");
        let mut place = Place { offset: 0, bytes: bytes as u64, signals };
        let whole = place.stretch_bytes().expect("the caller has checked lengths");
        let stretch = self.area.expose(whole)?;
        place.offset = stretch.offset();
        let memory = Box::new(View::new(stretch, place));
        Ok(LocalWindow { descriptor: place.to_bytes(), memory })
    }

    fn import(
        &mut self,
        peer: usize,
        descriptor: &[u8],
    ) -> Result<Option<Box<dyn RemoteWindow>>, TransportError> {
        let corrupt = |what: String| TransportError::Corrupt { peer, what };
        let place = Place::parse(descriptor)
            .ok_or_else(|| corrupt("a window descriptor that is not ours".into()))?;
        let whole = place
            .stretch_bytes()
            .ok_or_else(|| corrupt(format!("a window of impossible size: {place:?}")))?;
        let stretch = self.area.import(place.offset, whole)?;
        let bell = self.ringer(self.seats.of(peer));
        Ok(Some(Box::new(Imported { view: View::new(stretch, place), bell })))
    }
}
