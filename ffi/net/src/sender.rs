//! The sending end of a connection.
//!
//! A message is only begun when the receiver has said that a place with its tag is posted; until
//! then, and while all requests are taken, the answer is «not now», and the caller asks again. It
//! has been sent when the transport has taken its last byte.

use std::collections::VecDeque;
use std::ffi::c_int;

use brigade_transports::plugin::sys::REQUESTS_MAX;
use brigade_transports::{RecvWire, SendWire};

use crate::fault::{Fault, Outcome};
use crate::frame::{GROUP_MAX, HEADER_BYTES, Header, NOTE_BYTES_MAX, NOTE_HEAD_BYTES, Note};
use crate::meeting::Link;
use crate::memory::Regions;

/// As many as the interface asks for: so many groups of receives, each as large as it can be.
const SLOTS: usize = REQUESTS_MAX * GROUP_MAX;
const _: () = assert!(SLOTS <= 256, "a request has eight bits for its slot");
/// No receiver of ours posts more groups at a time.
const POSTED_MAX: usize = 4 * REQUESTS_MAX;
/// The beginning of a message is pushed together with its header, so that a short one costs one
/// call.
const HEAD_BYTES: usize = 4096;

/// The sending end.
pub(crate) struct Sender {
    pub(crate) link: Link,
    pub(crate) regions: Regions,
    posted: VecDeque<Posted>,
    note: [u8; NOTE_BYTES_MAX],
    note_bytes: usize,
    requests: Box<[Request]>,
    free: Vec<usize>,
    queue: VecDeque<Job>,
    fault: Option<Fault>,
}

/// Receives of the other end that wait for messages.
struct Posted {
    note: Note,
    /// A bit for each place whose message was begun.
    begun: u8,
}

#[derive(Default)]
struct Request {
    generation: u16,
    /// Set when it was sent: how many bytes.
    sent: Option<usize>,
    is_taken: bool,
}

/// A message on its way into the transport.
struct Job {
    slot: usize,
    header: [u8; HEADER_BYTES],
    address: usize,
    bytes: usize,
    /// Of header and bytes together.
    pushed: usize,
}

impl Sender {
    pub(crate) fn new(link: Link) -> Sender {
        Sender {
            link,
            regions: Regions::default(),
            posted: VecDeque::with_capacity(POSTED_MAX),
            note: [0; NOTE_BYTES_MAX],
            note_bytes: 0,
            requests: (0..SLOTS).map(|_| Request::default()).collect(),
            free: (0..SLOTS).rev().collect(),
            queue: VecDeque::with_capacity(SLOTS),
            fault: None,
        }
    }

    /// Begin to send registered memory; the request's slot and generation, or `None`: not now.
    ///
    /// # Safety
    ///
    /// The memory can be read until the request has ended or the connection is closed.
    pub(crate) unsafe fn send(
        &mut self,
        (address, bytes): (usize, usize),
        tag: c_int,
        memory: usize,
    ) -> Outcome<Option<(usize, u16)>> {
        self.regions.check(memory, address, bytes)?;
        self.refuse_after_fault()?;
        if self.free.is_empty() {
            self.go_on()?;
            return Ok(None);
        }
        let Some((index, place)) = self.find(tag)? else { return Ok(None) };
        let posted = &mut self.posted[index];
        let (sequence, room) = (posted.note.sequence, posted.note.rooms[place]);
        if bytes as u64 > room.bytes {
            let room = room.bytes;
            return Err(Fault::usage(format!(
                "{bytes} bytes with tag {tag} for a receive that has room for {room}"
            )));
        }
        posted.begun |= 1 << place;
        let all = |it: &Posted| it.begun.count_ones() as usize == it.note.count;
        while self.posted.front().is_some_and(all) {
            self.posted.pop_front();
        }
        let slot = self.free.pop().expect("looked at above");
        let request = &mut self.requests[slot];
        (request.is_taken, request.sent) = (true, None);
        let generation = request.generation;
        let header = Header { sequence, place: place as u32, bytes: bytes as u64 }.write();
        self.queue.push_back(Job { slot, header, address, bytes, pushed: 0 });
        self.go_on()?;
        Ok(Some((slot, generation)))
    }

    /// Whether a request has ended: with how many bytes. Then it is no request any more.
    pub(crate) fn test(&mut self, slot: usize, generation: u16) -> Outcome<Option<usize>> {
        let is_known = |request: &&Request| request.is_taken && request.generation == generation;
        if self.requests.get(slot).filter(is_known).is_none() {
            return Err(Fault::argument("a request that has ended, or never was one"));
        }
        if self.requests[slot].sent.is_none() {
            self.refuse_after_fault()?;
            self.go_on()?;
        }
        let request = &mut self.requests[slot];
        let Some(bytes) = request.sent.take() else { return Ok(None) };
        (request.is_taken, request.generation) = (false, generation.wrapping_add(1));
        self.free.push(slot);
        Ok(Some(bytes))
    }

    /// The first posted place with this tag for which no message was begun.
    fn find(&mut self, tag: c_int) -> Outcome<Option<(usize, usize)>> {
        let mut known = 0;
        loop {
            if let Some(found) = self.find_from(known, tag) {
                return Ok(Some(found));
            }
            known = self.posted.len();
            if !self.read_note()? {
                return Ok(None);
            }
        }
    }

    fn find_from(&self, first: usize, tag: c_int) -> Option<(usize, usize)> {
        (first..self.posted.len()).find_map(|index| {
            let Posted { note, begun } = &self.posted[index];
            let fits = |place: &usize| begun & 1 << place == 0 && note.rooms[*place].tag == tag;
            (0..note.count).find(fits).map(|place| (index, place))
        })
    }

    /// Hear of one more group that the receiver has posted, if that has come.
    fn read_note(&mut self) -> Outcome<bool> {
        loop {
            let want = match self.note.first_chunk::<NOTE_HEAD_BYTES>() {
                Some(head) if self.note_bytes >= NOTE_HEAD_BYTES => Note::length(head),
                _ => Ok(NOTE_HEAD_BYTES),
            };
            let want = self.parsed(want)?;
            if self.note_bytes < want {
                let got = self.link.receiver.pull_into(&mut self.note[self.note_bytes..want]);
                let got = self.kept(got.map_err(Fault::from))?;
                self.note_bytes += got;
                if self.note_bytes < want {
                    return Ok(false);
                }
            }
            if want > NOTE_HEAD_BYTES {
                let note = self.parsed(Note::parse(&self.note[..want]))?;
                self.note_bytes = 0;
                if self.posted.len() == POSTED_MAX {
                    self.parsed(Err("more posted receives than there can be"))?;
                }
                self.posted.push_back(Posted { note, begun: 0 });
                return Ok(true);
            }
        }
    }

    /// Push what can be pushed now.
    fn go_on(&mut self) -> Outcome {
        while let Some(job) = self.queue.front_mut() {
            // SAFETY: `send` was promised that the memory can be read until the request has ended.
            let pushed = unsafe { job.push(&mut *self.link.sender) };
            if !self.kept(pushed)? {
                let looked = self.link.look();
                return self.kept(looked);
            }
            let job = self.queue.pop_front().expect("it was just looked at");
            self.requests[job.slot].sent = Some(job.bytes);
        }
        Ok(())
    }

    fn refuse_after_fault(&self) -> Outcome {
        self.fault.clone().map_or(Ok(()), Err)
    }

    fn parsed<T>(&mut self, outcome: Result<T, &'static str>) -> Outcome<T> {
        self.kept(outcome.map_err(|what| Fault::remote(format!("the receiver sent {what}"))))
    }

    /// A connection that has failed keeps failing.
    fn kept<T>(&mut self, outcome: Outcome<T>) -> Outcome<T> {
        if let Err(fault) = &outcome {
            self.fault = Some(fault.clone());
        }
        outcome
    }
}

impl Job {
    /// Push as much as the wire takes; whether that was the rest.
    ///
    /// # Safety
    ///
    /// The message's memory can be read.
    unsafe fn push(&mut self, wire: &mut dyn SendWire) -> Outcome<bool> {
        let body: &[u8] = if self.bytes == 0 {
            &[]
        } else {
            // SAFETY: the caller's promise.
            unsafe { std::slice::from_raw_parts(self.address as *const u8, self.bytes) }
        };
        let of_head = body.len().min(HEAD_BYTES - HEADER_BYTES);
        let head_end = HEADER_BYTES + of_head;
        while self.pushed < head_end {
            let mut head = [0; HEAD_BYTES];
            head[..HEADER_BYTES].copy_from_slice(&self.header);
            head[HEADER_BYTES..head_end].copy_from_slice(&body[..of_head]);
            let took = wire.push(&head[self.pushed..head_end])?;
            self.pushed += took;
            if took == 0 {
                return Ok(false);
            }
        }
        let end = HEADER_BYTES + body.len();
        while self.pushed < end {
            let took = wire.push(&body[self.pushed - HEADER_BYTES..])?;
            self.pushed += took;
            if took == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Read and forget whatever the receiver still says; whether it has ended.
pub(crate) fn has_ended(wire: &mut dyn RecvWire) -> bool {
    let mut scrap = [0; HEAD_BYTES];
    loop {
        match wire.pull_into(&mut scrap) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(_) => return true,
        }
    }
}
