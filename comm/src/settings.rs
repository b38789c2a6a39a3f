//! The few things a user may set, each with one name in code and in the environment.

mod rdma;
mod variables;

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use brigade_schedule::Algorithm;

use crate::bootstrap::{Patience, Site};
use crate::header::Window;
use crate::launch::NUMBER;
use crate::slip::is_near;
use crate::{Error, Tuning, bytes, say};

pub use rdma::RdmaSettings;
pub use variables::Variable;

/// What a communicator is asked to be. Everything has a default that is right for most.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Transports that may be used, best first, or `auto`. `BRIGADE_TRANSPORT`.
    pub transport: String,
    /// One algorithm for every call that it can do, instead of the choice by size
    /// and nodes.
    /// `BRIGADE_ALGORITHM`.
    pub algorithm: Option<Algorithm>,
    /// Rules for the choice of algorithms, by size: the same on all ranks, or they get
    /// [`Error::Mismatch`]. `BRIGADE_TUNING`, a file that `brigade tune` writes.
    pub tuning: Option<Arc<Tuning>>,
    /// Fold strictly in rank order: the same bits whatever the sizes, transports and placement.
    /// `BRIGADE_ORDERED`.
    pub ordered: bool,
    /// Limit for all ranks to come together, from 1 ms to one day. Also the limit for opening a
    /// wire on first use, unless the call's own timeout is shorter. `BRIGADE_JOIN_TIMEOUT_MS`.
    pub join_timeout: Duration,
    /// How long a call may stand still before it is reported. Ranks that come together are reported
    /// to be late after a sixth of it. `BRIGADE_REPORT_MS`.
    pub report_after: Duration,
    /// How long a call may stand still before it ends with an error; zero ends it when it first
    /// has to wait for longer than a moment. `BRIGADE_TIMEOUT_MS`.
    pub timeout: Duration,
    /// How much of a long call is worked on at a time, in bytes: the same on all ranks, or they
    /// get [`Error::Mismatch`]. [`Settings::window`] says to what it is rounded.
    /// From 4096 to 1 TiB. `BRIGADE_WINDOW_BYTES`.
    pub window_bytes: u64,
    /// Which network interfaces TCP may use, and roots of unique ids: names, addresses, CIDR, `^`
    /// to exclude. `BRIGADE_INTERFACE`.
    pub interface: Option<String>,
    /// Ports that TCP may listen on, `FIRST-LAST`: one for each rank of a host, and one more where
    /// the root of a unique id is. `BRIGADE_PORTS`.
    pub ports: Option<(u16, u16)>,
    /// Sockets from one rank to another, at most 64; zero lets the transport choose.
    /// `BRIGADE_SOCKETS`.
    pub sockets: usize,
    /// Seal what ranks say to each other over TCP, and to their root: who listens on the network
    /// reads nothing, and who changes something there without knowing the job's secret is noticed.
    /// Between hosts only TCP is used then. The same on all ranks, or joining fails; a group that
    /// shrinks stays as it is. `BRIGADE_ENCRYPT`.
    pub encrypt: bool,
    /// How long nothing may be heard of another rank's machine until the rank counts as lost, over
    /// TCP and of the root; from two seconds to one day. `BRIGADE_SILENCE_MS`.
    pub silence: Duration,
    /// How RDMA is used. `BRIGADE_RDMA_*`.
    pub rdma: RdmaSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            transport: "auto".into(),
            algorithm: None,
            tuning: None,
            ordered: false,
            join_timeout: Duration::from_secs(30),
            report_after: Duration::from_secs(30),
            timeout: Duration::from_secs(600),
            window_bytes: 1 << 20,
            interface: None,
            ports: None,
            sockets: 0,
            encrypt: false,
            silence: Duration::from_secs(10),
            rdma: RdmaSettings::default(),
        }
    }
}

/// A setting as users see it: name, meaning, present value.
#[derive(Clone, Debug)]
pub struct SettingRow {
    /// The environment variable.
    pub name: &'static str,
    /// What it does.
    pub meaning: &'static str,
    /// Its value when nothing is set.
    pub default: String,
    /// Its value now.
    pub current: String,
}

/// The variables, with their meanings; those of RDMA follow them.
const TABLE: [(&str, &str); 13] = [
    ("BRIGADE_TRANSPORT", "auto, or transports best first: shm,tcp"),
    ("BRIGADE_ALGORITHM", "one algorithm for every call that it can do"),
    ("BRIGADE_TUNING", "a file of `brigade tune`: algorithms by size"),
    ("BRIGADE_ORDERED", "1: fold in rank order, the same bits always"),
    ("BRIGADE_JOIN_TIMEOUT_MS", "how long the ranks may take to come together"),
    ("BRIGADE_REPORT_MS", "a call that stalls so long is reported, a join at 1/6"),
    ("BRIGADE_TIMEOUT_MS", "a call that stands still so long fails, 0 = at once"),
    ("BRIGADE_WINDOW_BYTES", "how much of a long call is worked on at a time"),
    ("BRIGADE_INTERFACE", "for TCP and roots: name, address, CIDR, ^exclude"),
    ("BRIGADE_PORTS", "ports for TCP and roots of ids, FIRST-LAST"),
    ("BRIGADE_SOCKETS", "TCP sockets from one rank to another, 0 = automatic"),
    ("BRIGADE_ENCRYPT", "1: what goes over a network is encrypted, by TCP only"),
    ("BRIGADE_SILENCE_MS", "a machine that is silent so long is lost, from 2 s on"),
];

/// What part of the time after which a call is reported it takes until joining is.
const JOIN_REPORT_PART: u32 = 6;
/// Nobody waits longer for others to come, whatever was asked for: points in time have an end.
const JOIN_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);
const JOIN_TIMEOUTS_MS: RangeInclusive<u64> = 1..=JOIN_TIMEOUT_MAX.as_millis() as u64;
/// No machine is asked more often than once a second whether it is there, and twice at least.
const SILENCES_MS: RangeInclusive<u64> = 2000..=24 * 60 * 60 * 1000;
/// Calls that were cut smaller would be all overhead; none is cut into larger ones.
const WINDOWS_BYTES: RangeInclusive<u64> = 4096..=1 << 40;
/// As many as the transport takes.
pub(crate) const SOCKETS: RangeInclusive<u64> = 0..=64;

impl Settings {
    /// The settings of this process's environment; an empty variable counts as none. Unknown
    /// `BRIGADE_*` variables are warned of when the ranks have come together, by rank 0, and where
    /// they do not.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a value that cannot be read, with the variable and what it may be.
    pub fn from_env() -> Result<Self, Error> {
        // What is no text is no value either, but not the same as none.
        let text = |value: OsString| value.to_string_lossy().into_owned();
        Self::from_lookup(|name| std::env::var_os(name).map(text))
    }

    /// Warn of variables named `BRIGADE_*` that mean nothing, once in this process.
    pub fn warn_of_unknown_variables() {
        static WARNED: Once = Once::new();
        WARNED.call_once(|| {
            for name in Self::unknown_variables() {
                say::warn(&unknown(&name));
            }
        });
    }

    /// Variables named `BRIGADE_*` that mean nothing; what is no text in quotes, with its bytes.
    pub fn unknown_variables() -> Vec<String> {
        let known = |name: &str| Variable::is_known(name) || rows().any(|row| row.0 == name);
        let all = std::env::vars_os().map(|(name, _)| name);
        let ours = all.filter(|name| name.as_encoded_bytes().starts_with(b"BRIGADE_"));
        let names = ours.map(|name| name.into_string().unwrap_or_else(|name| format!("{name:?}")));
        names.filter(|name| !known(name)).collect()
    }

    /// The settings that a lookup of variables gives.
    pub(crate) fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let mut settings = Self::default();
        for (name, _) in rows() {
            let value = lookup(name).unwrap_or_default();
            if !value.trim().is_empty() {
                settings.set(name, value.trim())?;
            }
        }
        Ok(settings)
    }

    /// The window that calls are cut into, in bytes: the nearest at or below `window_bytes` of
    /// which ranks can tell each other, less by under a quarter.
    pub fn window(&self) -> u64 {
        Window::at_most(self.window_bytes).bytes()
    }

    /// How long others are waited for that are to come: always short enough to be added to a point
    /// in time.
    pub(crate) fn join_patience(&self) -> Duration {
        self.join_timeout.min(JOIN_TIMEOUT_MAX)
    }

    /// How long ranks wait for each other until `deadline`: of some seconds a user is told sooner
    /// while nothing has begun than in the middle of a call.
    pub(crate) fn patience_until(&self, deadline: Instant) -> Patience {
        let report_after = Some(self.report_after / JOIN_REPORT_PART);
        let Self { silence, encrypt, .. } = *self;
        let site = self.site();
        Patience { report_after, silence, encrypt, site, ..Patience::silent(deadline) }
    }

    /// Where a root may be that is opened by these settings.
    pub(crate) fn site(&self) -> Site {
        Site { interface: self.interface.clone(), ports: self.ports }
    }

    /// Set one setting by its variable's name.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is no such setting or the value cannot be read.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let wrong = |wanted: &str| Error::invalid(format!("{name}={value:?} is not {wanted}"));
        let number = || value.parse::<u64>().map_err(|_| wrong(NUMBER));
        let time = || number().map(Duration::from_millis);
        let within = |bounds: RangeInclusive<u64>| {
            let said = format!("a whole number from {} to {}", bounds.start(), bounds.end());
            number().ok().filter(|number| bounds.contains(number)).ok_or_else(|| wrong(&said))
        };
        let time_within = |bounds| within(bounds).map(Duration::from_millis);
        let is_yes = || match value {
            "1" | "true" | "yes" => Ok(true),
            "0" | "false" | "no" | "" => Ok(false),
            _ => Err(wrong("1 or 0")),
        };
        match name {
            "BRIGADE_TRANSPORT" => self.transport = value.to_owned(),
            "BRIGADE_ALGORITHM" => {
                let parsed = value.parse();
                self.algorithm =
                    Some(parsed.map_err(|error| Error::invalid(format!("{name}: {error}")))?);
            }
            "BRIGADE_TUNING" => {
                let tuning = Tuning::read(value.as_ref());
                let tuning = tuning.map_err(|why| Error::invalid(format!("{name}={value}: {why}")));
                self.tuning = Some(Arc::new(tuning?));
            }
            "BRIGADE_ORDERED" => self.ordered = is_yes()?,
            "BRIGADE_JOIN_TIMEOUT_MS" => self.join_timeout = time_within(JOIN_TIMEOUTS_MS)?,
            "BRIGADE_REPORT_MS" => self.report_after = time()?,
            "BRIGADE_TIMEOUT_MS" => self.timeout = time()?,
            "BRIGADE_WINDOW_BYTES" => {
                let bytes = bytes::parse(value).map_err(|_| wrong(bytes::WANTED))?;
                if !WINDOWS_BYTES.contains(&bytes) {
                    let (least, most) = WINDOWS_BYTES.into_inner();
                    return Err(wrong(&format!("from {least} to {most} bytes")));
                }
                self.window_bytes = Window::at_most(bytes).bytes();
            }
            "BRIGADE_INTERFACE" => self.interface = Some(value.to_owned()),
            "BRIGADE_PORTS" => {
                let ends = value.split_once('-').unwrap_or((value, value));
                let ends = (ends.0.trim().parse::<u16>(), ends.1.trim().parse::<u16>());
                let (Ok(first), Ok(last)) = ends else { return Err(wrong("FIRST-LAST")) };
                if first > last || first == 0 {
                    return Err(wrong("FIRST-LAST with FIRST from 1 on and at most LAST"));
                }
                self.ports = Some((first, last));
            }
            "BRIGADE_SOCKETS" => self.sockets = within(SOCKETS)? as usize,
            "BRIGADE_ENCRYPT" => self.encrypt = is_yes()?,
            "BRIGADE_SILENCE_MS" => self.silence = time_within(SILENCES_MS)?,
            _ if self.rdma.set(name, value)? => {}
            _ => return Err(Error::invalid(unknown(name))),
        }
        Ok(())
    }

    /// The table of settings, for `doctor`.
    pub fn table(&self) -> Vec<SettingRow> {
        let (now, default) = (self.values(), Self::default().values());
        let rows = rows().zip(now.into_iter().zip(default));
        rows.map(|((name, meaning), (current, default))| SettingRow {
            name,
            meaning,
            default,
            current,
        })
        .collect()
    }

    /// One row of it.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if no setting has this name.
    pub fn row(&self, name: &str) -> Result<SettingRow, Error> {
        let row = self.table().into_iter().find(|row| row.name == name);
        row.ok_or_else(|| Error::invalid(unknown(name)))
    }

    /// The values in the order of the table.
    fn values(&self) -> Vec<String> {
        let millis = |time: Duration| time.as_millis().to_string();
        let mut values = vec![
            self.transport.clone(),
            self.algorithm.map_or("chosen".into(), |algorithm| algorithm.to_string()),
            self.tuning.as_ref().map_or("none".into(), |rules| rules.path().display().to_string()),
            u8::from(self.ordered).to_string(),
            millis(self.join_timeout),
            millis(self.report_after),
            millis(self.timeout),
            self.window().to_string(),
            self.interface.clone().unwrap_or("any".into()),
            self.ports.map_or("any".into(), |(first, last)| format!("{first}-{last}")),
            self.sockets.to_string(),
            u8::from(self.encrypt).to_string(),
            millis(self.silence),
        ];
        values.extend(self.rdma.values());
        values
    }
}

/// What is said of a name that no setting has.
fn unknown(name: &str) -> String {
    let mut known = rows().map(|row| row.0).chain(Variable::ours().iter().map(|it| it.name));
    let meant = known.find(|known| is_near(&known.to_ascii_lowercase(), name));
    let meant = meant.map_or(String::new(), |meant| format!("; did you mean {meant}?"));
    format!("{name} is not a setting of Brigade; `brigade doctor --settings` lists them{meant}")
}

/// All variables with their meanings.
fn rows() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE.into_iter().chain(rdma::TABLE)
}

#[cfg(test)]
mod tests;
