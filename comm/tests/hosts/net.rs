//! Hosts that are none: network namespaces of this kernel, joined by two switches. Needs root and
//! iproute2; a test that cannot have them says so and is skipped.

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Which protocols the hosts speak with each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Both,
    SixOnly,
}

/// Some hosts; removed when dropped. There is one set at a time, since tests measure time.
pub(crate) struct Hosts {
    pub(crate) names: Vec<String>,
    switch: String,
    _turn: MutexGuard<'static, ()>,
}

static TURN: Mutex<()> = Mutex::new(());

impl Hosts {
    /// Each host i has `cable` with 10.78.0.i and fd78::i, and `second` with 10.79.0.i and fd79::i,
    /// counted from 1; without the IPv4 addresses if `family` says so.
    pub(crate) fn new(tag: &str, count: usize, family: Family) -> Option<Self> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let name = |end: &str| format!("brg-{}-{tag}{end}", std::process::id());
        let names: Vec<_> = (1..=count).map(|host| name(&host.to_string())).collect();
        let hosts = Self { names, switch: name("s"), _turn: turn };
        match hosts.plug_in(family) {
            Ok(()) => Some(hosts),
            Err(why) => {
                println!("skipped: no hosts can be made of network namespaces here: {why}");
                None
            }
        }
    }

    fn plug_in(&self, family: Family) -> Result<(), String> {
        let switch = &self.switch;
        ip(&format!("netns add {switch}"))?;
        for (net, cable) in ["cable", "second"].iter().enumerate() {
            ip(&format!("-n {switch} link add {cable} type bridge"))?;
            ip(&format!("-n {switch} link set {cable} up"))?;
            for (index, host) in self.names.iter().enumerate() {
                let (own, port) = (index + 1, format!("{cable}{index}"));
                if net == 0 {
                    ip(&format!("netns add {host}"))?;
                    ip(&format!("-n {host} link set lo up"))?;
                }
                let plug = format!("link add {port} type veth peer name {cable} netns {host}");
                ip(&format!("-n {switch} {plug}"))?;
                ip(&format!("-n {switch} link set {port} master {cable} up"))?;
                if family == Family::Both {
                    ip(&format!("-n {host} addr add 10.7{}.0.{own}/24 dev {cable}", 8 + net))?;
                }
                ip(&format!("-n {host} addr add fd7{}::{own}/64 dev {cable} nodad", 8 + net))?;
                ip(&format!("-n {host} link set {cable} up"))?;
            }
        }
        Ok(())
    }

    /// Pull a host's plugs.
    pub(crate) fn cut_off(&self, host: usize) {
        for cable in ["cable", "second"] {
            ip(&format!("-n {} link set {cable} down", self.names[host])).unwrap();
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in self.names.iter().chain([&self.switch]) {
            // Those that could not be made are not there to be removed.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

fn ip(words: &str) -> Result<(), String> {
    let said = |why: &str| format!("`ip {words}`: {}", why.trim());
    match Command::new("ip").args(words.split_whitespace()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(said(&String::from_utf8_lossy(&output.stderr))),
        Err(error) => Err(said(&error.to_string())),
    }
}
