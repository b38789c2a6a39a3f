//! What this machine offers tcp: addresses, identity, and rough costs.

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;

use super::Settings;
use super::address::{Filter, Interface, interfaces};
use super::card::{ADDRESSES_MAX, Card, fitting_name};
use crate::{Caps, TransportError, Unavailable, opened};

/// Costs between two processes of one machine: measured, two cores that share a cache.
const NEAR: (f64, f64) = (4.5e-6, 1.0 / 4.5e9);
/// Costs between machines: a quiet switched network, and the speed to assume when none is known.
const FAR_LATENCY_S: f64 = 25e-6;
const FAR_SPEED_MBIT: u32 = 10_000;

/// The costs of a wire, near or far.
pub(super) fn caps(is_near: bool, speed_mbit: Option<u32>) -> Caps {
    let speed_mbit = speed_mbit.unwrap_or(FAR_SPEED_MBIT);
    let far = (FAR_LATENCY_S, 8.0 / (f64::from(speed_mbit) * 1e6));
    let (latency_s, byte_s) = if is_near { NEAR } else { far };
    Caps { latency_s, byte_s }
}

pub(super) fn fastest_mbit(interfaces: &[Interface]) -> Option<u32> {
    interfaces.iter().filter_map(|interface| interface.speed_mbit).max()
}

/// The interfaces that the settings admit; at least one.
pub(super) fn usable_interfaces(settings: &Settings) -> Result<Vec<Interface>, TransportError> {
    let unavailable = |why: String, next_step: &str| {
        let next_step = next_step.into();
        TransportError::from(Unavailable { transport: "tcp", why, next_step })
    };
    let filter = match settings.interface.as_deref().map(Filter::parse) {
        None => Filter::default(),
        Some(Ok(filter)) => filter,
        Some(Err(why)) => return Err(unavailable(why, "correct the interface setting")),
    };
    let found = interfaces(&filter)?;
    if !found.is_empty() {
        return Ok(found);
    }
    let mut names: Vec<String> =
        interfaces(&Filter::default())?.into_iter().map(|interface| interface.name).collect();
    names.dedup();
    let text = settings.interface.as_deref().unwrap_or("");
    let why = format!("the interface setting `{text}` matches none of {}", names.join(", "));
    Err(unavailable(why, "name an interface, an address or a network of this machine"))
}

/// Our card.
pub(super) fn card(
    interfaces: &[Interface],
    port4: u16,
    port6: u16,
) -> Result<Card, TransportError> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for interface in interfaces {
        // Bridges and one-cable interfaces repeat addresses; once is enough.
        if addresses.len() < ADDRESSES_MAX && !addresses.contains(&interface.address) {
            addresses.push(interface.address);
        }
    }
    let name = opened(|| std::fs::read_to_string("/proc/sys/kernel/hostname"));
    let name = name.unwrap_or_default();
    let (host, netns) = (host_id()?, netns()?);
    Ok(Card { id: random()?, host, netns, port4, port6, name: fitting_name(&name), addresses })
}

/// Which boot of which machine this is; containers of one machine agree. Where the kernel does
/// not tell we are nobody's neighbour, which costs speed and nothing else.
fn host_id() -> Result<[u8; 16], TransportError> {
    let text = opened(|| std::fs::read_to_string("/proc/sys/kernel/random/boot_id"));
    let text = text.unwrap_or_default();
    match u128::from_str_radix(&text.trim().replace('-', ""), 16) {
        Ok(id) => Ok(id.to_le_bytes()),
        Err(_) => random(),
    }
}

/// Which network namespace the calling thread is in.
fn netns() -> Result<u64, TransportError> {
    match std::fs::metadata("/proc/thread-self/ns/net") {
        Ok(file) => Ok(file.ino()),
        Err(_) => random().map(u64::from_le_bytes),
    }
}

fn random<const N: usize>() -> Result<[u8; N], TransportError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| TransportError::System {
        call: "getrandom",
        errno: error.raw_os_error().unwrap_or(0),
        what: "drawing an id".into(),
    })?;
    Ok(bytes)
}
