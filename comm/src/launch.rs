//! Who am I? Rank, number of ranks and root, from what a launcher left in the environment.
//!
//! The first launcher whose rank variable is set counts, in the order Brigade, torchrun, Open MPI,
//! PMI, Slurm, Kubernetes; without any, the process is alone. The first of these that is set says
//! where the root is:
//!
//! | variable | the root is |
//! |---|---|
//! | `BRIGADE_ID` | where this 128-byte id (as hexadecimal digits) says |
//! | `BRIGADE_ID_FILE` | where the id in this file says; rank 0 writes the file and removes it |
//! | `BRIGADE_ROOT` | at this `host:port`, where rank 0 listens |
//! | `BRIGADE_STORE` | where the id in PyTorch's store at this `host:port` says |
//! | `MASTER_ADDR` | the same, of the store at `MASTER_PORT`, if torchrun says it has one |
//! | `MASTER_ADDR` | else at that host, on one of the 8 ports behind `MASTER_PORT` |
//! | `SLURM_STEP_NODELIST` | on its first host, at a port derived from job and step |
//! | none, but all ranks are on one host | on that host, at a port derived from Open MPI's job |
//!
//! `MASTER_PORT` itself belongs to torchrun, whose own store listens there. Where the ports behind
//! it are not free or not reachable, set `BRIGADE_ROOT`.
//!
//! The secret is `BRIGADE_SECRET` or the contents of `BRIGADE_SECRET_FILE`; without, see
//! [`JobSecret::guard`]. An id has its own; one that lies in a store wants both.
//!
//! Nothing here connects to anything.

mod launchers;
mod secret;
mod slurm;

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use thiserror::Error;

use crate::bootstrap::id::{IdError, UniqueId};
use launchers::{LAUNCHERS, Launcher, OTHERS, has_set, speaker};
pub use secret::JobSecret;
use slurm::first_host;

/// One process's place in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Which of the ranks we are.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
    /// Which of the ranks on this host we are, where the launcher says so.
    pub local_rank: Option<usize>,
    /// Where they meet.
    pub root: RootSpec,
}

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

/// Why the environment does not say who we are.
#[derive(Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// It says one thing but not another that belongs to it.
    #[error("{} {seen}, but {missing} is not set: {advice}", has_set(launcher))]
    Missing {
        /// Whose variables were found.
        launcher: &'static str,
        /// Which, with their values.
        seen: String,
        /// What is not there.
        missing: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// A variable has a value that means nothing.
    #[error("{name}={value:?} is not {want}")]
    Malformed {
        /// Which.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        want: &'static str,
    },
    /// A rank that its own job does not have.
    #[error("{} says rank {rank} of {ranks} ranks; ranks count from 0", speaker(launcher))]
    Range {
        /// Who says so.
        launcher: &'static str,
        /// The rank.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// `BRIGADE_ID` holds no id.
    #[error("BRIGADE_ID: {0}")]
    Id(#[source] IdError),
    /// The file of the secret cannot be read, or is empty.
    #[error("BRIGADE_SECRET_FILE={}: {why}", path.display())]
    SecretFile {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl std::fmt::Debug for LaunchError {
    /// The sentence, as `Display` has it: what a `main` that returns an error prints.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// What variables that count or measure are, settings too.
pub(crate) const NUMBER: &str = "a whole number from 0 on";
/// How many ports behind `MASTER_PORT` are tried.
const PORTS_BEHIND: u16 = 8;
const ROOT_ADVICE: &str = "set BRIGADE_ROOT=host:port, the same on all ranks and on a host where \
                           rank 0 runs (or BRIGADE_ID, or BRIGADE_ID_FILE on a shared disk)";

impl Launch {
    /// Read the environment of this process. Errors say what was found and what to set.
    pub fn discover() -> Result<Launch, LaunchError> {
        let lookup = |name: &str| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned());
        Self::discover_in(&lookup)
    }

    /// Read any environment: `lookup` gives the value of a variable. Empty values count as unset.
    pub fn discover_in(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Launch, LaunchError> {
        let env = Environment { lookup };
        let speaks = |launcher: &&Launcher| launcher.speaks(|name| env.has(name));
        let Some(launcher) = LAUNCHERS.iter().find(speaks) else {
            return env.alone();
        };
        let rank = env.number(launcher.rank)?.unwrap_or_default();
        let Some(ranks) = env.first_number(launcher.ranks)? else {
            let advice = "set it to the number of ranks of the whole job";
            return Err(env.missing(launcher.name, launcher.ranks[0], advice));
        };
        if rank >= ranks {
            return Err(LaunchError::Range { launcher: launcher.name, rank, ranks });
        }
        let local_rank = env.first_number(launcher.local_rank.as_slice())?;
        let root = if ranks == 1 { RootSpec::Alone } else { env.root(launcher, ranks)? };
        let secret = env.has("BRIGADE_SECRET") || env.has("BRIGADE_SECRET_FILE");
        if rank == 0 && !secret && matches!(root, RootSpec::Address(_)) {
            secret::warn_of_guard();
        }
        Ok(Launch { rank, ranks, local_rank, root })
    }
}

/// The variables of each launcher but ours, by its name.
pub(crate) fn variables() -> Vec<(&'static str, Vec<&'static str>)> {
    let others = LAUNCHERS.iter().filter(|launcher| launcher.name != "brigade");
    others.map(|launcher| (launcher.name, launcher.variables())).collect()
}

struct Environment<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Environment<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    fn number(&self, name: &'static str) -> Result<Option<usize>, LaunchError> {
        let parse = |value: String| {
            value.trim().parse().map_err(|_| LaunchError::Malformed { name, value, want: NUMBER })
        };
        self.text(name).map(parse).transpose()
    }

    fn first_number(&self, names: &[&'static str]) -> Result<Option<usize>, LaunchError> {
        names.iter().find(|name| self.has(name)).map_or(Ok(None), |name| self.number(name))
    }

    /// No launcher gave us a rank. That is fine unless someone expected us to have one.
    fn alone(&self) -> Result<Launch, LaunchError> {
        let advice = "set it to this process's rank, from 0";
        for (launcher, rank, ranks) in
            [("brigade", "BRIGADE_RANK", "BRIGADE_WORLD_SIZE"), ("torchrun", "RANK", "WORLD_SIZE")]
        {
            if self.number(ranks)?.is_some_and(|ranks| ranks > 1) {
                return Err(self.missing(launcher, rank, advice));
            }
        }
        if ["BRIGADE_ID", "BRIGADE_ID_FILE", "BRIGADE_ROOT", "BRIGADE_STORE"]
            .iter()
            .any(|name| self.has(name))
        {
            return Err(self.missing("brigade", "BRIGADE_RANK", advice));
        }
        Ok(Launch { rank: 0, ranks: 1, local_rank: None, root: RootSpec::Alone })
    }

    fn missing(
        &self,
        launcher: &'static str,
        missing: &'static str,
        advice: &'static str,
    ) -> LaunchError {
        let of_launchers = LAUNCHERS.iter().flat_map(|launcher| {
            [launcher.rank].into_iter().chain(launcher.ranks.iter().copied()).chain(launcher.gate)
        });
        let mut seen: Vec<String> = Vec::new();
        for name in of_launchers.chain(OTHERS) {
            let entry = self.text(name).map(|value| format!("{name}={value}"));
            seen.extend(entry.filter(|entry| !seen.contains(entry)));
        }
        if self.has("BRIGADE_ID") {
            seen.push("BRIGADE_ID".into());
        }
        LaunchError::Missing { launcher, seen: seen.join(", "), missing, advice }
    }

    fn root(&self, launcher: &Launcher, ranks: usize) -> Result<RootSpec, LaunchError> {
        if let Some(id) = self.text("BRIGADE_ID") {
            return Ok(RootSpec::Id(id.trim().parse().map_err(LaunchError::Id)?));
        }
        if let Some(path) = self.text("BRIGADE_ID_FILE") {
            return Ok(RootSpec::IdFile(path.into()));
        }
        if let Some(root) = self.text("BRIGADE_ROOT") {
            let (host, port) = split_address(&root).ok_or(LaunchError::Malformed {
                name: "BRIGADE_ROOT",
                value: root,
                want: "host:port (or [v6 address]:port)",
            })?;
            return self.address(host, port, 1);
        }
        if let Some(store) = self.text("BRIGADE_STORE") {
            let (host, port) = split_address(&store).ok_or(LaunchError::Malformed {
                name: "BRIGADE_STORE",
                value: store,
                want: "host:port (or [v6 address]:port)",
            })?;
            return self.store(host, port);
        }
        if let Some(host) = self.text("MASTER_ADDR") {
            let advice = "set both, or BRIGADE_ROOT=host:port";
            let port = self.number("MASTER_PORT")?;
            let port = port.ok_or_else(|| self.missing(launcher.name, "MASTER_PORT", advice))?;
            let port = u16::try_from(port).ok().filter(|port| *port > 0);
            let port = port.ok_or_else(|| LaunchError::Malformed {
                name: "MASTER_PORT",
                value: self.text("MASTER_PORT").unwrap_or_default(),
                want: "a port from 1 to 65535",
            })?;
            // The agent that started us serves a store there.
            if self.text("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True") {
                return self.store(host, port);
            }
            let behind = port.checked_add(PORTS_BEHIND);
            let behind = behind.map_or_else(|| port - PORTS_BEHIND, |_| port + 1);
            return self.address(host, behind, PORTS_BEHIND);
        }
        self.root_of_job(launcher, ranks)
    }

    /// Nobody names the root: derive it from the job, which works if all ranks derive the same.
    fn root_of_job(&self, launcher: &Launcher, ranks: usize) -> Result<RootSpec, LaunchError> {
        if let (Some(_), Some(nodes)) =
            (self.text("SLURM_STEP_ID"), self.text("SLURM_STEP_NODELIST"))
        {
            let host = first_host(&nodes).ok_or(LaunchError::Malformed {
                name: "SLURM_STEP_NODELIST",
                value: nodes,
                want: "a list of hosts like node[1-3,7],other",
            })?;
            let port = secret::derived_port(&self.identity());
            return self.address(host, port, PORTS_BEHIND);
        }
        let local_ranks = self.first_number(launcher.local_ranks.as_slice())?;
        if local_ranks == Some(ranks) && self.has("PMIX_NAMESPACE") {
            let port = secret::derived_port(&self.identity());
            return self.address("127.0.0.1".into(), port, PORTS_BEHIND);
        }
        Err(self.missing(launcher.name, "BRIGADE_ROOT", ROOT_ADVICE))
    }

    fn address(&self, host: String, port: u16, port_count: u16) -> Result<RootSpec, LaunchError> {
        let guard = || JobSecret::guard(&format!("{} {host}:{port}", self.identity()));
        let secret = self.secret()?.unwrap_or_else(guard);
        Ok(RootSpec::Address(RootAddress { host, port, port_count, secret }))
    }

    /// The job's secret, if it was given one.
    fn secret(&self) -> Result<Option<JobSecret>, LaunchError> {
        match (self.text("BRIGADE_SECRET"), self.text("BRIGADE_SECRET_FILE")) {
            (Some(text), _) => Ok(Some(JobSecret::from_text(&text))),
            (None, Some(path)) => secret::read_file(path.into()).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// How often torchrun's agents have started anew is no part of the key: each counts by itself,
    /// and one that has come in place of another begins at 0. A new start has a new store.
    fn store(&self, host: String, port: u16) -> Result<RootSpec, LaunchError> {
        let run = self.text("TORCHELASTIC_RUN_ID").unwrap_or_default();
        let (key, secret) = (format!("brigade/{run}"), self.secret()?);
        Ok(RootSpec::Store(StoreAddress { host, port, key, secret }))
    }

    /// What tells this job from others, as far as its launcher says.
    fn identity(&self) -> String {
        let names = ["TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE"];
        let parts = names.map(|name| self.text(name).unwrap_or_default());
        format!("{} {}", parts.join(" "), crate::bootstrap::sys::user())
    }
}

fn split_address(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.trim().rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = match bare {
        Some(v6) => v6,
        None if host.contains(':') => return None,
        None => host,
    };
    let port = port.parse().ok().filter(|port| *port != 0)?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}
