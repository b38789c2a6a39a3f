//! The thread that serves a window to ranks that cannot reach its memory by themselves.
//!
//! It takes their requests from wires of the window's own and carries them out in the order in
//! which each rank made them, whatever the window's owner does meanwhile. It never waits for one
//! rank: who is slow to take an answer is not asked for more until it has it, and the others go on.
//! It is also the only one who sleeps at the bells of these wires, and tells all others when it
//! has woken up (see [`Looks`](super::held::Looks)). There is no such thread without such ranks.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use brigade_transports::{RecvWire, SendWire, Share, TransportError, opened};

use super::ends::{Ends, NAP};
use super::held::Held;
use super::request::{HEAD_BYTES, Request};
use crate::aside::Aside;
use crate::eagerness::Eagerness;
use crate::run::Stop;

/// How long it sleeps at the most while nobody waits for anything.
const LONG_NAP: Duration = Duration::from_millis(250);
/// How long it rests where the bells fail, which shows in the wires by a name.
const REST: Duration = Duration::from_millis(1);
/// How much it does for one rank before it looks at the next one.
const STEPS: usize = 16;
const PIECE_BYTES: usize = 128 << 10;

/// The running thread. Dropping it ends it.
pub(super) struct Clerk {
    is_over: Arc<AtomicBool>,
    /// Whoever closes it wakes the thread.
    mouth: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Clerk {
    /// Serve these ranks from now on. It keeps the endpoints until it has ended.
    pub(super) fn start(
        held: Arc<Held>,
        desks: Vec<Desk>,
        mut ends: Ends,
        share: Share,
    ) -> io::Result<Self> {
        let (mouth, ear) = opened(UnixStream::pair)?;
        // Where no bell hears it, naps are short.
        let mut bells = ends.endpoints.iter_mut().map(|endpoint| endpoint.doorbell());
        let _hears = bells.any(|bell| bell.also_hears(ear.as_fd()));
        let is_over = Arc::new(AtomicBool::new(false));
        // It shares cores with those who ask and those who own.
        let share = Share { ranks: 2 * share.ranks, ..share };
        let waiting = Eagerness::among(share, Aside::never());
        let answer = vec![0; HEAD_BYTES + PIECE_BYTES];
        let desks = desks.into_iter().map(Some).collect();
        let over = Arc::clone(&is_over);
        let work = Work {
            desks,
            ends,
            held,
            answer,
            waiting,
            is_over: over,
            is_alarmed: false,
            _ear: ear,
        };
        let thread = std::thread::Builder::new().name("brigade-window".into());
        let thread = Some(thread.spawn(move || work.run())?);
        Ok(Self { is_over, mouth: Some(mouth), thread })
    }
}

impl Drop for Clerk {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        drop(self.mouth.take());
        if let Some(thread) = self.thread.take() {
            let outcome = thread.join();
            debug_assert!(outcome.is_ok(), "the thread of a window does not panic");
        }
    }
}

/// What the thread has: wires and memory in front of their endpoints, which must outlive them.
struct Work {
    /// None where the rank has left, or was cut off.
    desks: Vec<Option<Desk>>,
    held: Arc<Held>,
    ends: Ends,
    /// Where the next piece of an answer is put together.
    answer: Vec<u8>,
    waiting: Eagerness,
    is_over: Arc<AtomicBool>,
    /// Somebody was found dead, which is told once.
    is_alarmed: bool,
    /// Readable when it is to end.
    _ear: UnixStream,
}

impl Work {
    fn run(mut self) {
        while !self.is_over.load(Ordering::Acquire) {
            if self.serve() {
                self.waiting.moved();
                continue;
            }
            if self.waiting.is_brief() {
                continue;
            }
            let Ends { endpoints, bells } = &mut self.ends;
            bells.arm(endpoints);
            self.held.looks.add();
            if self.serve() {
                let Ends { endpoints, bells } = &mut self.ends;
                bells.disarm(endpoints);
                self.waiting.moved();
                continue;
            }
            self.sleep();
            self.held.looks.add();
        }
    }

    fn sleep(&mut self) {
        let Ends { endpoints, bells } = &mut self.ends;
        let nap = if self.held.looks.has_sleepers() { NAP } else { LONG_NAP };
        if bells.wait(endpoints, nap).is_err() {
            std::thread::sleep(REST);
        }
        for endpoint in endpoints {
            if let Err(error) = endpoint.check()
                && !std::mem::replace(&mut self.is_alarmed, true)
            {
                // Those who wait hear of it from there.
                let _told = self.held.watch.judge(Stop::Wire(error), "serving a window");
            }
        }
    }

    /// Do what can be done now; whether there was anything.
    fn serve(&mut self) -> bool {
        let mut moved = false;
        for place in &mut self.desks {
            let Some(desk) = place else { continue };
            match desk.serve(&self.held, &mut self.answer) {
                Ok(any) => moved |= any,
                // It asks for nothing more: others tell whether it has left or died.
                Err(TransportError::PeerGone { .. }) => *place = None,
                Err(error) => {
                    let watch = &self.held.watch;
                    let (asks, owns) = (watch.members[desk.peer], watch.world_rank());
                    let during = format!("what rank {asks} asks of the window of rank {owns}");
                    *place = None;
                    let _told = watch.judge(Stop::Wire(error), &during);
                }
            }
        }
        if moved {
            self.held.note_served();
        }
        moved
    }
}

/// Where one rank is served.
pub(super) struct Desk {
    peer: usize,
    window: u64,
    requests: Box<dyn RecvWire>,
    answers: Box<dyn SendWire>,
    /// Of the next request.
    number: u32,
    stage: Stage,
}

/// How far a request is.
enum Stage {
    /// So many bytes of what it is have come.
    Head { head: [u8; HEAD_BYTES], came: usize },
    /// So many bytes are still to be written, from here on.
    Put { offset: usize, left: usize },
    /// So many bytes of the answer are sent, its head among them.
    Get { head: [u8; HEAD_BYTES], offset: usize, bytes: usize, sent: usize },
}

const NEXT: Stage = Stage::Head { head: [0; HEAD_BYTES], came: 0 };

impl Desk {
    /// Serve `peer`, whose requests come on one wire and whose answers go on the other.
    pub(super) fn new(
        (peer, window): (usize, u64),
        requests: Box<dyn RecvWire>,
        answers: Box<dyn SendWire>,
    ) -> Self {
        Self { peer, window, requests, answers, number: 0, stage: NEXT }
    }

    fn serve(&mut self, held: &Held, answer: &mut [u8]) -> Result<bool, TransportError> {
        for step in 0..STEPS {
            let moved = match self.stage {
                Stage::Head { .. } => self.take_head(held)?,
                Stage::Put { offset, left } => self.put(held, offset, left)?,
                Stage::Get { .. } => self.get(held, answer)?,
            };
            if !moved {
                return Ok(step > 0);
            }
        }
        Ok(true)
    }

    fn take_head(&mut self, held: &Held) -> Result<bool, TransportError> {
        let Stage::Head { head, came } = &mut self.stage else { unreachable!("asked before") };
        let taken = self.requests.pull_into(&mut head[*came..])?;
        *came += taken;
        if *came < HEAD_BYTES {
            return Ok(taken > 0);
        }
        let request = Request::parse(head, (self.window, self.number), held.size);
        let request = request.map_err(|what| TransportError::Corrupt { peer: self.peer, what })?;
        self.number = self.number.wrapping_add(1);
        self.stage = match request {
            Request::Put { offset, bytes } => Stage::Put { offset, left: bytes },
            Request::Get { offset, bytes } => Stage::Get { head: *head, offset, bytes, sent: 0 },
            Request::Signal { index, add } => {
                held.add(index, add);
                NEXT
            }
        };
        Ok(true)
    }

    fn put(&mut self, held: &Held, offset: usize, left: usize) -> Result<bool, TransportError> {
        let (most, mut came) = (left.min(PIECE_BYTES), 0);
        let taken = self.requests.pull(most, 1, &mut |arrived: &[u8]| {
            // Wires may be anybody's; one that hands out more must not write past the place.
            assert!(arrived.len() <= most - came, "a wire hands out no more than asked for");
            held.write(offset + came, arrived);
            came += arrived.len();
        })?;
        debug_assert_eq!(taken, came);
        let left = left - came;
        self.stage = if left == 0 { NEXT } else { Stage::Put { offset: offset + came, left } };
        Ok(came > 0 || left == 0)
    }

    /// Send what there is room for of an answer: its head, and then the bytes.
    fn get(&mut self, held: &Held, answer: &mut [u8]) -> Result<bool, TransportError> {
        let Stage::Get { head, offset, bytes, sent } = &mut self.stage else {
            unreachable!("asked before")
        };
        let mut filled = 0;
        if *sent < HEAD_BYTES {
            filled = HEAD_BYTES - *sent;
            answer[..filled].copy_from_slice(&head[*sent..]);
        }
        let from = (*sent + filled) - HEAD_BYTES;
        let count = (*bytes - from).min(PIECE_BYTES);
        held.read(*offset + from, &mut answer[filled..filled + count]);
        let taken = self.answers.push(&answer[..filled + count])?;
        *sent += taken;
        if *sent == HEAD_BYTES + *bytes {
            self.stage = NEXT;
        }
        Ok(taken > 0)
    }
}
