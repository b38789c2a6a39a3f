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

mod error;
mod launchers;
mod root;
mod secret;
mod slurm;

pub use error::LaunchError;
use launchers::{LAUNCHERS, Launcher, OTHERS};
pub use root::{RootAddress, RootSpec, StoreAddress};
pub use secret::JobSecret;
use slurm::first_host;

/// What variables that count or measure are, settings too.
pub(crate) const NUMBER: &str = "a whole number from 0 on";
/// How many ports behind `MASTER_PORT` are tried.
const PORTS_BEHIND: u16 = 8;
const ROOT_ADVICE: &str = "set BRIGADE_ROOT=host:port, the same on all ranks and on a host where \
                           rank 0 runs (or BRIGADE_ID, or BRIGADE_ID_FILE on a shared disk)";

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

impl Launch {
    /// Which of the ranks on this host this process is, if its launcher says so, as for devices
    /// that ranks of a host take in turn. Reads nothing else of the environment.
    pub fn local_rank() -> Option<usize> {
        Self::local_rank_in(&|name| std::env::var(name).ok())
    }

    /// The same of any environment, as [`Launch::discover_in`] reads it.
    pub fn local_rank_in(lookup: &dyn Fn(&str) -> Option<String>) -> Option<usize> {
        let text = |name: &str| lookup(name).filter(|text| !text.is_empty());
        let number = |name: &str| text(name)?.trim().parse().ok();
        // Of a launcher around the one that started us, numbers are of other processes.
        let at_work =
            LAUNCHERS.iter().find(|launcher| launcher.speaks(|name| text(name).is_some()));
        at_work.and_then(|launcher| number(launcher.local_rank?)).or_else(|| number("LOCAL_RANK"))
    }
}

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
