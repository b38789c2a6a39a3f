//! ThreadSanitizer as an onlooker: where its library is in the process, kernels are compiled so
//! that it sees what they do, and it reports loads and stores that no barrier, flag or launch puts
//! in order. So it finds what memory that is ordered as the processor orders it hides.
//!
//! It sees nothing of what happens outside of kernels. Whatever is launched comes behind all
//! kernels that have ended by then.

use std::ffi::c_void;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::ptr;
use std::sync::OnceLock;

use crate::compiler;

/// What kernels are compiled with for it.
pub(crate) const OPTIONS: [&str; 2] = ["-fsanitize=thread", "-DBRIGADE_CPU_RACES"];

/// What a process ends with of which it has reported something.
const REPORTED: i32 = 66;

type Order = unsafe extern "C" fn(*mut c_void);

struct Onlooker {
    acquire: Order,
    release: Order,
}

/// Run tests of this program once more, by these options and beginnings of names, while
/// ThreadSanitizer looks on: what it reports of their kernels, which is nothing where all is in
/// order. `None`, and a line that says why, where it cannot look on: it takes g++ and its libtsan.
///
/// # Panics
///
/// Where those tests fail by themselves, or no test's name begins so.
pub fn races(arguments: &[&str]) -> Option<String> {
    let library = library()?;
    let program = std::env::current_exe().expect("a running program has a path");
    let options = format!("ignore_noninstrumented_modules=1 history_size=1 exitcode={REPORTED}");
    let mut command = Command::new(program);
    command.args(arguments).args(["--test-threads", "1"]);
    command.env("LD_PRELOAD", library).env("TSAN_OPTIONS", options);
    // SAFETY: a single call of the system's.
    unsafe { command.pre_exec(keep_places) };
    let output = command.output().expect("this program again");
    let said = said(&output);
    if said.contains("unexpected memory mapping") {
        eprintln!("skipped: ThreadSanitizer cannot be where this system puts memory");
        return None;
    }
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

fn onlooker() -> Option<&'static Onlooker> {
    static ONLOOKER: OnceLock<Option<Onlooker>> = OnceLock::new();
    let found = || {
        let all = libloading::os::unix::Library::this();
        // SAFETY: ThreadSanitizer's interface declares both so.
        let order = |name: &[u8]| unsafe { all.get::<Order>(name) }.map(|found| *found);
        let (acquire, release) = (order(b"__tsan_acquire\0"), order(b"__tsan_release\0"));
        Some(Onlooker { acquire: acquire.ok()?, release: release.ok()? })
    };
    ONLOOKER.get_or_init(found).as_ref()
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
