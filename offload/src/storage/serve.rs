//! The storage's own thread: takes requests in, keeps the engine busy, hands outcomes out.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::engine::{Completion, Engine};
use super::inbox::{Inbox, Taken};
use super::queue::Queue;
use super::request::Awaited;

/// How long an engine may wait before the thread looks around.
const TICK: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });
/// How long requests may take to end after the last user of the storage has gone.
const CLOSE_LIMIT: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 60_000 });
/// How long the thread itself may take after that; printing a panic's trace is the slowest.
const CLOSE_GRACE: Duration = Duration::from_secs(10);

/// Makes an engine on the thread that will use it.
pub(super) type Maker = Box<dyn FnOnce() -> Result<Box<dyn Engine>, String> + Send>;

/// The running thread. Dropped, it finishes every request first, for up to a minute.
pub(super) struct Server {
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
    /// Hangs up when the thread ends. In a mutex only so that a storage can be shared.
    ended: Mutex<Receiver<()>>,
}

impl Server {
    /// Start the thread and make the engine there. Gives the engine's description too.
    pub(super) fn start(
        inbox: &Arc<Inbox>,
        make: Maker,
        queue: Queue,
    ) -> Result<(Self, String), String> {
        let (report, started) = sync_channel(1);
        let (end, ended) = sync_channel::<()>(1);
        let inside = Arc::clone(inbox);
        let body = move || {
            let _end = end;
            let engine = match make() {
                Ok(engine) => engine,
                Err(why) => return drop(report.send(Err(why))),
            };
            inside.set_bell(engine.bell());
            // The starter waits for this line, or has gone with its whole thread.
            let _ = report.send(Ok(engine.describe()));
            let (taken, awaited) = (Taken::default(), Vec::new());
            Serving { inbox: inside, queue, taken, awaited, engine }.run();
        };
        let thread = std::thread::Builder::new()
            .name("brigade-storage".into())
            .spawn(body)
            .map_err(|e| format!("no thread for storage: {e}"))?;
        let server =
            Self { inbox: Arc::clone(inbox), thread: Some(thread), ended: Mutex::new(ended) };
        let description =
            started.recv().map_err(|_| String::from("the storage's thread ended at once"))??;
        Ok((server, description))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.inbox.close();
        let limit = CLOSE_LIMIT + CLOSE_GRACE;
        // A device that never answers must not hold its user for ever: the thread is left behind,
        // with the memory that the device may still write into.
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected)
            && let Some(thread) = self.thread.take()
        {
            // A panic there was reported to every caller by then.
            let _ = thread.join();
        }
    }
}

/// What the thread holds. Fields are dropped in this order: callers hear first, then the engine
/// ends.
struct Serving {
    inbox: Arc<Inbox>,
    queue: Queue,
    taken: Taken,
    /// Who is to be woken.
    awaited: Vec<Awaited>,
    engine: Box<dyn Engine>,
}

impl Serving {
    fn run(mut self) {
        let mut done: Vec<Completion> = Vec::new();
        let mut closing_since = None;
        loop {
            if self.inbox.take(&mut self.taken) {
                closing_since.get_or_insert_with(Instant::now);
            }
            for request in self.taken.requests.drain(..) {
                self.awaited.extend(self.queue.add(request));
            }
            self.wake();
            for ticket in self.taken.hurried.drain(..) {
                self.queue.hurry(&ticket);
            }
            if !self.taken.forgotten.is_empty() {
                self.taken.forgotten.iter().for_each(|id| self.engine.forget(*id));
                self.inbox.reuse(&self.taken.forgotten);
                self.taken.forgotten.clear();
            }
            while let Some(transfer) = self.queue.next() {
                self.engine.push(transfer);
            }
            match closing_since {
                Some(_) if self.queue.is_empty() => return self.stop("it was closed"),
                Some(since) if since.elapsed() > CLOSE_LIMIT => {
                    return self
                        .stop("the device did not answer in the minute after its last user");
                }
                _ => {}
            }
            let is_idle = self.inbox.fall_asleep(!self.queue.is_empty(), self.queue.full_ways());
            let limit = if is_idle { TICK } else { Duration::ZERO };
            let turned = self.engine.turn(limit, self.queue.together(), &mut done);
            self.inbox.awake();
            for news in self.engine.news() {
                self.inbox.report(news);
            }
            for completion in done.drain(..) {
                self.awaited.extend(self.queue.finish(completion));
            }
            self.wake();
            if let Err(why) = turned {
                return self.stop(&why);
            }
        }
    }

    /// After all outcomes of a turn were left: who waits for several finds them all.
    fn wake(&mut self) {
        self.awaited.drain(..).for_each(Awaited::wake);
    }

    fn stop(&mut self, why: &str) {
        self.wake();
        self.taken.requests.append(&mut self.inbox.stop(why));
        for request in self.taken.requests.drain(..) {
            request.abandon(why);
        }
        self.queue.abandon(why);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.stop("its thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::engine::{Kind, Transfer, Wake};
    use super::super::error::StorageError;
    use super::super::file::Opened;
    use super::super::place::Body;
    use super::super::request::{Outcome, Priority, Request};
    use super::*;
    use crate::memory::{Arena, Budget, Category};

    /// An engine that dies of its first transfer, in one of these ways.
    #[derive(Clone, Copy)]
    enum Death {
        Silent,
        Broken,
        Panicking,
    }

    struct Mortal {
        death: Death,
        has_transfer: bool,
    }

    struct Nobody;

    impl Wake for Nobody {
        fn wake(&self) {}
    }

    impl Engine for Mortal {
        fn push(&mut self, _transfer: Transfer) {
            self.has_transfer = true;
        }

        fn turn(
            &mut self,
            limit: Duration,
            _together: usize,
            _done: &mut Vec<Completion>,
        ) -> Result<(), String> {
            std::thread::sleep(limit.min(TICK));
            match self.death {
                Death::Broken if self.has_transfer => Err(String::from("it is broken")),
                Death::Panicking if self.has_transfer => panic!("as the test wants"),
                _ => Ok(()),
            }
        }

        fn forget(&mut self, _file_id: u32) {}

        fn bell(&self) -> Arc<dyn Wake> {
            Arc::new(Nobody)
        }

        fn describe(&self) -> String {
            String::from("mortal")
        }
    }

    fn start(death: Death, inbox: &Arc<Inbox>) -> (Server, String) {
        let make: Maker = Box::new(move || Ok(Box::new(Mortal { death, has_transfer: false })));
        Server::start(inbox, make, Queue::new(4096, 2)).unwrap()
    }

    /// Write by a mortal engine, wait for the end of everything, and say what was told.
    fn told(death: Death) -> (Outcome, Arena) {
        let inbox = Arc::new(Inbox::default());
        let (server, words) = start(death, &inbox);
        assert_eq!(words, "mortal");
        let arena = Arena::new(Budget::new(1 << 20)).unwrap();
        let file = Arc::new(Opened::new(Path::new("state"), 1 << 20, Body::Simulated, &inbox));
        let buffer = arena.take(100_000, Category::Staging).unwrap();
        let priority = Priority::Background;
        let (write, pending) =
            Request::transfer(Kind::Write, &file, 0, buffer, 0..100_000, priority);
        inbox.leave(write);
        drop(server);
        assert!(pending.is_done(), "the end came before the outcome");
        (pending.wait(Duration::ZERO), arena)
    }

    #[test]
    fn a_device_that_never_answers_holds_neither_its_user_nor_its_caller() {
        for death in [Death::Silent, Death::Broken, Death::Panicking] {
            let (outcome, arena) = told(death);
            assert!(matches!(outcome.result, Err(StorageError::Stopped { .. })), "{outcome:?}");
            assert!(outcome.buffer.is_none(), "the device may still read it");
            assert_eq!(arena.ledger().held(Category::Staging), 100_000, "nobody gets it again");
        }
    }

    #[test]
    fn a_sync_that_a_signal_breaks_off_is_begun_again() {
        let inbox = Arc::new(Inbox::default());
        let file = Arc::new(Opened::new(Path::new("state"), 0, Body::Simulated, &inbox));
        let mut queue = Queue::new(4096, 2);
        let (sync, pending) = Request::sync(&file, Priority::Urgent);
        assert!(queue.add(sync).is_none());
        for result in [Err(libc::EINTR), Err(libc::EAGAIN), Ok(0)] {
            let Transfer { token, .. } = queue.next().expect("one more try");
            assert!(queue.next().is_none(), "one at a time");
            let awaited = queue.finish(Completion { token, result });
            assert_eq!(queue.is_empty(), result.is_ok());
            awaited.into_iter().for_each(Awaited::wake);
        }
        pending.wait(Duration::ZERO).result.unwrap();
    }

    #[test]
    fn what_is_handed_in_after_the_end_is_told_so() {
        let inbox = Arc::new(Inbox::default());
        drop(start(Death::Silent, &inbox));
        let file = Arc::new(Opened::new(Path::new("state"), 0, Body::Simulated, &inbox));
        let (sync, pending) = Request::sync(&file, Priority::Urgent);
        inbox.leave(sync);
        let told = pending.wait(Duration::ZERO).result.unwrap_err();
        assert!(matches!(told, StorageError::Stopped { .. }), "{told}");
        let make: Maker = Box::new(|| Err(String::from("not on this machine")));
        let refused = Server::start(&inbox, make, Queue::new(4096, 2)).err();
        assert_eq!(refused.as_deref(), Some("not on this machine"));
    }
}
