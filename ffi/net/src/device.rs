//! Which ways there are, as devices: a transport each.

use std::ffi::{CString, c_int};
use std::sync::{Arc, LazyLock};

use brigade_comm::Settings;
use brigade_comm::transports::{refuse_unknown, transports};
use brigade_transports::{Caps, Transport};

use crate::fault::{Fault, Outcome};

/// What NCCL would do better itself, or what would load us again, is no device.
const USABLE: [&str; 2] = ["rdma", "tcp"];

/// A transport that this machine can use.
pub(crate) struct Device {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) settings: Settings,
    pub(crate) name: CString,
    pub(crate) caps: Caps,
}

static DEVICES: LazyLock<Result<Vec<Device>, String>> = LazyLock::new(find);

/// All devices, in the order that `BRIGADE_TRANSPORT` gives. Looked for once.
pub(crate) fn all() -> Outcome<&'static [Device]> {
    match &*DEVICES {
        Ok(devices) => Ok(devices),
        Err(why) => Err(Fault::system(why.as_str())),
    }
}

/// The device with this number.
pub(crate) fn of(number: c_int) -> Outcome<&'static Device> {
    let devices = all()?;
    usize::try_from(number).ok().and_then(|number| devices.get(number)).ok_or_else(|| {
        Fault::argument(format!("device {number} of {}; they count from 0", devices.len()))
    })
}

fn find() -> Result<Vec<Device>, String> {
    let mut settings = Settings::from_env().map_err(|error| error.to_string())?;
    refuse_unknown(&settings).map_err(|error| error.to_string())?;
    let asked: Vec<&str> = settings.transport.split(',').map(str::trim).collect();
    let kept: Vec<&str> = asked.into_iter().filter(|name| USABLE.contains(name)).collect();
    settings.transport = if kept.is_empty() { "auto".into() } else { kept.join(",") };
    let found = transports(&settings).map_err(|error| error.to_string())?;
    let (mut devices, mut refused) = (Vec::new(), Vec::new());
    for transport in found.into_iter().filter(|it| USABLE.contains(&it.name())) {
        match transport.probe() {
            Ok(caps) => {
                let name = CString::new(format!("brigade-{}", transport.name()));
                let name = name.expect("names of transports have no zeros");
                devices.push(Device { transport, settings: settings.clone(), name, caps });
            }
            Err(missing) => refused.push(missing.to_string()),
        }
    }
    if devices.is_empty() {
        return Err(format!("no transport can be used: {}", refused.join("; ")));
    }
    Ok(devices)
}
