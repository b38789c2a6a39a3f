//! Where the ranks of a job meet, and how well its secret keeps strangers out.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Once;

use super::secret::{BYTES_MIN, JobSecret};
use crate::bootstrap::id::UniqueId;
use crate::say;

/// Where the ranks of a job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootSpec {
    /// Nowhere: there is one rank.
    Alone,
    /// At the root that this id leads to; whoever made the id keeps the root.
    Id(UniqueId),
    /// At the root whose id rank 0 writes to this file.
    IdFile(PathBuf),
    /// Where rank 0 listens.
    Address(RootAddress),
    /// At the root whose id rank 0 puts into a store of PyTorch's.
    Store(StoreAddress),
}

/// A store of PyTorch's, and the key under which the ranks of a job look there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAddress {
    /// A name or a literal address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The same for all ranks, and for no other job.
    pub key: String,
    /// What whoever joins must know besides what lies in the store.
    pub secret: Option<JobSecret>,
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store at {}:{}", self.host, self.port)
    }
}

/// An address that rank 0 listens at and the others connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootAddress {
    /// A name or a literal address.
    pub host: String,
    /// The first port to try.
    pub port: u16,
    /// How many ports to try; the others may belong to someone else.
    pub port_count: u16,
    /// What whoever joins must know.
    pub secret: JobSecret,
}

impl RootAddress {
    /// All ports to try.
    pub(crate) fn ports(&self) -> RangeInclusive<u16> {
        self.port..=self.port.saturating_add(self.port_count.saturating_sub(1))
    }
}

impl fmt::Display for RootAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = &self.host;
        let ports = self.ports();
        let colons = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        if ports.start() == ports.end() {
            write!(f, "{colons}:{}", self.port)
        } else {
            write!(f, "{colons}:{}-{}", ports.start(), ports.end())
        }
    }
}

impl RootSpec {
    /// Whether nothing keeps strangers out but that they do not know the job's name.
    pub(crate) fn is_open_to_all(&self) -> bool {
        self.secret().is_some_and(|secret| secret.is_guard)
    }

    /// Say, once in this process, that a secret with which ranks encrypt is a short one.
    pub(crate) fn warn_of_short_secret(&self) {
        static WARNED: Once = Once::new();
        if !self.secret().is_some_and(|secret| secret.is_short) {
            return;
        }
        WARNED.call_once(|| {
            say::warn(&format!(
                "BRIGADE_ENCRYPT is set, and the job's secret has fewer than {BYTES_MIN} bytes: \
                 whoever records what ranks say may guess it; `openssl rand -hex 32` makes one \
                 that nobody guesses"
            ));
        });
    }

    fn secret(&self) -> Option<&JobSecret> {
        match self {
            Self::Address(address) => Some(&address.secret),
            Self::Store(store) => store.secret.as_ref(),
            Self::Alone | Self::Id(_) | Self::IdFile(_) => None,
        }
    }
}
