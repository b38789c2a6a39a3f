//! The receiving end of a connection.
//!
//! Whatever is posted is told to the sender. A message names the place that it is for, and is read
//! right to there; one that names no place that is waiting ends the connection.

use std::collections::VecDeque;
use std::ffi::c_int;

use brigade_transports::plugin::sys::REQUESTS_MAX;

use crate::fault::{Fault, Outcome};
use crate::frame::{GROUP_MAX, HEADER_BYTES, Header, Note, Room};
use crate::meeting::Link;
use crate::memory::Regions;

/// How many groups can be posted at a time.
const SLOTS: usize = 2 * REQUESTS_MAX;

/// The receiving end.
pub(crate) struct Receiver {
    pub(crate) link: Link,
    pub(crate) regions: Regions,
    /// Posted groups that wait for messages, and such as ended before one in front of them.
    groups: VecDeque<Group>,
    /// The number of the first of them.
    first: u32,
    /// Notes that the transport has not taken yet.
    notes: Vec<u8>,
    notes_pushed: usize,
    incoming: Incoming,
    requests: Box<[Request]>,
    free: Vec<usize>,
    fault: Option<Fault>,
}

/// What a caller posts: memory, tag, registration.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    pub(crate) tag: c_int,
    pub(crate) memory: usize,
}

struct Group {
    slot: usize,
    places: [Place; GROUP_MAX],
    count: usize,
    /// How many messages have not arrived yet.
    missing: usize,
}

#[derive(Clone, Copy, Default)]
struct Place {
    address: usize,
    bytes: usize,
    is_filled: bool,
}

/// The message that is arriving.
#[derive(Default)]
struct Incoming {
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    /// Its place, once the header is read.
    target: Option<Target>,
}

#[derive(Clone, Copy)]
struct Target {
    group: usize,
    place: usize,
    bytes: usize,
    got: usize,
}

#[derive(Default)]
struct Request {
    generation: u16,
    is_taken: bool,
    is_done: bool,
    count: usize,
    sizes: [usize; GROUP_MAX],
}

/// What arrived for a group: so many messages, so long.
pub(crate) struct Arrived {
    pub(crate) count: usize,
    pub(crate) sizes: [usize; GROUP_MAX],
}

impl Receiver {
    pub(crate) fn new(link: Link) -> Receiver {
        Receiver {
            link,
            regions: Regions::default(),
            groups: VecDeque::with_capacity(SLOTS),
            first: 0,
            notes: Vec::new(),
            notes_pushed: 0,
            incoming: Incoming::default(),
            requests: (0..SLOTS).map(|_| Request::default()).collect(),
            free: (0..SLOTS).rev().collect(),
            fault: None,
        }
    }

    /// Post a group of receives into registered memory; the request, or `None`: not now.
    ///
    /// # Safety
    ///
    /// The memory belongs to this connection until the request has ended or it is closed.
    pub(crate) unsafe fn receive(&mut self, wanted: &[Wanted]) -> Outcome<Option<(usize, u16)>> {
        assert!((1..=GROUP_MAX).contains(&wanted.len()));
        for it in wanted {
            self.regions.check(it.memory, it.address, it.bytes)?;
        }
        self.refuse_after_fault()?;
        // Groups that ended out of order keep their place until those in front of them have ended.
        if self.free.is_empty() || self.groups.len() == SLOTS {
            return Ok(None);
        }
        let slot = self.free.pop().expect("looked at above");
        let sequence = self.first.wrapping_add(self.groups.len() as u32);
        let mut note = Note { sequence, count: wanted.len(), rooms: [Room::default(); GROUP_MAX] };
        let mut places = [Place::default(); GROUP_MAX];
        for (it, (place, room)) in wanted.iter().zip(places.iter_mut().zip(&mut note.rooms)) {
            *place = Place { address: it.address, bytes: it.bytes, is_filled: false };
            *room = Room { tag: it.tag, bytes: it.bytes as u64 };
        }
        note.write(&mut self.notes);
        let (count, missing) = (wanted.len(), wanted.len());
        self.groups.push_back(Group { slot, places, count, missing });
        let request = &mut self.requests[slot];
        (request.is_taken, request.is_done, request.count) = (true, false, count);
        let generation = request.generation;
        self.push_notes()?;
        Ok(Some((slot, generation)))
    }

    /// Whether a request has ended: what arrived. Then it is no request any more.
    pub(crate) fn test(&mut self, slot: usize, generation: u16) -> Outcome<Option<Arrived>> {
        let is_known = |request: &&Request| request.is_taken && request.generation == generation;
        if self.requests.get(slot).filter(is_known).is_none() {
            return Err(Fault::argument("a request that has ended, or never was one"));
        }
        if !self.requests[slot].is_done {
            self.refuse_after_fault()?;
            self.go_on(slot)?;
        }
        let request = &mut self.requests[slot];
        if !request.is_done {
            return Ok(None);
        }
        (request.is_taken, request.generation) = (false, generation.wrapping_add(1));
        self.free.push(slot);
        Ok(Some(Arrived { count: request.count, sizes: request.sizes }))
    }

    fn push_notes(&mut self) -> Outcome {
        while self.notes_pushed < self.notes.len() {
            let took = self.link.sender.push(&self.notes[self.notes_pushed..]);
            match self.kept(took.map_err(Fault::from))? {
                0 => return Ok(()),
                took => self.notes_pushed += took,
            }
        }
        self.notes.clear();
        self.notes_pushed = 0;
        Ok(())
    }

    /// Tell what was posted, and take what has arrived, until a request has ended.
    fn go_on(&mut self, slot: usize) -> Outcome {
        self.push_notes()?;
        while !self.requests[slot].is_done {
            let target = match self.incoming.target {
                Some(target) => target,
                None => match self.next_message()? {
                    Some(target) => target,
                    None => return self.in_vain(),
                },
            };
            if !self.fill(target)? {
                return self.in_vain();
            }
        }
        Ok(())
    }

    fn in_vain(&mut self) -> Outcome {
        let looked = self.link.look();
        self.kept(looked)
    }

    /// Read the next header; the place that it names, once it is whole.
    fn next_message(&mut self) -> Outcome<Option<Target>> {
        let Incoming { header, header_bytes, .. } = &mut self.incoming;
        let got = self.link.receiver.pull_into(&mut header[*header_bytes..]);
        let got = self.kept(got.map_err(Fault::from))?;
        self.incoming.header_bytes += got;
        if self.incoming.header_bytes < HEADER_BYTES {
            return Ok(None);
        }
        self.incoming.header_bytes = 0;
        let header = Header::read(self.incoming.header);
        let target = self.place_of(header).ok_or_else(|| {
            Fault::remote(format!("a message came for which nothing was posted: {header:?}"))
        });
        let target = self.kept(target)?;
        self.incoming.target = Some(target);
        Ok(Some(target))
    }

    /// The place that a header names, if a message with so many bytes may come there.
    fn place_of(&self, header: Header) -> Option<Target> {
        let group_index = header.sequence.wrapping_sub(self.first) as usize;
        let group = self.groups.get(group_index)?;
        let index = header.place as usize;
        let place = group.places[..group.count].get(index)?;
        let bytes = usize::try_from(header.bytes).ok()?;
        let fits = !place.is_filled && bytes <= place.bytes;
        fits.then_some(Target { group: group_index, place: index, bytes, got: 0 })
    }

    /// Read the body of a message; whether it is complete.
    fn fill(&mut self, mut target: Target) -> Outcome<bool> {
        let group = &mut self.groups[target.group];
        let place = &mut group.places[target.place];
        while target.got < target.bytes {
            let (start, count) = (place.address + target.got, target.bytes - target.got);
            // SAFETY: `receive` was promised this memory until the request has ended, which it has
            // not before this message is complete; `place_of` has compared the lengths.
            let room = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, count) };
            let got = self.link.receiver.pull_into(room);
            match got.map_err(Fault::from) {
                Ok(0) => {
                    self.incoming.target = Some(target);
                    return Ok(false);
                }
                Ok(got) => target.got += got,
                Err(fault) => return self.kept(Err(fault)),
            }
        }
        place.is_filled = true;
        group.missing -= 1;
        let request = &mut self.requests[group.slot];
        request.sizes[target.place] = target.bytes;
        request.is_done = group.missing == 0;
        while self.groups.front().is_some_and(|group| group.missing == 0) {
            self.groups.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        self.incoming.target = None;
        Ok(true)
    }

    fn refuse_after_fault(&self) -> Outcome {
        self.fault.clone().map_or(Ok(()), Err)
    }

    /// A connection that has failed keeps failing.
    fn kept<T>(&mut self, outcome: Outcome<T>) -> Outcome<T> {
        if let Err(fault) = &outcome {
            self.fault = Some(fault.clone());
        }
        outcome
    }
}
