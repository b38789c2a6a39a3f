//! A loaded plugin: its functions as methods, whichever version of the interface it has.

use std::cell::RefCell;
use std::ffi::{CStr, OsStr, c_char, c_int, c_ulong, c_void};
use std::ptr::null_mut;

use super::sys::{
    Code, LOG_WARN, Logger, PTR_HOST, Properties8, Properties9, Properties11, Properties12,
    REMOTE_ERROR, SUCCESS, SYSTEM_ERROR, V8, V9, V10, V11, V12,
};
use crate::{Caps, TransportError};

/// The kinds of tables, newest first.
#[derive(Clone, Copy)]
pub(super) enum Version {
    V12(&'static V12),
    V11(&'static V11),
    V10(&'static V10),
    V9(&'static V9),
    V8(&'static V8),
}

/// Do the same with a table of any version.
macro_rules! any {
    ($version:expr, $table:ident => $do:expr) => {
        match $version {
            Version::V12($table) => $do,
            Version::V11($table) => $do,
            Version::V10($table) => $do,
            Version::V9($table) => $do,
            Version::V8($table) => $do,
        }
    };
}

pub(super) use any;

/// Something of the plugin's that only it understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thing(pub(super) usize);

/// A function of the plugin that failed, or is not there.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    call: &'static str,
    code: Code,
    said: Option<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Failure { call, code, said } = self;
        match said {
            Some(said) => write!(f, "{call} gave {code}; the plugin says «{said}»"),
            None => write!(f, "{call} gave {code}"),
        }
    }
}

impl Failure {
    /// On a connection with a peer: what fails there is the connection.
    pub(super) fn on_wire(self, peer: usize) -> TransportError {
        match self.code {
            REMOTE_ERROR | SYSTEM_ERROR => TransportError::PeerGone { peer, how: self.to_string() },
            _ => TransportError::System { call: self.call, errno: 0, what: self.to_string() },
        }
    }
}

/// What is said of a device, as far as we use it.
#[derive(Clone, Debug)]
struct Device {
    name: String,
    ptr_support: c_int,
    speed_mbit: c_int,
    latency_us: f32,
}

/// A loaded and initialised plugin, and the device of it that we use.
pub(super) struct Net {
    pub(super) version: Version,
    name: String,
    number: u8,
    pub(super) context: Thing,
    pub(super) device: c_int,
    devices: Vec<Device>,
}

thread_local! {
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What plugins log. They call it with more arguments than we can name here, so that of a format
/// we have the letters only; that is still more than a number.
extern "C" fn hear(
    level: c_int,
    _flags: c_ulong,
    _file: *const c_char,
    _line: c_int,
    format: *const c_char,
) {
    if level == LOG_WARN && !format.is_null() {
        // SAFETY: a format ends with a zero.
        let text = unsafe { CStr::from_ptr(format) }.to_string_lossy().trim().to_owned();
        // In a thread that is ending there is nobody to be told.
        let _kept = SAID.try_with(|said| *said.borrow_mut() = Some(text));
    }
}

fn logger() -> Logger {
    let ours: extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char) = hear;
    // SAFETY: on the systems that we run on (x86-64 and AArch64 Linux) arguments that have names
    // travel alike whether others follow them or not, and the caller removes them.
    unsafe { std::mem::transmute::<*const (), Logger>(ours as *const ()) }
}

/// The outcome of a function; `None`: the table does not have it.
pub(super) fn outcome(call: &'static str, code: Option<Code>) -> Result<(), Failure> {
    let said = SAID.try_with(|said| said.borrow_mut().take()).ok().flatten();
    match code {
        Some(SUCCESS) => Ok(()),
        Some(code) => Err(Failure { call, code, said }),
        None => Err(Failure { call, code: -1, said: Some("it has no such function".into()) }),
    }
}

/// What was put into a place, if it was anything.
pub(super) fn given(place: *mut c_void) -> Option<Thing> {
    (!place.is_null()).then_some(Thing(place as usize))
}

impl Net {
    /// Load a file. The outer error: it is no plugin; the inner one: a plugin that cannot be used.
    pub(super) fn open(file: &OsStr, name: &str) -> Result<Result<Net, String>, libloading::Error> {
        // SAFETY: the user asks for this library, whose initialisers run as in NCCL's process.
        let library = unsafe { libloading::Library::new(file) }?;
        macro_rules! find {
            ($($kind:ident = $number:literal $symbol:literal;)*) => {
                $(
                    // SAFETY: a symbol of this name is a table of this version, and the library is
                    // never unloaded once one was found.
                    if let Ok(table) = unsafe { library.get::<*const $kind>($symbol) } {
                        // SAFETY: the symbol's address is that of the table, which is not written.
                        let table = unsafe { &*(*table) };
                        std::mem::forget(library);
                        return Ok(Net::start(Version::$kind(table), $number, name));
                    }
                )*
            };
        }
        find! {
            V12 = 12 b"ncclNetPlugin_v12\0";
            V11 = 11 b"ncclNetPlugin_v11\0";
            V10 = 10 b"ncclNetPlugin_v10\0";
            V9 = 9 b"ncclNetPlugin_v9\0";
            V8 = 8 b"ncclNetPlugin_v8\0";
        }
        Ok(Err("it has no ncclNetPlugin_v8 to _v12".into()))
    }

    fn start(version: Version, number: u8, name: &str) -> Result<Net, String> {
        let table_name = any!(version, table => table.name);
        let own_name = if table_name.is_null() {
            name.to_owned()
        } else {
            // SAFETY: the name of a table ends with a zero.
            unsafe { CStr::from_ptr(table_name) }.to_string_lossy().into_owned()
        };
        let (context, devices) = (Thing(0), Vec::new());
        let mut net = Net { version, name: own_name, number, context, device: 0, devices };
        net.init().map_err(|failure| failure.to_string())?;
        let count = net.count().map_err(|failure| failure.to_string())?;
        for device in 0..count {
            let found = net.properties(device).map_err(|failure| failure.to_string())?;
            net.devices.push(found);
        }
        let usable = |it: &(usize, &Device)| it.1.ptr_support & PTR_HOST != 0;
        let all = net.devices.iter().enumerate().filter(usable);
        let Some((fastest, _)) = all.rev().max_by_key(|(_, device)| device.speed_mbit) else {
            return Err(format!("none of its {count} devices takes memory of the host"));
        };
        net.device = fastest as c_int;
        Ok(net)
    }

    fn init(&mut self) -> Result<(), Failure> {
        let (log, mut context, mut config) = (Some(logger()), null_mut(), -1);
        // SAFETY: the arguments are those of each version's init: places that can be written, a
        // logger that lives for ever, and no profiler.
        let code = unsafe {
            match self.version {
                Version::V12(it) => {
                    it.init.map(|init| init(&mut context, 1, &mut config, log, null_mut()))
                }
                Version::V11(it) => {
                    it.init.map(|init| init(&mut context, 1, &mut config, log, null_mut()))
                }
                Version::V10(it) => it.init.map(|init| init(log, null_mut())),
                Version::V9(it) => it.init.map(|init| init(log)),
                Version::V8(it) => it.init.map(|init| init(log)),
            }
        };
        self.context = Thing(context as usize);
        outcome("init", code)
    }

    fn count(&self) -> Result<c_int, Failure> {
        let mut count = 0;
        // SAFETY: a place for the number.
        let code = any!(self.version, it => it.devices.map(|ask| unsafe { ask(&mut count) }));
        outcome("devices", code)?;
        Ok(count.clamp(0, 1024))
    }

    fn properties(&self, device: c_int) -> Result<Device, Failure> {
        macro_rules! ask {
            ($table:ident, $kind:ty, $first:ident => $properties:expr) => {{
                let mut place = std::mem::MaybeUninit::<$kind>::zeroed();
                // SAFETY: a place for the properties of this version.
                let code = $table.properties.map(|ask| unsafe { ask(device, place.as_mut_ptr()) });
                outcome("getProperties", code)?;
                // SAFETY: zeros are properties too: numbers, and pointers that may be null.
                let $first = unsafe { place.assume_init() };
                let it = $properties;
                (it.name, it.ptr_support, it.speed, it.latency)
            }};
        }
        let (name, ptr_support, speed_mbit, latency_us) = match self.version {
            Version::V12(it) => ask!(it, Properties12, all => all.first),
            Version::V11(it) => ask!(it, Properties11, all => all.first),
            Version::V10(it) => ask!(it, Properties9<4>, all => all),
            Version::V9(it) => ask!(it, Properties9<4>, all => all),
            Version::V8(it) => ask!(it, Properties8, all => all),
        };
        let name = if name.is_null() {
            format!("device {device}")
        } else {
            // SAFETY: the name of a device ends with a zero.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        };
        Ok(Device { name, ptr_support, speed_mbit, latency_us })
    }

    /// The network's name, which all ranks must have.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Lines for people.
    pub(super) fn describe(&self) -> Vec<String> {
        let Net { name, number, .. } = self;
        let about = format!("{name}, version {number} of the interface, {}", self.devices.len());
        let mut lines = vec![format!("{about} devices")];
        for (index, device) in self.devices.iter().enumerate() {
            let Device { name, ptr_support, speed_mbit, latency_us } = device;
            let host = if ptr_support & PTR_HOST != 0 { "" } else { ", no memory of the host" };
            let used = if index as c_int == self.device { " (used)" } else { "" };
            lines.push(format!("{name}: {speed_mbit} Mbit/s, {latency_us} us{host}{used}"));
        }
        lines
    }

    /// What its wires are good for, with numbers that make sense whatever the plugin says.
    pub(super) fn caps(&self) -> Caps {
        let device = &self.devices[self.device as usize];
        let latency_us = f64::from(device.latency_us);
        let latency_us = if (0.1..1e5).contains(&latency_us) { latency_us } else { 20.0 };
        let mbit = f64::from(device.speed_mbit.clamp(10, 10_000_000));
        Caps { latency_s: latency_us * 1e-6, byte_s: 8e-6 / mbit }
    }
}

/// A function that has given nothing although it says that all is well.
pub(super) fn nothing(call: &'static str) -> Failure {
    Failure { call, code: SUCCESS, said: Some("it gave nothing".into()) }
}

#[cfg(test)]
impl Net {
    /// A table that was never initialised.
    pub(super) fn of(table: &'static V8) -> Net {
        let (context, devices) = (Thing(0), Vec::new());
        let (version, name) = (Version::V8(table), "trial".to_owned());
        Net { version, name, number: 8, context, device: 0, devices }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Late;

    impl Drop for Late {
        fn drop(&mut self) {
            hear(LOG_WARN, 0, std::ptr::null(), 0, c"late".as_ptr());
            assert!(outcome("late", Some(SUCCESS)).is_ok());
        }
    }

    thread_local! {
        static FIRST: Late = const { Late };
        static LAST: Late = const { Late };
    }

    /// Whatever a thread's own values are dropped in the order of. A panic there ends the process.
    #[test]
    fn plugins_may_log_in_threads_that_are_ending() {
        let thread = std::thread::spawn(|| {
            FIRST.with(|_| ());
            hear(LOG_WARN, 0, std::ptr::null(), 0, c"early".as_ptr());
            let failure = outcome("early", Some(SYSTEM_ERROR)).expect_err("it failed");
            assert_eq!(failure.said.as_deref(), Some("early"));
            LAST.with(|_| ());
        });
        thread.join().expect("no panic");
    }
}
