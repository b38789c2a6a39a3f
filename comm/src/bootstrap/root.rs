//! The root, as its owner sees it.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};

use super::bell::Bell;
use super::hub::Hub;
use super::proof::random;

/// A root at work. Dropping it ends it: ranks that are waiting to join are told so, and ranks that
/// have joined go on without anybody who notices a death. Ranks of other processes that have groups
/// on devices to close are served first, for up to ten seconds.
#[derive(Debug)]
pub struct Root {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
    /// What it draws for its world alone.
    nonce: [u8; 32],
}

/// A root that ranks of a process share. A child of a fork has none of its parent's.
struct Shared {
    process: u32,
    nonce: [u8; 32],
    root: Weak<Root>,
}

static SHARED: Mutex<Vec<Shared>> = Mutex::new(Vec::new());

impl Root {
    /// Serve one world at `listener`, of which there may be a doubt to tell who waits there.
    pub(super) fn serve(
        listener: TcpListener,
        secret: [u8; 32],
        doubt: Option<String>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let bell = Arc::new(Bell::new()?);
        let nonce = random()?;
        let hub = Hub::new((listener, doubt), [secret, nonce], Arc::clone(&bell))?;
        let thread = Builder::new().name("brigade-root".into()).spawn(move || hub.run())?;
        Ok(Self { bell, thread: Some(thread), address, nonce })
    }

    /// The same for all ranks of this process that join it: it ends when the last of them has left,
    /// whichever that is.
    pub(crate) fn shared(self) -> Arc<Self> {
        let root = Arc::new(self);
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|one| one.root.strong_count() > 0);
        let (process, nonce) = (std::process::id(), root.nonce);
        shared.push(Shared { process, nonce, root: Arc::downgrade(&root) });
        root
    }

    /// The one of this process that drew this, if ranks share it.
    pub(super) fn of_this_process(nonce: &[u8; 32]) -> Option<Arc<Self>> {
        let shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = (std::process::id(), nonce);
        shared.iter().find(|one| (one.process, &one.nonce) == wanted)?.root.upgrade()
    }

    /// Whether it has nothing more to do: its world has ended, or failed to come together.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Whether ranks that have come wait here for others that have not.
    pub fn awaits_ranks(&self) -> bool {
        !self.has_ended() && self.bell.awaits()
    }

    /// Somebody whom ranks wait for here will not come, nor will anybody else in its place: they
    /// give up at once, and hear `why`. Changes nothing once all have come.
    pub fn call_off(&self, why: &str) {
        self.bell.call_off(why);
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.bell.ring();
            // A hub that panicked has printed why, and a destructor must not.
            let _ended = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_shared_until_the_last_lets_go_of_it() {
        let serve =
            || Root::serve(TcpListener::bind("127.0.0.1:0").unwrap(), [7; 32], None).unwrap();
        let (first, other) = (serve().shared(), serve().shared());
        let nonce = first.nonce;
        let second = Root::of_this_process(&nonce).expect("it is there");
        assert!(Arc::ptr_eq(&first, &second) && !Arc::ptr_eq(&first, &other));
        drop(first);
        assert!(Root::of_this_process(&nonce).is_some(), "one has it still");
        drop(second);
        assert!(Root::of_this_process(&nonce).is_none());
        assert!(Root::of_this_process(&other.nonce).is_some());
        let alone = serve();
        assert!(Root::of_this_process(&alone.nonce).is_none(), "nobody shares it");
    }
}
