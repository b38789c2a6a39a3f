//! What other threads leave for the storage's own thread: requests, files to forget, the end.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::request::{Request, Ticket};
use super::wake::Wake;

/// The door between callers and the storage's thread.
#[derive(Default)]
pub(crate) struct Inbox {
    mail: Mutex<Mail>,
    /// The thread waits, or is about to: whoever leaves mail has to ring.
    is_asleep: AtomicBool,
    /// But not for requests that go one of these ways: they could not be started before something
    /// completes, and that wakes the thread anyway.
    full_ways: AtomicU64,
}

/// What the thread has taken out.
#[derive(Default)]
pub(crate) struct Taken {
    pub(crate) requests: VecDeque<Request>,
    /// Requests, taken now or before, that somebody waits for since they were left.
    pub(crate) hurried: Vec<Arc<Ticket>>,
    pub(crate) forgotten: Vec<u32>,
}

/// Everything left since the last look.
#[derive(Default)]
struct Mail {
    requests: VecDeque<Request>,
    hurried: Vec<Arc<Ticket>>,
    forgotten: Vec<u32>,
    is_closing: bool,
    bell: Option<Arc<dyn Wake>>,
    free_file_ids: Vec<u32>,
    files_ever: u32,
    /// The system's numbers of the devices that were seen.
    devices: Vec<u64>,
    /// What the engine found out while it ran.
    news: Vec<String>,
    /// Why nothing is taken in any more.
    stopped: Option<String>,
}

impl Inbox {
    /// Leave a request. It is completed here and now when the engine has stopped.
    pub(crate) fn leave(&self, request: Request) {
        let mut mail = self.mail();
        if let Some(why) = mail.stopped.clone() {
            drop(mail);
            return request.abandon(&why);
        }
        let way = request.way();
        mail.requests.push_back(request);
        if way & self.full_ways.load(Ordering::Relaxed) == 0 {
            self.ring(mail);
        }
    }

    /// Let a request that was left go before those that nobody waits for.
    pub(crate) fn hurry(&self, ticket: &Arc<Ticket>) {
        let mut mail = self.mail();
        mail.hurried.push(Arc::clone(ticket));
        self.ring(mail);
    }

    /// This file will not be used any more.
    pub(crate) fn forget(&self, file_id: u32) {
        let mut mail = self.mail();
        mail.forgotten.push(file_id);
        self.ring(mail);
    }

    /// Finish what there is, and end.
    pub(crate) fn close(&self) {
        let mut mail = self.mail();
        mail.is_closing = true;
        self.ring(mail);
    }

    /// A number for a file that no other open file has.
    pub(crate) fn next_file_id(&self) -> u32 {
        let mut mail = self.mail();
        mail.free_file_ids.pop().unwrap_or_else(|| {
            mail.files_ever += 1;
            mail.files_ever - 1
        })
    }

    /// A small number for a device: how many others were seen before it.
    pub(crate) fn device_number(&self, device: u64) -> usize {
        let mut mail = self.mail();
        mail.devices.iter().position(|seen| *seen == device).unwrap_or_else(|| {
            mail.devices.push(device);
            mail.devices.len() - 1
        })
    }

    /// The engine knows nothing of these files any more.
    pub(crate) fn reuse(&self, file_ids: &[u32]) {
        self.mail().free_file_ids.extend_from_slice(file_ids);
    }

    /// The engine found something out.
    pub(crate) fn report(&self, news: String) {
        self.mail().news.push(news);
    }

    /// What the engine has found out so far.
    pub(crate) fn news(&self) -> Vec<String> {
        self.mail().news.clone()
    }

    /// How the thread is woken.
    pub(crate) fn set_bell(&self, bell: Arc<dyn Wake>) {
        self.mail().bell = Some(bell);
    }

    /// Take everything out. Says whether the inbox is closing.
    pub(crate) fn take(&self, taken: &mut Taken) -> bool {
        let mut mail = self.mail();
        taken.requests.append(&mut mail.requests);
        taken.hurried.append(&mut mail.hurried);
        taken.forgotten.append(&mut mail.forgotten);
        mail.is_closing
    }

    /// The thread is going to wait, so mail has to be announced from now on, but for requests that
    /// go a full way. False when there is something to do already: mail, or, without open requests,
    /// the end.
    pub(crate) fn fall_asleep(&self, has_open_requests: bool, full_ways: u64) -> bool {
        self.is_asleep.store(true, Ordering::SeqCst);
        let mail = self.mail();
        // Under the lock, under which it is read as well: who leaves mail after this look sees it.
        self.full_ways.store(full_ways, Ordering::Relaxed);
        let has_mail =
            !mail.requests.is_empty() || !mail.forgotten.is_empty() || !mail.hurried.is_empty();
        !(has_mail || mail.is_closing && !has_open_requests)
    }

    /// The thread is awake and will look.
    pub(crate) fn awake(&self) {
        self.is_asleep.store(false, Ordering::SeqCst);
    }

    /// Nothing more is taken in. What was left since the last look is for the caller to abandon.
    pub(crate) fn stop(&self, why: &str) -> VecDeque<Request> {
        let mut mail = self.mail();
        mail.stopped = Some(why.into());
        std::mem::take(&mut mail.requests)
    }

    fn ring(&self, mail: MutexGuard<'_, Mail>) {
        let bell =
            if self.is_asleep.swap(false, Ordering::SeqCst) { mail.bell.clone() } else { None };
        drop(mail);
        if let Some(bell) = bell {
            bell.wake();
        }
    }

    fn mail(&self) -> MutexGuard<'_, Mail> {
        // The mail is changed by code that does not panic between its lines.
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inbox")
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicUsize;

    use super::super::body::Body;
    use super::super::file::Opened;
    use super::super::kind::Kind;
    use super::super::request::{Priority, way};
    use super::*;
    use crate::memory::{Arena, Budget, Category};

    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Wake for Counting {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often the thread is woken by a request of this kind, when writes in the background are
    /// not possible on device 0.
    fn rings(kind: Kind, priority: Priority) -> usize {
        let (inbox, bell) = (Arc::new(Inbox::default()), Arc::new(Counting::default()));
        inbox.set_bell(bell.clone());
        let arena = Arena::new(Budget::new(1 << 20)).unwrap();
        let file = Arc::new(Opened::new(Path::new("state"), 1 << 20, Body::Simulated, &inbox));
        assert!(inbox.fall_asleep(true, way(Kind::Write, Priority::Background, file.device())));
        let (request, pending) = match kind {
            Kind::Sync => Request::sync(&file, priority),
            _ => {
                let buffer = arena.take(4096, Category::Staging).unwrap();
                Request::transfer(kind, &file, 0, buffer, 0..4096, priority)
            }
        };
        inbox.leave(request);
        let mut taken = Taken::default();
        inbox.take(&mut taken);
        assert_eq!(taken.requests.len(), 1, "rung or not, it is there");
        taken.requests.into_iter().for_each(|request| request.abandon("the test is over"));
        assert!(pending.is_done());
        bell.0.load(Ordering::Relaxed)
    }

    #[test]
    fn the_thread_is_woken_only_for_what_it_can_start() {
        assert_eq!(rings(Kind::Write, Priority::Background), 0);
        assert_eq!(rings(Kind::Write, Priority::Urgent), 1);
        assert_eq!(rings(Kind::Read, Priority::Background), 1);
        assert_eq!(rings(Kind::Sync, Priority::Urgent), 1);
    }
}
