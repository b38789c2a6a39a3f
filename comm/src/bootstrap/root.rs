//! The root, as its owner sees it.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use brigade_transports::opened;

use super::hub::Hub;

/// A root at work. Dropping it ends it: ranks that are waiting to join are told so, and ranks that
/// have joined go on without anybody who notices a death.
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

/// How the owner tells the thread to end, once. It holds both ends of the pair, so that ringing
/// never meets a closed end, whoever ends first.
#[derive(Debug)]
pub(super) struct Bell {
    rung: AtomicBool,
    mouth: UnixStream,
    ear: UnixStream,
}

impl Bell {
    fn new() -> io::Result<Self> {
        let (mouth, ear) = opened(UnixStream::pair)?;
        Ok(Self { rung: AtomicBool::new(false), mouth, ear })
    }

    fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        // One byte always fits, and only the flag counts.
        let _sent = (&self.mouth).write(&[1]);
    }

    pub(super) fn has_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire)
    }

    /// What becomes readable by ringing.
    pub(super) fn ear(&self) -> BorrowedFd<'_> {
        self.ear.as_fd()
    }
}
