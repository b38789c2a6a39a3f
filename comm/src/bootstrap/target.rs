//! Where a joiner looks for the root.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use super::error::JoinError;
use super::id::{FILE_POLL, UniqueId};
use super::names::{Lookup, at_port};
use super::vigil::Outlook;
use crate::control::Refusal;
use crate::launch::RootAddress;

/// Where the root is looked for.
pub(super) enum Target<'a> {
    Id(&'a UniqueId),
    File(&'a Path),
    Address(&'a RootAddress),
    Own(SocketAddr, [u8; 32]),
}

/// Where the root may be now, and the secret to be proved there.
pub(super) struct Found {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) secret: [u8; 32],
}

/// Why one attempt did not lead to a seat.
pub(super) enum Setback {
    /// Worth another attempt.
    Passing(String, Outlook),
    /// The other end is no root of ours, or says so without proof.
    Doubtful { kind: Refusal, why: String },
    /// The root itself has spoken.
    Final(JoinError),
}

impl Target<'_> {
    /// Whether another secret than ours at this place is no accident that may pass: an id says
    /// both, while an address or a file may be about to change hands.
    pub(super) fn is_certain(&self) -> bool {
        matches!(self, Target::Id(_) | Target::Own(..))
    }

    /// Whether it may lead elsewhere later.
    pub(super) fn may_change(&self) -> bool {
        matches!(self, Target::File(_))
    }

    /// Looked up anew for each attempt: names and files may come later, or be replaced. Waits for
    /// a file that is not there yet, or for who knows a name, at most until `until`; what may not
    /// be read, or is no file, is an error at once.
    pub(super) fn find(&self, names: &mut Lookup, until: Instant) -> Result<Found, Setback> {
        let of_id = |id: &UniqueId| Found { addresses: id.addresses(), secret: id.secret() };
        match self {
            Target::Id(id) => Ok(of_id(id)),
            Target::File(path) => match UniqueId::wait_for_file(path, until) {
                Ok(id) => Ok(of_id(&id)),
                Err(error) if error.is_final() => Err(Setback::Final(JoinError::Id(error))),
                Err(error) => Err(Setback::Passing(error.to_string(), Outlook::Open)),
            },
            Target::Address(address) => {
                let unknown = |error: io::Error| {
                    Setback::Passing(error.to_string(), Outlook::of_name(&error))
                };
                let hosts = names.find(&address.host, until).map_err(unknown)?;
                let at = |port| hosts.iter().map(move |host| at_port(*host, port));
                let addresses = address.ports().flat_map(at).collect();
                Ok(Found { addresses, secret: address.secret.bytes() })
            }
            Target::Own(address, secret) => {
                Ok(Found { addresses: vec![*address], secret: *secret })
            }
        }
    }

    /// Whether what was found with this secret is out of date: the file now says something else,
    /// because an earlier job had left it behind.
    pub(super) fn has_changed(&self, secret: &[u8; 32]) -> bool {
        match self {
            Target::File(path) => UniqueId::read_file(path).is_ok_and(|id| id.secret() != *secret),
            _ => false,
        }
    }

    /// Rest between two attempts, but not longer than what was last found is worth trying.
    pub(super) fn rest(&self, pause: Duration, last_secret: Option<&[u8; 32]>) {
        let end = Instant::now() + pause;
        let Some(secret) = last_secret.filter(|_| self.may_change()) else {
            return std::thread::sleep(pause);
        };
        while !self.has_changed(secret) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(FILE_POLL));
        }
    }

    /// For a root that was found in a file: what the file says and how old it is.
    pub(super) fn file_seen(&self) -> Option<String> {
        let Target::File(path) = self else { return None };
        let path_said = path.display();
        let Ok(id) = UniqueId::read_file(path) else {
            return Some(format!("the address in {path_said}, which holds no id"));
        };
        let written = path.metadata().and_then(|file| file.modified());
        let age = written.ok().and_then(|written| SystemTime::now().duration_since(written).ok());
        let age = age.map_or("in the future".into(), |age| format!("{} s ago", age.as_secs()));
        let addresses = id.addresses();
        Some(format!("{addresses:?}, the address in {path_said}, written {age}"))
    }
}

impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Id(id) => write!(f, "{:?}", id.addresses()),
            Target::File(_) => f.write_str(&self.file_seen().expect("it is a file")),
            Target::Address(address) => write!(f, "{address}"),
            Target::Own(address, _) => write!(f, "{address}"),
        }
    }
}
