//! The root, as its owner sees it.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use super::bell::Bell;
use super::hub::Hub;

/// A root at work. Dropping it ends it: ranks that are waiting to join are told so, and ranks that
/// have joined go on without anybody who notices a death. Ranks of other processes that have groups
/// on devices to close are served first, for up to ten seconds.
#[derive(Debug)]
pub struct Root {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
}

impl Root {
    /// Serve one world at `listener`.
    pub(super) fn serve(listener: TcpListener, secret: [u8; 32]) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let bell = Arc::new(Bell::new()?);
        let hub = Hub::new(listener, secret, Arc::clone(&bell))?;
        let thread = Builder::new().name("brigade-root".into()).spawn(move || hub.run())?;
        Ok(Self { bell, thread: Some(thread), address })
    }

    /// Whether it has nothing more to do: its world has ended, or failed to come together.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
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
