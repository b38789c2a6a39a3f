//! ThreadSanitizer as an onlooker: where its library is in the process, kernels are compiled so
//! that it sees what they do, and it reports loads and stores that no barrier, flag or launch puts
//! in order. So it finds what memory that is ordered as the processor orders it hides.
//!
//! It sees nothing of what happens outside of kernels. Whatever is launched comes behind all
//! kernels that have ended by then; that is what ranks need that are threads, whose hosts meet
//! without being seen. Where streams are [`watched`], only what a device is told puts them in
//! order: what is given to a stream comes behind what was given to it before and what the host had
//! waited for, and behind records of the events that it waits for. Then copies are seen, too, and
//! of a process alone it finds what one stream does too early for another.

use std::ffi::c_void;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::ptr;
use std::sync::OnceLock;

use crate::compiler;

/// What kernels are compiled with for it.
pub(crate) const OPTIONS: [&str; 2] = ["-fsanitize=thread", "-DBRIGADE_CPU_RACES"];

/// How it looks on. By itself it also looks at where a thread's own memory of a library begins,
/// which is any kernel's, and at one place in a page takes what stands in front of it for lengths
/// of glibc 2.19's.
const HOW: &str = "ignore_noninstrumented_modules=1 history_size=1 intercept_tls_get_addr=0";

/// What a process ends with of which it has reported something.
const REPORTED: i32 = 66;

/// `apart`: only what a device is told puts streams in order.
const STREAMS_VARIABLE: &str = "BRIGADE_FAKE_CUDA_STREAMS";

/// What kernels that have ended come before.
static ENDED: u8 = 0;

type Order = unsafe extern "C" fn(*mut c_void);
type Access = unsafe extern "C" fn(*mut c_void, usize);

struct Onlooker {
    acquire: Order,
    release: Order,
    read: Access,
    write: Access,
}

/// Run tests of this program once more, by these options and beginnings of names, while
/// ThreadSanitizer looks on: what it reports of their kernels, which is nothing where all is in
/// order. `None`, and a line that says why, where it cannot look on: it takes g++ and its libtsan.
///
/// # Panics
///
/// Where those tests fail by themselves, or no test's name begins so.
pub fn races(arguments: &[&str]) -> Option<String> {
    let program = std::env::current_exe().expect("a running program has a path");
    let mut command = Command::new(program);
    command.args(arguments).args(["--test-threads", "1"]);
    let (output, said) = run(&mut command)?;
    let reports = match output.status.code() {
        Some(0) => String::new(),
        Some(REPORTED) => said.clone(),
        _ => panic!("{} of {arguments:?}:\n{said}", output.status),
    };
    // One that got another name would be looked at no more, and nobody would know.
    for name in arguments.iter().filter(|argument| !argument.starts_with("--")) {
        assert!(said.contains(&format!("\ntest {name}")), "no test begins with {name}:\n{said}");
    }
    Some(reports)
}

/// Run a program of several streams while ThreadSanitizer looks on: what it says. `None`, and a
/// line that says why, where it cannot look on.
///
/// # Panics
///
/// Where the program cannot be started.
pub fn watched(command: &mut Command) -> Option<(Output, String)> {
    run(command.env(STREAMS_VARIABLE, "apart"))
}

fn run(command: &mut Command) -> Option<(Output, String)> {
    let library = library()?;
    let options = format!("{HOW} exitcode={REPORTED}");
    command.env("LD_PRELOAD", library).env("TSAN_OPTIONS", options);
    // SAFETY: a single call of the system's.
    unsafe { command.pre_exec(keep_places) };
    let output = command.output().expect("a program that starts");
    let said = said(&output);
    if said.contains("unexpected memory mapping") {
        eprintln!("skipped: ThreadSanitizer cannot be where this system puts memory");
        return None;
    }
    Some((output, said))
}

/// It wants memory where older systems put it. Some containers forbid to ask for that.
fn keep_places() -> std::io::Result<()> {
    // SAFETY: no memory is involved.
    unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
    Ok(())
}

fn said(output: &Output) -> String {
    let texts = [&output.stdout, &output.stderr];
    texts.map(|text| String::from_utf8_lossy(text).into_owned()).concat()
}

/// The library of the compiler that compiles kernels.
fn library() -> Option<String> {
    let asked = match compiler::program() {
        _ if crate::is_off() => Err("kernels run on a device"),
        Some("g++") => {
            let output = Command::new("g++").arg("-print-file-name=libtsan.so").output();
            let name = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            Ok(name.unwrap_or_default().trim().to_owned())
        }
        _ => Err("there is no g++"),
    };
    // What is not there is told by its name alone.
    let found = asked.and_then(|name| {
        let is_there = Path::new(&name).is_absolute();
        is_there.then_some(name).ok_or("g++ has no libtsan")
    });
    found.inspect_err(|why| eprintln!("skipped: nobody looks on, for {why}")).ok()
}

/// Whether ThreadSanitizer looks on.
pub(crate) fn is_seen() -> bool {
    onlooker().is_some()
}

/// Whether only what a device is told puts streams in order.
fn are_streams_apart() -> bool {
    static APART: OnceLock<bool> = OnceLock::new();
    let is_told = || std::env::var(STREAMS_VARIABLE).is_ok_and(|how| how == "apart");
    is_seen() && *APART.get_or_init(is_told)
}

fn onlooker() -> Option<&'static Onlooker> {
    static ONLOOKER: OnceLock<Option<Onlooker>> = OnceLock::new();
    let found = || {
        let all = libloading::os::unix::Library::this();
        // SAFETY: ThreadSanitizer's interface declares them so.
        let order = |name: &[u8]| unsafe { all.get::<Order>(name) }.ok().map(|found| *found);
        // SAFETY: as above.
        let access = |name: &[u8]| unsafe { all.get::<Access>(name) }.ok().map(|found| *found);
        Some(Onlooker {
            acquire: order(b"__tsan_acquire\0")?,
            release: order(b"__tsan_release\0")?,
            read: access(b"__tsan_read_range\0")?,
            write: access(b"__tsan_write_range\0")?,
        })
    };
    ONLOOKER.get_or_init(found).as_ref()
}

/// A kernel begins: behind all that have ended, unless streams are apart.
pub(crate) fn kernel_begins() {
    if !are_streams_apart() {
        come_behind(&ENDED);
    }
}

pub(crate) fn kernel_ends() {
    if !are_streams_apart() {
        go_before(&ENDED);
    }
}

/// A stream reads memory, and writes some.
pub(crate) fn copies(source: Option<u64>, target: u64, bytes: usize) {
    let Some(onlooker) = onlooker().filter(|_| are_streams_apart()) else { return };
    if let Some(source) = source {
        // SAFETY: it takes any range, and reads nothing there.
        unsafe { (onlooker.read)(source as *mut c_void, bytes) };
    }
    // SAFETY: as above.
    unsafe { (onlooker.write)(target as *mut c_void, bytes) };
}

/// What was done before this comes before what is done behind [`come_behind`] of the same thing.
pub(crate) fn go_before<T>(thing: &T) {
    if let Some(onlooker) = onlooker() {
        // SAFETY: it takes any address, and reads nothing there.
        unsafe { (onlooker.release)(ptr::from_ref(thing).cast_mut().cast()) };
    }
}

pub(crate) fn come_behind<T>(thing: &T) {
    if let Some(onlooker) = onlooker() {
        // SAFETY: as above.
        unsafe { (onlooker.acquire)(ptr::from_ref(thing).cast_mut().cast()) };
    }
}
