//! The window of another rank, where this one cannot reach its memory by itself: it asks the
//! thread that serves it.
//!
//! Requests take effect in the order in which they are made. A put or a signal is done here when
//! its bytes are on their way; a get waits for its answer.

use brigade_transports::{RecvWire, SendWire, Share, TransportError};

use super::ends::NAP;
use super::held::Held;
use super::request::{HEAD_BYTES, Request};
use crate::Error;
use crate::aside::Aside;
use crate::eagerness::Eagerness;
use crate::header::Header;
use crate::run::Stop;
use crate::wait::{At, Standstill};

/// Puts up to this size leave in one piece with their head.
const JOINED_BYTES: usize = 4096;

/// One rank's way to the window of another.
pub(super) struct Asker {
    peer: usize,
    window: u64,
    requests: Box<dyn SendWire>,
    answers: Box<dyn RecvWire>,
    /// Of the next request.
    number: u32,
    waiting: Eagerness,
    /// Why a request was broken off, after which none can be told from the rest of it.
    broken: Option<Error>,
}

/// A request on its way, for whoever must say so.
struct Asked {
    request: Request,
    number: u32,
    /// What the wait is for, and how much of how much is done of it.
    step: (&'static str, usize, usize),
}

impl Asker {
    /// Ask `peer`, on one wire, for answers on the other. The cores of its `share` are also
    /// those of the threads that serve windows.
    pub(super) fn new(
        (peer, window): (usize, u64),
        requests: Box<dyn SendWire>,
        answers: Box<dyn RecvWire>,
        share: Share,
    ) -> Self {
        let share = Share { ranks: 2 * share.ranks, ..share };
        let waiting = Eagerness::among(share, Aside::never());
        Self { peer, window, requests, answers, number: 0, waiting, broken: None }
    }

    pub(super) fn put(&mut self, held: &Held, offset: usize, data: &[u8]) -> Result<(), Error> {
        if data.is_empty() {
            return Ok(());
        }
        let request = Request::Put { offset, bytes: data.len() };
        self.ask(request, |asker, asked, head| {
            if data.len() > JOINED_BYTES - HEAD_BYTES {
                asker.send(held, asked, &head)?;
                return asker.send(held, asked, data);
            }
            let mut joined = [0; JOINED_BYTES];
            let (front, back) = joined[..HEAD_BYTES + data.len()].split_at_mut(HEAD_BYTES);
            front.copy_from_slice(&head);
            back.copy_from_slice(data);
            asker.send(held, asked, &joined[..HEAD_BYTES + data.len()])
        })
    }

    pub(super) fn signal(&mut self, held: &Held, index: usize, add: u64) -> Result<(), Error> {
        let request = Request::Signal { index, add };
        self.ask(request, |asker, asked, head| asker.send(held, asked, &head))
    }

    pub(super) fn get(
        &mut self,
        held: &Held,
        offset: usize,
        target: &mut [u8],
    ) -> Result<(), Error> {
        if target.is_empty() {
            return Ok(());
        }
        let request = Request::Get { offset, bytes: target.len() };
        self.ask(request, |asker, asked, head| {
            asker.send(held, asked, &head)?;
            let mut came = [0; HEAD_BYTES];
            asker.receive(held, asked, &mut came)?;
            if came != head {
                let what = format!("another answer than to {}", asked.name(asker.peer_rank(held)));
                return Err(asker.judge(
                    held,
                    asked,
                    TransportError::Corrupt { peer: asker.peer, what },
                ));
            }
            asker.receive(held, asked, target)
        })
    }

    /// Make one request. One that fails is the last.
    fn ask(
        &mut self,
        request: Request,
        carry_out: impl FnOnce(&mut Self, &mut Asked, [u8; HEAD_BYTES]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let number = self.number;
        let mut asked = Asked { request, number, step: ("", 0, 0) };
        self.number = number.wrapping_add(1);
        let outcome = carry_out(self, &mut asked, request.head(self.window, number));
        if let Err(error) = &outcome {
            self.broken = Some(error.clone());
        }
        outcome
    }

    fn send(&mut self, held: &Held, asked: &mut Asked, bytes: &[u8]) -> Result<(), Error> {
        let mut sent = 0;
        self.waiting.moved();
        while sent < bytes.len() {
            let looks = held.looks.count();
            match self.requests.push(&bytes[sent..]) {
                Ok(0) => {
                    asked.step = ("no room for more", sent, bytes.len());
                    self.pause(held, asked, looks)?;
                }
                Ok(taken) => {
                    sent += taken;
                    self.waiting.moved();
                }
                Err(error) => return Err(self.judge(held, asked, error)),
            }
        }
        held.watch.goes_on();
        Ok(())
    }

    fn receive(&mut self, held: &Held, asked: &mut Asked, target: &mut [u8]) -> Result<(), Error> {
        let mut came = 0;
        self.waiting.moved();
        while came < target.len() {
            let looks = held.looks.count();
            match self.answers.pull_into(&mut target[came..]) {
                Ok(0) => {
                    asked.step = ("waiting for the answer", came, target.len());
                    self.pause(held, asked, looks)?;
                }
                Ok(taken) => {
                    came += taken;
                    self.waiting.moved();
                }
                Err(error) => return Err(self.judge(held, asked, error)),
            }
        }
        held.watch.goes_on();
        Ok(())
    }

    /// Wait a little for a wire on which nothing was to be done after `looks`.
    fn pause(&mut self, held: &Held, asked: &Asked, looks: u64) -> Result<(), Error> {
        if self.waiting.is_brief() {
            return Ok(());
        }
        held.looks.wait(looks, NAP);
        let (what, done, whole) = asked.step;
        let name = asked.name(self.peer_rank(held));
        let doing = format!("{what}, after {done} of {whole} bytes");
        let header = &Header::of_message(held.watch.group);
        let at = At::Member(self.peer as u32, &doing);
        let still = Standstill { at, name: &name, header };
        // The thread that sleeps at the bells looks at the endpoints, too.
        held.watch.look_around(self.waiting.stall.as_mut(), &mut [], &still)
    }

    fn peer_rank(&self, held: &Held) -> u32 {
        held.watch.members[self.peer]
    }

    fn judge(&self, held: &Held, asked: &Asked, error: TransportError) -> Error {
        held.watch.judge(Stop::Wire(error), &asked.name(self.peer_rank(held)))
    }
}

impl Asked {
    fn name(&self, rank: u32) -> String {
        let number = self.number;
        match self.request {
            Request::Put { offset, bytes } => {
                format!("put #{number} of {bytes} bytes at {offset} of the window of rank {rank}")
            }
            Request::Get { offset, bytes } => {
                format!("get #{number} of {bytes} bytes at {offset} of the window of rank {rank}")
            }
            Request::Signal { index, .. } => {
                format!("signal #{number} to counter {index} of the window of rank {rank}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::ways::Way;
    use super::super::{Window, WindowSize};
    use super::*;
    use crate::locked::locked;
    use crate::{Communicator, Settings};

    const SIZE: WindowSize = WindowSize { bytes: 100, signals: 2 };

    /// Be every rank of a world over TCP, with a window.
    fn each_rank(
        ranks: usize,
        timeout: Duration,
        body: impl Fn(&Communicator, &Window) + Send + Sync,
    ) {
        let settings = Settings { transport: "tcp".into(), timeout, ..Settings::default() };
        let world = Communicator::local_world(ranks, &settings).expect("a world");
        std::thread::scope(|scope| {
            for member in world {
                let body = &body;
                scope.spawn(move || {
                    let window = member.window(SIZE).expect("a window");
                    body(&member, &window);
                });
            }
        });
    }

    /// The way of a rank to the window of rank 0.
    fn to_zero(window: &Window) -> &std::sync::Mutex<Asker> {
        let Way::Messages(asker) = &window.ways[0] else { panic!("tcp has messages") };
        asker
    }

    #[test]
    fn who_asks_for_nonsense_is_named_to_all_and_cut_off_and_nothing_is_written() {
        const SEED: u64 = 604;
        let noise = {
            let mut rng = fastrand::Rng::with_seed(SEED);
            [0; HEAD_BYTES].map(|_: u8| rng.u8(..))
        };
        let put = |offset, bytes| Request::Put { offset, bytes };
        let signal = |index| Request::Signal { index, add: 1 };
        type Nonsense = Box<dyn Fn(u64) -> [u8; HEAD_BYTES] + Send + Sync>;
        let cases: [(&str, Nonsense); 7] = [
            ("put of 11 bytes at 90", Box::new(move |window| put(90, 11).head(window, 0))),
            ("put of 1 bytes at 100", Box::new(move |window| put(100, 1).head(window, 0))),
            ("bytes at 3 of", Box::new(move |window| put(3, usize::MAX).head(window, 0))),
            ("signal 2 of", Box::new(move |window| signal(2).head(window, 0))),
            ("request 1 to a window", Box::new(move |window| signal(0).head(window, 1))),
            ("a request to window", Box::new(move |window| signal(0).head(window ^ 1, 0))),
            ("no kind of request", Box::new(move |_| noise)),
        ];
        for (said, nonsense) in cases {
            each_rank(3, Duration::from_secs(20), |member, window| {
                if member.rank() != 1 {
                    window.signal(1, 1, 1).expect("a signal");
                } else {
                    window.wait(1, 2).expect("the others have theirs");
                    let mut asker = locked(to_zero(window));
                    let head = nonsense(asker.window);
                    let bytes = [&head[..], &[7; 40]].concat();
                    assert_eq!(asker.requests.push(&bytes).expect("room"), bytes.len());
                }
                let error = window.wait(0, 1).expect_err("nobody signals");
                let text = error.to_string();
                assert!(!error.is_recoverable(), "{text}");
                let named = text.contains("rank 1 asks of the window of rank 0");
                assert!(named && text.contains(said), "rank {}: {text}", member.rank());
                if member.rank() == 0 {
                    let mut seen = [1; SIZE.bytes];
                    window.held.read(0, &mut seen);
                    assert_eq!(seen, [0; SIZE.bytes], "{said}");
                    assert_eq!([0, 1].map(|it| window.held.sum(it)), [0, 0], "{said}");
                }
            });
        }
    }

    #[test]
    fn who_is_not_served_says_by_the_deadline_what_it_asked_of_whom() {
        each_rank(2, Duration::from_secs(1), |member, window| {
            if member.rank() == 0 {
                // What the serving thread needs is taken, before rank 1 asks.
                let _stuck = locked(&window.held.memory);
                member.barrier().expect("rank 1 comes");
                let bound = Instant::now() + Duration::from_secs(20);
                while window.held.watch.stopped().is_none() && Instant::now() < bound {
                    std::thread::sleep(Duration::from_millis(5));
                }
                return;
            }
            member.barrier().expect("rank 0 comes");
            let error = window.get(0, 3, &mut [0; 20]).expect_err("nobody answers");
            let text = error.to_string();
            let place = "rank 1, get #0 of 20 bytes at 3 of the window of rank 0: waiting for the \
                         answer, after 0 of 32 bytes since ";
            assert!(matches!(error, Error::Timeout { .. }) && text.contains(place), "{text}");
            let again = [
                window.put(0, 0, &[1]).expect_err("the world has ended"),
                window.get(0, 3, &mut [0]).expect_err("the world has ended"),
                window.signal(0, 0, 1).expect_err("the world has ended"),
                window.wait(0, 1).expect_err("the world has ended"),
            ];
            assert!(again.iter().all(|error| error.to_string() == text), "{text}: {again:?}");
        });
    }
}
