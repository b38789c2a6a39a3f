//! The storage's own thread: takes requests in, keeps the engine busy, hands outcomes out.

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
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
    /// Hangs up when the thread has nothing left to do. In a mutex only so that a storage can be
    /// shared.
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
        std::thread::Builder::new()
            .name("brigade-storage".into())
            .spawn(body)
            .map_err(|e| format!("no thread for storage: {e}"))?;
        let server = Self { inbox: Arc::clone(inbox), ended: Mutex::new(ended) };
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
        // with the memory that the device may still write into. It is not joined either: the kernel
        // lets no thread go before what its rings have under way has ended.
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = ended.recv_timeout(limit);
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
    use std::cell::Cell;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::body::Body;
    use super::super::engine::Transfer;
    use super::super::error::StorageError;
    use super::super::file::Opened;
    use super::super::kind::Kind;
    use super::super::pieces::Grain;
    use super::super::request::{Outcome, Priority, Request};
    use super::super::wake::Wake;
    use super::*;
    use crate::memory::{Arena, Budget, Category};

    /// An engine that dies of its first transfer, in one of these ways.
    #[derive(Clone, Copy)]
    enum Death {
        Silent,
        Broken,
        Panicking,
        /// As `Broken`, but its thread stays.
        Lingering,
    }

    thread_local! {
        static LAST: Cell<Option<Lingering>> = const { Cell::new(None) };
    }

    /// What a thread drops last takes until the test is over.
    struct Lingering(Arc<AtomicBool>);

    impl Drop for Lingering {
        fn drop(&mut self) {
            let start = Instant::now();
            while !self.0.load(Ordering::Acquire) && start.elapsed() < CLOSE_GRACE {
                std::thread::sleep(TICK);
            }
        }
    }

    struct Mortal {
        death: Death,
        has_transfer: bool,
        is_over: Arc<AtomicBool>,
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
                Death::Lingering if self.has_transfer => {
                    LAST.set(Some(Lingering(Arc::clone(&self.is_over))));
                    Err(String::from("it is broken"))
                }
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

    fn start(death: Death, inbox: &Arc<Inbox>, is_over: &Arc<AtomicBool>) -> (Server, String) {
        let is_over = Arc::clone(is_over);
        let make: Maker =
            Box::new(move || Ok(Box::new(Mortal { death, has_transfer: false, is_over })));
        Server::start(inbox, make, Queue::new(4096, 2)).unwrap()
    }

    /// Write by a mortal engine, wait for the end of everything, and say what was told, and whether
    /// the file is kept from others.
    fn told(death: Death) -> (Outcome, Arena, bool) {
        let (inbox, is_over) = (Arc::new(Inbox::default()), Arc::default());
        let (server, words) = start(death, &inbox, &is_over);
        assert_eq!(words, "mortal");
        let arena = Arena::new(Budget::new(1 << 20)).unwrap();
        let file = Arc::new(Opened::new(Path::new("state"), 1 << 20, Body::Simulated, &inbox));
        let buffer = arena.take(100_000, Category::Staging).unwrap();
        let priority = Priority::Background;
        let (write, pending) =
            Request::transfer(Kind::Write, &file, 0, buffer, 0..100_000, priority);
        inbox.leave(write);
        let start = Instant::now();
        drop(server);
        assert!(start.elapsed() < CLOSE_GRACE, "its user was held");
        assert!(pending.is_done(), "the end came before the outcome");
        is_over.store(true, Ordering::Release);
        let outcome = pending.wait(Duration::ZERO);
        (outcome, arena, Arc::strong_count(&file) > 1)
    }

    #[test]
    fn a_device_that_never_answers_holds_neither_its_user_nor_its_caller() {
        for death in [Death::Silent, Death::Broken, Death::Panicking, Death::Lingering] {
            let (outcome, arena, is_kept) = told(death);
            assert!(matches!(outcome.result, Err(StorageError::Stopped { .. })), "{outcome:?}");
            assert!(outcome.buffer.is_none(), "the device may still read it");
            assert_eq!(arena.ledger().held(Category::Staging), 100_000, "nobody gets it again");
            assert!(is_kept, "what is under way may still be written");
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
    fn a_device_that_never_answers_holds_up_no_sync_of_another() {
        let (inbox, mut queue) = (Arc::new(Inbox::default()), Queue::new(4096, 2));
        let silent = Arc::new(Opened::new(Path::new("state"), 0, Body::Simulated, &inbox));
        let buffered = std::fs::File::open("/dev/null").unwrap();
        let body = Body::System { buffered, direct: None, grain: Grain::BUFFERED };
        let other = Arc::new(Opened::new(Path::new("other"), 0, body, &inbox));
        assert_ne!(silent.device(), other.device());
        let mut sync = |file| {
            let (sync, pending) = Request::sync(file, Priority::Urgent);
            assert!(queue.add(sync).is_none());
            (queue.next().map(|transfer| transfer.token), pending)
        };
        let under_way = (0..100).map(|_| sync(&silent)).take_while(|(token, _)| token.is_some());
        assert!(under_way.count() < 10);
        let (token, pending) = sync(&other);
        let token = token.expect("its device has nothing to do");
        queue.finish(Completion { token, result: Ok(0) }).into_iter().for_each(Awaited::wake);
        pending.wait(Duration::ZERO).result.unwrap();
        queue.abandon("the test is over");
    }

    #[test]
    fn what_is_handed_in_after_the_end_is_told_so() {
        let inbox = Arc::new(Inbox::default());
        drop(start(Death::Silent, &inbox, &Arc::default()));
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
