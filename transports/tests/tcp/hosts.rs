//! Ranks on two hosts: network namespaces joined by a cable. Needs root and iproute2, and is
//! skipped with a sentence where they are missing.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::rank::{Rank, introduce};

/// Two namespaces with a cable between them; removed when dropped.
struct Hosts {
    names: [String; 2],
}

impl Hosts {
    /// Both have the addresses 10.77.0.x, fd77::x and, on a bridge of their own, 172.17.0.1.
    fn new(tag: &str) -> Option<Hosts> {
        let names = ["a", "b"].map(|end| format!("brg-{}-{tag}{end}", std::process::id()));
        if let Err(why) = ip(&format!("netns add {}", names[0])) {
            println!("skipped: cannot make network namespaces here: {why}");
            return None;
        }
        let hosts = Hosts { names };
        let [a, b] = &hosts.names;
        let mut commands = vec![
            format!("netns add {b}"),
            format!("-n {a} link add cable type veth peer name cable netns {b}"),
        ];
        for (index, name) in hosts.names.iter().enumerate() {
            let own = index + 1;
            commands.extend([
                format!("-n {name} addr add 10.77.0.{own}/24 dev cable"),
                format!("-n {name} addr add fd77::{own}/64 dev cable nodad"),
                // The kernel's own link-local address is not to be used for the first second.
                format!("-n {name} addr add fe80::77:{own}/64 dev cable nodad"),
                format!("-n {name} link add docker0 type veth peer name docker1"),
                format!("-n {name} addr add 172.17.0.1/16 dev docker0"),
                format!("-n {name} link set docker1 up"),
                format!("-n {name} link set docker0 up"),
                format!("-n {name} link set lo up"),
                format!("-n {name} link set cable up"),
            ]);
        }
        for command in &commands {
            if let Err(why) = ip(command) {
                println!("skipped: `ip {command}` does not work here: {why}");
                return None;
            }
        }
        Some(hosts)
    }

    /// A rank on each host.
    fn ranks(&self, part: &str, interface: &str) -> [Rank; 2] {
        std::array::from_fn(|me| {
            Rank::start(&["ip", "netns", "exec", &self.names[me]], me, part, interface)
        })
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            // The second may never have been made.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

fn ip(words: &str) -> Result<(), String> {
    match Command::new("ip").args(words.split_whitespace()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().into()),
        Err(error) => Err(error.to_string()),
    }
}

/// Exchange bytes between two hosts; the address that was picked begins with `expected`.
fn check(tag: &str, interface: &str, expected: &str) {
    let Some(hosts) = Hosts::new(tag) else { return };
    let mut ranks = hosts.ranks("exchange", interface);
    introduce(&mut ranks);
    // Whichever rank came first has dialled.
    let mut routes = ranks.each_ref().map(|rank| rank.hear("route")).to_vec();
    routes.retain(|route| route != "none");
    assert_eq!(routes.len(), 1, "{routes:?}");
    assert!(routes[0].starts_with(expected), "{routes:?}");
    assert!(routes[0].contains(" 4 "), "four sockets between hosts: {routes:?}");
    ranks[0].hear("done");
    ranks[1].hear("done");
}

#[test]
fn two_hosts_find_the_cable_and_not_the_bridge() {
    check("x", "", "10.77.0.");
}

#[test]
fn two_hosts_speak_ipv6_when_told() {
    check("y", "fd77::/16", "fd77::");
    check("z", "fe80::/10", "fe80::");
}

#[test]
fn a_host_that_falls_silent_shows_to_an_idle_peer() {
    let Some(hosts) = Hosts::new("s") else { return };
    let mut ranks = hosts.ranks("idle", "cable");
    introduce(&mut ranks);
    ranks[0].hear("linked");
    ranks[1].hear("linked");
    ip(&format!("-n {} link set cable down", hosts.names[1])).unwrap();
    let cut = Instant::now();
    // One second of silence, two probes a second apart, and some.
    let gone = ranks[0].hear("gone");
    assert!(cut.elapsed() < Duration::from_secs(8), "{:?}", cut.elapsed());
    assert!(gone.starts_with('1'), "{gone}");
}
