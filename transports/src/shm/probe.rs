//! Which host this is, who we are on it, and what a card says of both.

use std::os::unix::fs::MetadataExt;

use sha2::{Digest, Sha256};

use super::sys;
use crate::{Cores, TransportError, Unavailable, opened, remedy};

const MAGIC: [u8; 4] = *b"BSHM";
const VERSION: u16 = 3;
/// How long a card is without its cores, of which it says how long they are.
const FIXED_BYTES: usize = 4 + 2 + 1 + 1 + 32 + 4 + 8 + NAME_BYTES;
const NAME_BYTES: usize = 16;
const HAS_MEMBARRIER: u8 = 1;

/// What tells a port from all others.
pub(super) type Name = [u8; NAME_BYTES];

/// What peers must know of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Card {
    /// The same for ranks that can share memory: machine, network namespace and user.
    pub(super) host: [u8; 32],
    /// The process, as numbered in its namespace.
    pub(super) pid: u32,
    /// The namespace that numbered it.
    pub(super) pid_space: u64,
    /// Where the port listens; random, so it tells ports apart too.
    pub(super) name: Name,
    /// Whether a sleeper's memory barrier reaches the process.
    pub(super) membarrier: bool,
    /// The cores of whoever opened the port.
    pub(super) cores: Cores,
}

impl Card {
    /// A card for a new port of this process.
    pub(super) fn draw() -> Result<Self, TransportError> {
        let mut name = [0; NAME_BYTES];
        getrandom::fill(&mut name)
            .map_err(|e| unavailable(format!("the system gives no random bytes: {e}"), "retry"))?;
        Ok(Self {
            host: host_identity()?,
            pid: std::process::id(),
            pid_space: namespace("pid")?,
            name,
            membarrier: sys::register_memory_barrier(),
            cores: Cores::of_this_thread(),
        })
    }

    /// The card as bytes.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let cores = self.cores.to_bytes();
        let mut bytes = Vec::with_capacity(FIXED_BYTES + cores.len());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.push(if self.membarrier { HAS_MEMBARRIER } else { 0 });
        bytes.push(cores.len() as u8);
        bytes.extend(self.host);
        bytes.extend(self.pid.to_le_bytes());
        bytes.extend(self.pid_space.to_le_bytes());
        bytes.extend(self.name);
        assert_eq!(bytes.len(), FIXED_BYTES);
        bytes.extend(cores);
        bytes
    }

    /// The card in bytes from the network; `None` when they are no card of ours.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let ([flags, cores_bytes], rest) = rest.split_first_chunk()?;
        let (host, rest) = rest.split_first_chunk()?;
        let (pid, rest) = rest.split_first_chunk()?;
        let (pid_space, rest) = rest.split_first_chunk()?;
        let (name, cores) = rest.split_first_chunk()?;
        if *magic != MAGIC || u16::from_le_bytes(*version) != VERSION {
            return None;
        }
        if cores.len() != usize::from(*cores_bytes) {
            return None;
        }
        Some(Self {
            host: *host,
            pid: u32::from_le_bytes(*pid),
            pid_space: u64::from_le_bytes(*pid_space),
            name: *name,
            membarrier: flags & HAS_MEMBARRIER != 0,
            cores: Cores::parse(cores)?,
        })
    }

    /// The port's name in the abstract namespace, which leaves nothing in any folder.
    pub(super) fn socket_name(&self) -> String {
        let digits: String = self.name.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("\0brigade-{digits}")
    }

    /// Where the port's bell in the group with this key can be rung from outside of shared memory.
    pub(super) fn bell_name(&self, key: u64) -> String {
        format!("{}-{key:016x}", self.socket_name())
    }
}

/// What says that two processes can share memory: one kernel, one space of socket names, one user.
pub(super) fn host_identity() -> Result<[u8; 32], TransportError> {
    let path = "/proc/sys/kernel/random/boot_id";
    let boot = opened(|| std::fs::read(path)).map_err(|e| match remedy("open", &e) {
        Some(_) => TransportError::from_io("open", &e, path),
        None => unavailable(format!("{path} cannot be read: {e}"), "mount /proc"),
    })?;
    let mut hash = Sha256::new();
    hash.update(b"brigade shm host");
    hash.update((boot.len() as u64).to_le_bytes());
    hash.update(&boot);
    hash.update(namespace("net")?.to_le_bytes());
    hash.update(sys::own_user().to_le_bytes());
    Ok(hash.finalize().into())
}

fn namespace(kind: &str) -> Result<u64, TransportError> {
    let path = format!("/proc/self/ns/{kind}");
    let found = std::fs::metadata(&path);
    let found = found.map_err(|e| unavailable(format!("{path}: {e}"), "mount /proc"))?;
    Ok(found.ino())
}

fn unavailable(why: String, next_step: &str) -> TransportError {
    Unavailable { transport: super::NAME, why, next_step: next_step.into() }.into()
}

/// Whether memory files can be made here.
pub(super) fn memory_files() -> Result<(), TransportError> {
    sys::memory_file().map(drop).map_err(|e| {
        let next_step = "allow the system call memfd_create in the container's profile";
        unavailable(format!("memfd_create fails: {e}"), next_step)
    })
}
