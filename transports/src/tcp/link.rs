//! The bundle of sockets that carries both directions of a pair of ranks.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use socket2::Socket;

use super::silence::RETRY_CAP_MS_MAX;
use super::sys;
use crate::OursAlone;
use crate::seal::{Opener, Sealer, Seals};

/// The sockets of a pair of ranks, in non-blocking mode.
pub(super) struct Link {
    pub(super) sockets: Vec<OursAlone<Socket>>,
    /// What seals and opens what goes over each of them, until whoever writes and reads there
    /// takes it; nothing where nothing is sealed.
    keys: Mutex<Vec<Option<Keys>>>,
}

struct Keys {
    sealer: Option<Sealer>,
    opener: Option<Opener>,
}

/// A socket whose other end has proved itself.
pub(super) struct Proved {
    pub(super) socket: Socket,
    pub(super) seals: Option<Seals>,
}

impl Link {
    /// Of sockets in any mode.
    pub(super) fn new(proved: Vec<Proved>) -> io::Result<Arc<Link>> {
        for Proved { socket, .. } in &proved {
            socket.set_nonblocking(true)?;
        }
        Ok(Arc::new(Self::of(proved)))
    }

    /// Of sockets that are in that mode.
    pub(super) fn of(proved: Vec<Proved>) -> Link {
        let keys = |it: Seals| Keys { sealer: Some(it.sealer), opener: Some(it.opener) };
        let part = |it: Proved| (OursAlone::new(it.socket), it.seals.map(keys));
        let (sockets, keys): (_, Vec<_>) = proved.into_iter().map(part).unzip();
        Link { sockets, keys: Mutex::new(keys) }
    }

    /// For the one who writes on that socket: a second one would say other things in records of
    /// the same numbers, or in none.
    pub(super) fn take_sealer(&self, socket: usize) -> Option<Sealer> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys[socket].as_mut().map(|keys| keys.sealer.take().expect("each wire has one sender"))
    }

    /// For the one who reads from it.
    pub(super) fn take_opener(&self, socket: usize) -> Option<Opener> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys[socket].as_mut().map(|keys| keys.opener.take().expect("each wire has one receiver"))
    }
}

impl Drop for Link {
    /// A peer that reads late gets what its kernel had no room for, for some three minutes: a
    /// kernel gives up sockets without an owner where pauses have grown as long as they may
    /// (`options`).
    fn drop(&mut self) {
        for socket in &self.sockets {
            // Kernels that do not know this wait as long by themselves.
            let _ = sys::set_retry_cap(&**socket, RETRY_CAP_MS_MAX);
        }
    }
}
