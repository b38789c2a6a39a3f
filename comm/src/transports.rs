//! The one table of transports: nowhere else in this crate is one named.
//!
//! Each member of a group is served by the first transport that reaches it, judged from the two
//! ranks' cards. Shared memory reaches ranks on the same boot of a kernel, in the same network
//! namespace (that is where its sockets have their names), of the same user. So containers with
//! networks of their own are hosts of their own, and TCP joins them, even on one machine; how
//! eagerly a rank waits depends on the machine alone, whose cores they share.

use std::net::IpAddr;
use std::sync::Arc;

use brigade_transports::loopback;
use brigade_transports::plugin::{PREFIX, Plugin};
use brigade_transports::rdma::{self, Rdma};
use brigade_transports::shm::Shm;
use brigade_transports::tcp::{self, Tcp};
use brigade_transports::{Transport, TransportError};

use crate::slip::is_near;
use crate::{Error, RdmaSettings, Settings};

/// Names that may be asked for, best first; `auto` means all that the machine has. A network plugin
/// of NCCL is asked for as `plugin:NAME` or `plugin:PATH`, and never chosen by itself.
pub const NAMES: [&str; 3] = ["shm", "rdma", "tcp"];

/// The transports that `settings` ask for, best first.
///
/// # Errors
///
/// [`Error::Invalid`] for a name that is none, with the names that are; for one that cannot
/// encrypt, if that is asked for; or a setting of RDMA that is out of its bounds.
pub fn transports(settings: &Settings) -> Result<Vec<Arc<dyn Transport>>, Error> {
    let asked = settings.transport.trim();
    let names: Vec<&str> = match asked {
        "" | "auto" => {
            let mut names = NAMES.to_vec();
            // Machines without devices are the rule, and need no warning; soft devices are slower
            // than TCP, and only used when they are asked for.
            // They do not encrypt either.
            let has_cards = !settings.encrypt && rdma(settings)?.has_hardware();
            names.retain(|name| *name != "rdma" || has_cards);
            names
        }
        _ => asked.split(',').map(str::trim).collect(),
    };
    let transports = names.into_iter().map(|name| one(name, settings));
    let transports = transports.collect::<Result<Vec<_>, _>>()?;
    refuse_open(settings, &transports)?;
    Ok(transports)
}

/// Refuse names that none has, also where a rank is alone and asks nobody.
///
/// # Errors
///
/// [`Error::Invalid`] for a name that is none, with the names that are.
pub fn refuse_unknown(settings: &Settings) -> Result<(), Error> {
    let is_known = |name: &str| {
        let is_plugin = name.strip_prefix(PREFIX).is_some_and(|wanted| !wanted.is_empty());
        is_plugin || ["", "auto", "loopback"].contains(&name) || NAMES.contains(&name)
    };
    let mut names = settings.transport.split(',').map(str::trim);
    names.find(|name| !is_known(name)).map_or(Ok(()), |name| Err(unknown(name)))
}

/// Refuse what carries bytes over a network as they are, if the settings want them encrypted.
///
/// # Errors
///
/// [`Error::Invalid`] with the name of the first that does.
pub(crate) fn refuse_open(
    settings: &Settings,
    transports: &[Arc<dyn Transport>],
) -> Result<(), Error> {
    let mut open = transports.iter().filter(|it| settings.encrypt && it.sends_in_the_open());
    open.next().map_or(Ok(()), |transport| {
        let name = transport.name();
        Err(Error::invalid(format!(
            "BRIGADE_ENCRYPT is set, and {name} does not encrypt: take shm and tcp, as auto does"
        )))
    })
}

fn unknown(name: &str) -> Error {
    if name == "auto" {
        let names = NAMES.join(", ");
        return Error::invalid(format!("auto stands alone; what is tried in turn is of {names}"));
    }
    let meant = NAMES.into_iter().chain(["auto", "loopback"]).find(|it| is_near(it, name));
    let meant = meant.map_or(String::new(), |meant| format!("; did you mean {meant}?"));
    Error::invalid(format!(
        "no transport is named {name:?}; there are auto, {}, {PREFIX}NAME_OR_PATH, and loopback \
         for threads of one process (BRIGADE_TRANSPORT){meant}",
        NAMES.join(", ")
    ))
}

/// The transports for so many threads of this process, which may also talk in memory.
///
/// # Errors
///
/// As for [`transports`].
pub fn transports_in_process(
    ranks: usize,
    settings: &Settings,
) -> Result<Vec<Arc<dyn Transport>>, Error> {
    if settings.transport != "loopback" {
        return transports(settings);
    }
    Ok(vec![Arc::new(loopback::World::new(ranks).clock(loopback::Clock::Real).transport())])
}

/// The addresses of this host that an interface setting admits, the fastest first.
pub(crate) fn addresses(interface: &str) -> Result<Vec<IpAddr>, TransportError> {
    let tcp = Tcp::new(tcp::Settings { interface: Some(interface.into()), ..Default::default() });
    Ok(tcp.interfaces()?.into_iter().map(|interface| interface.address).collect())
}

/// What a transport that can be used would use of this machine, for a person to read: a line each.
pub fn details(name: &str, settings: &Settings) -> Vec<String> {
    match name {
        "rdma" => rdma(settings).map(|it| it.describe().unwrap_or_default()).unwrap_or_default(),
        _ => match name.strip_prefix(PREFIX) {
            Some(wanted) => plugin(wanted, settings).describe().unwrap_or_default(),
            None => Vec::new(),
        },
    }
}

fn one(name: &str, settings: &Settings) -> Result<Arc<dyn Transport>, Error> {
    match name {
        "shm" => Ok(Arc::new(Shm::new())),
        "tcp" => Ok(Arc::new(Tcp::new(tcp(settings)))),
        "rdma" => Ok(Arc::new(rdma(settings)?)),
        "loopback" => Err(Error::invalid(
            "loopback stands alone, and joins ranks that are threads of one process (in a program \
             those of Communicator::local_world); processes have shm, tcp and rdma",
        )),
        _ => match name.strip_prefix(PREFIX).filter(|wanted| !wanted.is_empty()) {
            Some(wanted) => Ok(Arc::new(plugin(wanted, settings))),
            None => Err(unknown(name)),
        },
    }
}

fn tcp(settings: &Settings) -> tcp::Settings {
    tcp::Settings {
        sockets_per_peer: settings.sockets,
        interface: settings.interface.clone(),
        ports: settings.ports.map(|(first, last)| first..=last),
        encrypt: settings.encrypt,
        silence: settings.silence,
        ..tcp::Settings::default()
    }
}

/// A network plugin of NCCL; its ranks meet over one socket of TCP.
fn plugin(wanted: &str, settings: &Settings) -> Plugin {
    Plugin::new(wanted, tcp::Settings { sockets_per_peer: 1, ..tcp(settings) })
}

fn rdma(settings: &Settings) -> Result<Rdma, Error> {
    let RdmaSettings {
        devices,
        queue_pairs,
        gid_index,
        service_level,
        traffic_class,
        timeout,
        retries,
        reconnect,
        cache_bytes,
    } = settings.rdma.clone();
    settings.rdma.check()?;
    Ok(Rdma::new(rdma::Settings {
        devices,
        cache_bytes,
        queue_pairs: queue_pairs.into(),
        gid_index,
        service_level,
        traffic_class,
        timeout,
        retries,
        reconnect: reconnect.min(settings.timeout / 2),
        interface: settings.interface.clone(),
        ports: settings.ports.map(|(first, last)| first..=last),
        silence: settings.silence,
        ..rdma::Settings::default()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_their_bounds_are_an_error_and_no_panic() {
        for (rdma, wrong) in [
            (RdmaSettings { queue_pairs: 9, ..RdmaSettings::default() }, "queue_pairs is 9"),
            (RdmaSettings { service_level: 16, ..RdmaSettings::default() }, "service_level is 16"),
            (RdmaSettings { timeout: 0, ..RdmaSettings::default() }, "timeout is 0"),
            (RdmaSettings { retries: 7, ..RdmaSettings::default() }, "retries is 7"),
        ] {
            for transport in ["rdma", "auto"] {
                let settings = Settings {
                    transport: transport.into(),
                    rdma: rdma.clone(),
                    ..Settings::default()
                };
                let error = transports(&settings).map(drop).unwrap_err().to_string();
                assert!(error.contains(wrong), "{error}");
            }
        }
    }

    #[test]
    fn a_name_with_one_slip_is_recognised_and_another_is_not() {
        let said = |name: &str| {
            let settings = Settings { transport: name.into(), ..Settings::default() };
            transports(&settings).map(drop).unwrap_err().to_string()
        };
        for (typed, meant) in [
            ("tpc", "tcp"),
            ("tc", "tcp"),
            ("TCP", "tcp"),
            ("tcpp", "tcp"),
            ("rmda", "rdma"),
            ("smh", "shm"),
            ("loopbak", "loopback"),
            ("aut", "auto"),
        ] {
            let said = said(typed);
            assert!(said.ends_with(&format!("did you mean {meant}?")), "{said}");
            assert!(said.contains("BRIGADE_TRANSPORT"), "{said}");
        }
        for typed in ["udp", "nope", "plugin:", "pct"] {
            let said = said(typed);
            assert!(said.ends_with("(BRIGADE_TRANSPORT)"), "{said}");
        }
    }

    #[test]
    fn what_cannot_encrypt_is_refused_or_left_out() {
        let settings = |transport: &str| Settings {
            transport: transport.into(),
            encrypt: true,
            ..Settings::default()
        };
        for wanted in ["rdma", "shm, rdma ,tcp", "plugin:socket,tcp"] {
            let error = transports(&settings(wanted)).map(drop).unwrap_err().to_string();
            assert!(error.contains("does not encrypt"), "{error}");
        }
        for wanted in ["auto", "shm,tcp"] {
            let names = transports(&settings(wanted)).unwrap();
            assert_eq!(names.iter().map(|it| it.name()).collect::<Vec<_>>(), ["shm", "tcp"]);
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_transport() {
        let (ours, theirs) = (RdmaSettings::default(), rdma::Settings::default());
        assert_eq!(usize::from(ours.queue_pairs), theirs.queue_pairs);
        assert_eq!((ours.devices, ours.gid_index), (theirs.devices, theirs.gid_index));
        assert_eq!((ours.timeout, ours.retries), (theirs.timeout, theirs.retries));
        assert_eq!(ours.reconnect, theirs.reconnect);
        assert_eq!(ours.service_level, theirs.service_level);
        assert_eq!(ours.traffic_class, theirs.traffic_class);
        assert_eq!(*crate::settings::SOCKETS.end(), u64::from(tcp::SOCKETS_MAX));
    }
}
